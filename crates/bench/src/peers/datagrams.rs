//! Orders of datagrams without a NIC.

use serde::{Deserialize, Serialize};

/// What is done with datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exchange {
    /// They go one way, as fast as the sender can, so many in one system call: more than one are segmented by the kernel
    /// (UDP GSO), and arrive as they were sent (GRO).
    Stream {
        /// Datagrams of a system call, at most 64.
        segments: usize,
    },
    /// Each is answered before the next is sent.
    PingPong,
}

/// What the worker is asked to provide.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Datagrams {
    pub(super) exchange: Exchange,
    pub(super) datagram_bytes: usize,
}
