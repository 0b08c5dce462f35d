//! Valkey's RDMA transport: a byte stream that carries the Redis protocol between a client and a
//! server.
//!
//! - [`Command`]: the control messages, 32 bytes each, without I/O.
//! - [`ByteStream`]: the state of a connection, without I/O: the places of bytes, and the messages to
//!   the peer.
//! - [`Connection`], [`Listener`]: a stream over a queue pair of the crate `verbs`, set up by
//!   `rdma_cm`.
//!
//! Each end registers a receive buffer and announces its address. The peer fills that buffer from
//! the first byte to the last by RDMA WRITEs. The last WRITE of each group has the number of bytes
//! as its immediate. Once the buffer is full and read, its owner registers it again, and the peer
//! starts again at the first byte.
//!
//! Only [`Connector::connect`] blocks. A program polls a [`Connection`] without system calls, or
//! [arms](Connection::arm_unless_arrived) it and sleeps on its two descriptors. Many connections can
//! [share](Connector::with_shared_descriptors) their descriptors.
//!
//! Source: `valkey:src/rdma.c`, `valkey-doc:topics/RDMA.md`.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod cm;
mod command;
mod connected_qp;
mod connection;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod memory;
mod setup;
mod shared_channels;
mod stream;

pub use command::{AnnouncedBuffer, COMMAND_BYTES, Command};
pub use connected_qp::{Config, POSTED_RECEIVES, RECV_BUFFER_BYTES_RANGE};
pub use connection::Connection;
pub use error::{ProtocolError, SetupError};
pub use setup::{Connector, Listener};
pub use stream::{ByteStream, WriteTarget};
