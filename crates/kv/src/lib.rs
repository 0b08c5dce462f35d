//! Key-value stores over the verbs.
//!
//! A [`Server`] keeps keys and values in a [`store`]. [`Client`]s find the server by TCP ([`rendezvous`]) and reach the
//! data by verbs. The server's [`Design`] defines how (Kalia, Kaminsky, Andersen, USENIX ATC 2016, section 4.3).
//!
//! The layers, from below:
//! - [`store`] is the storage engine without a network, except for memory that clients READ.
//! - `config`, `wire` and [`rendezvous`] define what server and client agree on.
//! - At the server, each implementation of `server::design` keeps items in its way. `server::worker` executes requests,
//!   and [`service::lock_recovery`] recovers what dead clients leave behind.
//! - At the client, each implementation of `client::design` reaches items in its way. [`PipelinedClient`] keeps requests
//!   outstanding, and [`Client`] has blocking calls.
//!
//! `docs/kv.md` says what each design promises.
//!
//! [`load`] generates requests and checks every value; [`history`] records what concurrent clients saw, for a
//! linearizability checker.
//!
//! Another front end can use [`KvService::store`] from its own threads: partitions are locked for a batch of requests
//! at a time. The crate `kv-resp` does so for the Redis protocol.

#![deny(unsafe_code)]

mod client;
mod config;
pub mod history;
pub mod load;
mod record_cache;
pub mod rendezvous;
mod report;
mod server;
pub mod store;
mod wire;

pub use client::{
    Answer, AsyncClient, Client, ClientError, ClientStats, Completion, PipelinedClient,
    RequestResult, RequestTicket, Value,
};
pub use config::{ClientConfig, Design, MAX_WINDOW, ServerConfig};
pub use record_cache::RecordCache;
pub use report::ServerStats;
pub use rpc::herd::RequestsPerClient;
pub use server::{KvService, ServerEnvironment};
pub use service::{
    ConnectError, LatencySummary, NicConfig, OpenError, ServerError, UnsupportedDesign,
};
pub use wire::Op;

/// A running server. Dropping the server stops it.
///
/// ```no_run
/// let config = kv::ServerConfig { listen: "127.0.0.1:7472".into(), ..Default::default() };
/// let server = kv::Server::start(config)?;
/// println!("clients find it at {}", server.address());
/// # Ok::<(), kv::ServerError>(())
/// ```
pub type Server = service::Server<KvService>;
/// A server whose workers the caller runs.
pub type LocalServer = service::LocalServer<KvService>;
/// A worker of a [`LocalServer`] that has not started.
pub type LocalWorker = service::LocalWorker<KvService>;
/// Connects clients to a [`LocalServer`].
pub type LocalConnector = service::LocalConnector<rendezvous::RendezvousProtocol>;
