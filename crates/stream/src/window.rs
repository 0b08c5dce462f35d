//! Flow control: how many messages may be under way, and what each tells the peer. Pure.
//!
//! Two counters bound a sender: the free slots of its own send queue, and the receives of the peer that are known to be
//! posted (*credits*). Each message has the number of receives that were posted again since the last message as its
//! immediate. Where too few messages go back, an empty one (a *pure acknowledgement*) carries the credits; three WRs of each
//! queue are kept for those.
//!
//! Source: `brpc:src/brpc/rdma/rdma_endpoint.cpp`.

/// WRs of each queue that are kept for pure acknowledgements.
pub const RESERVED_WRS: u16 = 3;
/// Bytes after which a message is solicited, so that a receiver begins to work on a long write.
const UNSOLICITED_BYTES: usize = 1 << 20;

/// A bit of the `wr_id` of pure acknowledgements; the rest is how many messages before it they complete.
const ACK: u64 = 1 << 32;

/// Both windows of one side.
#[derive(Debug, Clone)]
pub struct Window {
    /// Messages that this side may have under way at most, and that the peer may.
    local: u16,
    remote: u16,
    /// Free slots of the send queue, of `local`.
    slots: u16,
    /// Receives of the peer that are known to be posted, of `local`.
    credits: u16,
    /// Pure acknowledgements that may be posted.
    acks: u16,
    /// Receives that were posted again, and of which the peer does not know.
    owed: u16,
    /// Messages since the last signaled one, with it.
    unsignaled: u16,
    /// Messages and bytes since the last solicited one.
    unsolicited: u16,
    unsolicited_bytes: usize,
}

/// How a message is to be posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Its immediate.
    pub imm: u32,
    /// Whether it is signaled, and the `wr_id` then: what its completion is to tell [`Window::completed`].
    pub signaled: Option<u64>,
    /// Whether its completion at the peer is solicited.
    pub solicited: bool,
}

/// The peer gives more credits than it has taken messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer gives {given} credits, and {missing} are missing")]
pub struct TooManyCredits {
    /// What the immediate says.
    pub given: u32,
    /// The most that it may say.
    pub missing: u16,
}

impl Window {
    /// The windows between queues of these sizes, as both hellos have them; 16 at least each.
    pub fn new(own_sq: u16, own_rq: u16, peer_sq: u16, peer_rq: u16) -> Self {
        let local = own_sq.min(peer_rq).saturating_sub(RESERVED_WRS).max(1);
        let remote = own_rq.min(peer_sq).saturating_sub(RESERVED_WRS).max(1);
        Self {
            local,
            remote,
            slots: local,
            credits: local,
            acks: RESERVED_WRS,
            owed: 0,
            unsignaled: 0,
            unsolicited: 0,
            unsolicited_bytes: 0,
        }
    }

    /// Messages that may be sent now.
    pub fn room(&self) -> usize {
        self.slots.min(self.credits).into()
    }

    /// Whether a writer that found no room should try again: an eighth of the window is free.
    pub fn is_wide(&self) -> bool {
        self.room() >= usize::from(self.local / 8).max(1)
    }

    /// Whether it is the send queue, and not the peer, that leaves no room: then the next completion of a send is to be
    /// waited for.
    pub fn lacks_slots(&self) -> bool {
        self.slots == 0 || (self.acks == 0 && self.owes_ack())
    }

    /// Counts a message with payload, the last of a write or not; nothing when there is no [room](Self::room).
    pub fn send(&mut self, bytes: usize, last: bool) -> Option<Mark> {
        if self.room() == 0 {
            return None;
        }
        self.slots -= 1;
        self.credits -= 1;
        self.unsignaled += 1;
        self.unsolicited += 1;
        self.unsolicited_bytes += bytes;
        let imm = std::mem::take(&mut self.owed);
        let solicited = last
            || self.room() == 0
            || self.unsolicited > self.local / 4
            || imm > self.remote / 4
            || self.unsolicited_bytes > UNSOLICITED_BYTES;
        if solicited {
            (self.unsolicited, self.unsolicited_bytes) = (0, 0);
        }
        let signaled = self.unsignaled >= (self.local / 4).max(1);
        Some(Mark {
            imm: imm.into(),
            signaled: signaled.then(|| std::mem::take(&mut self.unsignaled).into()),
            solicited,
        })
    }

    /// Whether the peer lacks so many credits that it may stop for them.
    fn owes_ack(&self) -> bool {
        self.owed > self.remote / 2
    }

    /// Counts a pure acknowledgement if one is due and may be posted.
    pub fn ack(&mut self) -> Option<Mark> {
        if !self.owes_ack() {
            return None;
        }
        self.force_ack()
    }

    /// Counts a pure acknowledgement, due or not: its completion says that the peer has received everything before it.
    /// Nothing when three are under way.
    pub fn force_ack(&mut self) -> Option<Mark> {
        self.acks = self.acks.checked_sub(1)?;
        Some(Mark {
            imm: std::mem::take(&mut self.owed).into(),
            signaled: Some(ACK | u64::from(std::mem::take(&mut self.unsignaled))),
            solicited: true,
        })
    }

    /// Takes the `wr_id` of a send that has completed. Returns how many messages with payload it completes.
    pub fn completed(&mut self, wr_id: u64) -> u16 {
        if wr_id & ACK != 0 {
            self.acks = (self.acks + 1).min(RESERVED_WRS);
        }
        let count = u16::try_from(wr_id & !ACK).unwrap_or(u16::MAX);
        let count = count.min(self.local - self.slots);
        self.slots += count;
        count
    }

    /// Takes the immediate of a message that has come.
    ///
    /// # Errors
    /// It gives more credits than are missing.
    pub fn received(&mut self, imm: u32) -> Result<(), TooManyCredits> {
        let missing = self.local - self.credits;
        match u16::try_from(imm) {
            Ok(given) if given <= missing => {
                self.credits += given;
                Ok(())
            }
            _ => Err(TooManyCredits {
                given: imm,
                missing,
            }),
        }
    }

    /// Counts receives that were posted again after messages with payload. Those of empty messages are not counted.
    pub fn reposted(&mut self, count: u16) {
        self.owed = self.owed.saturating_add(count).min(self.remote);
    }

    /// Messages with payload that have not completed.
    pub fn under_way(&self) -> u16 {
        self.local - self.slots
    }

    /// Whether nothing that was posted is left to complete, acknowledgements included.
    pub fn is_idle(&self) -> bool {
        self.slots == self.local && self.acks == RESERVED_WRS
    }
}

#[cfg(test)]
mod tests;
