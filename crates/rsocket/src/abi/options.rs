//! Options and flags of sockets.

use std::ffi::{c_int, c_long, c_void};

use libc::socklen_t;
use rdmacm::abi::or_minus_one;
use rdmacm::errno::{Errno, INVALID, Result};
use verbs_abi::{RDMA_ROUTE, SOL_RDMA};

use super::arguments::or_minus_one_c;
use crate::table::find;

/// `setsockopt(2)`.
pub unsafe extern "C" fn rsetsockopt(
    socket: c_int,
    level: c_int,
    optname: c_int,
    optval: *const c_void,
    optlen: socklen_t,
) -> c_int {
    let set = find(socket).and_then(|s| {
        let len = optlen as usize;
        if optval.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: contract of this module; as much as the length says.
        unsafe {
            match (level, optname) {
                (libc::SOL_SOCKET, libc::SO_LINGER) => {
                    if len < size_of::<libc::linger>() {
                        return Err(INVALID);
                    }
                    let linger = optval.cast::<libc::linger>().read_unaligned();
                    s.stream()?.set_linger(linger.l_onoff, linger.l_linger);
                    Ok(())
                }
                // There is one route.
                (SOL_RDMA, RDMA_ROUTE) => Ok(()),
                _ if len < size_of::<c_int>() => Err(INVALID),
                _ => s.set_option(level, optname, optval.cast::<c_int>().read_unaligned()),
            }
        }
    });
    or_minus_one(set)
}

/// `getsockopt(2)`.
pub unsafe extern "C" fn rgetsockopt(
    socket: c_int,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: *mut socklen_t,
) -> c_int {
    let got = find(socket).and_then(|s| {
        // SAFETY: contract of this module.
        unsafe {
            let room = optlen.as_mut().ok_or(Errno(libc::EFAULT))?;
            if optval.is_null() {
                return Err(Errno(libc::EFAULT));
            }
            if (level, optname) == (libc::SOL_SOCKET, libc::SO_LINGER) {
                let (l_onoff, l_linger) = s.stream()?.linger();
                put(libc::linger { l_onoff, l_linger }, optval, room)
            } else {
                put(s.option(level, optname)?, optval, room)
            }
        }
    });
    or_minus_one(got)
}

/// Writes an option's value.
///
/// # Safety
/// `to` is valid for `*room` bytes.
unsafe fn put<T>(value: T, to: *mut c_void, room: &mut socklen_t) -> Result {
    if (*room as usize) < size_of::<T>() {
        return Err(INVALID);
    }
    // SAFETY: contract of this function.
    unsafe { to.cast::<T>().write_unaligned(value) };
    *room = socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    Ok(())
}

/// `fcntl(2)`, for the flags of the socket. In C it is variadic; Linux passes the third argument, where there is
/// one, as here.
pub unsafe extern "C" fn rfcntl(socket: c_int, cmd: c_int, arg: c_long) -> c_int {
    let done = find(socket).and_then(|s| match cmd {
        libc::F_GETFL => Ok(s.flags()),
        libc::F_SETFL => {
            s.set_flags(c_int::try_from(arg).map_err(|_| INVALID)?);
            Ok(0)
        }
        // They are closed on exec, and stay so.
        libc::F_GETFD => Ok(libc::FD_CLOEXEC),
        libc::F_SETFD => Ok(0),
        _ => Err(Errno(libc::ENOTSUP)),
    });
    or_minus_one_c(done)
}
