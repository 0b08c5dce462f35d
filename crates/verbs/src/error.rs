//! The error of a failed call of the verbs API.

use std::io;

/// The error of a verb: its name as in `verbs.h`, and its errno.
#[derive(Debug, thiserror::Error)]
#[error("{verb} failed: {source}{hint}", hint = hint(self))]
pub struct VerbError {
    /// The verb's name, as in `verbs.h` (`ibv_create_qp`).
    pub verb: &'static str,
    /// The reason; `raw_os_error()` is the errno.
    #[source]
    pub source: io::Error,
}

impl VerbError {
    pub(crate) fn new(verb: &'static str, errno: i32) -> Self {
        Self {
            verb,
            source: io::Error::from_raw_os_error(errno),
        }
    }

    /// Returns the error of a call that has just set `errno`.
    pub(crate) fn last(verb: &'static str) -> Self {
        let source = io::Error::last_os_error();
        // A provider that fails without setting errno must not read as "Success".
        if source.raw_os_error() == Some(0) {
            Self::new(verb, libc::EIO)
        } else {
            Self { verb, source }
        }
    }

    pub(crate) fn invalid(verb: &'static str, what: impl Into<String>) -> Self {
        Self {
            verb,
            source: io::Error::new(io::ErrorKind::InvalidInput, what.into()),
        }
    }

    /// Converts the return value of a verb that returns an errno. Some providers return it negated,
    /// or -1 with `errno` set.
    pub(crate) fn check(verb: &'static str, ret: i32) -> Result<(), Self> {
        match ret {
            0 => Ok(()),
            r => Err(Self {
                verb,
                source: io::Error::from_raw_os_error(errno_of(r)),
            }),
        }
    }

    /// Returns the errno; 0 if the call was refused before it reached the provider.
    pub fn errno(&self) -> i32 {
        self.source.raw_os_error().unwrap_or(0)
    }
}

impl From<VerbError> for io::Error {
    fn from(e: VerbError) -> Self {
        io::Error::new(e.source.kind(), e)
    }
}

fn hint(e: &VerbError) -> &'static str {
    match e.errno() {
        libc::ENOMEM if e.verb == "ibv_reg_mr" => {
            " (locked memory may be limited: see `ulimit -l`)"
        }
        _ => "",
    }
}

/// Returns the errno for a verb's return value.
pub(crate) fn errno_of(ret: i32) -> i32 {
    match ret {
        -1 => io::Error::last_os_error()
            .raw_os_error()
            .filter(|&e| e != 0)
            .unwrap_or(libc::EIO),
        r => r.saturating_abs(),
    }
}

/// The reason of a refused post, from the errno of `ibv_post_send(3)` or `ibv_post_recv(3)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostErrorKind {
    /// `ENOMEM`: the queue is full. Poll the CQ, then post again from `bad_wr`.
    #[error("the queue is full (ENOMEM): poll the CQ, then post again from bad_wr")]
    QueueFull,
    /// `EINVAL`: a value in the WR is invalid, or the QP's state does not allow the WR.
    #[error("invalid WR, or the QP's state takes none (EINVAL)")]
    InvalidWr,
    /// `EFAULT`: the QP is invalid.
    #[error("invalid queue pair (EFAULT)")]
    InvalidQp,
    /// The list belongs to another device than the queue pair; nothing was posted.
    #[error("the list was made for another device context")]
    OtherContext,
    /// Another errno.
    #[error("errno {0}")]
    Other(i32),
}

/// A refused post. The WRs before `bad_wr` were posted, those from `bad_wr` on were not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{verb}: WR {bad_wr}: {kind}")]
pub struct PostError {
    /// The verb: `ibv_post_send`, `ibv_post_recv` or `ibv_post_srq_recv`.
    pub verb: &'static str,
    /// The reason.
    pub kind: PostErrorKind,
    /// The index in the list of the first WR that was not posted.
    pub bad_wr: usize,
}

impl PostError {
    pub(crate) fn from_ret(verb: &'static str, ret: i32, bad_wr: usize) -> Self {
        let kind = match errno_of(ret) {
            libc::ENOMEM => PostErrorKind::QueueFull,
            libc::EINVAL => PostErrorKind::InvalidWr,
            libc::EFAULT => PostErrorKind::InvalidQp,
            e => PostErrorKind::Other(e),
        };
        Self { verb, kind, bad_wr }
    }

    /// Returns true if the queue is full: poll the CQ, then post the rest again.
    pub fn is_queue_full(&self) -> bool {
        self.kind == PostErrorKind::QueueFull
    }
}

impl From<PostError> for io::Error {
    fn from(e: PostError) -> Self {
        io::Error::other(e)
    }
}
