//! Why RPCs fail, and how many fit into a batch.

use verbs::{PostError, VerbError};

/// Why a server or client cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] VerbError),
    /// A post was refused for another reason than a full queue.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A work request failed.
    #[error("a work request failed: {0}")]
    Completion(verbs::WcStatus),
    /// A part of a region lies outside of it.
    #[error(transparent)]
    Range(#[from] verbs::RangeError),
    /// A configuration that cannot work.
    #[error("{0}")]
    Config(String),
}

/// The most requests of one batch.
pub const MAX_BATCH: usize = 64;

/// The most messages of one list of answers: those of a batch, after parts of long ones.
pub(crate) const MAX_LIST: usize = 2 * MAX_BATCH;
