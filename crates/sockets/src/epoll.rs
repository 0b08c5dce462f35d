//! `epoll(7)` over connections of which the kernel knows only some events.
//!
//! The kernel's instance also watches every descriptor, and wakes the thread, at the latest by a wake byte. A
//! connection is registered with a token in place of the program's data, so that its events can be recognised and
//! examined.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use libc::{
    EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP, EPOLLRDNORM,
    EPOLLWRNORM, c_int, epoll_event,
};

use crate::conn::Conn;
use crate::nic::lock;
use crate::real;
use crate::spin::Spin;
use crate::stream::Readiness;

const IN: u32 = (EPOLLIN | EPOLLRDNORM).cast_unsigned();
const OUT: u32 = (EPOLLOUT | EPOLLWRNORM).cast_unsigned();
const ONESHOT: u32 = EPOLLONESHOT.cast_unsigned();
const EDGE: u32 = EPOLLET.cast_unsigned();
const UNMASKABLE: u32 = (EPOLLERR | EPOLLHUP).cast_unsigned();
const HANGUP_EVENTS: u32 = (EPOLLERR | EPOLLHUP | EPOLLRDHUP).cast_unsigned();

/// While connections are ready, the kernel is asked for other events once in so many calls.
const CALLS_PER_KERNEL_POLL: u32 = 16;

/// The RDMA connections that an epoll instance watches.
#[derive(Default)]
pub(crate) struct Epoll {
    descriptor_refs: AtomicU32,
    calls: AtomicU32,
    watched: Mutex<Watched>,
    /// Number of watched connections.
    watched_count: AtomicUsize,
}

#[derive(Default)]
struct Watched {
    list: Vec<Watch>,
    by_fd: HashMap<c_int, usize>,
    /// Index at which the next search begins, so that each connection gets its turn.
    next_search_index: usize,
    /// Number of threads that sleep until an event occurs.
    sleepers: u32,
}

struct Watch {
    fd: c_int,
    conn: &'static Conn,
    conn_generation: u32,
    requested_events: u32,
    data: u64,
    /// The events that the kernel was told to watch.
    kernel_events: u32,
    /// True for a one-shot watch that has reported.
    has_oneshot_fired: bool,
    /// True while the connection counts this instance as a sleeper until data arrive.
    sleeps_for_data: bool,
    /// Number of bytes received when `EPOLLIN` was last reported; `None` before the first report.
    received_bytes_at_last_report: Option<u64>,
}

/// Returns the upper half of tokens, which no pointer of a program and no small number has.
fn token_mark() -> u64 {
    static MARK: OnceLock<u64> = OnceLock::new();
    *MARK.get_or_init(|| {
        use std::hash::{BuildHasher, Hasher};
        let random = std::collections::hash_map::RandomState::new()
            .build_hasher()
            .finish();
        (0x8f00_0000 | random & 0xff_ffff) << 32
    })
}

fn token(fd: c_int) -> u64 {
    token_mark() | u64::from(fd.unsigned_abs())
}

fn fd_of(data: u64) -> Option<c_int> {
    let is_token = data & 0xffff_ffff_0000_0000 == token_mark();
    if is_token {
        c_int::try_from(data & 0xffff_ffff).ok()
    } else {
        None
    }
}

impl Epoll {
    pub(crate) fn reset(&self) {
        self.descriptor_refs.store(1, Ordering::Relaxed);
        let mut watched = lock(&self.watched);
        watched.list.iter_mut().for_each(Watch::end_data_sleep);
        *watched = Watched::default();
        self.watched_count.store(0, Ordering::Relaxed);
    }

    pub(crate) fn descriptor_refs(&self) -> &AtomicU32 {
        &self.descriptor_refs
    }

    /// Returns true if a wait would find an event of a watched connection.
    pub(crate) fn has_ready_connection(&self) -> bool {
        self.watched_count.load(Ordering::Relaxed) > 0 && lock(&self.watched).any_ready()
    }

