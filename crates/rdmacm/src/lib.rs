//! Connection management for the software NIC: the functions of librdmacm, within a host and between hosts.
//!
//! [`abi`] contains librdmacm's entry points as C functions. They use the verbs of the provider that
//! [`set_provider_finder`] sets, and the fabric's folder, in which processes find each other.
//!
//! # The layers, bottom up
//!
//! - `errno`, `lock`, `addr`, `ib`, `process`, `libc_calls`: utilities, and addresses of IP and `AF_IB`.
//! - `wire`: the messages between the two ends of a connection, named as in IBTA vol. 1, chapter 12.
//! - `ports`: owners and listeners of port numbers; delivery of management datagrams to the right process.
//! - `cm_thread`, `channel`: the sleeping thread that reads the peers' messages; queues of events.
//! - `gsi`, `mad`: QP1, and connections by management datagrams to peers that packets reach.
//! - `device`, `multicast`: the device, and its attributes for the addresses of ids and groups.
//! - `cm`: the state that all ids of the process share.
//! - `endpoint`: one end of a connection, without C types and verbs.
//! - `id`: the C object of the program: an endpoint and its queue pair.
//! - `cm_event`, `resolve`, `connect`: the events of ids, their addresses, their life cycle and connections.
//! - `abi`: the C functions.
//!
//! On one host, a connection is a socket between two processes and lasts as long as the socket. If a process is killed,
//! its peers get an event. Between hosts, a connection is established by the messages of IBTA vol. 1, chapter 12, as
//! Linux's `rdma_cm` sends them. If a process is killed, its peer notices that only by its queue pair.
#![deny(unsafe_code)]
// `u64` and `usize` have the same size on every supported target.
#![allow(clippy::cast_possible_truncation)]

#[allow(unsafe_code)]
pub mod abi;
#[allow(unsafe_code)]
pub mod addr;
#[allow(unsafe_code)]
mod address_list;
mod channel;
mod cm;
#[allow(unsafe_code)]
pub mod cm_event;
mod cm_thread;
mod connection_params;
#[allow(unsafe_code)]
pub mod device_port;
mod endpoint;
pub mod errno;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
#[allow(unsafe_code)]
mod gsi;
mod ib_addr;
#[allow(unsafe_code)]
pub mod id;
#[allow(unsafe_code)]
pub mod id_lifecycle;
#[allow(unsafe_code)]
mod libc_calls;
mod lock;
mod mad;
mod multicast;
mod ports;
mod process_identity;
pub mod resolve;
mod wire;

pub use channel::EventChannel;
pub use cm::{DEFAULT_ANSWER_TIMEOUT, Provider, default_device_port, set_provider_finder};
pub use endpoint::EndpointEvent;
pub use ib_addr::IbAddr;
pub use wire::QpAddress;
