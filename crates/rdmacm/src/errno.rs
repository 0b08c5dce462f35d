//! What the functions of this crate fail with: the errno that C callers get.

use std::ffi::c_int;

/// An errno, as functions of C report one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub c_int);

/// Something, or the errno that a C caller gets instead.
pub type Result<T = ()> = std::result::Result<T, Errno>;

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

impl Errno {
    /// It says nothing of what was asked for, only that there are no more descriptors or no more memory.
    #[must_use]
    pub fn is_shortage(self) -> bool {
        matches!(self.0, libc::EMFILE | libc::ENFILE | libc::ENOMEM)
    }
}

/// Shorthand: "invalid argument", or a call that the object's state does not allow.
pub const INVALID: Errno = Errno(libc::EINVAL);
