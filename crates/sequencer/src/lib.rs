//! A networked sequencer: gives many clients increasing 8-byte numbers, and none of them twice, whatever fails.
//!
//! Five [`Design`]s give the same numbers at very different cost (Kalia, Kaminsky, Andersen, USENIX ATC 2016, section
//! 4). A [`Server`] serves one design. [`Client`]s find the server by TCP ([`rendezvous`]) and get numbers by verbs. A
//! [`NumberChecker`] takes the numbers of all clients and decides whether they came from a correct sequencer.
//!
//! ```
//! use sequencer::{NumberChecker, Client, ClientConfig, Server, ServerConfig, RunLimit};
//!
//! let server = Server::start(ServerConfig::default())?;
//! let mut client = Client::connect(ClientConfig { server: server.address().to_string(), ..Default::default() })?;
//! let report = client.run(RunLimit::Count(10_000));
//! drop(client);
//! let stats = server.stop();
//!
//! let mut checker = NumberChecker::new(stats.first_number);
//! checker.add_report("the client", &report);
//! let verdict = checker.verdict(Some(stats.next_number));
//! assert!(verdict.ok, "{verdict}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Layers: [`NumberSet`] and [`NumberChecker`] do no I/O. [`counter`] is the shared counter and its limits. [`state`]
//! makes restarts safe. `worker` and `client` are the main loops.

#![forbid(unsafe_code)]

mod checker;
mod client;
mod config;
pub mod counter;
mod lanes;
mod numbers;
pub mod rendezvous;
mod report;
mod run;
mod server;
pub mod state;
mod worker;

pub use checker::{NumberChecker, NumberVerdict};
pub use client::{Client, ClientError};
pub use config::{ClientConfig, Design, ServerConfig, WindowPolicy};
pub use numbers::NumberSet;
pub use report::{ClientReport, FailureCounts, RunLimit, ServerStats};
pub use rpc::herd::RequestsPerClient;
pub use server::{Sequencer, WorkerThreads};
pub use service::{
    ConnectError, LatencySummary, NicConfig, OpenError, ServerError, UnsupportedDesign,
};

/// A running server. Dropping the server stops it.
///
/// ```no_run
/// use sequencer::{Design, Server, ServerConfig};
/// let config = ServerConfig { design: Design::RpcBatch, listen: "127.0.0.1:7000".into(), ..Default::default() };
/// let server = Server::start(config)?;
/// println!("clients find it at {}", server.address());
/// # Ok::<(), sequencer::ServerError>(())
/// ```
pub type Server = service::Server<Sequencer>;
/// A server whose workers the caller runs.
pub type LocalServer = service::LocalServer<Sequencer>;
/// A worker of a [`LocalServer`] that has not started.
pub type LocalWorker = service::LocalWorker<Sequencer>;
/// Connects clients to a [`LocalServer`].
pub type Connector = service::LocalConnector<rendezvous::RendezvousProtocol>;
