//! Waiting for sockets.

use std::ffi::c_int;
use std::time::Duration;

use libc::{fd_set, nfds_t, pollfd, timeval};
use rdmacm::errno::Errno;

use super::arguments::or_minus_one_c;
use crate::poll::{rpoll as poll, rselect as select};

/// `poll(2)`, over rsockets and other descriptors.
pub unsafe extern "C" fn rpoll(fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int {
    let polled = if nfds > 0 && fds.is_null() {
        Err(Errno(libc::EFAULT))
    } else if nfds == 0 {
        poll(&mut [], timeout)
    } else {
        // SAFETY: contract of this module.
        poll(
            unsafe { std::slice::from_raw_parts_mut(fds, nfds as usize) },
            timeout,
        )
    };
    or_minus_one_c(polled.map(|n| c_int::try_from(n).unwrap_or(c_int::MAX)))
}

/// `select(2)`, over rsockets and other descriptors.
pub unsafe extern "C" fn rselect(
    nfds: c_int,
    readfds: *mut fd_set,
    writefds: *mut fd_set,
    exceptfds: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: contract of this module.
    let selected = unsafe {
        let timeout = timeout.as_ref().map(|t| {
            let seconds = u64::try_from(t.tv_sec).unwrap_or(0);
            Duration::from_secs(seconds) + Duration::from_micros(t.tv_usec.try_into().unwrap_or(0))
        });
        select(nfds, [readfds, writefds, exceptfds], timeout)
    };
    or_minus_one_c(selected.map(|n| c_int::try_from(n).unwrap_or(c_int::MAX)))
}
