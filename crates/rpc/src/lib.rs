//! Remote procedure calls over the verbs.
//!
//! - [`herd`]: clients WRITE requests over UC into slots of a region at the server. Workers poll the
//!   region, and responses are UD SENDs (HERD, Kalia et al., SIGCOMM 2014).
//! - [`datagram`]: requests and responses are UD SENDs, which are header-only if the immediate
//!   carries all data.
//! - [`one_sided`]: no calls, but READs, WRITEs and atomics on the server's memory, without the
//!   server's processor. [`LoopbackQp`] is for a server that competes with its clients for locks.
//!
//! [`herd`] and [`datagram`] serve a [`RpcHandler`]. The handler receives the number of requests in a
//! batch before the requests, so that shared work can be done once per batch. The answers of a
//! batch are sent with one doorbell. None of the modules depends on the called functions or on the
//! NIC. The caller exchanges endpoints, for example with the crate `service`.
//!
//! The constant `NEEDED_CAPABILITIES` of [`herd`] and [`datagram`] lists the needed capabilities of a device.
//! Payload that a device does not take inline is sent from registered memory.
//!
//! This crate never retries. UC and UD lose messages rarely, but not never. A caller therefore
//! needs a deadline. When it passes, the caller must start over with new queue pairs, so that late
//! answers are not received.

#![forbid(unsafe_code)]
#![deny(missing_docs, clippy::missing_errors_doc)]

mod buffered_ud_qp;
mod client_table;
pub mod datagram;
mod error;
mod handler;
pub mod herd;
mod loopback;
pub mod one_sided;
mod payload_staging;

pub use buffered_ud_qp::{BufferedUdQp, BufferedUdQpConfig, ReceivedDatagram};
pub use client_table::ClientTable;
pub use error::{MAX_BATCH, RpcError};
pub use handler::{Request, RequestReplier, RpcHandler, RpcWorkerCounts};
pub use loopback::LoopbackQp;
