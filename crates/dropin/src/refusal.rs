//! Functions that refuse calls of provider libraries, which expect a kernel driver.

use std::ffi::{c_int, c_void};

fn set_eopnotsupp() {
    // SAFETY: glibc's errno of this thread.
    unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
}

/// Returns EOPNOTSUPP, for functions that return an errno.
pub(crate) extern "C" fn errno() -> c_int {
    libc::EOPNOTSUPP
}

/// Sets errno to EOPNOTSUPP and returns -1.
pub(crate) extern "C" fn fails() -> c_int {
    set_eopnotsupp();
    -1
}

/// Sets errno to EOPNOTSUPP and returns NULL.
pub(crate) extern "C" fn null() -> *mut c_void {
    set_eopnotsupp();
    std::ptr::null_mut()
}

/// Does nothing; returns 0 to callers that expect a number.
pub(crate) extern "C" fn nothing() -> usize {
    0
}
