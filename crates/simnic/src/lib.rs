//! The simulated NIC: whole clusters in virtual time, on one thread.
//!
//! A [`Cluster`] has machines, each with a NIC, a PCIe link and cores as a profile of `nicmodel`
//! describes them. Its machines are devices of a provider ([`symbols`]) of the same C ABI as every
//! other, so whatever is written against the verbs runs on it: real code on simulated threads
//! ([`Cluster::spawn`]), whose verbs cost virtual time and cause events.
//!
//! A machine whose profile has a DPU is two such devices on one NIC: its host and its DPU, each with cores, memory and a
//! path to the NIC of its own ([`Cluster::at`]).
//!
//! - `queue`: what happens next; ties have an order, so a run depends on nothing but its input.
//! - `costs`: the profile as times, by way of `nicmodel`'s footprints; `caches`: what a core's touches of memory cost.
//! - `world`: all that there is: `machine`, `qp`, `cq`, `mr`, `message`, `thread`; `event`: what happens.
//! - `nic`: WQEs through processing units to the network, messages to memory and completions.
//! - `post`: what verbs cost a core.
//! - `threads`: coroutines with clocks; the only places where they stop.
//! - `abi`, `memory`: C structures and raw memory, and all that is unsafe about them.
//! - `prefetch`: cache lines that are needed soon.
//!
//! What is not simulated: shared receive queues, completion events, limits on outstanding READs,
//! loss, and retries (a RECV that is not there when a reliable SEND comes fails it at once).

#![deny(unsafe_code, missing_docs, clippy::missing_errors_doc)]

mod abi;
mod caches;
mod cluster;
mod costs;
mod cq;
mod event;
mod fifo;
mod line;
mod machine;
mod memory;
mod message;
mod mr;
mod nic;
mod port;
mod post;
mod prefetch;
mod qp;
mod queue;
mod reads;
mod recvs;
mod spend;
mod thread;
mod threads;
mod timetable;
mod world;

pub use abi::symbols;
pub use cluster::{Cluster, ClusterError, Machine, Unfinished};
pub use costs::MissingCosts;
pub use machine::Counters;
pub use spend::{spend, spend_empty_looks, spend_requests, spend_shared_add, spend_touches};
pub use threads::{idle, idle_looking, idle_polling, is_simulated, now, now_ns};
