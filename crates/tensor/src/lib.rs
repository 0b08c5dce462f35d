//! Tensors between processes, by key: a receiver asks, and the sender WRITEs from the source straight into the
//! destination.
//!
//! The design is TensorFlow's. A receiver asks for a tensor by key and step. It says where the tensor is to go, by
//! address and R_Key, and what it takes the tensor to be, by element type and shape. The sender compares. If the tensor
//! is something else it says what; the receiver allocates memory for that and asks again. Then the sender WRITEs the
//! tensor, striped over several queue pairs, with the index of the request as immediate. Receivers remember what a
//! tensor was, so that most requests succeed at once.
//!
//! - [`Peer`]: a process that has tensors for others ([`publish`](Peer::publish)), stores theirs, and connects to others.
//! - [`ConnectedPeer`]: another one: [`get`](ConnectedPeer::get), [`put`](ConnectedPeer::put),
//!   [`remove`](ConnectedPeer::remove).
//! - [`Tensor`], [`TensorMeta`], [`DType`]: a tensor in registered memory, and what it is.
//! - [`PeerMessage`], [`ConnectionWindows`], [`OutstandingRequests`], [`TensorCatalogue`], [`stripes`]: the protocol; pure.
//!
//! A peer that dies is an error. The queue pairs of a connection are destroyed before any memory that its peer may
//! write is freed, so no WRITE comes into memory that somebody else has by then.

#![forbid(unsafe_code)]

mod catalogue;
mod connection_poller;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod incoming_room;
mod link;
mod memory;
mod message;
mod meta;
mod peer;
mod pending_operation;
mod protocol;
mod queues;
mod rendezvous;
mod requests;
mod store;
pub mod stripes;
mod window;

pub use catalogue::{PublishedHereError, StoreStatistics, TensorCatalogue};
pub use error::Error;
pub use memory::{DEFAULT_MAX_FREE_POOL_BYTES, Tensor};
pub use message::{
    KEY_BYTES_MAX, MESSAGE_BYTES, MessageError, PeerMessage, PeerRefusal, RequestedTensor,
    TensorName,
};
pub use meta::{DIMENSIONS_MAX, DType, MetaError, TENSOR_BYTES_MAX, TensorMeta};
pub use peer::{Config, ConnectedPeer, DATA_QUEUE_PAIRS_MAX, Operation, Peer, StartError};
pub use pending_operation::Outcome;
pub use requests::{OutstandingRequests, REQUESTS_MAX};
pub use window::{ConnectionWindows, MAX_UNCONSUMED_MESSAGES};
