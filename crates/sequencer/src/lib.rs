//! A networked sequencer: 8-byte increasing numbers for many clients, none given twice, whatever fails.
//!
//! Five [`Design`]s give the same numbers at very different cost (Kalia, Kaminsky, Andersen, USENIX ATC
//! 2016, section 4). A [`Server`] serves one of them; [`Client`]s find it by TCP ([`rendezvous`]) and get
//! numbers by verbs. A [`Checker`] takes what all clients got and says whether it was a sequencer.
//!
//! ```
//! use sequencer::{Checker, Client, ClientConfig, Server, ServerConfig, Until};
//!
//! let server = Server::start(ServerConfig::default())?;
//! let mut client = Client::connect(ClientConfig { server: server.address().to_string(), ..Default::default() })?;
//! let report = client.run(Until::Count(10_000));
//! drop(client);
//! let stats = server.stop();
//!
//! let mut checker = Checker::new(stats.start);
//! checker.add("the client", &report);
//! let verdict = checker.verdict(Some(stats.next));
//! assert!(verdict.ok, "{verdict}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Layers: [`NumberSet`] and [`Checker`] are pure; [`counter`] is the shared counter and its end;
//! [`state`] makes restarts safe; `worker` and `client` are the loops that count.

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

pub use checker::{Checker, Verdict};
pub use client::{Client, ClientError};
pub use config::{ClientConfig, Design, ServerConfig, WindowPolicy};
pub use numbers::NumberSet;
pub use report::{ClientReport, Failures, ServerStats, Until};
pub use rpc::herd::Scan;
pub use server::{Environment, Sequencer};
pub use service::{ConnectError, Latency, NicConfig, OpenError, ServerError, Unsupported};

/// A running server. Dropping it stops it.
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
/// A worker of a [`LocalServer`] that does not run yet.
pub type LocalWorker = service::LocalWorker<Sequencer>;
/// Connects clients to a [`LocalServer`].
pub type Connector = service::Connector<rendezvous::Rendezvous>;
