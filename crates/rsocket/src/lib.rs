//! Sockets over RDMA: `rsocket(7)`, on connections of [`rdmacm`].
//!
//! [`abi`] contains the C functions. The layers, bottom up:
//!
//! - `protocol`: messages between the two ends; `memory`: registered buffers; `cq`: completions.
//! - `queue_and_buffer_sizes`, `ineffective_options`: values of socket options.
//! - `stream`: a byte stream over a queue pair, and buffers that its peer maps; its functions never wait.
//! - `wait`: waiting for several descriptors and for other threads.
//! - `stream_socket_state`, `stream_socket_options`: an id, with a stream while it is connected; `stream_socket`: the
//!   calls of a stream socket.
//! - `buffered_ud_qp`: a UD queue pair with its buffers; `datagram`: a datagram socket, which has such a queue pair.
//! - `socket_table`: the sockets of the process by descriptor.
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
mod buffered_ud_qp;
#[allow(unsafe_code)]
mod cq;
#[allow(unsafe_code)]
mod datagram;
#[allow(unsafe_code)]
mod epoll;
mod ineffective_options;
#[allow(unsafe_code)]
mod memory;
pub mod net;
#[allow(unsafe_code)]
mod poll;
mod protocol;
mod queue_and_buffer_sizes;
mod socket_table;
#[allow(unsafe_code)]
mod stream;
#[allow(unsafe_code)]
mod stream_socket;
mod stream_socket_options;
#[allow(unsafe_code)]
mod stream_socket_state;
#[allow(unsafe_code)]
mod wait;

#[cfg(any(test, fuzzing))]
pub use protocol::fuzz_messages;
