//! Orders of messages through bare rings, without a NIC.

use serde::{Deserialize, Serialize};

/// Who sends what to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exchange {
    /// Messages go one way, as fast as the receiver takes them.
    Stream,
    /// Each message is answered before the next is sent.
    PingPong,
    /// A window of requests, each answered: round trips as fast as both sides can.
    Rpc,
}

/// What is exchanged through bare rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bare {
    pub(crate) exchange: Exchange,
    /// Whether a message carries 8 bytes and its record has 32; otherwise it is header-only, in 16.
    pub(crate) has_payload: bool,
    /// Messages of a list, which one store publishes: 1 to 16.
    pub(crate) list: usize,
    /// How long it runs; the first tenth is not measured.
    pub(crate) duration_ms: u64,
}
