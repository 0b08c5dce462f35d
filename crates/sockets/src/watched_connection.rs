//! A connection that an epoll instance watches, and the events to report of it.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use libc::{
    EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLPRI, EPOLLRDBAND,
    EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM, c_int, epoll_event,
};

use crate::conn::{Conn, Phase};
use crate::real_libc;
use crate::receiving::Readiness;

pub(crate) const READABLE_EVENTS: u32 = (EPOLLIN | EPOLLRDNORM).cast_unsigned();
pub(crate) const WRITABLE_EVENTS: u32 = (EPOLLOUT | EPOLLWRNORM).cast_unsigned();
pub(crate) const ONESHOT: u32 = EPOLLONESHOT.cast_unsigned();
const EDGE_TRIGGERED: u32 = EPOLLET.cast_unsigned();
const ALWAYS_REPORTED_EVENTS: u32 = (EPOLLERR | EPOLLHUP).cast_unsigned();
/// Urgent data, which only the kernel has.
const URGENT: u32 = (EPOLLPRI | EPOLLRDBAND).cast_unsigned();
const HANGUP_EVENTS: u32 = (EPOLLERR | EPOLLHUP | EPOLLRDHUP).cast_unsigned();

/// A watched connection.
pub(crate) struct WatchedConnection {
    pub(crate) fd: c_int,
    pub(crate) conn: &'static Conn,
    pub(crate) conn_generation: u32,
    pub(crate) requested_events: u32,
    pub(crate) program_data: u64,
    /// The events that the kernel was told to watch.
    pub(crate) kernel_events: u32,
    /// True for a one-shot watch that has reported.
    pub(crate) has_oneshot_fired: bool,
    /// True while the connection counts this instance as a sleeper until data arrive.
    pub(crate) sleeps_for_data: bool,
    /// Number of bytes received when `EPOLLIN` was last reported; `None` before the first report.
    pub(crate) received_bytes_at_last_report: Option<u64>,
    /// Number of sleeps of the instance since the last event.
    pub(crate) sleeps_without_event: u32,
}

/// Returns the upper half of tokens, which no pointer of a program and no small number has.
fn epoll_token_mark() -> u64 {
    static MARK: OnceLock<u64> = OnceLock::new();
    *MARK.get_or_init(|| {
        use std::hash::{BuildHasher, Hasher};
        let random = std::collections::hash_map::RandomState::new()
            .build_hasher()
            .finish();
        (0x8f00_0000 | random & 0xff_ffff) << 32
    })
}

/// Returns the token of a descriptor, with which the kernel reports its events.
pub(crate) fn epoll_token(fd: c_int) -> u64 {
    epoll_token_mark() | u64::from(fd.unsigned_abs())
}

/// Returns the descriptor of a token; `None` for the data of a program.
pub(crate) fn fd_of_token(data: u64) -> Option<c_int> {
    let is_token = data & 0xffff_ffff_0000_0000 == epoll_token_mark();
    if is_token {
        c_int::try_from(data & 0xffff_ffff).ok()
    } else {
        None
    }
}

impl WatchedConnection {
    /// Returns true if the kernel alone knows the readiness, or the connection was closed.
    pub(crate) fn is_plain(&self) -> bool {
        self.conn.is_plain_tcp() || self.is_closed()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.conn.generation() != self.conn_generation
            || self.conn.descriptor_refs().load(Ordering::Relaxed) == 0
    }

    /// Asks the peer for wake bytes on what the program waits for. Returns true if an event is ready already.
    pub(crate) fn request_wake_bytes(&mut self) -> bool {
        if self.has_oneshot_fired || self.is_closed() {
            return false;
        }
        let (data, room) = (
            self.requested_events & READABLE_EVENTS != 0,
            self.requested_events & WRITABLE_EVENTS != 0,
        );
        if data && !self.sleeps_for_data {
            // A connection on TCP counts its sleepers, too: it may change to RDMA during the sleep.
            self.sleeps_for_data = true;
            self.conn.begin_data_sleep();
        }
        if self.conn.is_plain_tcp() {
            return false;
        }
        self.conn.request_wake_bytes(data, room);
        self.events_to_report(0).0 != 0
    }

    /// Asks for wake bytes in place of the threads that already sleep. If a sleeper must examine the connection at once,
    /// the kernel is told to watch for room, which a TCP socket has: that wakes a sleeper.
    pub(crate) fn request_wake_bytes_for_sleeper(&mut self) {
        let is_ready = self.request_wake_bytes();
        // A sleeper that waits for room also checks whether the peer still exists.
        if !self.conn.is_plain_tcp() && (is_ready || self.requested_events & WRITABLE_EVENTS != 0) {
            self.kernel_events |= EPOLLOUT.cast_unsigned();
        }
    }

    /// Parks the connection, whose peer has the request for a wake byte. Returns false, and changes nothing, if this
    /// instance must look at the connection at each wait.
    pub(crate) fn try_enter_parking(&mut self) -> bool {
        self.conn.parked_watches.add();
        let may_park = !self.is_closed() && (self.has_oneshot_fired || self.may_rely_on_kernel());
        if !may_park {
            self.conn.parked_watches.remove();
        }
        may_park
    }

    /// Returns true if the next event makes the descriptor ready for the kernel.
    fn may_rely_on_kernel(&self) -> bool {
        if self.kernel_events != self.kernel_interest() {
            return false;
        }
        match self.conn.phase() {
            Phase::Tcp | Phase::NotStarted => return true,
            Phase::QpConnected => {}
            Phase::WaitingForPeer | Phase::RdmaByOtherProcess => return false,
        }
        let (ready, is) = self.events_to_report(0);
        let waits_for_room = self.requested_events & WRITABLE_EVENTS != 0
            && !is.writable
            && !is.must_ask_kernel_for_writable;
        // Between hosts, requests for wake bytes are used up, and repeated for a peer that may have vanished.
        ready == 0 && !waits_for_room && !self.conn.is_between_hosts()
    }

