//! A remote B+tree over the verbs.
//!
//! A [`Server`] keeps trees in registered memory ([`tree`]); [`Client`]s find it by TCP ([`rendezvous`]) and reach it by
//! verbs, as their [`Access`] says: the server walks for them, or they READ nodes and walk themselves.
//!
//! Layers, from below: `node` is the layout of a node, [`tree`] the trees at the server; `config`, `wire` and [`rendezvous`]
//! are what both sides agree on; [`touch`] is what walks cost on simulated cores. `server` is workers that carry out requests;
//! `client` is the [`Pipeline`] and what it stands on. [`load`] asks for keys and checks every answer; [`history`] asks for few
//! keys and records it for a checker.

#![forbid(unsafe_code)]

pub mod balance;
mod client;
mod config;
#[doc(hidden)]
pub mod fuzz;
pub mod history;
pub mod load;
mod node;
pub mod rendezvous;
mod report;
mod server;
pub mod touch;
pub mod tree;
mod wire;

pub use client::{
    Answer, Client, ClientError, ClientStats, Completion, Controller, Pipeline, Requests, Router,
};
pub use config::{Access, ClientConfig, MAX_WINDOW, ServerConfig};
pub use node::{MAX_NODE_BYTES, MIN_NODE_BYTES};
pub use report::ServerStats;
pub use server::{Btree, Environment, Mover};
pub use service::{ConnectError, Latency, NicConfig, OpenError, ServerError, Unsupported};
pub use tree::{Elsewhere, Owner, When};
pub use wire::{Op, Step};

/// A running server. Dropping it stops it.
pub type Server = service::Server<Btree>;
/// A server whose workers the caller runs.
pub type LocalServer = service::LocalServer<Btree>;
/// A worker of a [`LocalServer`] that does not run yet.
pub type LocalWorker = service::LocalWorker<Btree>;
/// Connects clients to a [`LocalServer`].
pub type Connector = service::Connector<rendezvous::Rendezvous>;
