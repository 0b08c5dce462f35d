//! An epoll instance that another one watches.

use libc::{c_int, epoll_event};

use crate::epoll::Epoll;
use crate::real_libc;
use crate::watched_connection::{ONESHOT, READABLE_EVENTS, epoll_token};

/// An epoll instance that another one watches. A thread that sleeps in the outer instance is also a sleeper of the
/// inner one: its connections ask their peers for wake bytes.
pub(crate) struct NestedEpoll {
    pub(crate) fd: c_int,
    epoll: &'static Epoll,
    epoll_generation: u32,
    requested_events: u32,
    program_data: u64,
    /// True for a one-shot watch that has reported.
    has_oneshot_fired: bool,
}

impl NestedEpoll {
    pub(crate) fn new(fd: c_int, epoll: &'static Epoll, event: epoll_event) -> Self {
        Self {
            fd,
            epoll,
            epoll_generation: epoll.generation(),
            requested_events: event.events,
            program_data: event.u64,
            has_oneshot_fired: false,
        }
    }

    /// Tells the kernel to watch the instance for the outer instance `outer`.
    pub(crate) fn update_kernel_watch(&self, outer: c_int, op: c_int) -> c_int {
        real_libc::control_epoll(
            outer,
            op,
            self.fd,
            self.requested_events,
            epoll_token(self.fd),
        )
    }

    /// Returns the inner instance, unless it was closed.
    pub(crate) fn epoll_if_open(&self) -> Option<&'static Epoll> {
        self.epoll
            .has_generation(self.epoll_generation)
            .then_some(self.epoll)
    }

    /// Begins `count` sleeps of threads in the outer instance. Returns true if a connection is ready already.
    pub(crate) fn begin_sleeps(&self, count: u32) -> bool {
        let begin = |epoll: &Epoll| (0..count).fold(false, |ready, _| epoll.begin_sleep() | ready);
        self.epoll_if_open().is_some_and(begin)
    }

    pub(crate) fn end_sleeps(&self, count: u32) {
        if let Some(epoll) = self.epoll_if_open() {
            (0..count).for_each(|_| epoll.end_sleep());
        }
    }

    pub(crate) fn watches_rdma_connection(&self) -> bool {
        self.epoll_if_open()
            .is_some_and(Epoll::watches_rdma_connection)
    }

    pub(crate) fn waits_for_room(&self) -> bool {
        self.epoll_if_open().is_some_and(Epoll::waits_for_room)
    }

    /// Returns true if an event must be reported that the kernel does not know.
    pub(crate) fn is_ready(&self) -> bool {
        self.requested_events & READABLE_EVENTS != 0
            && !self.has_oneshot_fired
            && self
                .epoll_if_open()
                .is_some_and(Epoll::has_ready_connection)
    }

    /// Returns the event to report after the kernel found the instance readable, which may be by wake bytes alone.
    pub(crate) fn translate_kernel_event(&mut self, kernel: u32) -> Option<epoll_event> {
        let epoll = self.epoll_if_open()?;
        epoll.take_wake_bytes();
        let is_ready = self.is_ready() || real_libc::poll_one(self.fd, libc::POLLIN, 0).0 > 0;
        is_ready.then(|| self.mark_reported_and_make_event(kernel))
    }

    pub(crate) fn mark_reported_and_make_event(&mut self, events: u32) -> epoll_event {
        self.has_oneshot_fired = self.requested_events & ONESHOT != 0;
        epoll_event {
            events: events & self.requested_events,
            u64: self.program_data,
        }
    }
}
