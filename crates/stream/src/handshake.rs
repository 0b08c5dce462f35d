//! The handshake that moves a stream from TCP to RDMA: encoding and decoding, and state machines
//! for both sides, without I/O.
//!
//! On the TCP connection, the client sends a hello, the server sends a hello, and the client
//! acknowledges with four bytes. A side that cannot use RDMA declines in its hello or in the
//! acknowledgement, and both sides continue with TCP.
//!
//! The caller must read at most [`max_bytes_to_read`](ClientHandshake::max_bytes_to_read) bytes from the socket, so
//! that bytes after the handshake stay in the socket.
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

pub use client::{ClientHandshake, ServerAnswer};
pub use error::{EscapedBytes, HandshakeError};
pub use hello::Hello;
pub use server::{ClientRequest, ServerHandshake};
pub use version::{HandshakeVersion, MAGIC_BYTES};

/// Encodes the client's acknowledgement, which tells the server whether both sides use RDMA from
/// now on.
pub const fn encode_ack(use_rdma: bool) -> [u8; 4] {
    (use_rdma as u32).to_be_bytes()
}

#[cfg(test)]
mod tests;