    /// Returns true if a watched connection is not plain TCP.
    pub(crate) fn watches_rdma_connection(&self) -> bool {
        self.watched_count.load(Ordering::Relaxed) > 0
            && lock(&self.watched)
                .list
                .iter()
                .any(|watch| !watch.conn.is_plain_tcp())
    }

    /// Counts a sleeping thread, and asks the peers of all connections for wake bytes. Returns true if a connection is
    /// already ready.
    pub(crate) fn begin_sleep(&self) -> bool {
        lock(&self.watched).begin_sleep()
    }

    /// Ends what [`begin_sleep`](Self::begin_sleep) began.
    pub(crate) fn end_sleep(&self) {
        lock(&self.watched).end_sleep();
    }

    /// Forgets the sleeping threads of the parent; called in a forked child.
    pub(crate) fn after_fork_in_child(&self) {
        if let Ok(mut watched) = self.watched.try_lock() {
            watched.sleepers = 0;
            for watch in &mut watched.list {
                watch.sleeps_for_data = false;
            }
        }
    }

    /// Handles `epoll_ctl(2)` for a descriptor. `conn` is its connection, if any. Returns `None` if only the kernel
    /// must handle the call.
    pub(crate) fn control(
        &self,
        epoll: c_int,
        op: c_int,
        fd: c_int,
        conn: Option<&'static Conn>,
        event: Option<epoll_event>,
    ) -> Option<c_int> {
        let mut watched = lock(&self.watched);
        let known = watched.by_fd.get(&fd).copied();
        match (op, event) {
            (libc::EPOLL_CTL_DEL, _) => {
                watched.remove(known?);
                self.watched_count
                    .store(watched.list.len(), Ordering::Relaxed);
                None
            }
            (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some(event)) => {
                let conn = conn?;
                if op == libc::EPOLL_CTL_MOD && known.is_none() {
                    return None;
                }
                let mut watch = Watch {
                    fd,
                    conn,
                    conn_generation: conn.generation(),
                    requested_events: event.events,
                    data: event.u64,
                    kernel_events: event.events,
                    has_oneshot_fired: false,
                    sleeps_for_data: false,
                    received_bytes_at_last_report: None,
                };
                watch.kernel_events = watch.kernel_interest();
                if watched.sleepers > 0 {
                    watch.request_wake_bytes_for_sleeper();
                }
                let done = watch.update_kernel(epoll, op);
                if done == 0 {
                    watched.put(watch);
                    self.watched_count
                        .store(watched.list.len(), Ordering::Relaxed);
                } else {
                    watch.end_data_sleep();
                }
                Some(done)
            }
            _ => None,
        }
    }

    /// Handles `epoll_wait(2)`; `sleep` is the kernel's function with a timeout in milliseconds or -1.
    pub(crate) fn wait(
        &self,
        epoll: c_int,
        events: &mut [epoll_event],
        deadline: Option<Instant>,
        mut sleep: impl FnMut(&mut [epoll_event], c_int) -> c_int,
    ) -> c_int {
        loop {
            if self.watched_count.load(Ordering::Relaxed) > 0 {
                let found = lock(&self.watched).collect_ready(epoll, events);
                if found > 0 {
                    return self.add_kernel_events_in_turn(epoll, events, found);
                }
                // Before sleeping, the kernel is asked once for all other events.
                let n = sleep(events, 0);
                let n = self.translate_if_any(epoll, events, n);
                if n != 0 || deadline.is_some_and(|end| Instant::now() >= end) {
                    return n;
                }
                let ready = || lock(&self.watched).any_ready();
                if Spin::decide_whether_to_spin().spin_until(ready) {
                    continue;
                }
            }
            if self.begin_sleep() {
                self.end_sleep();
                continue;
            }
            let ms = lock(&self.watched).max_sleep_ms(deadline);
            let n = sleep(events, ms);
            let woken_errno = real::errno();
            self.end_sleep();
            if n < 0 {
                real::set_errno(woken_errno);
                return n;
            }
            // Another thread may have added the first connection meanwhile, so each event may have a token.
            let n = self.translate_if_any(epoll, events, n);
            if n > 0 || deadline.is_some_and(|end| Instant::now() >= end) {
                return n;
            }
        }
    }

