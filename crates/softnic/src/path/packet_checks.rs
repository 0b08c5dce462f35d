//! The time up to which all packets that arrived have been delivered to their queue pairs.
//!
//! A requester needs this time before it counts a timeout. The response may wait in a socket, because the thread that
//! delivers packets has lost its core or waits for a lock.

/// More packets than the sockets of a process hold. Packets that arrived before a check began are among the first of
/// this number that the check takes.
const MAX_WAITING_PACKETS: usize = 1 << 16;

/// The checks for packets of the thread that delivers.
#[derive(Debug, Default)]
pub(super) struct PacketChecks {
    /// Start of the check that has not found the sockets empty yet.
    check_start_ns: Option<u64>,
    /// Number of packets that this check has taken.
    taken_packet_count: usize,
}

impl PacketChecks {
    /// Records a receive that began at `now_ns` and took `packets` packets. `all_empty`: no more waited. Returns the
    /// time up to which all packets that arrived have been taken, if it is known now.
    pub(super) fn record_receive_and_get_drained_until_ns(
        &mut self,
        now_ns: u64,
        packets: usize,
        all_empty: bool,
    ) -> Option<u64> {
        if all_empty {
            *self = Self::default();
            return Some(now_ns);
        }
        let began_ns = *self.check_start_ns.get_or_insert(now_ns);
        self.taken_packet_count += packets;
        if self.taken_packet_count < MAX_WAITING_PACKETS {
            return None;
        }
        *self = Self::default();
        Some(began_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_sockets_have_been_heard_until_now() {
        let mut looks = PacketChecks::default();
        assert_eq!(
            looks.record_receive_and_get_drained_until_ns(10, 0, true),
            Some(10)
        );
        assert_eq!(
            looks.record_receive_and_get_drained_until_ns(20, 5, false),
            None
        );
        // Another socket may have packets.
        assert_eq!(
            looks.record_receive_and_get_drained_until_ns(30, 0, false),
            None
        );
        assert_eq!(
            looks.record_receive_and_get_drained_until_ns(40, 0, true),
            Some(40)
        );
    }

    #[test]
    fn sockets_that_are_never_empty_have_been_heard_until_the_look_began() {
        let mut looks = PacketChecks::default();
        assert_eq!(
            looks.record_receive_and_get_drained_until_ns(10, MAX_WAITING_PACKETS - 1, false),
            None
        );
        assert_eq!(
            looks.record_receive_and_get_drained_until_ns(20, 1, false),
            Some(10)
        );
        assert_eq!(
            looks.record_receive_and_get_drained_until_ns(30, MAX_WAITING_PACKETS - 1, false),
            None
        );
        assert_eq!(
            looks.record_receive_and_get_drained_until_ns(40, 2, false),
            Some(30)
        );
    }
}
