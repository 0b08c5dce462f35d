//! How many messages may be under way in each direction; pure.
//!
//! A message is sent from one of [`MAX_UNCONSUMED_MESSAGES`] fixed buffers, which is free again once the peer says that
//! it has consumed the message. Each message says how many its sender has consumed so far. Where a side has no message
//! to send it says so by an acknowledgement, a WRITE of no bytes with that count as its immediate.

/// Messages that a side may have sent and the peer not yet consumed.
pub const MAX_UNCONSUMED_MESSAGES: u32 = 64;

/// The windows of a connection, as one side sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnectionWindows {
    sent_messages: u32,
    /// Of those, the peer says that it has consumed so many.
    messages_consumed_by_peer: u32,
    received_messages: u32,
    /// Of those, the peer has been told of so many.
    messages_acknowledged_to_peer: u32,
}

impl ConnectionWindows {
    /// Returns true if a message may be sent.
    pub fn has_room(&self) -> bool {
        self.sent_messages
            .wrapping_sub(self.messages_consumed_by_peer)
            < MAX_UNCONSUMED_MESSAGES
    }

    /// A message is sent: the buffer to send it from, and the count to put into it.
    pub fn take_send_buffer_and_received_count(&mut self) -> (u32, u32) {
        let buffer = self.sent_messages % MAX_UNCONSUMED_MESSAGES;
        self.sent_messages = self.sent_messages.wrapping_add(1);
        self.messages_acknowledged_to_peer = self.received_messages;
        (buffer, self.received_messages)
    }

    /// A message has come, and was consumed.
    pub fn count_received_message(&mut self) {
        self.received_messages = self.received_messages.wrapping_add(1);
    }

    /// The peer says how many messages it has consumed. False if it cannot have: the peer breaks the protocol.
    pub fn apply_acknowledgement_if_possible(&mut self, consumed: u32) -> bool {
        let more = consumed.wrapping_sub(self.messages_consumed_by_peer);
        let possible = more
            <= self
                .sent_messages
                .wrapping_sub(self.messages_consumed_by_peer);
        if possible {
            self.messages_consumed_by_peer = consumed;
        }
        possible
    }

    /// The immediate of an acknowledgement, if one is due: half of the peer's window is used up.
    pub fn take_due_acknowledgement(&mut self) -> Option<u32> {
        let due = self
            .received_messages
            .wrapping_sub(self.messages_acknowledged_to_peer)
            >= MAX_UNCONSUMED_MESSAGES / 2;
        if due {
            self.messages_acknowledged_to_peer = self.received_messages;
        }
        due.then_some(self.received_messages)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Two sides send as they like: neither overwrites a buffer whose message the other has not consumed, and
        /// neither is stuck once all has been consumed.
        #[test]
        fn buffers_are_free_when_they_are_used_again(turns in prop::collection::vec(any::<(bool, bool)>(), 0..600)) {
            let mut sides = [ConnectionWindows::default(), ConnectionWindows::default()];
            // Messages, by their buffer, and acknowledgements travel on one queue pair: none overtakes another.
            let mut wires: [VecDeque<(Option<u32>, u32)>; 2] = Default::default();
            let deliver = |to: usize, sides: &mut [ConnectionWindows; 2], wires: &mut [VecDeque<(Option<u32>, u32)>; 2]| {
                let Some((buffer, count)) = wires[1 - to].pop_front() else { return };
                assert!(sides[to].apply_acknowledgement_if_possible(count));
                if buffer.is_some() {
                    sides[to].count_received_message();
                    wires[to].extend(sides[to].take_due_acknowledgement().map(|count| (None, count)));
                }
            };
            for (side, sends) in turns {
                let side = usize::from(side);
                if sends && sides[side].has_room() {
                    let (buffer, count) = sides[side].take_send_buffer_and_received_count();
                    prop_assert!(wires[side].iter().all(|&(used, _)| used != Some(buffer)));
                    wires[side].push_back((Some(buffer), count));
                } else {
                    deliver(side, &mut sides, &mut wires);
                }
            }
            while wires.iter().any(|wire| !wire.is_empty()) {
                deliver(0, &mut sides, &mut wires);
                deliver(1, &mut sides, &mut wires);
            }
            prop_assert!(sides[0].has_room() && sides[1].has_room());
        }
    }

    #[test]
    fn a_peer_cannot_consume_what_was_not_sent() {
        let mut window = ConnectionWindows::default();
        window.take_send_buffer_and_received_count();
        assert!(!window.apply_acknowledgement_if_possible(2));
        assert!(window.apply_acknowledgement_if_possible(1));
        assert!(
            !window.apply_acknowledgement_if_possible(0),
            "counts only grow"
        );
    }
}
