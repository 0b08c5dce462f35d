//! Sockets over RDMA: `rsocket(7)`.
//!
//! - `protocol`: what the ends tell each other; `memory`: what they write into.
//! - `stream`: a byte stream over a queue pair; it never waits.
//! - `wait`: how threads wait for several descriptors and each other.
//! - `socket`, `options`: a socket for streams: an id, and a stream once it is connected.
//! - `pair`: a queue pair for datagrams; `datagram`: a socket for them, which has one.
//! - `table`: the sockets by number.
//! - `poll`: `poll(2)` over sockets and other descriptors.
//!
//! The number of a socket is a descriptor of its own, so that it is no other's: of a stream's event channel, of a datagram
//! socket's UDP socket.

#[allow(unsafe_code)]
mod datagram;
#[allow(unsafe_code)]
mod memory;
mod options;
#[allow(unsafe_code)]
mod pair;
#[allow(unsafe_code)]
mod poll;
mod protocol;
#[allow(unsafe_code)]
mod socket;
#[allow(unsafe_code)]
mod stream;
mod table;
#[allow(unsafe_code)]
mod wait;

pub(crate) use poll::{rpoll, rselect};
#[cfg(any(test, fuzzing))]
pub(crate) use protocol::fuzz;
pub(crate) use table::{RSocket, find};
