//! Limits: the most messages that two cores can exchange in place of a row's messages.

use serde::{Deserialize, Serialize};

use crate::micro::verb::Verb;
use crate::peers::bare_exchange_parameters::BareMessageExchange;

/// Messages of a row that SENDs as fast as possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendStream {
    /// Transport and verb.
    pub verb: Verb,
    /// Payload bytes; 0 for header-only messages.
    pub payload_bytes: usize,
    /// WRs per postlist.
    pub wrs_per_postlist: usize,
}

impl SendStream {
    /// Describes the SENDs, briefly for a table or in full.
    #[must_use]
    pub(super) fn describe(self, in_few_words: bool) -> String {
        let payload = match (self.payload_bytes, in_few_words) {
            (0, _) => "header-only".to_owned(),
            (bytes, true) => format!("{bytes} B inline"),
            (bytes, false) => format!("{bytes} bytes inline, 1 in 16 signaled"),
        };
        let list = match (self.wrs_per_postlist, in_few_words) {
            (1, true) => "1 a post".to_owned(),
            (1, false) => "1 WR a post".to_owned(),
            (list, true) => format!("lists of {list}"),
            (list, false) => format!("postlists of {list}"),
        };
        format!("{}, {payload}, {list}", self.verb.label())
    }

    /// Returns the limit: a bare ring with the same records and list lengths.
    #[must_use]
    pub fn bare_ring_limit(self) -> BareRingLimit {
        BareRingLimit {
            exchange: BareMessageExchange::Stream,
            has_payload: self.payload_bytes > 0,
            messages_per_list: self.wrs_per_postlist,
        }
    }
}

/// Messages through bare rings between the two cores ([`crate::peers::bare_ring_exchange`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BareRingLimit {
    /// Pattern of the exchange.
    pub exchange: BareMessageExchange,
    /// True if messages carry 8 bytes, in records of 32 bytes; false if they are header-only, in
    /// records of 16 bytes.
    pub has_payload: bool,
    /// Messages per list, which one store publishes.
    #[serde(rename = "list")]
    pub messages_per_list: usize,
}

impl BareRingLimit {
    /// Returns the limit's name for a column of names.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.exchange {
            BareMessageExchange::Stream => "bare ring",
            BareMessageExchange::PingPong => "bare ping-pong",
            BareMessageExchange::Rpc => "bare rings",
        }
    }
}
