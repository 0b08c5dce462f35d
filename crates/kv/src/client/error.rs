//! The errors of a client.

use service::{ClientRefusal, ConnectError};

use crate::Design;
use crate::rendezvous::RendezvousProtocol;

/// The reason why a client cannot connect, or why a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The client cannot connect.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] verbs::VerbError),
    /// The RPC layer failed.
    #[error(transparent)]
    Rpc(#[from] rpc::RpcError),
    /// The key or the value is too long.
    #[error(
        "keys have at most {} bytes and values {}; designs with records allow the server's --key-size and --value-size, and a \
         server with little memory allows less",
        crate::store::MAX_KEY_BYTES,
        crate::store::MAX_VALUE_BYTES
    )]
    TooLong,
    /// The server's design does not support the operation.
    #[error("design {design} {missing}")]
    Unsupported {
        /// The design of the server.
        design: Design,
        /// The missing feature, and designs that have it.
        missing: &'static str,
    },
    /// The store is full.
    #[error("the store is full: delete something, or give the server more --memory")]
    StoreFull,
    /// The condition of a change does not hold.
    #[error("the condition does not hold: the version there is {version}")]
    ConditionNotMet {
        /// The present version, 0 if the key is absent.
        version: u64,
    },
    /// No answer arrived in time. A change may have been made; it will not be made later.
    #[error("no answer came in time; a change may have been made or not")]
    NoAnswerInTime,
}

verbs::from_verb_errors!(ClientError);

impl ClientError {
    /// Creates the error for a permanent refusal, by the server or by this client.
    pub(crate) fn permanent_refusal(reason: impl Into<String>) -> Self {
        ConnectError::refused::<RendezvousProtocol>(ClientRefusal::permanent(reason.into())).into()
    }

    /// Returns true if another attempt to connect cannot help.
    pub(super) fn is_permanent(&self) -> bool {
        match self {
            Self::Connect(e) => e.is_permanent(),
            _ => true,
        }
    }
}
