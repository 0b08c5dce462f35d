//! Resources that serve requests one after the other.

use crate::event_queue::Ps;

/// The times at which the first and the last packet of a message reach a point of their way. Both are the same for a
/// message of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketTimes {
    pub(crate) first: Ps,
    pub(crate) last: Ps,
}

impl PacketTimes {
    /// Returns the times of a message whose packets are all at a point at `at`.
    #[inline(always)]
    pub(crate) fn all_at(at: Ps) -> Self {
        Self {
            first: at,
            last: at,
        }
    }

    #[inline(always)]
    pub(crate) fn delayed_by(self, latency: Ps) -> Self {
        Self {
            first: self.first + latency,
            last: self.last + latency,
        }
    }

    /// Returns the times of a message that waits until `at`.
    #[inline(always)]
    pub(crate) fn not_before(self, at: Ps) -> Self {
        self.not_before_each(Self::all_at(at))
    }

    /// Returns the times of a message whose packets also wait for those of `other`.
    #[inline(always)]
    pub(crate) fn not_before_each(self, other: Self) -> Self {
        Self {
            first: self.first.max(other.first),
            last: self.last.max(other.last),
        }
    }
}

/// A resource that serves requests one after the other.
///
/// A request may come with an earlier time than its predecessor, since threads and events are slightly ahead of each
/// other. Such a request waits for the requests in front of it, but not for the difference of the times.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SerialResource {
    free_at: Ps,
    last_request_at: Ps,
}

impl SerialResource {
    /// Returns the waiting time of a request at `at`.
    fn record_request_and_get_wait(&mut self, at: Ps) -> Ps {
        self.last_request_at = self.last_request_at.max(at);
        self.free_at.saturating_sub(self.last_request_at)
    }

    /// Returns the time at which a use would begin.
    pub(crate) fn next_start(&self, at: Ps) -> Ps {
        at + self.free_at.saturating_sub(self.last_request_at.max(at))
    }

    /// Uses the resource for `time` as soon as it is free; returns the end of the use.
    pub(crate) fn reserve_time(&mut self, at: Ps, time: Ps) -> Ps {
        let wait = self.record_request_and_get_wait(at);
        self.free_at = self.last_request_at + wait + time;
        at + wait + time
    }

    /// Uses the resource for a message that cuts through it. Of its packets, each of which takes `packet_time`, the
    /// first and the last one arrive at `arrival`. All packets take `time` together. Returns the ends of the first and
    /// of the last packet's use.
    ///
    /// If packets arrive more slowly than the resource serves them, it serves other requests in between.
    #[inline(always)]
    pub(crate) fn reserve_cut_through(
        &mut self,
        arrival: PacketTimes,
        time: Ps,
        packet_time: Ps,
    ) -> PacketTimes {
        let end = self.reserve_time(arrival.first, time);
        PacketTimes {
            first: end - time + packet_time,
            last: end.max(arrival.last + packet_time),
        }
    }

    /// Uses the resource for `time` without waiting for the end: for short packets between long ones.
    pub(crate) fn reserve_without_waiting(&mut self, at: Ps, time: Ps) {
        self.reserve_time(at, time);
    }
}

/// A cache line to which several cores add atomically.
#[derive(Debug)]
pub(crate) struct SharedCacheLine {
    /// Number of the line: its address divided by the line size.
    pub(crate) line_number: u64,
    /// Time at which the line is free.
    pub(crate) serial_access: SerialResource,
    /// Thread whose core has the line.
    pub(crate) owner_thread: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(first: Ps, last: Ps) -> PacketTimes {
        PacketTimes { first, last }
    }

    #[test]
    fn one_packet_takes_what_a_plain_use_takes() {
        let [mut plain, mut cut_through] = [SerialResource::default(); 2];
        for (at, time) in [(0, 10), (3, 5), (40, 7), (38, 2), (41, 0), (30, 9)] {
            let end = plain.reserve_time(at, time);
            let packet = cut_through.reserve_cut_through(PacketTimes::all_at(at), time, time);
            assert_eq!(packet, PacketTimes::all_at(end));
            assert_eq!(plain.next_start(at), cut_through.next_start(at));
        }
    }

    #[test]
    fn equal_stages_add_one_packet_each() {
        let mut arrival = PacketTimes::all_at(100);
        for stage in 1..=3 {
            arrival = SerialResource::default().reserve_cut_through(arrival, 80, 10);
            assert_eq!(arrival, times(100 + stage * 10, 170 + stage * 10));
        }
    }

    #[test]
    fn the_slowest_stage_decides_wherever_it_is() {
        // Sum of the packet times, and the rest of the slowest stage's time.
        for stages in [[80, 40, 20], [40, 80, 20], [20, 40, 80]] {
            let end = stages
                .iter()
                .fold(PacketTimes::all_at(0), |arrival, &time| {
                    SerialResource::default().reserve_cut_through(arrival, time, time / 10)
                });
            assert_eq!(end, times(14, 14 + 72), "{stages:?}");
        }
    }

    #[test]
    fn a_busy_resource_delays_the_first_packet() {
        let mut link = SerialResource::default();
        link.reserve_time(0, 50);
        let message = link.reserve_cut_through(times(20, 60), 40, 10);
        assert_eq!(message, times(60, 90));
    }

    #[test]
    fn slow_packets_leave_time_for_other_messages() {
        let mut link = SerialResource::default();
        let slow = link.reserve_cut_through(times(0, 190), 40, 10);
        assert_eq!(slow, times(10, 200));
        assert_eq!(link.reserve_time(0, 40), 80);
        // The link is never used for longer than all of its messages take.
        assert_eq!(link.next_start(0), 80);
    }
}
