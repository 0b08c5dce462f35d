//! Sockets over RDMA: `rsocket(7)`, on connections of [`rdmacm`].
//!
//! [`abi`] has the C functions. The layers, bottom up:
//!
//! - `protocol`: what the ends tell each other; `memory`: what they write into; `cq`: completions; `sizes`, `options`: what programs set.
//! - `stream`: a byte stream over a queue pair, and buffers that its peer maps; it never waits.
//! - `wait`: how threads wait for several descriptors and each other.
//! - `session`, `session_options`: an id, and a stream once it is connected; `socket`: the calls of a socket for streams.
//! - `pair`: a queue pair for datagrams; `datagram`: a socket for them, which has one.
//! - `table`: the sockets by number.
//! - `poll`: `poll(2)` over sockets and other descriptors; `epoll`: `epoll(7)` over it.
//!
//! The number of a socket is a descriptor of its own, so that it is no other's: of a stream's event channel, of a datagram
//! socket's UDP socket.
#![deny(unsafe_code)]
// `u64` and `usize` are the same size wherever the software NIC compiles.
#![allow(clippy::cast_possible_truncation)]

#[allow(unsafe_code)]
pub mod abi;
#[allow(unsafe_code)]
mod cq;
#[allow(unsafe_code)]
mod datagram;
#[allow(unsafe_code)]
mod epoll;
#[allow(unsafe_code)]
mod memory;
mod options;
#[allow(unsafe_code)]
mod pair;
#[allow(unsafe_code)]
mod poll;
mod protocol;
#[allow(unsafe_code)]
mod session;
mod session_options;
mod sizes;
#[allow(unsafe_code)]
mod socket;
#[allow(unsafe_code)]
mod stream;
mod table;
#[allow(unsafe_code)]
mod wait;

#[cfg(any(test, fuzzing))]
pub use protocol::fuzz_messages;
