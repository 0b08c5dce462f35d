//! What two cores can exchange at most in place of a row's messages.

use serde::{Deserialize, Serialize};

use crate::micro::verb::Verb;
use crate::peers::bare::Exchange;

/// Messages of a row that SENDs as fast as it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sends {
    /// Over which transport.
    pub verb: Verb,
    /// 0 for header-only messages.
    pub payload_bytes: usize,
    /// WRs of a postlist.
    pub list: usize,
}

impl Sends {
    /// In words, or in few words for a table.
    #[must_use]
    pub(super) fn text(self, in_few_words: bool) -> String {
        let payload = match (self.payload_bytes, in_few_words) {
            (0, _) => "header-only".to_owned(),
            (bytes, true) => format!("{bytes} B inline"),
            (bytes, false) => format!("{bytes} bytes inline, 1 in 16 signaled"),
        };
        let list = match (self.list, in_few_words) {
            (1, true) => "1 a post".to_owned(),
            (1, false) => "1 WR a post".to_owned(),
            (list, true) => format!("lists of {list}"),
            (list, false) => format!("postlists of {list}"),
        };
        format!("{}, {payload}, {list}", self.verb.label())
    }

    /// A bare ring with the same records and lists.
    #[must_use]
    pub fn limit(self) -> Limit {
        Limit {
            exchange: Exchange::Stream,
            has_payload: self.payload_bytes > 0,
            list: self.list,
        }
    }
}

/// Messages through bare rings between the two cores ([`crate::peers::bare_pair`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Limit {
    /// Who sends what to whom.
    pub exchange: Exchange,
    /// Whether messages carry 8 bytes, in records of 32; otherwise they are header-only, in records of 16.
    pub has_payload: bool,
    /// Messages of a list, which one store publishes.
    pub list: usize,
}

impl Limit {
    /// For a column of names.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.exchange {
            Exchange::Stream => "bare ring",
            Exchange::PingPong => "bare ping-pong",
            Exchange::Rpc => "bare rings",
        }
    }
}
