//! Connection management for the software NIC: what librdmacm does, for the processes of one host.
//!
//! [`abi`] has librdmacm's entry points as C functions. They stand on the verbs that [`provide`] is told of and
//! on the fabric's folder, in which processes find each other.
//!
//! # The layers, bottom up
//!
//! - `errno`, `addr`, `ib`, `process`, `fork`: small things of the system; addresses, those of `AF_IB` too.
//! - `wire`: the messages between the ends of a connection, by the names of IBTA vol. 1, chapter 12.
//! - `ports`: who has which port number, and who listens. **The seam for other hosts**: whoever can be asked by
//!   other means than a socket of this host is reached from here on.
//! - `service`: the sleeping thread that reads what peers send.
//! - `endpoint`, `channel`: one end of a connection, and the queue of events; no C, no verbs.
//! - `device`, `multicast`: the device and what it calls the things that ids know by address.
//! - `id`: the C object that a program holds: an endpoint and its queue pair.
//! - `rsocket`: sockets over RDMA.
//! - `abi`: the C functions.
//!
//! A connection is a socket between two processes and lasts as long as it: a process may be killed at any time,
//! and its peers get the event that says so.
#![deny(unsafe_code)]
// `u64` and `usize` are the same size wherever the software NIC compiles.
#![allow(clippy::cast_possible_truncation)]

#[allow(unsafe_code)]
pub mod abi;
#[allow(unsafe_code)]
mod addr;
mod channel;
mod cm;
#[allow(unsafe_code)]
mod device;
mod endpoint;
mod errno;
#[allow(unsafe_code)]
mod fork;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod ib;
#[allow(unsafe_code)]
mod id;
mod multicast;
mod ports;
mod process;
mod rsocket;
mod service;
mod wire;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use cm::{DEFAULT_ANSWER_TIMEOUT, Provider, provide};

/// Locks. A panic elsewhere does not make the data unusable: nothing is left half-changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
