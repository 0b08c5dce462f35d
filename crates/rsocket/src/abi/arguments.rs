//! Arguments and results between C and Rust.

use std::ffi::{c_int, c_void};

use libc::{iovec, sockaddr, socklen_t, ssize_t};
use rdmacm::abi::set_errno;
use rdmacm::addr::{self, Addr};
use rdmacm::errno::{Errno, INVALID, Result};

/// The number, or -1 with errno.
pub(super) fn or_minus_one_c(result: Result<c_int>) -> c_int {
    result.unwrap_or_else(|Errno(errno)| {
        set_errno(errno);
        -1
    })
}

/// The size, or -1 with errno.
pub(super) fn or_minus_one_s(result: Result<usize>) -> ssize_t {
    match result {
        Ok(n) => ssize_t::try_from(n).unwrap_or(ssize_t::MAX),
        Err(Errno(errno)) => {
            set_errno(errno);
            -1
        }
    }
}

/// Reads an address, as `bind(2)` does.
///
/// # Safety
/// `addr` is NULL or valid for `len` bytes.
pub(super) unsafe fn address(addr: *const sockaddr, len: socklen_t) -> Result<Addr> {
    let len = len as usize;
    // SAFETY: contract of this function; the family is within the first bytes of every address.
    unsafe {
        if addr.is_null() || len < size_of::<libc::sa_family_t>() {
            return Err(INVALID);
        }
        let needed = addr::size_of_family((*addr).sa_family.into());
        let needed = needed.ok_or(Errno(libc::EAFNOSUPPORT))?;
        if len < needed {
            return Err(INVALID);
        }
        addr::read(addr).ok_or(INVALID)
    }
}

/// Writes an address as `accept(2)` does: as much as fits, and how long it is.
///
/// # Safety
/// `to` is NULL, or valid for `*len` bytes.
pub(super) unsafe fn give_address(from: Addr, to: *mut sockaddr, len: *mut socklen_t) {
    // SAFETY: contract of this function.
    unsafe {
        if let (false, Some(len)) = (to.is_null(), len.as_mut()) {
            let (storage, full) = addr::to_c(from);
            let fits = (*len).min(full) as usize;
            std::ptr::copy_nonoverlapping((&raw const storage).cast::<u8>(), to.cast(), fits);
            *len = full;
        }
    }
}

/// Buffers to be sent.
///
/// # Safety
/// `data` is NULL or valid for `len` bytes.
pub(super) unsafe fn slice<'a>(data: *const c_void, len: usize) -> Result<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() || len > isize::MAX as usize {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: contract of this function.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), len) })
}

/// Buffers to be filled.
///
/// # Safety
/// `data` is NULL or valid for `len` bytes, which nobody else uses.
pub(super) unsafe fn slice_mut<'a>(data: *mut c_void, len: usize) -> Result<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    if data.is_null() || len > isize::MAX as usize {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: contract of this function.
    Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), len) })
}

/// The buffers of `readv(2)` and `writev(2)`.
///
/// # Safety
/// `iov` is NULL or valid for `count` entries.
pub(super) unsafe fn iovecs<'a>(iov: *const iovec, count: usize) -> Result<&'a [iovec]> {
    /// Most entries: `writev(2)`.
    const IOV_MAX: usize = 1024;
    if count == 0 {
        return Ok(&[]);
    }
    if iov.is_null() || count > IOV_MAX {
        return Err(INVALID);
    }
    // SAFETY: contract of this function.
    Ok(unsafe { std::slice::from_raw_parts(iov, count) })
}
