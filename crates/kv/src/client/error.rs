//! Why a client fails.

use service::{ConnectError, Refused};

use crate::Design;
use crate::rendezvous::Rendezvous;

/// Why a client cannot connect, or a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// It cannot connect.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] verbs::VerbError),
    /// The RPC layer failed.
    #[error(transparent)]
    Rpc(#[from] rpc::RpcError),
    /// Key or value are too long.
    #[error(
        "keys have at most {} bytes, values {}, less where the server has little memory",
        crate::store::MAX_KEY_BYTES,
        crate::store::MAX_VALUE_BYTES
    )]
    TooLong,
    /// The design does not promise this.
    #[error("design {design} {lacks}")]
    NotPromised {
        /// The design that is served.
        design: Design,
        /// What it lacks, and what has it.
        lacks: &'static str,
    },
    /// The store is full.
    #[error("the store is full: delete something, or give the server more --memory")]
    Full,
    /// The condition of a change does not hold.
    #[error("the condition does not hold: the version there is {version}")]
    Condition {
        /// The version that is there, 0 for none.
        version: u64,
    },
    /// No answer came in time. A change may have been made, and is not made later.
    #[error("no answer came in time; a change may have been made or not")]
    Lost,
}

impl ClientError {
    /// For a reason that stays, the server refused, or this client refuses the server.
    pub(crate) fn refused(reason: impl Into<String>) -> Self {
        ConnectError::refused::<Rendezvous>(Refused::never(reason.into())).into()
    }

    /// Whether trying to connect again cannot help.
    pub(super) fn is_hopeless(&self) -> bool {
        match self {
            Self::Connect(e) => e.is_hopeless(),
            _ => true,
        }
    }
}
