//! Connection management for the software NIC: what librdmacm does, for processes of one host and of several.
//!
//! [`abi`] has librdmacm's entry points as C functions. They stand on the verbs that [`provide`] is told of and
//! on the fabric's folder, in which processes find each other.
//!
//! # The layers, bottom up
//!
//! - `errno`, `lock`, `addr`, `ib`, `process`, `fork`: small things of the system; addresses, those of `AF_IB` too.
//! - `wire`: the messages between the ends of a connection, by the names of IBTA vol. 1, chapter 12.
//! - `ports`: who has which port number, and who listens; how a management datagram gets to its process.
//! - `service`, `channel`: the sleeping thread that reads what peers send; queues of events.
//! - `gsi`, `mad`: QP1, and connections by management datagrams: to whoever packets reach.
//! - `device`, `multicast`: the device and what it calls the things that ids know by address.
//! - `cm`: what all ids of the process share.
//! - `endpoint`: one end of a connection; no C, no verbs.
//! - `id`: the C object that a program holds: an endpoint and its queue pair.
//! - `cm_event`, `resolve`, `connect`: the events of ids, their addresses, their life and connections.
//! - `abi`: the C functions.
//!
//! On one host a connection is a socket between two processes and lasts as long as it: a process may be killed at any
//! time, and its peers get the event that says so. Between hosts it is made by the messages of IBTA vol. 1, chapter 12, as
//! Linux' `rdma_cm` sends them, and a peer hears of a process that was killed by its queue pair only.
#![deny(unsafe_code)]
// `u64` and `usize` are the same size wherever the software NIC compiles.
#![allow(clippy::cast_possible_truncation)]

#[allow(unsafe_code)]
pub mod abi;
#[allow(unsafe_code)]
pub mod addr;
mod channel;
mod cm;
#[allow(unsafe_code)]
pub mod cm_event;
#[allow(unsafe_code)]
pub mod connect;
#[allow(unsafe_code)]
pub mod device;
mod endpoint;
mod ends;
pub mod errno;
#[allow(unsafe_code)]
mod fork;
#[allow(unsafe_code)]
mod found;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
#[allow(unsafe_code)]
mod gsi;
mod ib;
#[allow(unsafe_code)]
pub mod id;
mod lock;
mod mad;
mod multicast;
mod ports;
mod process;
pub mod resolve;
mod service;
mod wire;

pub use channel::Channel;
pub use cm::{DEFAULT_ANSWER_TIMEOUT, Provider, device, provide};
pub use endpoint::Event;
pub use ib::IbAddr;
pub use wire::QpAddress;
