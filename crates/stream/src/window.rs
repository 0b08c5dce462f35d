//! Flow control without I/O: the number of messages that may be in flight, and the credits in each
//! message.
//!
//! Two counters limit a sender: the free slots of its own send queue, and the peer's receives that are
//! known to be posted (*credits*). The immediate of each message is the number of receives that were
//! posted again since the last message. If a side sends too few messages, an empty message (a *pure
//! acknowledgement*) carries the credits. Three WRs of each queue are reserved for pure acknowledgements.
//!
//! Source: `brpc:src/brpc/rdma/rdma_endpoint.cpp`.

/// Number of WRs of each queue that are reserved for pure acknowledgements.
pub const RESERVED_ACK_WRS: u16 = 3;
/// Number of bytes after which a message is solicited, so that the receiver starts early during a long
/// write.
const MAX_UNSOLICITED_BYTES: usize = 1 << 20;

/// Bit of the `wr_id` of a pure acknowledgement. The other bits are the number of earlier messages with
/// payload that its completion completes.
const ACK_WR_ID_BIT: u64 = 1 << 32;

/// The windows of both directions, as one side knows them.
#[derive(Debug, Clone)]
pub struct Window {
    /// Maximum numbers of messages in flight from this side, and from the peer.
    max_in_flight_to_peer: u16,
    max_in_flight_from_peer: u16,
    /// Free slots of the send queue, at most `max_in_flight_to_peer`.
    free_send_slots: u16,
    /// The peer's receives that are known to be posted, at most `max_in_flight_to_peer`.
    send_credits: u16,
    /// Number of pure acknowledgements that may be posted.
    free_ack_wrs: u16,
    /// Number of receives that were posted again and not yet reported to the peer.
    owed_credits: u16,
    /// Number of messages after the last signaled message.
    messages_since_signaled: u16,
    /// Numbers of messages and bytes since the last solicited message.
    messages_since_solicited: u16,
    bytes_since_solicited: usize,
}

/// Flags and immediate of a message to post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessagePostParams {
    /// Immediate of the message, which carries credits.
    pub credits_imm: u32,
    /// `wr_id` of a signaled message, to be passed to [`Window::process_completion_and_count_messages`] on completion;
    /// `None` for an unsignaled message.
    pub signaled_wr_id: Option<u64>,
    /// True if the message must cause a solicited event at the peer.
    pub solicited: bool,
}

/// Error: the peer gives more credits than it has received messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the peer gives {given_credits} credits, of which at most {missing_credits} can be outstanding"
)]
pub struct TooManyCredits {
    /// Number of credits in the immediate.
    pub given_credits: u32,
    /// Number of the peer's receives that are not known to be posted: the maximum number of credits that it may give.
    pub missing_credits: u16,
}

impl Window {
    /// Creates the windows between queues of the given sizes, which both hellos contain; each size is at
    /// least 16.
    pub fn new(own_sq: u16, own_rq: u16, peer_sq: u16, peer_rq: u16) -> Self {
        let local = own_sq.min(peer_rq).saturating_sub(RESERVED_ACK_WRS).max(1);
        let remote = own_rq.min(peer_sq).saturating_sub(RESERVED_ACK_WRS).max(1);
        Self {
            max_in_flight_to_peer: local,
            max_in_flight_from_peer: remote,
            free_send_slots: local,
            send_credits: local,
            free_ack_wrs: RESERVED_ACK_WRS,
            owed_credits: 0,
            messages_since_signaled: 0,
            messages_since_solicited: 0,
            bytes_since_solicited: 0,
        }
    }

    /// Returns the number of messages that may be sent now.
    pub fn sendable_messages(&self) -> usize {
        self.free_send_slots.min(self.send_credits).into()
    }

    /// Returns true if a writer that found no room should try again, because an eighth of the window is
    /// free.
    pub fn has_room_for_waiting_writer(&self) -> bool {
        self.sendable_messages() >= usize::from(self.max_in_flight_to_peer / 8).max(1)
    }

    /// Returns true if this side's send queue limits sending, and not the peer. The caller must then wait
    /// for the next completion of a send.
    pub fn is_limited_by_send_queue(&self) -> bool {
        self.free_send_slots == 0 || (self.free_ack_wrs == 0 && self.owes_ack())
    }

