//! Key-value stores over the verbs.
//!
//! A [`Server`] keeps keys and values in a [`store`]; [`Client`]s find it by TCP ([`rendezvous`]) and reach it by verbs,
//! as its [`Design`] says (Kalia, Kaminsky, Andersen, USENIX ATC 2016, section 4.3).
//!
//! Layers, from below: [`store`] is pure, but for memory that clients READ; `config`, `wire` and [`rendezvous`] are what both
//! sides agree on. At the server each implementation of `server::design` keeps items its way, `server::worker` is the loop
//! that carries out requests, and [`service::guests`] takes back what clients leave. At the client each implementation of
//! `client::design` reaches items its way, [`Pipeline`] is the loop, and [`Client`] the friendly one.
//! `docs/kv.md` says what each design promises.
//!
//! [`load`] asks for keys and checks every value; [`history`] records what concurrent clients saw, to be judged.
//!
//! Another front uses [`Kv::store`] from threads of its own, as the crate `kv-resp` does, which speaks the Redis
//! protocol: partitions are locked for a batch of requests at a time.

#![deny(unsafe_code)]

mod client;
mod config;
pub mod history;
pub mod load;
mod locations;
pub mod rendezvous;
mod report;
mod server;
pub mod store;
mod wire;

pub use client::{
    Answer, AsyncClient, Client, ClientError, ClientStats, Completion, Outcome, Pipeline, Ticket,
    Value,
};
pub use config::{ClientConfig, Design, MAX_WINDOW, ServerConfig};
pub use locations::Locations;
pub use report::ServerStats;
pub use rpc::herd::Scan;
pub use server::{Environment, Kv};
pub use service::{ConnectError, Latency, NicConfig, OpenError, ServerError, Unsupported};
pub use wire::Op;

/// A running server. Dropping it stops it.
///
/// ```no_run
/// let config = kv::ServerConfig { listen: "127.0.0.1:7472".into(), ..Default::default() };
/// let server = kv::Server::start(config)?;
/// println!("clients find it at {}", server.address());
/// # Ok::<(), kv::ServerError>(())
/// ```
pub type Server = service::Server<Kv>;
/// A server whose workers the caller runs.
pub type LocalServer = service::LocalServer<Kv>;
/// A worker of a [`LocalServer`] that does not run yet.
pub type LocalWorker = service::LocalWorker<Kv>;
/// Connects clients to a [`LocalServer`].
pub type Connector = service::Connector<rendezvous::Rendezvous>;
