//! A remote B+tree over the verbs.
//!
//! A [`Server`] keeps trees in registered memory ([`tree`]). [`Client`]s find the server by TCP ([`rendezvous`]) and
//! reach its trees by verbs. [`AccessDesign`] selects the walker: the server walks a tree for each request, or the
//! client READs nodes and walks itself.
//!
//! The layers, from below:
//! - `key_or_value` has the types of keys and values. `node` is the layout of a node, and [`tree`] the trees at the server.
//! - `config`, `wire` and [`rendezvous`] define what server and client agree on.
//! - [`walk_cost`] charges the cost of walks to simulated cores.
//! - `server` has the workers that execute requests; `client` has the [`PipelinedClient`] and the layers below it.
//! - [`load`] generates requests and checks every answer; [`history`] records requests to few keys for a
//!   linearizability checker.

#![forbid(unsafe_code)]

pub mod balance;
mod client;
mod config;
#[doc(hidden)]
pub mod fuzz;
pub mod history;
mod key_or_value;
pub mod load;
mod node;
mod node_words;
pub mod rendezvous;
mod report;
mod server;
pub mod tree;
pub mod walk_cost;
mod wire;

pub use client::{
    Answer, Client, ClientError, ClientStats, Completion, ExecuteRequests, LoadBalancer,
    PipelinedClient, Router,
};
pub use config::{AccessDesign, ClientConfig, MAX_WINDOW, MIN_ENTRIES_PER_NODE, ServerConfig};
pub use key_or_value::{ByteString, KeyOrValue, NumberSizes, StringSizes, TooLongError};
pub use node::{MAX_NODE_BYTES, MIN_NODE_BYTES};
pub use report::ServerStats;
pub use server::{BtreeService, RangeMover, ServerEnvironment};
pub use service::{
    ConnectError, LatencySummary, NicConfig, OpenError, ServerError, UnsupportedDesign,
};
pub use tree::{MovedRange, PutCondition, RangeOwner};
pub use wire::{HandoverStep, Operation};

/// A running server. Dropping the server stops it.
pub type Server<T = u64> = service::Server<BtreeService<T>>;
/// A server whose workers the caller runs.
pub type LocalServer<T = u64> = service::LocalServer<BtreeService<T>>;
/// A worker of a [`LocalServer`] that has not started.
pub type LocalWorker<T = u64> = service::LocalWorker<BtreeService<T>>;
/// Connects clients to a [`LocalServer`].
pub type LocalConnector = service::LocalConnector<rendezvous::RendezvousProtocol>;
