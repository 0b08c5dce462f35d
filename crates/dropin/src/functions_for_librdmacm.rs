//! Functions that the drop-in `librdmacm.so.1` calls.

use std::ffi::c_char;
use std::os::unix::ffi::OsStrExt;

use verbs_abi::Gsi;

/// Writes the path of the fabric's folder to `to`, which has room for `room` bytes, without a terminating
/// zero.
///
/// Returns the length of the path in bytes, or 0 if no fabric can be determined. A path longer than
/// `room` is not written.
pub(crate) unsafe extern "C" fn verbatim_fabric_dir(to: *mut c_char, room: usize) -> usize {
    let Ok(dir) = softnic::fabric_dir() else {
        return 0;
    };
    let bytes = dir.as_os_str().as_bytes();
    if bytes.len() <= room && !to.is_null() {
        // SAFETY: the path fits into the `room` bytes that the caller promises.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
    }
    bytes.len()
}

/// Returns the functions by which connection management sends management datagrams to other hosts.
pub(crate) extern "C" fn verbatim_gsi() -> *const Gsi {
    softnic::gsi_functions()
}

/// Returns the number of a handle in a trace, so that both libraries use the same names.
pub(crate) unsafe extern "C" fn verbatim_trace_number(
    kind: *const u8,
    len: usize,
    address: usize,
    is_new: bool,
) -> u32 {
    // SAFETY: contract of this function.
    unsafe { tap::trace::number_of(kind, len, address, is_new) }
}
