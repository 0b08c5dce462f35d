//! RoCEv2: packets, and the two ends of RC, UC and UD queue pairs as state machines.
//!
//! Everything here is a function of its arguments: packets, the time in nanoseconds and memory come in as arguments,
//! packets come out. There is no clock, socket, thread or queue pair.
//!
//! - [`opcode`], [`packet`], [`icrc`]: what lies between the UDP header and the end of a frame (IBTA vol. 1, chapter 9,
//!   and annex A17).
//! - [`cm`], [`mad`]: messages of communication management (chapters 12 and 13).
//! - [`gsi`]: which process of a host such a message is for.
//! - [`psn`]: packet sequence numbers.
//! - [`request`], [`target`]: what is asked for, and the memory of both ends.
//! - [`rc`], [`uc`]: requester and responder of reliable connections, sender and receiver of unreliable ones.
//! - [`counts`]: what they count.
//! - [`dcqcn`]: congestion notifications, and the rates of senders that obey them.
#![forbid(unsafe_code)]

mod assembly;
pub mod cm;
pub mod counts;
pub mod dcqcn;
pub mod fuzz;
pub mod gsi;
mod headers;
pub mod icrc;
pub mod mad;
pub mod opcode;
pub mod packet;
pub mod psn;
pub mod rc;
pub mod request;
mod segment;
mod sequence;
pub mod target;
pub mod uc;

/// Bytes that a packet has beside its payload at most: GRH or IP header, UDP header, BTH, the longest extended headers,
/// ICRC.
const HEADER_BYTES: u32 = 40 + 8 + 12 + 4 + 28 + 4;

/// The largest path MTU, 256 to 4096 bytes, whose packets fit into IP packets of `ip_bytes` (`iboe_get_mtu` of
/// `linux:include/rdma/ib_addr.h`).
#[must_use]
pub fn path_mtu_within(ip_bytes: u32) -> u32 {
    let sizes = [4096, 2048, 1024, 512];
    let fits = |bytes: &u32| bytes + HEADER_BYTES <= ip_bytes;
    sizes.into_iter().find(fits).unwrap_or(256)
}

/// UDP destination port of RoCEv2 (IANA; annex A17).
pub const UDP_PORT: u16 = 4791;
