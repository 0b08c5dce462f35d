//! `epoll(7)` over connections of which the kernel knows only some events.
//!
//! The kernel's instance also watches every descriptor, and wakes the thread, at the latest by a wake byte. A
//! connection is registered with a token in place of the program's data, so that its events can be recognised and
//! examined.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use libc::{c_int, epoll_event};

use crate::conn::Conn;
use crate::nic::{lock, try_lock};
use crate::real_libc;
use crate::spin::Spin;
use crate::watched_connection::{
    ONESHOT, READABLE_EVENTS, WRITABLE_EVENTS, WatchedConnection, epoll_token, fd_of_token,
};
use crate::watched_connections::WatchedConnections;

/// While connections are ready, the kernel is asked for other events in place of them after so many calls.
const CALLS_PER_KERNEL_POLL: u32 = 16;

/// The RDMA connections that an epoll instance watches.
#[derive(Default)]
pub(crate) struct Epoll {
    descriptor_refs: AtomicU32,
    /// Increases with each instance for which this object is reused.
    generation: AtomicU32,
    calls_since_kernel_poll: AtomicU32,
    watched: Mutex<Watched>,
    /// Number of watched connections and epoll instances.
    watched_count: AtomicUsize,
}

#[derive(Default)]
struct Watched {
    connections: WatchedConnections,
    nested_epolls: Vec<NestedEpoll>,
    /// Index at which the next search begins, so that each connection gets its turn.
    next_search_index: usize,
    /// Number of threads that sleep until an event occurs.
    sleeper_count: u32,
}

