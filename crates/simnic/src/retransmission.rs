//! Messages that a reliable requester sends again: those that were lost, that found no RECV, or whose response was
//! lost. Also those whose response has arrived before that of an earlier message.

use std::ops::Range;

use crate::event_queue::Ps;

/// The number of a message among the messages of a reliable queue pair. It starts at the queue pair's PSN. A message
/// has one number for all of its packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SequenceNumber(u16);

impl SequenceNumber {
    /// Returns the number at which a queue pair starts that has this PSN.
    pub(crate) fn of_psn(psn: u32) -> Self {
        Self((psn & 0xffff) as u16)
    }

    /// Returns the number, and changes it to the following one.
    #[inline(always)]
    pub(crate) fn take_next(&mut self) -> Self {
        let taken = *self;
        self.0 = self.0.wrapping_add(1);
        taken
    }

    /// Returns true if the message was posted before another one. A send queue holds at most half of all numbers.
    pub(crate) fn is_before(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0) > u16::MAX / 2
    }
}

/// The attributes of a queue pair that limit retries (`ibv_modify_qp(3)`).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RetryAttributes {
    /// Code of the local ACK timeout; 0 stands for none.
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    /// 7 stands for no limit.
    pub(crate) rnr_retry: u8,
    /// Code of the time that requesters wait after an RNR NAK of this queue pair.
    pub(crate) min_rnr_timer: u8,
}

impl RetryAttributes {
    /// Returns the local ACK timeout; `None` if the requester waits for ever.
    pub(crate) fn ack_timeout(&self) -> Option<Ps> {
        nic_core::qp_state::ack_timeout_ns(self.timeout).map(|ns| ns * 1000)
    }

    /// Returns the time that a requester waits after an RNR NAK.
    pub(crate) fn rnr_wait(&self) -> Ps {
        nic_core::qp_state::rnr_timer_ns(self.min_rnr_timer) * 1000
    }
}

/// The reason why a requester sends messages again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryCause {
    /// No response came within the local ACK timeout.
    Timeout,
    /// The responder missed a message. Its NAK acknowledges earlier messages.
    SequenceError,
    /// The requester missed a response, and received a later one.
    MissingResponse,
    /// The responder had no RECV.
    ReceiverNotReady,
    /// A message arrived behind a gap after the requester had sent it again with the missing ones.
    Overtaken,
}

impl RetryCause {
    /// Returns true if the requester learns of the cause by a NAK of a sequence error.
    pub(crate) fn needs_nak(self) -> bool {
        matches!(self, Self::SequenceError | Self::Overtaken)
    }
}

/// The messages of a reliable requester that were sent and are neither in the network nor complete.
#[derive(Debug, Default)]
pub(crate) struct Retransmission {
    /// Messages that did not arrive or that the responder dropped, in the order in which they were posted.
    undelivered: Vec<(SequenceNumber, u32)>,
    /// Messages that the responder has executed, and whose response was lost or did not count, in the same order.
    unacknowledged: Vec<(SequenceNumber, u32)>,
    /// Messages whose response has arrived while an earlier message was sent again, in the same order. They complete
    /// after that one.
    early_acknowledged: Vec<(SequenceNumber, u32)>,
    /// Time of the next retry, and its cause.
    next_retry: Option<(Ps, RetryCause)>,
    /// Number of timeouts and of missing messages and responses since packets were acknowledged; `rnr_naks`: of RNR
    /// NAKs since then.
    pub(crate) retry_count: u32,
    pub(crate) rnr_naks: u32,
    /// True from an RNR NAK until the next retry: meanwhile the responder sends no other NAK.
    pub(crate) rnr_nak_sent: bool,
    /// A message of several packets of which the first ones arrived, with their number.
    partly_arrived: Option<(SequenceNumber, u32)>,
}

impl Retransmission {
    /// Adds a message that the responder has not executed.
    pub(crate) fn add_undelivered(&mut self, number: SequenceNumber, message: u32) {
        insert_in_order(&mut self.undelivered, number, message);
    }

    /// Adds a message that the responder has executed.
    pub(crate) fn add_unacknowledged(&mut self, number: SequenceNumber, message: u32) {
        insert_in_order(&mut self.unacknowledged, number, message);
    }