    /// Counts a message with payload and returns its flags, or `None` without [room](Self::sendable_messages).
    /// `last` is true for the last message of a write.
    pub fn try_count_message(&mut self, bytes: usize, last: bool) -> Option<MessagePostParams> {
        if self.sendable_messages() == 0 {
            return None;
        }
        self.free_send_slots -= 1;
        self.send_credits -= 1;
        self.messages_since_signaled += 1;
        self.messages_since_solicited += 1;
        self.bytes_since_solicited += bytes;
        let imm = std::mem::take(&mut self.owed_credits);
        let solicited = last
            || self.sendable_messages() == 0
            || self.messages_since_solicited > self.max_in_flight_to_peer / 4
            || imm > self.max_in_flight_from_peer / 4
            || self.bytes_since_solicited > MAX_UNSOLICITED_BYTES;
        if solicited {
            (self.messages_since_solicited, self.bytes_since_solicited) = (0, 0);
        }
        let signaled = self.messages_since_signaled >= (self.max_in_flight_to_peer / 4).max(1);
        Some(MessagePostParams {
            credits_imm: imm.into(),
            signaled_wr_id: signaled
                .then(|| std::mem::take(&mut self.messages_since_signaled).into()),
            solicited,
        })
    }

    /// Returns true if the peer lacks so many credits that it may have to stop sending.
    fn owes_ack(&self) -> bool {
        self.owed_credits > self.max_in_flight_from_peer / 2
    }

    /// Counts a pure acknowledgement and returns its flags and immediate, if one is due and may be posted.
    pub fn count_ack_if_due(&mut self) -> Option<MessagePostParams> {
        if !self.owes_ack() {
            return None;
        }
        self.try_count_ack()
    }

    /// Counts a pure acknowledgement, due or not, and returns its flags. Its completion means that the
    /// peer has received all earlier messages. Returns `None` while three pure acknowledgements are in
    /// flight.
    pub fn try_count_ack(&mut self) -> Option<MessagePostParams> {
        self.free_ack_wrs = self.free_ack_wrs.checked_sub(1)?;
        Some(MessagePostParams {
            credits_imm: std::mem::take(&mut self.owed_credits).into(),
            signaled_wr_id: Some(
                ACK_WR_ID_BIT | u64::from(std::mem::take(&mut self.messages_since_signaled)),
            ),
            solicited: true,
        })
    }

    /// Processes the `wr_id` of a completed send. Returns the number of messages with payload that this
    /// completion completes.
    pub fn process_completion_and_count_messages(&mut self, wr_id: u64) -> u16 {
        if wr_id & ACK_WR_ID_BIT != 0 {
            self.free_ack_wrs = (self.free_ack_wrs + 1).min(RESERVED_ACK_WRS);
        }
        let count = u16::try_from(wr_id & !ACK_WR_ID_BIT).unwrap_or(u16::MAX);
        let count = count.min(self.max_in_flight_to_peer - self.free_send_slots);
        self.free_send_slots += count;
        count
    }

    /// Processes the immediate of a received message, which carries credits.
    ///
    /// # Errors
    /// Returns an error if the immediate gives more credits than are outstanding.
    pub fn receive_credits(&mut self, imm: u32) -> Result<(), TooManyCredits> {
        let missing = self.max_in_flight_to_peer - self.send_credits;
        match u16::try_from(imm) {
            Ok(given) if given <= missing => {
                self.send_credits += given;
                Ok(())
            }
            _ => Err(TooManyCredits {
                given_credits: imm,
                missing_credits: missing,
            }),
        }
    }

    /// Adds reposted receives to the credits that are owed to the peer. Only receives of messages with payload count.
    pub fn count_reposted_receives(&mut self, count: u16) {
        self.owed_credits = self
            .owed_credits
            .saturating_add(count)
            .min(self.max_in_flight_from_peer);
    }

    /// Returns the number of messages with payload that have not completed.
    pub fn in_flight_messages(&self) -> u16 {
        self.max_in_flight_to_peer - self.free_send_slots
    }

    /// Returns true if every posted message has completed, including acknowledgements.
    pub fn is_idle(&self) -> bool {
        self.free_send_slots == self.max_in_flight_to_peer && self.free_ack_wrs == RESERVED_ACK_WRS
    }
}

#[cfg(test)]
mod tests;
