//! The connections that an epoll instance watches, active and parked.
//!
//! An instance looks at each active connection at every wait. A parked connection costs nothing until its descriptor is
//! readable for the kernel: it is not ready, and its peer keeps the request for a wake byte. It counts as a sleeper all
//! the time, so no other call takes the wake byte without asking for the next one.

use std::collections::HashMap;

use libc::c_int;
use rustc_hash::FxBuildHasher;

use crate::parked_watches::changes_of_parked_connections;
use crate::watched_connection::WatchedConnection;

/// Number of connections up to which an instance parks none: looking at so few costs less than a wake byte.
const MAX_ACTIVE_WITHOUT_PARKING: usize = 32;
/// Number of consecutive sleeps without an event after which a connection is parked.
const SLEEPS_BEFORE_PARKING: u32 = 32;

/// Watched connections by descriptor. The active ones come first.
#[derive(Default)]
pub(crate) struct WatchedConnections {
    connections: Vec<WatchedConnection>,
    /// With a fast hash: some programs remove and add a connection for each request.
    index_by_fd: HashMap<c_int, usize, FxBuildHasher>,
    active_count: usize,
    seen_parked_changes: u64,
}

impl WatchedConnections {
    pub(crate) fn len(&self) -> usize {
        self.connections.len()
    }

    pub(crate) fn active_len(&self) -> usize {
        self.active_count
    }

    pub(crate) fn contains(&self, fd: c_int) -> bool {
        self.index_by_fd.contains_key(&fd)
    }

    /// Returns all connections.
    pub(crate) fn all(&self) -> &[WatchedConnection] {
        &self.connections
    }

    /// Returns the active connections.
    pub(crate) fn active(&self) -> &[WatchedConnection] {
        self.connections
            .get(..self.active_count)
            .unwrap_or_default()
    }

    /// Returns the active connections.
    pub(crate) fn active_mut(&mut self) -> &mut [WatchedConnection] {
        self.connections
            .get_mut(..self.active_count)
            .unwrap_or_default()
    }

    /// Adds an active connection, in place of any other with this descriptor.
    pub(crate) fn add(&mut self, watch: WatchedConnection) {
        self.remove(watch.fd);
        self.index_by_fd.insert(watch.fd, self.connections.len());
        self.connections.push(watch);
        self.swap(self.connections.len() - 1, self.active_count);
        self.active_count += 1;
    }

    /// Removes the connection, and ends its sleep.
    pub(crate) fn remove(&mut self, fd: c_int) {
        if self.unpark(fd, 0).is_none() {
            return;
        }
        let at = self.index_by_fd.get(&fd).copied().unwrap_or_default();
        self.active_count -= 1;
        self.swap(at, self.active_count);
        let last = self.connections.len() - 1;
        self.swap(self.active_count, last);
        self.index_by_fd.remove(&fd);
        if let Some(mut gone) = self.connections.pop() {
            gone.end_data_sleep();
        }
    }

    /// Makes the connection active, and returns it. `sleepers` threads sleep in the instance.
    pub(crate) fn unpark(&mut self, fd: c_int, sleepers: u32) -> Option<&mut WatchedConnection> {
        let mut at = *self.index_by_fd.get(&fd)?;
        if at < self.active_count {
            return self.connections.get_mut(at);
        }
        self.swap(at, self.active_count);
        at = self.active_count;
        self.active_count += 1;
        let watch = self.connections.get_mut(at)?;
        watch.leave_parking(sleepers);
        Some(watch)
    }

    /// Makes all connections active. `sleepers` threads sleep in the instance.
    pub(crate) fn unpark_all(&mut self, sleepers: u32) {
        let parked = self.connections.iter_mut().skip(self.active_count);
        parked.for_each(|watch| watch.leave_parking(sleepers));
        self.active_count = self.connections.len();
    }

    /// Makes all connections active if this process has changed a parked one. `sleepers` threads sleep in the instance.
    pub(crate) fn unpark_changed(&mut self, sleepers: u32) {
        let changes = changes_of_parked_connections();
        if self.seen_parked_changes != changes {
            self.unpark_all(sleepers);
        }
        self.seen_parked_changes = changes;
    }

    /// Asks the peers of the active connections for wake bytes before a thread sleeps, and parks connections that have
    /// been idle for long. Returns true if a connection is ready already.
    pub(crate) fn begin_sleep(&mut self) -> bool {
        let may_park = self.active_count > MAX_ACTIVE_WITHOUT_PARKING;
        let mut has_ready = false;
        let mut at = 0;
        while let Some(watch) = self.active_mut().get_mut(at) {
            let is_ready = watch.request_wake_bytes();
            has_ready |= is_ready;
            watch.sleeps_without_event = watch.sleeps_without_event.saturating_add(1);
            if may_park
                && !is_ready
                && watch.sleeps_without_event > SLEEPS_BEFORE_PARKING
                && watch.try_enter_parking()
            {
                self.active_count -= 1;
                self.swap(at, self.active_count);
            } else {
                at += 1;
            }
        }
        has_ready
    }

