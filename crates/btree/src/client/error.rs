//! The errors of a client.

use service::{ClientRefusal, ConnectError};

use crate::rendezvous::RendezvousProtocol;
use crate::tree::MovedRange;

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
    /// The server has no such tree.
    #[error("there is no tree {tree}: the server has trees 0 to {}", .trees - 1)]
    NoTree {
        /// The tree that was requested.
        tree: u8,
        /// Number of trees of the server.
        trees: usize,
    },
    /// The key belongs to another server.
    #[error("keys from {} on belong to server {} of this tree: ask that one", .0.from, .0.owner.server)]
    Moved(MovedRange),
    /// The store is full.
    #[error("the store is full: delete something, or give the server room for more --keys")]
    StoreFull,
    /// No answer arrived in time. A change may have been made; it will not be made later.
    #[error("no answer came in time; a change may have been made or not")]
    NoAnswerInTime,
}

verbs::from_verb_errors!(ClientError);

impl ClientError {
    /// Creates the error for a permanent refusal, by the server or by this client.
    pub(super) fn permanent_refusal(reason: impl Into<String>) -> Self {
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