    /// Adds a message whose response has arrived before that of an earlier one.
    pub(crate) fn add_early_acknowledged(&mut self, number: SequenceNumber, message: u32) {
        insert_in_order(&mut self.early_acknowledged, number, message);
    }

    /// Removes and returns the message of this number if its response has arrived already.
    pub(crate) fn take_early_acknowledged(&mut self, number: SequenceNumber) -> Option<u32> {
        take_if_first(&mut self.early_acknowledged, number)
    }

    /// Returns true if a response has arrived before that of an earlier message.
    pub(crate) fn has_early_acknowledged(&self) -> bool {
        !self.early_acknowledged.is_empty()
    }

    /// Returns true if the message of this number is to be sent again, and is the first of its kind.
    pub(crate) fn is_first_to_resend(&self, number: SequenceNumber) -> bool {
        let lists = [&self.unacknowledged, &self.undelivered];
        let mut firsts = lists.into_iter().filter_map(|list| list.first());
        firsts.any(|(first, _)| *first == number)
    }

    /// Records that the responder has sent an RNR NAK. It discards all packets of the message.
    pub(crate) fn record_rnr_nak_sent(&mut self) {
        self.rnr_nak_sent = true;
        self.partly_arrived = None;
    }

    /// Returns true if an earlier message than this one is missing at the responder.
    pub(crate) fn has_undelivered_before(&self, number: SequenceNumber) -> bool {
        let first = self.undelivered.first();
        first.is_some_and(|(first, _)| first.is_before(number))
    }

    /// Returns true if the response of an earlier message than this one is missing at the requester.
    pub(crate) fn has_unacknowledged_before(&self, number: SequenceNumber) -> bool {
        let first = self.unacknowledged.first();
        first.is_some_and(|(first, _)| first.is_before(number))
    }

    /// Returns the time of the next retry.
    pub(crate) fn next_retry_at(&self) -> Option<Ps> {
        self.next_retry.map(|(at, _)| at)
    }

    /// Returns the first message if it is unacknowledged and has the number.
    pub(crate) fn unacknowledged_message(&self, number: SequenceNumber) -> Option<u32> {
        let &(first, message) = self.unacknowledged.first()?;
        (first == number).then_some(message)
    }

    /// Removes and returns the message of this number if it is the first of its kind.
    pub(crate) fn take_first(&mut self, number: SequenceNumber) -> Option<u32> {
        let lists = [
            &mut self.unacknowledged,
            &mut self.undelivered,
            &mut self.early_acknowledged,
        ];
        let taken = lists
            .into_iter()
            .find_map(|list| take_if_first(list, number))?;
        let empty = self.undelivered.is_empty() && self.unacknowledged.is_empty();
        if empty && !self.waits_for_receiver() {
            self.next_retry = None;
        }
        Some(taken)
    }

    /// Returns the first packet of a message that has not arrived.
    pub(crate) fn first_missing_packet(&self, number: SequenceNumber) -> u32 {
        match self.partly_arrived {
            Some((of, packets)) if of == number => packets,
            _ => 0,
        }
    }

    /// Records that of the packets of a message those before `lost` arrived.
    pub(crate) fn record_partial_arrival(
        &mut self,
        number: SequenceNumber,
        packets: Range<u32>,
        lost: u32,
    ) {
        // Behind a gap, the peer discards all packets.
        if self.has_undelivered_before(number) || self.has_unacknowledged_before(number) {
            return;
        }
        self.partly_arrived = Some((number, lost));
        if lost > packets.start {
            self.reset_retry_counts();
        }
    }

    /// Returns true if the requester waits for a receiver that was not ready. It then sends nothing.
    pub(crate) fn waits_for_receiver(&self) -> bool {
        matches!(self.next_retry, Some((_, RetryCause::ReceiverNotReady)))
    }

    /// Returns true if a message that arrives behind a gap was sent before the last retry: the gap is known, and no
    /// other retry is to come.
    pub(crate) fn was_overtaken(&self) -> bool {
        self.next_retry.is_none() && !self.rnr_nak_sent
    }

    /// Sets the time of the next retry if it is earlier than the present one. A wait for a receiver is not shortened.
    /// Returns true if the time is new.
    pub(crate) fn schedule_retry(&mut self, at: Ps, cause: RetryCause) -> bool {
        let sooner = match self.next_retry {
            _ if cause == RetryCause::ReceiverNotReady => true,
            Some((_, RetryCause::ReceiverNotReady)) => false,
            _ if self.rnr_nak_sent && cause.needs_nak() => false,
            Some((next, _)) => at < next,
            None => true,
        };
        if sooner {
            self.next_retry = Some((at, cause));
        }
        sooner
    }

