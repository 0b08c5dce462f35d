//! The errors of a client.

use service::{ClientRefusal, ConnectError};

use crate::key_or_value::{StringSizes, TooLongError};
use crate::rendezvous::{RendezvousProtocol, ServerPlace};

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
    #[error("keys from {first_key} on belong to server {server} of this tree: ask that one")]
    Moved {
        /// The first key of the range.
        first_key: String,
        /// The number of the server.
        server: u16,
    },
    /// The servers that a client was given are not those that share the keys, or are in another order.
    #[error(
        "{server} is part {} of {} of its tree and was named as part {} of {}: name all servers that share the keys, in the order \
         of their parts (HOST:PORT,HOST:PORT,…)",
        .place.number, .place.of, .expected.number, .expected.of
    )]
    OtherServerPlace {
        /// The server.
        server: String,
        /// Its place by its own configuration.
        place: ServerPlace,
        /// Its place among the servers that the client was given.
        expected: ServerPlace,
    },
    /// The server's keys and values are of the other type: byte strings with these sizes, or numbers.
    #[error("{}", other_key_type_message(*.0))]
    OtherKeyType(Option<StringSizes>),
    /// Servers that share their keys have different limits of keys and values.
    #[error(
        "servers that share their keys need equal sizes of keys and values: one has {} and {} bytes, another {} and {}",
        .0.key_bytes, .0.value_bytes, .1.key_bytes, .1.value_bytes
    )]
    KeyOrValueLimitsDiffer(StringSizes, StringSizes),
    /// A key or a value is longer than the server's trees allow.
    #[error("{0}; the limits are the server's --key-size and --value-size")]
    TooLong(TooLongError),
    /// The store is full.
    #[error("the store is full: delete something, or give the server room for more --keys")]
    StoreFull,
    /// No answer arrived in time. A change may have been made; it will not be made later.
    #[error("no answer came in time; a change may have been made or not")]
    NoAnswerInTime,
}

verbs::from_verb_errors!(ClientError);

// The error itself prints the length, so it is not the source of another one.
impl From<TooLongError> for ClientError {
    fn from(error: TooLongError) -> Self {
        Self::TooLong(error)
    }
}

fn other_key_type_message(strings: Option<StringSizes>) -> String {
    match strings {
        None => "the server's keys and values are numbers, and this client's are byte strings"
            .to_owned(),
        Some(StringSizes {
            key_bytes,
            value_bytes,
        }) => format!(
            "the server's keys and values are byte strings of up to {key_bytes} and {value_bytes} bytes, and this client's \
             are numbers"
        ),
    }
}

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
