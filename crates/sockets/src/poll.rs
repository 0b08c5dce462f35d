//! `poll(2)` and `select(2)` over RDMA connections and other descriptors.

use std::time::Instant;

use libc::{
    POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, POLLRDBAND, POLLRDHUP, POLLRDNORM, POLLWRNORM,
    c_int, fd_set, pollfd,
};

use crate::conn::Conn;
use crate::descriptor_table::{self, DescriptorEntry};
use crate::epoll::{Epoll, capped_remaining_ms, remaining_ms};
use crate::real_libc;
use crate::spin::Spin;

const READABLE_EVENTS: i16 = POLLIN | POLLRDNORM;
const WRITABLE_EVENTS: i16 = POLLOUT | POLLWRNORM;
/// Urgent data, which only the kernel has.
const URGENT: i16 = POLLPRI | POLLRDBAND;
const HANGUP_EVENTS: i16 = POLLERR | POLLHUP | POLLRDHUP;

/// A descriptor of which the kernel does not know all events.
enum ManagedDescriptor {
    Conn(usize, &'static Conn),
    Epoll(usize, &'static Epoll),
}

fn managed_descriptors(fds: &[pollfd]) -> Vec<ManagedDescriptor> {
    let one = |(i, one): (usize, &pollfd)| match descriptor_table::find_entry(one.fd)? {
        DescriptorEntry::Conn(conn, _) => (!conn.is_plain_tcp() || conn.has_kept_error())
            .then_some(ManagedDescriptor::Conn(i, conn)),
        DescriptorEntry::Epoll(epoll, _) => epoll
            .watches_rdma_connection()
            .then_some(ManagedDescriptor::Epoll(i, epoll)),
    };
    fds.iter().enumerate().filter_map(one).collect()
}

/// Connections on TCP of which data are waited for, and which a call of another thread can take to RDMA. They count
/// their sleepers: otherwise another thread would take the wake byte for the first data by RDMA.
struct ConnectionsThatMayChangeToRdma(Vec<&'static Conn>);

impl ConnectionsThatMayChangeToRdma {
    fn from_pollfds(fds: &[pollfd]) -> Self {
        let waited_for = fds.iter().filter(|one| one.events & READABLE_EVENTS != 0);
        let conns = waited_for.filter_map(|one| descriptor_table::find_conn(one.fd));
        Self(conns.filter(|conn| conn.can_change_to_rdma()).collect())
    }

    /// Counts this thread as a sleeper of each connection. Returns true if one has come to RDMA.
    fn begin_sleep(&self) -> bool {
        self.0.iter().for_each(|conn| conn.begin_data_sleep());
        self.has_one_changed()
    }

    fn end_sleep(&self) {
        self.0.iter().for_each(|conn| conn.end_data_sleep());
    }

    fn has_one_changed(&self) -> bool {
        self.0.iter().any(|conn| !conn.is_plain_tcp())
    }

    /// Sleeps by `sleep`. Returns `None` if a connection has come to RDMA.
    fn sleep_unless_changed(&self, sleep: impl FnOnce() -> c_int) -> Option<c_int> {
        if self.begin_sleep() {
            self.end_sleep();
            return None;
        }
        let n = sleep();
        let errno = real_libc::errno();
        self.end_sleep();
        real_libc::set_errno(errno);
        (n < 0 || !self.has_one_changed()).then_some(n)
    }
}

/// Handles `poll(2)`; `sleep` is the kernel's function with a timeout in milliseconds or -1.
pub(crate) fn poll(
    fds: &mut [pollfd],
    deadline: Option<Instant>,
    mut sleep: impl FnMut(&mut [pollfd], c_int) -> c_int,
) -> c_int {
    loop {
        let ours = managed_descriptors(fds);
        let changing = ConnectionsThatMayChangeToRdma::from_pollfds(fds);
        let n = if !ours.is_empty() {
            poll_managed(fds, &ours, &changing, deadline, &mut sleep)
        } else if changing.0.is_empty() {
            Some(sleep(fds, remaining_ms(deadline)))
        } else {
            changing.sleep_unless_changed(|| sleep(fds, remaining_ms(deadline)))
        };
        if let Some(n) = n {
            return n;
        }
    }
}

/// Handles `poll(2)` if the kernel does not know all events. Returns `None` if a further connection has come to RDMA.
fn poll_managed(
    fds: &mut [pollfd],
    ours: &[ManagedDescriptor],
    changing: &ConnectionsThatMayChangeToRdma,
    deadline: Option<Instant>,
    sleep: &mut impl FnMut(&mut [pollfd], c_int) -> c_int,
) -> Option<c_int> {
    let asked: Vec<i16> = fds.iter().map(|one| one.events).collect();
    loop {
        let n = poll_once(fds, ours, &asked, 0, sleep);
        if n != 0 || deadline.is_some_and(|end| Instant::now() >= end) {
            return Some(n);
        }
        if Spin::decide_whether_to_spin().spin_until(|| {
            ours.iter()
                .any(|one| one.events_unknown_to_kernel(&asked) != 0)
        }) {
            continue;
        }
        let has_one_changed = changing.begin_sleep();
        if begin_sleep(ours, &asked) || has_one_changed {
            end_sleep(ours, &asked);
            changing.end_sleep();
            if has_one_changed {
                return None;
            }
            continue;
        }
        let waits = |one: &ManagedDescriptor| match one {
            ManagedDescriptor::Conn(i, conn) => {
                asked[*i] & WRITABLE_EVENTS != 0 && conn.is_ring_full_checking_peer()
            }
            ManagedDescriptor::Epoll(..) => false,
        };
        let ms = capped_remaining_ms(deadline, ours.iter().any(waits));
        let mut sleep_once = |fds: &mut [pollfd], ms| {
            let n = sleep(fds, ms);
            let errno = real_libc::errno();
            end_sleep(ours, &asked);
            changing.end_sleep();
            real_libc::set_errno(errno);
            n
        };
        let n = poll_once(fds, ours, &asked, ms, &mut sleep_once);
        if n >= 0 && changing.has_one_changed() {
            return None;
        }
        if n != 0 {
            return Some(n);
        }
    }
}

/// Asks the kernel, and adds the events that the kernel does not know.
fn poll_once(
    fds: &mut [pollfd],
    ours: &[ManagedDescriptor],
    asked: &[i16],
    timeout_ms: c_int,
    sleep: &mut impl FnMut(&mut [pollfd], c_int) -> c_int,
) -> c_int {
    for one in ours {
        if let ManagedDescriptor::Conn(i, conn) = one
            && !conn.readiness().must_ask_kernel_for_writable
        {
            // A sender that waits for room is woken by a readable byte.
            let waker = if asked[*i] & WRITABLE_EVENTS != 0 {
                POLLIN
            } else {
                0
            };
            fds[*i].events = asked[*i] & !WRITABLE_EVENTS | waker;
        }
    }
    let n = sleep(fds, timeout_ms);
    for (one, events) in fds.iter_mut().zip(asked) {
        one.events = *events;
    }
    if n < 0 {
        return n;
    }
    for one in ours {
        let i = one.pollfd_index();
        fds[i].revents = one.all_events(fds[i].fd, asked[i], fds[i].revents);
    }
    let ready = fds.iter().filter(|one| one.revents != 0).count();
    c_int::try_from(ready).unwrap_or(c_int::MAX)
}

/// Counts this thread as a sleeper of each descriptor, and asks the peers for wake bytes. Returns true if something is
/// ready already.
fn begin_sleep(ours: &[ManagedDescriptor], asked: &[i16]) -> bool {
    let mut ready = false;
    for one in ours {
        ready |= match one {
            ManagedDescriptor::Conn(i, conn) => {
                let (data, room) = (
                    asked[*i] & READABLE_EVENTS != 0,
                    asked[*i] & WRITABLE_EVENTS != 0,
                );
                if data {
                    conn.begin_data_sleep();
                }
                conn.request_wake_bytes(data, room)
            }
            ManagedDescriptor::Epoll(_, epoll) => epoll.begin_sleep(),
        };
    }
    ready
}

/// Ends what [`begin_sleep`] began.
fn end_sleep(ours: &[ManagedDescriptor], asked: &[i16]) {
    for one in ours {
        match one {
            ManagedDescriptor::Conn(i, conn) if asked[*i] & READABLE_EVENTS != 0 => {
                conn.end_data_sleep()
            }
            ManagedDescriptor::Conn(_, conn) => conn.wake_local_room_waiters(),
            ManagedDescriptor::Epoll(_, epoll) => epoll.end_sleep(),
        }
    }
}

impl ManagedDescriptor {
    fn pollfd_index(&self) -> usize {
        match self {
            Self::Conn(i, _) | Self::Epoll(i, _) => *i,
        }
    }

    /// Returns the events that the kernel does not know.
    fn events_unknown_to_kernel(&self, asked: &[i16]) -> i16 {
        match self {
            Self::Conn(i, conn) => {
                let is = conn.readiness();
                let mut events = 0;
                if is.readable {
                    events |= READABLE_EVENTS;
                }
                if is.writable {
                    events |= WRITABLE_EVENTS;
                }
                events & asked[*i]
            }
            Self::Epoll(i, epoll) => {
                if epoll.has_ready_connection() {
                    asked[*i] & READABLE_EVENTS
                } else {
                    0
                }
            }
        }
    }

    /// Returns all events, given those of the kernel.
    fn all_events(&self, fd: c_int, asked: i16, kernel: i16) -> i16 {
        let conn = match self {
            Self::Conn(_, conn) => conn,
            Self::Epoll(_, epoll) => {
                return kernel
                    | if epoll.has_ready_connection() {
                        asked & READABLE_EVENTS
                    } else {
                        0
                    };
            }
        };
        if kernel & READABLE_EVENTS != 0 {
            conn.take_wake_bytes_unless_needed(fd);
        }
        let is = conn.readiness();
        // After an error a read does not wait.
        let has_unread =
            || kernel & HANGUP_EVENTS != 0 || conn.kernel_stream_has_byte_end_or_error(fd);
        let is_readable = is.readable || kernel & READABLE_EVENTS != 0 && has_unread();
        // The look may have found an error that came after the kernel's events.
        let hangup = match kernel & HANGUP_EVENTS {
            0 if conn.has_kept_error() => real_libc::poll_one(fd, 0, 0).1 & HANGUP_EVENTS,
            known => known,
        };
        let mut events = hangup | kernel & URGENT;
        if hangup != 0 && conn.has_kept_error() {
            events |= POLLERR;
        }
        if is_readable {
            events |= READABLE_EVENTS;
        }
        if is.writable || is.must_ask_kernel_for_writable && kernel & WRITABLE_EVENTS != 0 {
            events |= WRITABLE_EVENTS;
        }
        events & (asked | POLLERR | POLLHUP)
    }
}

/// The descriptor sets of `select(2)`.
pub struct SelectSets<'s> {
    /// The program's sets for reading, writing and exceptions.
    pub sets: [Option<&'s mut fd_set>; 3],
    /// Only descriptors below this number are examined.
    pub nfds: c_int,
}

impl SelectSets<'_> {
    /// Returns the descriptors as a list for `poll(2)`, or `None` if the kernel knows all events.
    pub(crate) fn to_pollfds_if_managed(&self) -> Option<Vec<pollfd>> {
        let is_in = |set: &Option<&mut fd_set>, fd| {
            // SAFETY: the set is live, and `fd` is below its size.
            set.as_ref()
                .is_some_and(|set| unsafe { libc::FD_ISSET(fd, std::ptr::from_ref::<fd_set>(set)) })
        };
        let count = self
            .nfds
            .clamp(0, c_int::try_from(libc::FD_SETSIZE).unwrap_or(0));
        let fds: Vec<pollfd> = (0..count)
            .filter_map(|fd| {
                let mut events = 0;
                for (set, event) in self.sets.iter().zip([POLLIN, POLLOUT, libc::POLLPRI]) {
                    if is_in(set, fd) {
                        events |= event;
                    }
                }
                (events != 0).then_some(pollfd {
                    fd,
                    events,
                    revents: 0,
                })
            })
            .collect();
        let is_left_to_kernel = managed_descriptors(&fds).is_empty()
            && ConnectionsThatMayChangeToRdma::from_pollfds(&fds)
                .0
                .is_empty();
        (!is_left_to_kernel).then_some(fds)
    }

    /// Writes the ready descriptors into the sets, and returns the number of set bits.
    pub(crate) fn write_ready_fds(&mut self, fds: &[pollfd]) -> c_int {
        let masks = [
            READABLE_EVENTS | POLLHUP | POLLERR,
            WRITABLE_EVENTS | POLLERR,
            libc::POLLPRI,
        ];
        let mut bits = 0;
        for (i, set) in self.sets.iter_mut().enumerate() {
            let Some(set) = set else { continue };
            // SAFETY: the set is live.
            unsafe { libc::FD_ZERO(std::ptr::from_mut::<fd_set>(set)) };
            for one in fds {
                let asked = [POLLIN, POLLOUT, libc::POLLPRI][i];
                if one.events & asked != 0 && one.revents & masks[i] != 0 {
                    // SAFETY: the set is live, and the descriptor came from a set.
                    unsafe { libc::FD_SET(one.fd, std::ptr::from_mut::<fd_set>(set)) };
                    bits += 1;
                }
            }
        }
        bits
    }
}