    /// Adds the kernel's events to those already found, once in [`CALLS_PER_KERNEL_POLL`] calls. Returns the total.
    fn add_kernel_events_in_turn(
        &self,
        epoll: c_int,
        events: &mut [epoll_event],
        found: usize,
    ) -> c_int {
        let mut total = c_int::try_from(found).unwrap_or(0);
        let is_turn = self
            .calls
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(CALLS_PER_KERNEL_POLL);
        if is_turn && let Some(rest) = events.get_mut(found..).filter(|rest| !rest.is_empty()) {
            let max = c_int::try_from(rest.len()).unwrap_or(c_int::MAX);
            // SAFETY: `rest` has room for `max` events.
            let n = unsafe { real::epoll_wait(epoll, rest.as_mut_ptr(), max, 0) };
            if n > 0 {
                total += self.translate_others(epoll, events, found, n);
            }
        }
        total
    }

    /// Translates the kernel's `n` events after the first `found`, and returns the number of further events. Events of
    /// connections that are already among the found ones are added to those.
    fn translate_others(
        &self,
        epoll: c_int,
        events: &mut [epoll_event],
        found: usize,
        n: c_int,
    ) -> c_int {
        let mut watched = lock(&self.watched);
        let mut kept = found;
        for i in found..found + usize::try_from(n).unwrap_or(0) {
            let Some(event) = events.get(i).copied() else {
                break;
            };
            let data = event.u64;
            let event = match fd_of(data) {
                None => Some(event),
                // The kernel does not report an edge again, so no event is dropped.
                Some(fd) => watched
                    .translate(epoll, fd, event.events)
                    .filter(|new| !add_to_event_of_same_data(&mut events[..found], *new)),
            };
            if let Some(event) = event {
                events[kept] = event;
                kept += 1;
            }
        }
        c_int::try_from(kept - found).unwrap_or(0)
    }

    /// Translates the kernel's `n` events into the program's, and returns their number. Returns an `n` below 1 unchanged.
    fn translate_if_any(&self, epoll: c_int, events: &mut [epoll_event], n: c_int) -> c_int {
        if n <= 0 {
            return n;
        }
        let mut watched = lock(&self.watched);
        let mut kept = 0;
        for i in 0..usize::try_from(n).unwrap_or(0).min(events.len()) {
            let event = events[i];
            let translated = match fd_of(event.u64) {
                None => Some(event),
                Some(fd) => watched.translate(epoll, fd, event.events),
            };
            if let Some(event) = translated {
                events[kept] = event;
                kept += 1;
            }
        }
        c_int::try_from(kept).unwrap_or(0)
    }
}

/// Adds the event to one of `events` with the same data. Returns false if there is none.
fn add_to_event_of_same_data(events: &mut [epoll_event], new: epoll_event) -> bool {
    let data = new.u64;
    let same = events.iter_mut().find(|old| {
        let known = old.u64;
        known == data
    });
    if let Some(old) = same {
        old.events |= new.events;
        true
    } else {
        false
    }
}

/// Longest sleep while waiting for room, before the peer is checked.
const PEER_CHECK_MS: c_int = 100;

/// Returns the remaining time in milliseconds, capped if a connection waits for room and its peer must be checked.
pub(crate) fn capped_ms(deadline: Option<Instant>, waits_for_room: bool) -> c_int {
    match remaining_ms(deadline) {
        ms if waits_for_room && !(0..PEER_CHECK_MS).contains(&ms) => PEER_CHECK_MS,
        ms => ms,
    }
}

/// Returns the remaining milliseconds, rounded up; -1 without a deadline.
pub(crate) fn remaining_ms(deadline: Option<Instant>) -> c_int {
    let Some(end) = deadline else { return -1 };
    let left = end.saturating_duration_since(Instant::now());
    c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
}

