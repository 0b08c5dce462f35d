//! The simulated NIC: whole clusters in virtual time, on one thread.
//!
//! A [`Cluster`] has machines, each with a NIC, a PCIe link and cores as a profile of `nicmodel` describes them. Its
//! machines are devices of a provider ([`provider_symbols`]) with the same C ABI as all other providers. So every
//! program that uses the verbs runs on it: real code on simulated threads ([`Cluster::spawn`]), whose verbs cost
//! virtual time and cause events.
//!
//! A machine whose profile has a DPU is two devices on one NIC: its host and its DPU. Each has its own cores, memory
//! and path to the NIC ([`Cluster::host_or_dpu_of_machine`]).
//!
//! - `queue`: the event queue; events of equal time have a fixed order, so a run depends only on its input.
//! - `costs`: the profile's numbers as times, from `nicmodel`'s footprints; `caches`: the time of memory accesses.
//! - `world`: the state of the simulation: `machine`, `qp`, `cq`, `srq`, `channel`, `mr`, `message`, `thread`; `event`:
//!   its events.
//! - `network_faults`: packets that are lost or late by a plan; `retransmission`: messages that are sent again.
//! - `nic`: WQEs through processing units to the network, messages to memory, and completions.
//! - `post`: the costs of verbs on a core.
//! - `threads`: coroutines with clocks, and the only places where they are suspended.
//! - `abi`, `memory`: C structures and raw memory, with all unsafe code for them.
//! - `prefetch`: prefetches of the simulator's state.
//!
//! A network loses no packets, unless a plan says so ([`Cluster::inject_faults`]). Reliable queue pairs send again what
//! is lost, and SENDs that find no RECV.
//!
//! The following is not simulated: asynchronous events, limits on outstanding READs, and congestion control. A post
//! with a fence fails with `EOPNOTSUPP`, one of a READ with several buffers with `EINVAL`.

#![deny(unsafe_code, missing_docs, clippy::missing_errors_doc)]

mod abi;
mod cluster;
mod completion_channel;
mod core_caches;
mod costs;
mod cq;
mod event;
mod event_queue;
mod fifo_queue;
mod machine;
mod memory;
mod message;
mod mr;
mod network_faults;
mod nic;
mod outstanding_reads;
mod port;
mod post_and_poll;
mod posted_recvs;
mod prefetch;
mod qp;
mod retransmission;
mod serial_resource;
mod simulation;
mod spend_core_time;
mod srq;
mod thread;
mod threads;
mod timetable;

pub use abi::provider_symbols;
pub use cluster::{Cluster, CreateClusterError, DeadlockedThreads, HostOrDpu};
pub use costs::{MissingCosts, unknown_core_costs};
pub use machine::NicCounters;
pub use network_faults::UnsupportedRule;
pub use spend_core_time::{
    spend_core_time, spend_empty_memory_polls, spend_random_accesses, spend_server_request_work,
    spend_shared_atomic_add,
};
pub use threads::{
    is_simulated, now, now_ns, poll_cqs_while_empty, suspend_while_idle, suspend_while_polling_cq,
    suspend_while_polling_memory, wait_until_channel_readable,
};
