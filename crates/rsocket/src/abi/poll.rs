//! Waiting for sockets.

use std::ffi::c_int;
use std::time::Duration;

use c_edge::{In, c_functions};
use libc::{fd_set, nfds_t, timeval};
use rdmacm::errno::Result;

use super::edge::PollFds;
use crate::poll;

c_functions! {
    /// `poll(2)`, over rsockets and other descriptors.
    pub rpoll => poll_all, (fds: PollFds, nfds: nfds_t, timeout: c_int) -> Result<c_int>;

    /// `select(2)`, over rsockets and other descriptors.
    pub rselect => select,
        (nfds: c_int, readfds: *mut fd_set, writefds: *mut fd_set, exceptfds: *mut fd_set, timeout: In<'_, timeval>)
        -> Result<c_int>;
}

fn poll_all(fds: PollFds, nfds: nfds_t, timeout: c_int) -> Result<c_int> {
    let ready = poll::rpoll(fds.get(nfds as usize)?, timeout)?;
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
    // SAFETY: NULL or sets, as `select(2)` says.
    let ready = unsafe { poll::rselect(nfds, sets, timeout) }?;
    Ok(c_int::try_from(ready).unwrap_or(c_int::MAX))
}
