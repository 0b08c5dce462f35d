//! Jobs that exchange datagrams without a NIC.

use serde::{Deserialize, Serialize};

/// Pattern of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DatagramExchange {
    /// Datagrams go one way, as fast as the sender can. If `segments` is more than 1, the kernel
    /// segments each system call's data (UDP GSO) and coalesces them again at the receiver (GRO).
    Stream {
        /// Datagrams per system call, at most 64.
        segments: usize,
    },
    /// Each datagram is answered before the next is sent.
    PingPong,
}

/// Parameters of the datagrams, sent to the worker.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct DatagramParameters {
    pub(super) exchange: DatagramExchange,
    pub(super) datagram_bytes: usize,
}
