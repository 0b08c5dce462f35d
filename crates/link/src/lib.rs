//! Sockets for RoCEv2 over UDP, without privilege.
//!
//! An [`Endpoint`] has the UDP port of RoCEv2 at some addresses of this host. It sends the packets of a [`Batch`] and
//! gives what comes to a closure. It knows addresses, bytes and the slots of processes, and nothing of queue pairs.
//!
//! - [`batch`]: packets on their way to the kernel, in bursts that the kernel segments (UDP GSO), with their ICRCs.
//! - [`endpoint`]: the sockets, send and receive.
//! - [`counters`]: what is counted.
//! - [`probe`]: what an endpoint would get.
//! - `shared`, `group`, `members`, `steering`: how the processes of a fabric share an address, and the kernel chooses among them.
//! - `handover`: how a packet gets on from the wrong process.
//!
//! The source port is the destination port, 4791: the address has one socket for both. RoCEv2 receivers do not match
//! the source port, which is there for the hashes of routers with several paths. *Price:* all queue pairs between two
//! hosts take one path.
#![deny(unsafe_code)]
// `u32` fits into `usize` wherever this compiles; numbers that are narrowed are lengths of options and of UDP.
#![allow(clippy::cast_possible_truncation)]

pub mod batch;
mod config;
pub mod counters;
pub mod endpoint;
pub mod error;
mod group;
mod handover;
mod members;
mod packet;
pub mod probe;
mod shared;
mod socket;
mod steering;
mod sys;

pub use batch::{Batch, Flow};
pub use config::{Config, DEFAULT_BUFFER_BYTES, Fabric, LocalAddress};
pub use counters::Counters;
pub use endpoint::{Endpoint, Inbox};
pub use error::LinkError;
pub use packet::{Received, Sent};
pub use socket::PortState;

/// Bits of a QPN below the slot of its process.
pub const SLOT_SHIFT: u32 = 14;