impl Watched {
    fn put(&mut self, watch: Watch) {
        match self.by_fd.get(&watch.fd).copied() {
            Some(at) => std::mem::replace(&mut self.list[at], watch).end_data_sleep(),
            None => {
                self.by_fd.insert(watch.fd, self.list.len());
                self.list.push(watch);
            }
        }
    }

    fn remove(&mut self, at: usize) {
        let mut gone = self.list.swap_remove(at);
        gone.end_data_sleep();
        self.by_fd.remove(&gone.fd);
        if let Some(moved) = self.list.get(at) {
            self.by_fd.insert(moved.fd, at);
        }
    }

    /// Collects the events of connections without asking the kernel.
    fn collect_ready(&mut self, epoll: c_int, events: &mut [epoll_event]) -> usize {
        let mut found = 0;
        let mut looked = 0;
        while looked < self.list.len() && found < events.len() {
            let at = (self.next_search_index + looked) % self.list.len();
            looked += 1;
            let watch = &mut self.list[at];
            if watch.is_closed() {
                self.remove(at);
                continue;
            }
            if watch.conn.is_plain_tcp() && watch.kernel_events == watch.kernel_interest() {
                continue;
            }
            let wanted = watch.kernel_interest();
            if watch.kernel_events != wanted {
                watch.kernel_events = wanted;
                watch.update_kernel(epoll, libc::EPOLL_CTL_MOD);
            }
            let (ready, seen) = watch.events_to_report(0);
            if ready != 0 {
                events[found] = watch.mark_reported_and_make_event(epoll, ready, seen);
                found += 1;
            }
        }
        self.next_search_index = self.next_search_index.wrapping_add(looked);
        found
    }

    fn max_sleep_ms(&self, deadline: Option<Instant>) -> c_int {
        let waits = |watch: &Watch| {
            watch.requested_events & OUT != 0
                && !watch.conn.is_plain_tcp()
                && watch.conn.is_ring_full_checking_peer()
        };
        capped_ms(deadline, self.list.iter().any(waits))
    }

    fn any_ready(&self) -> bool {
        self.list.iter().any(|watch| {
            !watch.conn.is_plain_tcp() && !watch.is_closed() && watch.events_to_report(0).0 != 0
        })
    }

    fn begin_sleep(&mut self) -> bool {
        self.sleepers += 1;
        let mut ready = false;
        for watch in &mut self.list {
            ready |= watch.request_wake_bytes();
        }
        ready
    }

    fn end_sleep(&mut self) {
        self.sleepers = self.sleepers.saturating_sub(1);
        for watch in &mut self.list {
            if self.sleepers == 0 {
                watch.end_data_sleep();
            } else if watch.sleeps_for_data && !watch.conn.is_plain_tcp() {
                watch.conn.request_next_wake_byte();
            }
        }
    }

    /// Translates one kernel event into the program's.
    fn translate(&mut self, epoll: c_int, fd: c_int, kernel: u32) -> Option<epoll_event> {
        let at = *self.by_fd.get(&fd)?;
        let watch = self.list.get_mut(at)?;
        if watch.is_closed() {
            self.remove(at);
            return None;
        }
        if watch.conn.is_plain_tcp() {
            watch.has_oneshot_fired = watch.requested_events & ONESHOT != 0;
            return Some(epoll_event {
                events: kernel,
                u64: watch.data,
            });
        }
        if kernel & IN != 0 {
            watch.conn.take_wake_bytes_unless_needed(fd);
        }
        let (ready, seen) = watch.events_to_report(kernel);
        if ready == 0 {
            // The kernel has disarmed a one-shot watch, so it is armed again.
            if watch.requested_events & ONESHOT != 0 {
                watch.kernel_events = watch.kernel_interest();
                watch.update_kernel(epoll, libc::EPOLL_CTL_MOD);
            }
            return None;
        }
        Some(watch.mark_reported_and_make_event(epoll, ready, seen))
    }
}

