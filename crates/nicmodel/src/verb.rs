//! Verbs and the transports that carry them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Operands of atomics are 8 bytes (IBTA vol. 1, 9.4.5).
pub const ATOMIC_BYTES: u32 = 8;

/// A transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Reliable connection: acknowledged, carries every verb.
    Rc,
    /// Unreliable connection: SEND and WRITE, no acknowledgements.
    Uc,
    /// Unreliable datagram: SEND alone, one queue pair to any peer.
    Ud,
}

/// A verb of the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verb {
    /// SEND: consumes a RECV of the responder.
    Send,
    /// RDMA WRITE.
    RdmaWrite,
    /// RDMA READ.
    RdmaRead,
    /// Compare-and-swap of 8 bytes.
    AtomicCmpAndSwp,
    /// Fetch-and-add of 8 bytes.
    AtomicFetchAndAdd,
    /// FLUSH: at its completion, earlier writes are visible to all readers of the memory (IBTA vol. 1, annex A19).
    Flush,
}

impl Transport {
    /// All values of the type.
    pub const ALL: [Self; 3] = [Self::Rc, Self::Uc, Self::Ud];

    /// Returns true if the transport carries the verb (Table 1 of the paper; IBTA vol. 1, table 44 and annex A19).
    pub fn carries(self, verb: Verb) -> bool {
        match self {
            Self::Rc => true,
            Self::Uc => matches!(verb, Verb::Send | Verb::RdmaWrite),
            Self::Ud => verb == Verb::Send,
        }
    }

    /// Returns true if the responder acknowledges messages.
    pub fn is_reliable(self) -> bool {
        self == Self::Rc
    }
}

impl Verb {
    /// All values of the type.
    pub const ALL: [Self; 6] = [
        Self::Send,
        Self::RdmaWrite,
        Self::RdmaRead,
        Self::AtomicCmpAndSwp,
        Self::AtomicFetchAndAdd,
        Self::Flush,
    ];

    /// Returns true for compare-and-swap and fetch-and-add.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::AtomicCmpAndSwp | Self::AtomicFetchAndAdd)
    }

    /// Returns the payload size if it is fixed: 8 bytes for atomics, 0 for FLUSH.
    pub fn fixed_payload_bytes(self) -> Option<u32> {
        match self {
            Self::AtomicCmpAndSwp | Self::AtomicFetchAndAdd => Some(ATOMIC_BYTES),
            Self::Flush => Some(0),
            Self::Send | Self::RdmaWrite | Self::RdmaRead => None,
        }
    }

    /// Returns true if the request carries the payload, which then may be inline.
    pub fn carries_payload_in_request(self) -> bool {
        matches!(self, Self::Send | Self::RdmaWrite)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        })
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Send => "SEND",
            Self::RdmaWrite => "WRITE",
            Self::RdmaRead => "READ",
            Self::AtomicCmpAndSwp => "compare-and-swap",
            Self::AtomicFetchAndAdd => "fetch-and-add",
            Self::Flush => "FLUSH",
        })
    }
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "rc" => Ok(Self::Rc),
            "uc" => Ok(Self::Uc),
            "ud" => Ok(Self::Ud),
            _ => Err("a transport is one of rc, uc, ud".to_owned()),
        }
    }
}

impl FromStr for Verb {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "send" => Ok(Self::Send),
            "write" | "rdma-write" => Ok(Self::RdmaWrite),
            "read" | "rdma-read" => Ok(Self::RdmaRead),
            "cmp-swap" | "atomic-cmp-and-swp" => Ok(Self::AtomicCmpAndSwp),
            "fetch-add" | "atomic-fetch-and-add" => Ok(Self::AtomicFetchAndAdd),
            "flush" => Ok(Self::Flush),
            _ => Err("a verb is one of send, write, read, cmp-swap, fetch-add, flush".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uc_has_no_reads_or_atomics_and_ud_no_memory_verbs() {
        let carried = |transport: Transport| {
            let verbs = Verb::ALL.into_iter().filter(move |v| transport.carries(*v));
            verbs.collect::<Vec<_>>()
        };
        assert_eq!(carried(Transport::Rc), Verb::ALL);
        assert_eq!(carried(Transport::Uc), [Verb::Send, Verb::RdmaWrite]);
        assert_eq!(carried(Transport::Ud), [Verb::Send]);
    }

    #[test]
    fn names_are_read_back() {
        for verb in Verb::ALL {
            let name = serde_json::to_string(&verb).expect("a name");
            assert_eq!(name.trim_matches('"').parse(), Ok(verb));
        }
        for transport in Transport::ALL {
            assert_eq!(transport.to_string().parse(), Ok(transport));
        }
        assert!("put".parse::<Verb>().is_err());
        assert!("tcp".parse::<Transport>().is_err());
    }
}