    /// Ends what [`try_enter_parking`](Self::try_enter_parking) began. `sleepers` threads sleep in the instance.
    pub(crate) fn leave_parking(&mut self, sleepers: u32) {
        self.conn.parked_watches.remove();
        self.sleeps_without_event = 0;
        if sleepers == 0 {
            self.end_data_sleep();
        } else {
            self.request_wake_byte_for_other_sleepers();
        }
    }

    /// Asks for a further wake byte, if threads still sleep in the instance after one has woken.
    pub(crate) fn request_wake_byte_for_other_sleepers(&self) {
        if self.sleeps_for_data && !self.conn.is_plain_tcp() {
            self.conn.request_next_wake_byte();
        }
    }

    pub(crate) fn end_data_sleep(&mut self) {
        if std::mem::take(&mut self.sleeps_for_data) {
            self.conn.end_data_sleep();
        }
    }

    /// Returns the events that the kernel must watch.
    pub(crate) fn kernel_interest(&self) -> u32 {
        let waits_for_room = self.requested_events & WRITABLE_EVENTS != 0;
        if self.has_oneshot_fired || !waits_for_room || self.conn.is_plain_tcp() {
            self.kernel_interest_at(&Readiness::default())
        } else {
            self.kernel_interest_at(&self.readiness())
        }
    }

    /// Returns the events that the kernel must watch, given the readiness. While data goes by RDMA, the kernel does not
    /// watch for room.
    pub(crate) fn kernel_interest_at(&self, is: &Readiness) -> u32 {
        let waits_for_room = self.requested_events & WRITABLE_EVENTS != 0;
        if self.has_oneshot_fired {
            ONESHOT
        } else if !waits_for_room || is.must_ask_kernel_for_writable || self.conn.is_plain_tcp() {
            self.requested_events
        } else {
            // A sender that waits for room is woken by a readable byte.
            self.requested_events & !WRITABLE_EVENTS | READABLE_EVENTS
        }
    }

    /// Returns the readiness, as far as the program asks for it. An instance looks at many connections at each wait.
    fn readiness(&self) -> Readiness {
        if self.requested_events & WRITABLE_EVENTS != 0 {
            self.conn.readiness()
        } else {
            self.conn.readiness_for_reading()
        }
    }

    pub(crate) fn update_kernel_watch(&self, epoll: c_int, op: c_int) -> c_int {
        real_libc::control_epoll(epoll, op, self.fd, self.kernel_events, epoll_token(self.fd))
    }

    /// Returns `EPOLLERR` if the socket has failed, and this library keeps the error for the program.
    pub(crate) fn kept_error_event(&self, kernel: u32) -> u32 {
        if kernel & HANGUP_EVENTS != 0 && self.conn.has_kept_error() {
            EPOLLERR.cast_unsigned()
        } else {
            0
        }
    }

    /// Returns the events to report, given those of the kernel, and the readiness from which they follow.
    pub(crate) fn events_to_report(&self, kernel: u32) -> (u32, Readiness) {
        if self.has_oneshot_fired {
            return (0, Readiness::default());
        }
        let is = self.readiness();
        let is_edge = self.requested_events & EDGE_TRIGGERED != 0;
        let mut ready = kernel & (HANGUP_EVENTS | URGENT) | self.kept_error_event(kernel);
        let is_new = !is_edge || self.received_bytes_at_last_report != Some(is.arrived_rdma_bytes);
        if is.readable && is_new {
            ready |= READABLE_EVENTS;
        }
        if kernel & READABLE_EVENTS != 0
            && (is.must_ask_kernel_for_readable && !is.readable
                || kernel & HANGUP_EVENTS != 0
                || self.conn.kernel_stream_has_byte_end_or_error(self.fd))
        {
            ready |= READABLE_EVENTS;
        }
        if is.must_ask_kernel_for_writable {
            ready |= kernel & WRITABLE_EVENTS;
        } else if is.writable
            && (!is_edge
                || self.conn.send_found_no_room.load(Ordering::SeqCst)
                || self.received_bytes_at_last_report.is_none())
        {
            ready |= WRITABLE_EVENTS;
        }
        (ready & (self.requested_events | ALWAYS_REPORTED_EVENTS), is)
    }

    /// Marks the events as reported. `seen` is the readiness from which they follow: later data are a new edge.
    pub(crate) fn mark_reported_and_make_event(
        &mut self,
        epoll: c_int,
        ready: u32,
        seen: Readiness,
    ) -> epoll_event {
        self.sleeps_without_event = 0;
        if ready & READABLE_EVENTS != 0 && seen.readable {
            self.received_bytes_at_last_report = Some(seen.arrived_rdma_bytes);
        } else {
            // `u64::MAX` means that no data was reported: no connection receives that many bytes.
            self.received_bytes_at_last_report.get_or_insert(u64::MAX);
        }
        if ready & WRITABLE_EVENTS != 0 {
            self.conn.send_found_no_room.store(false, Ordering::SeqCst);
        }
        if self.requested_events & ONESHOT != 0 {
            self.has_oneshot_fired = true;
            self.end_data_sleep();
            self.kernel_events = ONESHOT;
            self.update_kernel_watch(epoll, libc::EPOLL_CTL_MOD);
        }
        epoll_event {
            events: ready,
            u64: self.program_data,
        }
    }
}
