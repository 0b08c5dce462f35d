//! The verbs that are measured.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

/// Bytes of an immediate, as payload of a SEND.
pub(super) const IMM_SIZED_PAYLOAD_BYTES: usize = 4;

/// A verb and its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verb {
    /// SEND over UD.
    UdSend,
    /// SEND over RC.
    RcSend,
    /// SEND over UC.
    UcSend,
    /// RDMA WRITE over RC.
    RcWrite,
    /// RDMA WRITE over UC.
    UcWrite,
    /// RDMA READ (RC).
    RcRead,
    /// Fetch-and-add (RC), on counters of 8 bytes.
    Atomics,
}

impl Verb {
    /// Every verb.
    pub const ALL: [Verb; 7] = [
        Verb::UdSend,
        Verb::RcSend,
        Verb::UcSend,
        Verb::RcWrite,
        Verb::UcWrite,
        Verb::RcRead,
        Verb::Atomics,
    ];

    /// Returns the name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Verb::UdSend => "ud-send",
            Verb::RcSend => "rc-send",
            Verb::UcSend => "uc-send",
            Verb::RcWrite => "rc-write",
            Verb::UcWrite => "uc-write",
            Verb::RcRead => "rc-read",
            Verb::Atomics => "atomics",
        }
    }

    /// Returns the name for a table.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Verb::UdSend => "UD SEND",
            Verb::RcSend => "RC SEND",
            Verb::UcSend => "UC SEND",
            Verb::RcWrite => "RC WRITE",
            Verb::UcWrite => "UC WRITE",
            Verb::RcRead => "RC READ",
            Verb::Atomics => "RC fetch-and-add",
        }
    }

    /// Returns true if the verb is a SEND, which consumes a RECV.
    #[must_use]
    pub fn is_send(self) -> bool {
        matches!(self, Verb::UdSend | Verb::RcSend | Verb::UcSend)
    }

    /// Returns true if the payload travels with the request, so that it can be inline.
    pub(super) fn request_carries_payload(self) -> bool {
        !matches!(self, Verb::RcRead | Verb::Atomics)
    }

    /// Fails unless the payload has room for a stamp: 8 bytes or more, or for SENDs 0 or 4.
    pub(super) fn check_payload_fits_stamp(self, payload_bytes: usize) -> Result<()> {
        match self {
            Verb::Atomics if payload_bytes != 8 => {
                bail!("an atomic has 8 bytes; leave the payload out")
            }
            _ if self.is_send() && [0, IMM_SIZED_PAYLOAD_BYTES].contains(&payload_bytes) => Ok(()),
            _ if payload_bytes < 8 => bail!(
                "a payload of {payload_bytes} bytes has no room for the number that is checked; \
                 take 8 or more{}",
                if self.is_send() {
                    ", 4 inline, or 0 for header-only messages"
                } else {
                    ""
                }
            ),
            _ => Ok(()),
        }
    }
}

/// Returns the offset of the last aligned word that fits in a payload.
pub(super) fn last_word_offset(payload_bytes: usize) -> usize {
    payload_bytes.saturating_sub(8) & !7
}
