//! Polling functions.

use std::ffi::c_int;
use std::time::Duration;

use c_edge::{In, c_functions};
use libc::{epoll_event, fd_set, nfds_t, timeval};
use rdmacm::errno::{Errno, INVALID, Result};

use super::edge::PollFds;
use crate::{epoll, poll};

c_functions! {
    /// `poll(2)`, over rsockets and other descriptors.
    pub rpoll => poll_descriptors, (fds: PollFds, nfds: nfds_t, timeout: c_int) -> Result<c_int>;

    /// Makes a set of descriptors to wait for, some of which may be rsockets: `epoll_create1(2)`.
    pub repoll_create => epoll_create, (flags: c_int) -> Result<c_int>;

    /// Changes a set of [`repoll_create`]: `epoll_ctl(2)`.
    pub repoll_ctl => epoll_ctl, (set: c_int, op: c_int, fd: c_int, event: In<'_, epoll_event>) -> Result;

    /// Waits for events of a set of [`repoll_create`]: `epoll_wait(2)`.
    pub repoll_wait => epoll_wait,
        (set: c_int, events: *mut epoll_event, max_events: c_int, timeout: c_int) -> Result<c_int>;

    /// `select(2)`, over rsockets and other descriptors.
    pub rselect => select,
        (nfds: c_int, readfds: *mut fd_set, writefds: *mut fd_set, exceptfds: *mut fd_set, timeout: In<'_, timeval>)
        -> Result<c_int>;
}

/// Implements `epoll_create1(2)` over rsockets and other descriptors; `rclose` closes the set.
fn epoll_create(flags: c_int) -> Result<c_int> {
    epoll::create(flags)
}

fn epoll_ctl(set: c_int, op: c_int, fd: c_int, event: In<'_, epoll_event>) -> Result {
    epoll::control(set, op, fd, event.optional().copied())
}

fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    max_events: c_int,
    timeout: c_int,
) -> Result<c_int> {
    let most = usize::try_from(max_events).ok().filter(|n| *n > 0);
    let most = most.ok_or(INVALID)?;
    if events.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    let found = epoll::wait(set, most, timeout)?;
    for (i, event) in found.iter().enumerate() {
        // SAFETY: not NULL (above), so the program's array of `max_events` packed entries (`epoll_wait(2)`); `found`
        // has no more entries.
        unsafe { events.add(i).write_unaligned(*event) };
    }
    Ok(c_int::try_from(found.len()).unwrap_or(c_int::MAX))
}

fn poll_descriptors(fds: PollFds, nfds: nfds_t, timeout: c_int) -> Result<c_int> {
    let ready = poll::rpoll(fds.as_mut_slice(nfds as usize)?, timeout)?;
    Ok(c_int::try_from(ready).unwrap_or(c_int::MAX))
}

fn select(
    nfds: c_int,
    readfds: *mut fd_set,
    writefds: *mut fd_set,
    exceptfds: *mut fd_set,
    timeout: In<'_, timeval>,
) -> Result<c_int> {
    let timeout = timeout.optional().map(|t| {
        let seconds = u64::try_from(t.tv_sec).unwrap_or(0);
        Duration::from_secs(seconds) + Duration::from_micros(t.tv_usec.try_into().unwrap_or(0))
    });
    let sets = [readfds, writefds, exceptfds];
    // SAFETY: NULL or valid sets, as `select(2)` requires.
    let ready = unsafe { poll::rselect(nfds, sets, timeout) }?;
    Ok(c_int::try_from(ready).unwrap_or(c_int::MAX))
}
