//! Sockets over RDMA: `rsocket(7)`.
//!
//! - `protocol`: what the ends tell each other; `memory`: what they write into.
//! - `stream`: a byte stream over a queue pair; it never waits.
//! - `wait`: how threads wait for several descriptors and each other.
//! - `socket`: a socket: an id, and a stream once it is connected.
//! - `poll`: `poll(2)` over sockets and other descriptors.
//!
//! The number of a socket is the descriptor of its event channel, so that it is no other descriptor's.

#[allow(unsafe_code)]
mod memory;
#[allow(unsafe_code)]
mod poll;
mod protocol;
#[allow(unsafe_code)]
mod socket;
#[allow(unsafe_code)]
mod stream;
#[allow(unsafe_code)]
mod wait;

pub(crate) use poll::{rpoll, rselect};
#[cfg(any(test, fuzzing))]
pub(crate) use protocol::fuzz;
pub(crate) use socket::{RSocket, find};
