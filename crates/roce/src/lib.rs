//! RoCEv2: packets, and the requester and responder of RC, UC and UD queue pairs as state machines.
//!
//! Each state machine is a function of its arguments: it takes packets, the time in nanoseconds and memory, and returns
//! packets. The crate has no clock, socket, thread or queue pair.
//!
//! - [`opcode`], [`packet`], [`icrc`]: the bytes between the UDP header and the end of a frame (IBTA vol. 1, chapter 9,
//!   and annex A17).
//! - [`cm`], [`mad`]: messages of communication management (chapters 12 and 13).
//! - [`mad_delivery`]: the process of a host that receives a message of communication management.
//! - [`psn`]: packet sequence numbers.
//! - [`request`], [`responder_target`]: work requests, and the memory of requester and responder.
//! - [`rc`], [`uc`]: requester and responder of reliable connections, sender and receiver of unreliable ones.
//! - [`counts`]: the counters of these state machines.
//! - [`dcqcn`]: congestion notifications, and the rate limit of senders that receive them.
#![forbid(unsafe_code)]

pub mod cm;
pub mod counts;
pub mod dcqcn;
pub mod dcqcn_setting;
pub mod fuzz;
mod headers;
pub mod icrc;
pub mod mad;
pub mod mad_delivery;
pub mod opcode;
pub mod packet;
mod partial_message;
pub mod psn;
pub mod rc;
pub mod request;
pub mod responder_target;
mod segment;
mod sequence;
pub mod uc;

/// Largest number of header bytes in a packet: GRH or IP header, UDP header, BTH, the longest extended headers, ICRC.
const MAX_HEADER_BYTES: u32 = 40 + 8 + 12 + 4 + 28 + 4;

/// Returns the largest path MTU, 256 to 4096 bytes, whose packets fit into IP packets of `ip_bytes` (`iboe_get_mtu` of
/// `linux:include/rdma/ib_addr.h`).
#[must_use]
pub fn path_mtu_within(ip_bytes: u32) -> u32 {
    let sizes = [4096, 2048, 1024, 512];
    let fits = |bytes: &u32| bytes + MAX_HEADER_BYTES <= ip_bytes;
    sizes.into_iter().find(fits).unwrap_or(256)
}

/// UDP destination port of RoCEv2 (IANA; annex A17).
pub const UDP_PORT: u16 = 4791;
