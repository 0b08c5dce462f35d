//! What every networked service shares: a server's life, how clients find it, their sessions, its report.
//!
//! A system is its operations, its storage and its checker. It implements [`Service`] and says what its three messages
//! of the rendezvous are ([`Protocol`]). This crate does the rest:
//!
//! - [`Server`] listens, runs workers in threads and stops; [`LocalServer`] leaves both to the caller, as simulated
//!   cores do, and gives clients a [`Connector`].
//! - [`Target`] opens a client's session by TCP or by a connector, and tries again while that may help.
//! - [`worker`] is the loop of a worker that polls, waits and sleeps, and its mailbox.
//! - [`sessions`] remembers changes, so that none is made twice; [`Slots`] gives clients their indices.
//! - [`guests`] recovers locks of clients that change the server's memory by themselves.
//! - [`workload`] chooses keys for a load, and makes values that can be checked; [`random`] has their random numbers.
//! - [`history`] records what concurrent clients saw, and judges whether it was linearizable.
//! - [`designs!`] declares the designs of a system; [`config`] checks values; [`Latency`] is a report's part.
//!
//! `examples/counter.rs` is the skeleton of a new service on one page.

#![forbid(unsafe_code)]

mod acceptor;
mod client;
pub mod config;
mod connector;
pub mod design;
pub mod guests;
pub mod history;
mod host;
mod local;
mod nic;
mod protocol;
pub mod qp;
pub mod random;
mod rendezvous;
mod report;
mod server;
pub mod sessions;
mod slots;
pub mod worker;
pub mod workload;

pub use verbs::{Capabilities, Capability};

pub use client::{ConnectError, Connection, Target};
pub use config::ServerConfig;
pub use connector::Connector;
pub use design::Unsupported;
pub use host::{AcceptedOf, ClientCounts, Failure, HelloOf, ServerError, Service, WelcomeOf};
pub use local::{LocalServer, LocalWorker};
pub use nic::{NicConfig, OpenError};
pub use protocol::{Hello, Protocol, Welcome};
pub use rendezvous::{Answer, Refused};
pub use report::Latency;
pub use server::Server;
pub use slots::{Slot, Slots};
