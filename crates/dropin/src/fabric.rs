//! What the drop-in's own `librdmacm.so.1` asks for.

use std::ffi::c_char;
use std::os::unix::ffi::OsStrExt;

use verbs_abi::Gsi;

/// Writes the name of the fabric's folder to `to`, which has room for `room` bytes, without a zero behind it.
/// Returns how long the name is, 0 where there is none; nothing is written where it does not fit.
pub(crate) unsafe extern "C" fn verbatim_fabric_dir(to: *mut c_char, room: usize) -> usize {
    let Ok(dir) = softnic::fabric_dir() else {
        return 0;
    };
    let bytes = dir.as_os_str().as_bytes();
    if bytes.len() <= room && !to.is_null() {
        // SAFETY: as much room as the caller says.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
    }
    bytes.len()
}

/// How connection management reaches other hosts.
pub(crate) extern "C" fn verbatim_gsi() -> *const Gsi {
    softnic::gsi()
}

/// Numbers a handle in a trace, so that both libraries call it alike.
pub(crate) unsafe extern "C" fn verbatim_trace_number(
    kind: *const u8,
    len: usize,
    address: usize,
    is_new: bool,
) -> u32 {
    // SAFETY: contract of this function.
    unsafe { tap::trace::number_of(kind, len, address, is_new) }
}