    /// Returns the cause of a retry that is due, once.
    pub(crate) fn take_due_retry(&mut self, now: Ps) -> Option<RetryCause> {
        let (_, cause) = self.next_retry.take_if(|(at, _)| *at == now)?;
        Some(cause)
    }

    /// Takes all messages, also those that are not sent again.
    pub(crate) fn take_all_messages(&mut self) -> Vec<u32> {
        let early = std::mem::take(&mut self.early_acknowledged).into_iter();
        let mut all = self.take_messages_to_resend();
        all.extend(early.map(|(_, message)| message));
        all
    }

    /// Takes the messages that are sent again, in the order in which they were posted.
    pub(crate) fn take_messages_to_resend(&mut self) -> Vec<u32> {
        let mut all = std::mem::take(&mut self.unacknowledged);
        for (number, message) in self.undelivered.drain(..) {
            insert_in_order(&mut all, number, message);
        }
        self.next_retry = None;
        self.rnr_nak_sent = false;
        all.into_iter().map(|(_, message)| message).collect()
    }

    /// Records that a message has completed.
    pub(crate) fn record_completion(&mut self, number: SequenceNumber) {
        self.reset_retry_counts();
        self.partly_arrived = self.partly_arrived.filter(|(of, _)| *of != number);
    }

    fn reset_retry_counts(&mut self) {
        (self.retry_count, self.rnr_naks) = (0, 0);
    }
}

/// Removes and returns the first message if it has the number.
fn take_if_first(messages: &mut Vec<(SequenceNumber, u32)>, number: SequenceNumber) -> Option<u32> {
    let &(first, message) = messages.first()?;
    if first != number {
        return None;
    }
    messages.remove(0);
    Some(message)
}

/// Inserts a message after all that were posted before it, usually at the end.
pub(crate) fn insert_in_order(
    messages: &mut Vec<(SequenceNumber, u32)>,
    number: SequenceNumber,
    id: u32,
) {
    let before = messages.iter().rev();
    let later = before.take_while(|(other, _)| number.is_before(*other));
    let place = messages.len() - later.count();
    messages.insert(place, (number, id));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(at: u32) -> SequenceNumber {
        SequenceNumber::of_psn(at)
    }

    #[test]
    fn messages_are_taken_in_the_order_of_their_numbers_also_where_these_wrap() {
        let mut retransmission = Retransmission::default();
        for at in [0xffff, 0x1_0001, 0x1_0000] {
            retransmission.add_undelivered(number(at), at);
        }
        for at in [0xfffe, 0xfffc] {
            retransmission.add_unacknowledged(number(at), at);
        }
        assert!(retransmission.has_undelivered_before(number(0x1_0000)));
        assert!(!retransmission.has_undelivered_before(number(0xffff)));
        assert_eq!(
            retransmission.unacknowledged_message(number(0xfffc)),
            Some(0xfffc)
        );
        assert_eq!(retransmission.unacknowledged_message(number(0xfffe)), None);
        let order = [0xfffc, 0xfffe, 0xffff, 0x1_0000, 0x1_0001];
        assert_eq!(retransmission.take_messages_to_resend(), order);
        assert!(retransmission.take_messages_to_resend().is_empty());
    }

    #[test]
    fn the_earliest_retry_counts_but_a_wait_for_a_receiver_is_not_shortened() {
        let mut retransmission = Retransmission::default();
        assert!(retransmission.schedule_retry(90, RetryCause::Timeout));
        assert!(retransmission.schedule_retry(50, RetryCause::SequenceError));
        assert!(!retransmission.schedule_retry(70, RetryCause::SequenceError));
        assert_eq!(retransmission.take_due_retry(90), None);
        assert!(retransmission.schedule_retry(60, RetryCause::ReceiverNotReady));
        assert!(retransmission.waits_for_receiver());
        assert!(!retransmission.schedule_retry(10, RetryCause::SequenceError));
        assert_eq!(
            retransmission.take_due_retry(60),
            Some(RetryCause::ReceiverNotReady)
        );
        assert_eq!(retransmission.take_due_retry(60), None);
    }
}
