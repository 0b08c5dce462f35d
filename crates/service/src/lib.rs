//! The shared life cycle of networked services: start and stop of a server, rendezvous with
//! clients, sessions, and reports.
//!
//! A system consists of its operations, its storage and its checker. It implements [`Service`] and
//! defines the three messages of its rendezvous ([`Protocol`]). This crate provides the rest:
//!
//! - [`Server`] listens, runs workers in threads, and stops. [`LocalServer`] leaves listening and
//!   threads to the caller, for example to simulated cores, and gives clients a [`LocalConnector`].
//! - [`ServerLocation`] opens a client's session by TCP or by a connector, and retries while a retry may
//!   succeed.
//! - [`worker`] contains the loop of a worker that polls, waits and sleeps, and its mailbox.
//! - [`sessions`] records changes, so that none is executed twice. [`FreeSlots`] assigns indices to
//!   clients.
//! - [`lock_recovery`] recovers the locks of clients that change the server's memory directly.
//! - [`workload`] chooses keys for a load and makes values that can be checked. [`random`]
//!   generates random numbers.
//! - [`history`] records the results of concurrent clients, and checks whether they are
//!   linearizable.
//! - [`designs!`] declares the designs of a system. [`config`] checks values. [`LatencySummary`] is a part
//!   of reports.
//!
//! `examples/counter.rs` is the skeleton of a new service on one page.

#![forbid(unsafe_code)]

mod acceptor;
mod client;
mod client_slots;
pub mod config;
mod connector;
pub mod design;
pub mod history;
mod local;
pub mod lock_recovery;
mod nic;
mod protocol;
pub mod qp;
pub mod random;
mod rendezvous;
mod report;
mod server;
mod service_trait;
pub mod sessions;
pub mod worker;
pub mod workload;

pub use verbs::{Capabilities, Capability};

pub use client::{ClientSession, ConnectError, ServerLocation};
pub use client_slots::{ClientSlot, FreeSlots};
pub use config::ServerConfig;
pub use connector::LocalConnector;
pub use design::UnsupportedDesign;
pub use local::{LocalServer, LocalWorker};
pub use nic::{NicConfig, OpenError};
pub use protocol::{Hello, Protocol, ServerOffer};
pub use rendezvous::{Answer, ClientRefusal};
pub use report::LatencySummary;
pub use server::Server;
pub use service_trait::{
    AcceptedOf, ClientsConnected, FirstFailure, HelloOf, ServerError, ServerOfferOf, Service,
};