/// The lock of the connections that an instance watches.
pub(crate) struct WatchedGuard(#[expect(dead_code, reason = "held")] MutexGuard<'static, Watched>);

/// An object of this library that a program adds to an epoll instance.
pub(crate) enum WatchedObject {
    Conn(&'static Conn),
    Epoll(&'static Epoll),
}

impl Epoll {
    pub(crate) fn reset(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.descriptor_refs.store(1, Ordering::Relaxed);
        self.release();
        *lock(&self.watched) = Watched::default();
    }

    /// Forgets the watched connections when the last descriptor of this process is closed: they are sleepers no more.
    pub(crate) fn release(&self) {
        let mut watched = lock(&self.watched);
        let mut connections = std::mem::take(&mut watched.connections);
        connections.unpark_all(0);
        let all = connections.active_mut().iter_mut();
        all.for_each(WatchedConnection::end_data_sleep);
        self.watched_count.store(watched.count(), Ordering::Relaxed);
    }

    pub(crate) fn descriptor_refs(&self) -> &AtomicU32 {
        &self.descriptor_refs
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Returns true if this is still the instance that had this generation.
    pub(crate) fn has_generation(&self, generation: u32) -> bool {
        self.generation() == generation && self.descriptor_refs.load(Ordering::Relaxed) > 0
    }

    /// Takes the wake bytes of the watched connections, except those that sleepers need.
    pub(crate) fn take_wake_bytes(&self) {
        let mut watched = lock(&self.watched);
        let sleepers = watched.sleeper_count;
        watched.connections.unpark_all(sleepers);
        let connections = watched.connections.all().iter();
        let rdma = connections.filter(|watch| !watch.is_plain());
        rdma.for_each(|watch| watch.conn.take_wake_bytes_unless_needed(watch.fd));
    }

    /// Returns true if the program waits for room on a connection whose ring is full.
    pub(crate) fn waits_for_room(&self) -> bool {
        lock(&self.watched).waits_for_room()
    }

    /// Returns true if a wait would find an event of a watched connection.
    pub(crate) fn has_ready_connection(&self) -> bool {
        self.watched_count.load(Ordering::Relaxed) > 0 && lock(&self.watched).any_ready()
    }

    /// Returns true if a watched connection is not plain TCP.
    pub(crate) fn watches_rdma_connection(&self) -> bool {
        if self.watched_count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let watched = lock(&self.watched);
        watched
            .connections
            .all()
            .iter()
            .any(|watch| !watch.is_plain())
            || watched
                .nested_epolls
                .iter()
                .any(NestedEpoll::watches_rdma_connection)
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

    /// Takes the lock of the watched connections, if it is free.
    pub(crate) fn try_lock_watched(&'static self) -> Option<WatchedGuard> {
        try_lock(&self.watched).map(WatchedGuard)
    }

    /// Forgets the sleeping threads of the parent; called in a forked child. Connections in `renewed` have new objects.
    pub(crate) fn after_fork_in_child(&self, renewed: &[(&'static Conn, &'static Conn)]) {
        let Some(mut watched) = try_lock(&self.watched) else {
            return;
        };
        watched.sleeper_count = 0;
        for watch in watched.connections.forget_sleeps() {
            let new = renewed
                .iter()
                .find(|(old, _)| std::ptr::eq(*old, watch.conn));
            if let Some((_, new)) = new {
                (watch.conn, watch.conn_generation) = (new, new.generation());
            }
        }
    }

    /// Handles `epoll_ctl(2)` for a descriptor, which is for `watched_object`. Returns `None` if only the kernel must
    /// handle the call.
    pub(crate) fn control(
        &self,
        epoll: c_int,
        op: c_int,
        fd: c_int,
        watched_object: Option<WatchedObject>,
        event: Option<epoll_event>,
    ) -> Option<c_int> {
        let mut watched = lock(&self.watched);
        match (op, event) {
            (libc::EPOLL_CTL_DEL, _) => {
                watched.remove_nested(fd);
                watched.connections.remove(fd);
                self.watched_count.store(watched.count(), Ordering::Relaxed);
                None
            }
            (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some(event)) => {
                let conn = match watched_object? {
                    WatchedObject::Conn(conn) => conn,
                    WatchedObject::Epoll(inner) if std::ptr::eq(inner, self) => return None,
                    WatchedObject::Epoll(inner) => {
                        let done = watched.control_nested(epoll, op, fd, inner, event);
                        self.watched_count.store(watched.count(), Ordering::Relaxed);
                        return Some(done);
                    }
                };
                if op == libc::EPOLL_CTL_MOD && !watched.connections.contains(fd) {
                    return None;
                }
                let mut watch = WatchedConnection {
                    fd,
                    conn,
                    conn_generation: conn.generation(),
                    requested_events: event.events,
                    program_data: event.u64,
                    kernel_events: event.events,
                    has_oneshot_fired: false,
                    sleeps_for_data: false,
                    received_bytes_at_last_report: None,
                    sleeps_without_event: 0,
                };
                watch.kernel_events = watch.kernel_interest();
                if watched.sleeper_count > 0 {
                    watch.request_wake_bytes_for_sleeper();
                }
                let done = watch.update_kernel_watch(epoll, op);
                if done == 0 {
                    watched.connections.add(watch);
                    self.watched_count.store(watched.count(), Ordering::Relaxed);
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
                let mut ask_kernel = |events: &mut [epoll_event]| {
                    self.calls_since_kernel_poll.store(0, Ordering::Relaxed);
                    let n = sleep(events, 0);
                    self.translate_kernel_events(epoll, events, n)
                };
                let calls = self.calls_since_kernel_poll.fetch_add(1, Ordering::Relaxed);
                if calls >= CALLS_PER_KERNEL_POLL {
                    let n = ask_kernel(events);
                    if n != 0 {
                        return n;
                    }
                }
                let found = lock(&self.watched).collect_ready(epoll, events);
                if found > 0 {
                    return c_int::try_from(found).unwrap_or(c_int::MAX);
                }
                // Before sleeping, the kernel is asked once for all other events.
                let n = ask_kernel(events);
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
            let ms = capped_remaining_ms(deadline, self.waits_for_room());
            let n = sleep(events, ms);
            let woken_errno = real_libc::errno();
            self.end_sleep();
            if n < 0 {
                real_libc::set_errno(woken_errno);
                return n;
            }
            // Another thread may have added the first connection meanwhile, so each event may have a token.
            let n = self.translate_kernel_events(epoll, events, n);
            if n > 0 || deadline.is_some_and(|end| Instant::now() >= end) {
                return n;
            }
        }
    }

    /// Translates the kernel's `n` events into the program's, and returns their number. Returns an `n` below 1
    /// unchanged.
    fn translate_kernel_events(&self, epoll: c_int, events: &mut [epoll_event], n: c_int) -> c_int {
        if n <= 0 {
            return n;
        }
        let mut watched = lock(&self.watched);
        let mut kept = 0;
        for i in 0..usize::try_from(n).unwrap_or(0).min(events.len()) {
            let event = events[i];
            let translated = match fd_of_token(event.u64) {
                None => Some(event),
                Some(fd) => watched.translate_kernel_event(epoll, fd, event.events),
            };
            if let Some(event) = translated {
                events[kept] = event;
                kept += 1;
            }
        }
        c_int::try_from(kept).unwrap_or(0)
    }
}

/// Longest sleep while waiting for room, before the peer is checked.
const PEER_CHECK_MS: c_int = 100;

/// Returns the remaining time in milliseconds, capped if a connection waits for room and its peer must be checked.
pub(crate) fn capped_remaining_ms(deadline: Option<Instant>, waits_for_room: bool) -> c_int {
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
    /// Handles `epoll_ctl(2)` for an instance that is watched, or is to be. Returns the kernel's result.
    fn control_nested(
        &mut self,
        epoll: c_int,
        op: c_int,
        fd: c_int,
        inner: &'static Epoll,
        event: epoll_event,
    ) -> c_int {
        let nested = NestedEpoll::new(fd, inner, event);
        let done = nested.update_kernel_watch(epoll, op);
        if done == 0 {
            self.remove_nested(fd);
            nested.begin_sleeps(self.sleeper_count);
            self.nested_epolls.push(nested);
        }
        done
    }

    fn remove_nested(&mut self, fd: c_int) {
        let sleepers = self.sleeper_count;
        self.nested_epolls.retain(|nested| {
            if nested.fd == fd {
                nested.end_sleeps(sleepers);
            }
            nested.fd != fd
        });
    }

    fn count(&self) -> usize {
        self.connections.len() + self.nested_epolls.len()
    }

    /// Collects the events of connections without asking the kernel.
    fn collect_ready(&mut self, epoll: c_int, events: &mut [epoll_event]) -> usize {
        let mut found = 0;
        let mut looked = 0;
        self.connections.unpark_changed(self.sleeper_count);
        while looked < self.connections.active_len() && found < events.len() {
            let at = (self.next_search_index + looked) % self.connections.active_len();
            looked += 1;
            let watch = &mut self.connections.active_mut()[at];
            if watch.is_closed() {
                let fd = watch.fd;
                self.connections.remove(fd);
                continue;
            }
            if watch.conn.is_plain_tcp() && watch.kernel_events == watch.kernel_interest() {
                continue;
            }
            let (ready, seen) = watch.events_to_report(0);
            let wanted = watch.kernel_interest_at(&seen);
            if watch.kernel_events != wanted {
                watch.kernel_events = wanted;
                watch.update_kernel_watch(epoll, libc::EPOLL_CTL_MOD);
            }
            if ready != 0 {
                events[found] = watch.mark_reported_and_make_event(epoll, ready, seen);
                found += 1;
            }
        }
        self.next_search_index = self.next_search_index.wrapping_add(looked);
        for nested in self
            .nested_epolls
            .iter_mut()
            .filter(|nested| nested.is_ready())
        {
            let Some(event) = events.get_mut(found) else {
                break;
            };
            *event = nested.mark_reported_and_make_event(READABLE_EVENTS);
            found += 1;
        }
        found
    }

    fn waits_for_room(&self) -> bool {
        let waits = |watch: &WatchedConnection| {
            watch.requested_events & WRITABLE_EVENTS != 0
                && !watch.conn.is_plain_tcp()
                && watch.conn.is_ring_full_checking_peer()
        };
        self.connections.active().iter().any(waits)
            || self.nested_epolls.iter().any(NestedEpoll::waits_for_room)
    }

    fn any_ready(&mut self) -> bool {
        self.connections.unpark_changed(self.sleeper_count);
        let is_ready =
            |watch: &WatchedConnection| !watch.is_plain() && watch.events_to_report(0).0 != 0;
        self.connections.active().iter().any(is_ready)
            || self.nested_epolls.iter().any(NestedEpoll::is_ready)
    }

    fn begin_sleep(&mut self) -> bool {
        self.connections.unpark_changed(self.sleeper_count);
        self.sleeper_count += 1;
        let mut ready = self.connections.begin_sleep();
        for nested in &self.nested_epolls {
            ready |= nested.begin_sleeps(1);
        }
        ready
    }

    fn end_sleep(&mut self) {
        self.sleeper_count = self.sleeper_count.saturating_sub(1);
        for watch in self.connections.active_mut() {
            if self.sleeper_count == 0 {
                watch.end_data_sleep();
            } else {
                watch.request_wake_byte_for_other_sleepers();
            }
        }
        self.nested_epolls
            .iter()
            .for_each(|nested| nested.end_sleeps(1));
    }

    /// Translates one kernel event into the program's.
    fn translate_kernel_event(
        &mut self,
        epoll: c_int,
        fd: c_int,
        kernel: u32,
    ) -> Option<epoll_event> {
        if let Some(nested) = self.nested_epolls.iter_mut().find(|nested| nested.fd == fd) {
            return nested.translate_kernel_event(kernel);
        }
        let watch = self.connections.unpark(fd, self.sleeper_count)?;
        if watch.is_closed() {
            self.connections.remove(fd);
            return None;
        }
        if watch.conn.is_plain_tcp() {
            watch.has_oneshot_fired = watch.requested_events & ONESHOT != 0;
            return Some(epoll_event {
                events: kernel | watch.kept_error_event(kernel),
                u64: watch.program_data,
            });
        }
        if kernel & READABLE_EVENTS != 0 {
            watch.conn.take_wake_bytes_unless_needed(fd);
        }
        let (ready, seen) = watch.events_to_report(kernel);
        if ready == 0 {
            // The kernel has disarmed a one-shot watch, so it is armed again.
            if watch.requested_events & ONESHOT != 0 {
                watch.kernel_events = watch.kernel_interest();
                watch.update_kernel_watch(epoll, libc::EPOLL_CTL_MOD);
            }
            return None;
        }
        Some(watch.mark_reported_and_make_event(epoll, ready, seen))
    }
}

/// An epoll instance that another one watches. A thread that sleeps in the outer instance is also a sleeper of the
/// inner one: its connections ask their peers for wake bytes.
struct NestedEpoll {
    fd: c_int,
    epoll: &'static Epoll,
    epoll_generation: u32,
    requested_events: u32,
    program_data: u64,
    /// True for a one-shot watch that has reported.
    has_oneshot_fired: bool,
}

impl NestedEpoll {
    fn new(fd: c_int, epoll: &'static Epoll, event: epoll_event) -> Self {
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
    fn update_kernel_watch(&self, outer: c_int, op: c_int) -> c_int {
        real_libc::control_epoll(
            outer,
            op,
            self.fd,
            self.requested_events,
            epoll_token(self.fd),
        )
    }

    /// Returns the inner instance, unless it was closed.
    fn epoll_if_open(&self) -> Option<&'static Epoll> {
        self.epoll
            .has_generation(self.epoll_generation)
            .then_some(self.epoll)
    }

    /// Begins `count` sleeps of threads in the outer instance. Returns true if a connection is ready already.
    fn begin_sleeps(&self, count: u32) -> bool {
        let begin = |epoll: &Epoll| (0..count).fold(false, |ready, _| epoll.begin_sleep() | ready);
        self.epoll_if_open().is_some_and(begin)
    }

    fn end_sleeps(&self, count: u32) {
        if let Some(epoll) = self.epoll_if_open() {
            (0..count).for_each(|_| epoll.end_sleep());
        }
    }

    fn watches_rdma_connection(&self) -> bool {
        self.epoll_if_open()
            .is_some_and(Epoll::watches_rdma_connection)
    }

    fn waits_for_room(&self) -> bool {
        self.epoll_if_open().is_some_and(Epoll::waits_for_room)
    }

    /// Returns true if an event must be reported that the kernel does not know.
    fn is_ready(&self) -> bool {
        self.requested_events & READABLE_EVENTS != 0
            && !self.has_oneshot_fired
            && self
                .epoll_if_open()
                .is_some_and(Epoll::has_ready_connection)
    }

    /// Returns the event to report after the kernel found the instance readable, which may be by wake bytes alone.
    fn translate_kernel_event(&mut self, kernel: u32) -> Option<epoll_event> {
        let epoll = self.epoll_if_open()?;
        epoll.take_wake_bytes();
        let is_ready = self.is_ready() || real_libc::poll_one(self.fd, libc::POLLIN, 0).0 > 0;
        is_ready.then(|| self.mark_reported_and_make_event(kernel))
    }

    fn mark_reported_and_make_event(&mut self, events: u32) -> epoll_event {
        self.has_oneshot_fired = self.requested_events & ONESHOT != 0;
        epoll_event {
            events: events & self.requested_events,
            u64: self.program_data,
        }
    }
}
