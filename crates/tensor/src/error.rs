//! What can go wrong.

use std::time::Duration;

use crate::message::{MessageError, TensorName};
use crate::meta::{MetaError, TensorMeta};

/// Why a tensor did not come or go.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key or the shape cannot be.
    #[error(transparent)]
    InvalidName(#[from] MessageError),
    /// The tensor cannot be.
    #[error(transparent)]
    InvalidMetadata(#[from] MetaError),
    /// The peer has no such tensor.
    #[error("the peer has no tensor {0}")]
    NotFound(TensorName),
    /// Time has passed.
    #[error(
        "no answer for tensor {name} within {timeout:?}: either nobody has published it, or the peer is busy"
    )]
    Timeout {
        /// Which.
        name: TensorName,
        /// The timeout of the operation.
        timeout: Duration,
    },
    /// The caller has cancelled the operation.
    #[error("the request for tensor {0} was cancelled")]
    Cancelled(TensorName),
    /// The given memory is for another tensor.
    #[error("tensor {name} is {remote}, and the given array is {expected}")]
    MetadataMismatch {
        /// Which.
        name: TensorName,
        /// The metadata of the tensor at the peer.
        remote: TensorMeta,
        /// The metadata of the tensor for which the caller has given memory.
        expected: TensorMeta,
    },
    /// The store has less room than that.
    #[error(
        "tensor {name} has {bytes} bytes, and the peer is no store or has less capacity than that"
    )]
    TooLarge {
        /// Which.
        name: TensorName,
        /// Its bytes.
        bytes: u64,
    },
    /// The peer could not register memory for it.
    #[error("the peer has no memory for tensor {0}")]
    PeerCannotRegisterMemory(TensorName),
    /// The peer has published the tensor itself.
    #[error("the peer has published tensor {0} itself: others can neither replace nor remove it")]
    PublishedByPeer(TensorName),
    /// Too much at once.
    #[error(
        "{0} requests are outstanding on this connection; wait for some of them, or open a second connection"
    )]
    TooManyOutstandingRequests(usize),
    /// The connection is of no use any more.
    #[error("the connection to {peer} has ended: {reason}")]
    Disconnected {
        /// To whom.
        peer: String,
        /// Why.
        reason: String,
    },
    /// A verb of this process failed.
    #[error("{0}")]
    Verb(String),
}

verbs::from_verb_errors!(Error);

impl From<verbs::VerbError> for Error {
    fn from(e: verbs::VerbError) -> Self {
        Self::Verb(e.to_string())
    }
}
