//! Buffers that the peer writes into.

use std::ffi::{c_int, c_void};

use libc::off_t;
use rdmacm::abi::{or_minus_one, set_errno};
use rdmacm::errno::{Errno, INVALID};

use super::arguments::slice;
use crate::table::find;

/// Lets the peer write into memory of this process by [`riowrite`]: `rsocket(7)`. Returns the offset by which the peer
/// names it.
pub unsafe extern "C" fn riomap(
    socket: c_int,
    buf: *mut c_void,
    len: usize,
    prot: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    let mapped = find(socket).and_then(|s| {
        let offset = match offset {
            -1 => None,
            offset => Some(u64::try_from(offset).map_err(|_| INVALID)?),
        };
        // SAFETY: contract of this module: the memory stays until it is unmapped.
        unsafe { s.stream()?.map(buf.cast(), len, prot, offset) }
    });
    match mapped {
        Ok(offset) => off_t::try_from(offset).unwrap_or(off_t::MAX),
        Err(Errno(errno)) => {
            set_errno(errno);
            -1
        }
    }
}

/// Undoes [`riomap`].
pub unsafe extern "C" fn riounmap(socket: c_int, buf: *mut c_void, _len: usize) -> c_int {
    or_minus_one(find(socket).and_then(|s| s.stream()?.unmap(buf.cast())))
}

/// Writes into memory that the peer has mapped by [`riomap`]. Returns how much; -1 with errno is the largest number.
pub unsafe extern "C" fn riowrite(
    socket: c_int,
    buf: *const c_void,
    count: usize,
    offset: off_t,
    flags: c_int,
) -> usize {
    let written = find(socket).and_then(|s| {
        let offset = u64::try_from(offset).map_err(|_| INVALID)?;
        // SAFETY: contract of this module.
        s.stream()?
            .write_mapped(unsafe { slice(buf, count) }?, offset, flags)
    });
    written.unwrap_or_else(|Errno(errno)| {
        set_errno(errno);
        usize::MAX
    })
}
