//! `poll(2)` and `select(2)` over rsockets and other descriptors.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::time::Duration;

use crate::socket_table::find;
use crate::wait::{Deadline, WaitingThread, poll_until_deadline, pollfd_for_reading};
use rdmacm::errno::{Errno, INVALID, Result};

/// Implements `poll(2)`; some of `fds` may be rsockets. Returns the number of entries with events.
pub(crate) fn rpoll(fds: &mut [libc::pollfd], timeout_ms: c_int) -> Result<usize> {
    rpoll_until(fds, Deadline::from_poll_timeout_ms(timeout_ms))
}

fn rpoll_until(fds: &mut [libc::pollfd], deadline: Deadline) -> Result<usize> {
    let sockets: Vec<_> = fds.iter().map(|f| find(f.fd).ok()).collect();
    if sockets.iter().all(Option::is_none) {
        return poll_until_deadline(fds, deadline);
    }
    let waiter = WaitingThread::of_this_thread()?;
    loop {
        waiter.clear_wake_ups();
        // Polls the descriptors of the rsockets and the waiter, followed by those that are not rsockets.
        let mut below = vec![pollfd_for_reading(waiter.eventfd())];
        let mut found = 0;
        for (fd, socket) in fds.iter_mut().zip(&sockets) {
            fd.revents = 0;
            if let Some(socket) = socket {
                // After the first event the call will not wait, so no further socket is armed.
                let waiter = (found == 0).then_some(&waiter);
                fd.revents = socket.poll_events(fd.events, waiter, &mut below);
                found += usize::from(fd.revents != 0);
            }
        }
        let others_at = below.len();
        below.extend(
            fds.iter()
                .zip(&sockets)
                .filter(|(_, socket)| socket.is_none())
                .map(|(fd, _)| *fd),
        );
        let wait = if found > 0 {
            Deadline::from_poll_timeout_ms(0)
        } else {
            deadline
        };
        poll_until_deadline(&mut below, wait)?;
        let mut others = below.get(others_at..).unwrap_or_default().iter();
        for (fd, socket) in fds.iter_mut().zip(&sockets) {
            if socket.is_none()
                && let Some(polled) = others.next()
            {
                fd.revents = polled.revents;
                found += usize::from(fd.revents != 0);
            }
        }
        if found > 0 {
            return Ok(found);
        }
        if deadline.has_passed() {
            // Reports events that arrived just before the deadline.
            for (fd, socket) in fds.iter_mut().zip(&sockets) {
                if let Some(socket) = socket {
                    fd.revents = socket.poll_events(fd.events, None, &mut Vec::new());
                    found += usize::from(fd.revents != 0);
                }
            }
            return Ok(found);
        }
    }
}

/// Returns true if `fd` is in a set of `select(2)`.
///
/// # Safety
/// `set` is NULL or valid.
unsafe fn is_fd_in_set(set: *const libc::fd_set, fd: RawFd) -> bool {
    // SAFETY: contract of this function; `fd` is less than FD_SETSIZE.
    !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }
}

/// Implements `select(2)`; some descriptors may be rsockets. Returns the number of set bits.
///
/// # Safety
/// The sets are NULL or valid.
pub(crate) unsafe fn rselect(
    nfds: c_int,
    sets: [*mut libc::fd_set; 3],
    timeout: Option<Duration>,
) -> Result<usize> {
    /// Events of `poll(2)` for the read, write and exception sets of `select(2)`.
    const REQUESTED_EVENTS: [libc::c_short; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
    const REPORTED_EVENTS: [libc::c_short; 3] = [
        libc::POLLIN | libc::POLLHUP | libc::POLLERR,
        libc::POLLOUT | libc::POLLERR,
        libc::POLLPRI,
    ];
    if nfds < 0 || usize::try_from(nfds).is_ok_and(|n| n > libc::FD_SETSIZE) {
        return Err(INVALID);
    }
    let mut fds = Vec::new();
    for fd in 0..nfds {
        let mut events = 0;
        for (set, asked) in sets.into_iter().zip(REQUESTED_EVENTS) {
            // SAFETY: contract of this function.
            if unsafe { is_fd_in_set(set, fd) } {
                events |= asked;
            }
        }
        if events != 0 {
            fds.push(libc::pollfd {
                fd,
                events,
                revents: 0,
            });
        }
    }
    rpoll_until(&mut fds, timeout.map_or(Deadline::NEVER, Deadline::after))?;
    if fds.iter().any(|f| f.revents & libc::POLLNVAL != 0) {
        return Err(Errno(libc::EBADF));
    }
    let mut bits = 0;
    for fd in &fds {
        for ((set, asked), found) in sets.into_iter().zip(REQUESTED_EVENTS).zip(REPORTED_EVENTS) {
            if fd.events & asked == 0 {
                continue;
            }
            if fd.revents & found != 0 {
                bits += 1;
            } else {
                // SAFETY: the descriptor was found in this set.
                unsafe { libc::FD_CLR(fd.fd, set) };
            }
        }
    }
    Ok(bits)
}
