//! Answers for provider libraries that call for a kernel driver.

use std::ffi::{c_int, c_void};

fn set_errno() {
    // SAFETY: glibc's errno of this thread.
    unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
}

/// Returns an errno.
pub(crate) extern "C" fn errno() -> c_int {
    libc::EOPNOTSUPP
}

/// Returns -1 and sets errno.
pub(crate) extern "C" fn fails() -> c_int {
    set_errno();
    -1
}

/// Returns NULL and sets errno.
pub(crate) extern "C" fn null() -> *mut c_void {
    set_errno();
    std::ptr::null_mut()
}

/// Does nothing, and returns 0 to callers that expect a number.
pub(crate) extern "C" fn nothing() -> usize {
    0
}
