//! The calling thread's errno, and texts of errors.
#![allow(unsafe_code)]

use std::io;

/// Returns the calling thread's errno.
pub(super) fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Sets the calling thread's errno, so that tracing does not change it.
pub(super) fn set_errno(errno: i32) {
    // SAFETY: glibc's errno of this thread.
    unsafe { *libc::__errno_location() = errno };
}

/// Returns the text of an error, without its number.
pub(super) fn error_text(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}
