//! Jobs that exchange messages through bare rings, without a NIC.

use serde::{Deserialize, Serialize};

/// Pattern of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BareMessageExchange {
    /// Messages go one way, as fast as the receiver takes them.
    Stream,
    /// Each message is answered before the next is sent.
    PingPong,
    /// A window of requests is kept outstanding, and each is answered: the rate of round trips.
    Rpc,
}

/// Parameters of an exchange through bare rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BareExchangeParameters {
    pub(crate) exchange: BareMessageExchange,
    /// True if a message carries 8 bytes, in a record of 32 bytes; false if it is header-only, in a
    /// record of 16 bytes.
    pub(crate) has_payload: bool,
    /// Messages per list, which one store publishes: 1 to 16.
    pub(crate) messages_per_list: usize,
    /// Duration in ms; the first tenth is not measured.
    pub(crate) duration_ms: u64,
}
