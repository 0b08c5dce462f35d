//! Key-value stores over the verbs.
//!
//! A [`Server`] keeps keys and values in a [`store`]; [`Client`]s find it by TCP ([`rendezvous`]) and reach it by verbs,
//! as its [`Design`] says (Kalia, Kaminsky, Andersen, USENIX ATC 2016, section 4.3).
//!
//! Layers: [`store`] is pure, but for memory that clients READ; `wire` and `session` are what requests look like and how none is
//! carried out twice; `worker` and [`Pipeline`] are the loops at both ends; [`Client`] is the friendly one. Where clients reach
//! the server's memory themselves, `client::reach` READs an index and a log, `client::records` READs, locks and WRITEs
//! records, and `server::guests` takes back what clients leave. `docs/kv.md` says what each design promises.
//!
//! [`load`] asks for keys and checks every value; [`history`] records what concurrent clients saw, to be judged.
//!
//! Another front uses [`Server::store`] from threads of its own, as the crate `kv-resp` does, which speaks the Redis
//! protocol: partitions are locked for a batch of requests at a time.

#![deny(unsafe_code)]

mod client;
mod config;
pub mod history;
pub mod load;
mod prefetch;
pub mod rendezvous;
mod report;
mod server;
mod session;
pub mod store;
mod wire;
mod worker;

pub use client::{
    Answer, AsyncClient, Client, ClientError, Completion, Locations, Outcome, Pipeline, Ticket,
    Trouble, Value,
};
pub use config::{ClientConfig, Design, MAX_WINDOW, ServerConfig, Unsupported};
pub use report::{Latency, ServerStats};
pub use rpc::{NicConfig, OpenError};
pub use server::{Door, LocalServer, LocalWorker, Pass, Server, ServerError};
pub use wire::Op;