impl Watch {
    fn is_closed(&self) -> bool {
        self.conn.generation() != self.conn_generation
            || self.conn.descriptor_refs().load(Ordering::Relaxed) == 0
    }

    /// Asks the peer for wake bytes on what the program waits for. Returns true if an event is ready already.
    fn request_wake_bytes(&mut self) -> bool {
        if self.has_oneshot_fired || self.is_closed() {
            return false;
        }
        let (data, room) = (
            self.requested_events & IN != 0,
            self.requested_events & OUT != 0,
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
    fn request_wake_bytes_for_sleeper(&mut self) {
        let is_ready = self.request_wake_bytes();
        // A sleeper that waits for room also checks whether the peer still exists.
        if !self.conn.is_plain_tcp() && (is_ready || self.requested_events & OUT != 0) {
            self.kernel_events |= EPOLLOUT.cast_unsigned();
        }
    }

    fn end_data_sleep(&mut self) {
        if std::mem::take(&mut self.sleeps_for_data) {
            self.conn.end_data_sleep();
        }
    }

    /// Returns the events that the kernel must watch. While data goes by RDMA, the kernel does not watch for room.
    fn kernel_interest(&self) -> u32 {
        if self.has_oneshot_fired {
            return ONESHOT;
        }
        if self.conn.is_plain_tcp() || self.conn.readiness().ask_kernel_out {
            self.requested_events
        } else if self.requested_events & OUT != 0 {
            // A sender that waits for room is woken by a readable byte.
            self.requested_events & !OUT | IN
        } else {
            self.requested_events
        }
    }

    fn update_kernel(&self, epoll: c_int, op: c_int) -> c_int {
        let mut event = epoll_event {
            events: self.kernel_events,
            u64: token(self.fd),
        };
        // SAFETY: `event` is a valid event.
        unsafe { real::epoll_ctl(epoll, op, self.fd, &raw mut event) }
    }

    /// Returns the events to report, given those of the kernel, and the readiness from which they follow.
    fn events_to_report(&self, kernel: u32) -> (u32, Readiness) {
        if self.has_oneshot_fired {
            return (0, Readiness::default());
        }
        let is = self.conn.readiness();
        let is_edge = self.requested_events & EDGE != 0;
        let mut ready = kernel & HANGUP_EVENTS;
        let is_new = !is_edge || self.received_bytes_at_last_report != Some(is.arrived_rdma_bytes);
        if is.readable && is_new {
            ready |= IN;
        }
        if kernel & IN != 0
            && (is.ask_kernel_in && !is.readable
                || kernel & HANGUP_EVENTS != 0
                || self.conn.has_byte_or_end(self.fd))
        {
            ready |= IN;
        }
        if is.ask_kernel_out {
            ready |= kernel & OUT;
        } else if is.writable
            && (!is_edge
                || self.conn.send_found_no_room.load(Ordering::SeqCst)
                || self.received_bytes_at_last_report.is_none())
        {
            ready |= OUT;
        }
        (ready & (self.requested_events | UNMASKABLE), is)
    }

    /// Marks the events as reported. `seen` is the readiness from which they follow: later data are a new edge.
    fn mark_reported_and_make_event(
        &mut self,
        epoll: c_int,
        ready: u32,
        seen: Readiness,
    ) -> epoll_event {
        if ready & IN != 0 && seen.readable {
            self.received_bytes_at_last_report = Some(seen.arrived_rdma_bytes);
        } else {
            // `u64::MAX` means that no data was reported: no connection receives that many bytes.
            self.received_bytes_at_last_report.get_or_insert(u64::MAX);
        }
        if ready & OUT != 0 {
            self.conn.send_found_no_room.store(false, Ordering::SeqCst);
        }
        if self.requested_events & ONESHOT != 0 {
            self.has_oneshot_fired = true;
            self.end_data_sleep();
            self.kernel_events = ONESHOT;
            self.update_kernel(epoll, libc::EPOLL_CTL_MOD);
        }
        epoll_event {
            events: ready,
            u64: self.data,
        }
    }
}
