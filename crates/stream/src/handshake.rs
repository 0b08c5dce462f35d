//! The handshake that brings a stream from TCP to RDMA: pure codecs and the two sides as state machines.
//!
//! On the TCP connection the client says hello, the server says hello, and the client acknowledges with four bytes. A side
//! that cannot use RDMA says so in its hello or in the acknowledgement, and both go on with TCP.
//!
//! The caller reads at most [`wants`](Client::wants) bytes, so that bytes behind the handshake stay in the socket.
//!
//! Source: `brpc:src/brpc/rdma/rdma_endpoint.cpp`, `brpc:src/brpc/rdma/rdma_handshake.proto`.

mod client;
mod codec;
mod error;
mod hello;
mod server;
mod v2;
mod v3;
mod version;

pub use client::{Answer, Client};
pub use error::{HandshakeError, Shown};
pub use hello::Hello;
pub use server::{Request, Server};
pub use version::{MAGIC_BYTES, Version};

/// The client's acknowledgement: whether both sides use RDMA from here on.
pub const fn ack(use_rdma: bool) -> [u8; 4] {
    (use_rdma as u32).to_be_bytes()
}

#[cfg(test)]
mod tests;
