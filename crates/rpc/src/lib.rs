//! Remote procedure calls over the verbs.
//!
//! - [`herd`]: clients WRITE requests over UC into slots of a region at the server, workers poll the
//!   region, responses are UD SENDs (HERD, Kalia et al., SIGCOMM 2014).
//! - [`datagram`]: requests and responses are UD SENDs, header-only where the immediate says it all.
//! - [`one_sided`]: no calls: READs, WRITEs and atomics on the server's memory, without the server's processor. [`Loopback`] is
//!   for a server that competes with its clients for locks.
//!
//! The first two serve a [`Handler`]. It learns the number of requests of a batch before it answers them, so that it
//! can do shared work once a batch. The answers of a batch leave with one doorbell. None depends on the called
//! functions or on the NIC. The caller exchanges endpoints, for example by the crate `service`.
//!
//! [`herd`] and [`datagram`] say in `NEEDS` what they need of a device. Payload that a device does not take
//! inline leaves from registered memory.
//!
//! Nothing here retries. UC and UD lose messages rarely, not never: a caller keeps a deadline, and starts
//! over with new queue pairs when it passes, so that a late answer finds nobody.

#![forbid(unsafe_code)]
#![deny(missing_docs, clippy::missing_errors_doc)]

pub mod datagram;
mod error;
mod handler;
pub mod herd;
mod loopback;
pub mod one_sided;
mod outbox;
mod port;
mod table;

pub use error::{MAX_BATCH, RpcError};
pub use handler::{Counts, Handler, Reply, Request};
pub use loopback::Loopback;
pub use port::{Received, UdPort, UdPortConfig};
pub use table::ClientTable;
