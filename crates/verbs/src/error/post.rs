//! The error of a post.

use std::io;

use super::errno_of_return_value;

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
        let kind = match errno_of_return_value(ret) {
            libc::ENOMEM => PostErrorKind::QueueFull,
            libc::EINVAL => PostErrorKind::InvalidWr,
            libc::EFAULT => PostErrorKind::InvalidQp,
            e => PostErrorKind::Other(e),
        };
        Self { verb, kind, bad_wr }
    }

    /// Returns the errno; 0 if the post was refused before it reached the provider.
    pub fn errno(&self) -> i32 {
        match self.kind {
            PostErrorKind::QueueFull => libc::ENOMEM,
            PostErrorKind::InvalidWr => libc::EINVAL,
            PostErrorKind::InvalidQp => libc::EFAULT,
            PostErrorKind::OtherContext => 0,
            PostErrorKind::Other(errno) => errno,
        }
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
