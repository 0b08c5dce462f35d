//! Sockets over RDMA: `rsocket(7)`, on connections of [`rdmacm`].
//!
//! [`abi`] contains the C functions. The layers, bottom up:
//!
//! - `protocol`: messages between the two ends; `memory`: registered buffers; `cq`: completions; `sizes`, `options`:
//!   values of socket options.
//! - `stream`: a byte stream over a queue pair, and buffers that its peer maps; its functions never wait.
//! - `wait`: waiting for several descriptors and for other threads.
//! - `session`, `session_options`: an id, with a stream while it is connected; `socket`: the calls of a stream socket.
//! - `pair`: a UD queue pair; `datagram`: a datagram socket, which has such a pair.
//! - `table`: the sockets of the process by descriptor.
//! - `poll`: `poll(2)` over rsockets and other descriptors; `epoll`: `epoll(7)` on top of it.
//! - [`net`]: stream sockets for Rust programs.
//!
//! The number of a socket is a real descriptor, and thus unique: that of a stream's event channel, or of a datagram
//! socket's UDP socket.
#![deny(unsafe_code)]
// `u64` and `usize` have the same size on every supported target.
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
pub mod net;
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
