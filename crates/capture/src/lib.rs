//! Writes packets of RoCEv2 into a pcap file.
//!
//! The file has the classic format of pcap with time stamps in nanoseconds and Ethernet frames. Several processes write
//! one file: records are written by one `write(2)` with `O_APPEND`, and a [`WriteLock`] gives them an order.
#![forbid(unsafe_code)]

mod frame;
mod pcap_file;

pub use frame::{Datagram, FrameError};
pub use pcap_file::{Capture, CapturedPackets, OpenError, WriteLock};
