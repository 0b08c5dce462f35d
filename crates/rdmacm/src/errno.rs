//! What the functions of this crate fail with: the errno that C callers get.

use std::ffi::c_int;

/// An errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

/// Something, or the errno that a C caller gets instead.
pub(crate) type Result<T = ()> = std::result::Result<T, Errno>;

impl From<rustix::io::Errno> for Errno {
    fn from(e: rustix::io::Errno) -> Self {
        Self(e.raw_os_error())
    }
}

impl From<std::io::Error> for Errno {
    fn from(e: std::io::Error) -> Self {
        Self(e.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// Shorthand: "invalid argument", or a call that the object's state does not allow.
pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