    /// Forgets that connections sleep; called in a forked child, whose connections have forgotten it.
    pub(crate) fn forget_sleeps(&mut self) -> &mut [WatchedConnection] {
        self.active_count = self.connections.len();
        for watch in &mut self.connections {
            watch.sleeps_for_data = false;
        }
        &mut self.connections
    }

    fn swap(&mut self, a: usize, b: usize) {
        if a == b {
            return;
        }
        self.connections.swap(a, b);
        for at in [a, b] {
            if let Some(watch) = self.connections.get(at) {
                self.index_by_fd.insert(watch.fd, at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::conn::{Conn, Phase};
    use crate::watched_connection::READABLE_EVENTS;

    fn watch(fd: c_int) -> WatchedConnection {
        let conn: &'static Conn = Box::leak(Box::default());
        conn.reset();
        WatchedConnection {
            fd,
            conn,
            conn_generation: conn.generation(),
            requested_events: READABLE_EVENTS,
            program_data: 0,
            kernel_events: READABLE_EVENTS,
            has_oneshot_fired: false,
            sleeps_for_data: false,
            received_bytes_at_last_report: None,
            sleeps_without_event: 0,
        }
    }

    /// Lets the instance sleep until idle connections are parked.
    fn let_idle(connections: &mut WatchedConnections) {
        for _ in 0..=SLEEPS_BEFORE_PARKING {
            connections.begin_sleep();
            let active = connections.active_mut().iter_mut();
            active.for_each(WatchedConnection::end_data_sleep);
        }
    }

    fn crowd(count: usize) -> WatchedConnections {
        let mut connections = WatchedConnections::default();
        (3..3 + c_int::try_from(count).unwrap()).for_each(|fd| connections.add(watch(fd)));
        connections
    }

    fn sleepers(connections: &WatchedConnections) -> Vec<u32> {
        let count =
            |watch: &WatchedConnection| watch.conn.data_sleeper_count.load(Ordering::SeqCst);
        connections.all().iter().map(count).collect()
    }

    #[test]
    fn idle_connections_are_parked_until_they_have_an_event() {
        let mut connections = crowd(50);
        let_idle(&mut connections);
        assert_eq!(connections.active_len(), 0);
        assert_eq!(sleepers(&connections), [1; 50]);
        let woken = connections.unpark(20, 0).expect("watched");
        assert_eq!((woken.fd, woken.sleeps_for_data), (20, false));
        assert_eq!(woken.conn.parked_watches.count(), 0);
        assert_eq!(connections.active().len(), 1);
        connections.unpark_all(0);
        assert_eq!(sleepers(&connections), [0; 50]);
    }

    #[test]
    fn few_connections_are_never_parked() {
        let mut connections = crowd(MAX_ACTIVE_WITHOUT_PARKING);
        let_idle(&mut connections);
        assert_eq!(connections.active_len(), MAX_ACTIVE_WITHOUT_PARKING);
    }

    #[test]
    fn a_connection_that_waits_for_its_peer_stays_active() {
        let mut connections = crowd(50);
        connections.active()[7]
            .conn
            .set_phase(Phase::WaitingForPeer);
        let_idle(&mut connections);
        let active = connections.active();
        assert_eq!((active.len(), active[0].fd), (1, 10));
    }

    #[test]
    fn a_change_by_this_process_makes_parked_connections_active() {
        let mut connections = crowd(50);
        let_idle(&mut connections);
        connections.all()[4].conn.parked_watches.unpark();
        connections.unpark_changed(0);
        assert_eq!(connections.active_len(), 50);
    }

    #[test]
    fn removed_connections_are_no_sleepers() {
        let mut connections = crowd(50);
        let_idle(&mut connections);
        connections.unpark(10, 0);
        connections.unpark(40, 0);
        let gone: Vec<_> = [10, 30, 52]
            .map(|fd| (fd, conn_of(&connections, fd)))
            .into();
        for (fd, conn) in gone {
            connections.remove(fd);
            assert!(!connections.contains(fd));
            assert_eq!(conn.data_sleeper_count.load(Ordering::SeqCst), 0);
            assert_eq!(conn.parked_watches.count(), 0);
        }
        assert_eq!((connections.len(), connections.active_len()), (47, 1));
        for fd in [3, 40, 51] {
            assert_eq!(connections.unpark(fd, 0).map(|watch| watch.fd), Some(fd));
        }
    }

    fn conn_of(connections: &WatchedConnections, fd: c_int) -> &'static Conn {
        let found = connections.all().iter().find(|watch| watch.fd == fd);
        found.expect("watched").conn
    }
}
