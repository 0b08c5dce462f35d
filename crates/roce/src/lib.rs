//! RoCEv2: packets, and the two ends of RC, UC and UD queue pairs as state machines.
//!
//! Everything here is a function of its arguments: packets, the time in nanoseconds and memory come in as arguments,
//! packets come out. There is no clock, socket, thread or queue pair.
//!
//! - [`opcode`], [`packet`], [`icrc`]: what lies between the UDP header and the end of a frame (IBTA vol. 1, chapter 9,
//!   and annex A17).
//! - [`psn`]: packet sequence numbers.
//! - [`rc`]: requester and responder of reliable connections.
#![forbid(unsafe_code)]

mod headers;
pub mod icrc;
pub mod opcode;
pub mod packet;
pub mod psn;
pub mod rc;

/// UDP destination port of RoCEv2 (IANA; annex A17).
pub const UDP_PORT: u16 = 4791;
