//! Errors of this crate's functions: the errno for C callers.

pub use c_edge::Errno;

/// A result whose error is the errno for C callers.
pub type Result<T = ()> = std::result::Result<T, Errno>;

/// EINVAL: an invalid argument, or a call that the object's state does not allow.
pub const INVALID: Errno = Errno(libc::EINVAL);
