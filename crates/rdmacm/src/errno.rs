//! What the functions of this crate fail with: the errno that C callers get.

pub use c_edge::Errno;

/// Something, or the errno that a C caller gets instead.
pub type Result<T = ()> = std::result::Result<T, Errno>;

/// Shorthand: "invalid argument", or a call that the object's state does not allow.
pub const INVALID: Errno = Errno(libc::EINVAL);
