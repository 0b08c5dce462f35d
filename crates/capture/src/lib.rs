//! Writes packets of RoCEv2 into a pcap file.
//!
//! The file has the classic format of pcap with time stamps in nanoseconds and Ethernet frames. Several processes write
//! one file: each record is one `write(2)` with `O_APPEND`.
#![forbid(unsafe_code)]

mod file;
mod frame;

pub use file::{Capture, OpenError};
pub use frame::{Datagram, FrameError};
