//! What provider libraries get that ask for a kernel driver.

use std::ffi::{c_int, c_void};

fn set_errno() {
    // SAFETY: glibc's errno of this thread.
    unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
}

/// Answers with an errno.
pub(crate) extern "C" fn errno() -> c_int {
    libc::EOPNOTSUPP
}

/// Answers -1, and errno.
pub(crate) extern "C" fn fails() -> c_int {
    set_errno();
    -1
}

/// Answers NULL, and errno.
pub(crate) extern "C" fn null() -> *mut c_void {
    set_errno();
    std::ptr::null_mut()
}

/// Does nothing; whoever expects a number gets 0.
pub(crate) extern "C" fn nothing() -> usize {
    0
}
