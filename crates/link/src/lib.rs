//! Sockets for RoCEv2 over UDP, without privilege.
//!
//! An [`Endpoint`] owns the UDP port of RoCEv2 at some addresses of this host. It sends the packets of a
//! [`PacketBatch`] and passes received packets to a closure. It handles addresses, bytes and the slots of processes,
//! but no queue pairs.
//!
//! - [`batch`]: batches of packets to send, in bursts that the kernel segments (UDP GSO), with their ICRCs.
//! - [`endpoint`]: the sockets, with send and receive.
//! - [`counters`]: the counters of an endpoint's addresses.
//! - [`probe_features`]: the features that an endpoint would have.
//! - `shared`, `group`, `members`, `steering`: sharing of an address by the processes of a fabric, and the kernel's
//!   choice among them.
//! - [`is_neighbour_reachable`]: whether a link-local address is on the link.
//! - `handover`: forwarding of packets from the wrong process.
//!
//! The source port equals the destination port, 4791, so that one socket per address serves both. RoCEv2 receivers do
//! not check the source port; it exists for the hashes of routers with several paths. The cost: all queue pairs between
//! two hosts use the same path.
#![deny(unsafe_code)]
// `u32` fits into `usize` on every supported target. The numbers that are narrowed are lengths of options and of UDP
// packets.
#![allow(clippy::cast_possible_truncation)]

pub mod batch;
mod config;
pub mod counters;
pub mod endpoint;
pub mod error;
mod forwarding_socket;
mod group_members;
mod neighbour;
mod packet;
pub mod probe_features;
mod shared_groups;
mod socket;
mod socket_groups;
mod steering;
mod sys;

pub use batch::{PacketBatch, PacketFlow};
pub use config::{Config, DEFAULT_BUFFER_BYTES, FabricMembership, LocalAddress};
pub use counters::Counters;
pub use endpoint::{Endpoint, ReceiveBuffers};
pub use error::LinkError;
pub use neighbour::is_neighbour_reachable;
pub use packet::{ReceivedPacket, SentPacket};
pub use socket::UdpPortState;

/// Number of QPN bits below the slot of the process.
pub const QPN_TO_PROCESS_SLOT_SHIFT: u32 = 14;
