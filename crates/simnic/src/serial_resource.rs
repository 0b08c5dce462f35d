//! Resources that serve requests one after the other.

use crate::event_queue::Ps;

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
