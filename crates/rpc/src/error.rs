//! Errors of RPCs, and limits of a batch.

use verbs::{PostError, VerbError};

/// Error after which a server or client cannot continue.
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
    /// The configuration is invalid.
    #[error("{0}")]
    Config(String),
}

verbs::from_verb_errors!(RpcError);

/// Maximum number of requests in a batch.
pub const MAX_BATCH: usize = 64;

/// Maximum number of messages in a list of answers: the answers of a batch, after parts of long
/// answers.
pub(crate) const MAX_ANSWER_POSTLIST_LEN: usize = 2 * MAX_BATCH;
