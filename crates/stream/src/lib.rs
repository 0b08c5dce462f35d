//! Byte streams over brpc's RDMA protocol.
//!
//! A client connects by TCP. On that connection, both sides agree on RDMA, or continue with TCP if
//! one side cannot use RDMA. With RDMA, the bytes of a stream are SENDs with immediate into blocks
//! that the peer has posted. The immediates carry the credits of flow control. The TCP connection
//! stays open and carries no more bytes. The end of the TCP connection is the end of the stream.
//!
//! - [`handshake`], [`window`]: the protocol, without I/O.
//! - [`Stream`], [`Connector`], [`Listener`]: for tokio, with `AsyncRead` and `AsyncWrite`.
//! - [`blocking`]: blocking calls without a runtime, with `Read` and `Write`.
#![cfg_attr(
    feature = "tonic",
    doc = "- [`tonic`]: what a gRPC client or server needs to use them."
)]
//!
//! ```
//! use stream::{Listener, Stream};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap()).await?;
//! let address = listener.local_addr()?;
//! let client = tokio::spawn(async move {
//!     let mut stream = Stream::connect(address).await?;
//!     stream.write_all(b"hello").await?;
//!     stream.shutdown().await
//! });
//! let mut stream = listener.accept().await?;
//! assert!(stream.is_rdma());
//! let mut got = Vec::new();
//! stream.read_to_end(&mut got).await?;
//! assert_eq!(got, b"hello");
//! client.await.unwrap()?;
//! # Ok(())
//! # }
//! ```
//!
//! Source: `brpc:src/brpc/rdma/`.

#![deny(unsafe_code)]

pub mod blocking;
mod connection;
mod connector;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod gather;
pub mod handshake;
mod listener;
mod nic;
mod pool;
mod prepared_connection;
mod rdma_stream;
mod reactor;
mod read_limit;
mod spin;
mod stream;
mod tcp_beside_rdma;
#[cfg(feature = "tonic")]
pub mod tonic;
pub mod window;

pub use connector::Connector;
pub use error::{SetupError, StreamError};
pub use listener::Listener;
pub use nic::{Config, RdmaPolicy};
pub use pool::{ALLOWED_BLOCK_BYTES, Block, Pool};
pub use stream::Stream;
