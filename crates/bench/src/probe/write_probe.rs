//! Parameters of a probe, and its result.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::micro::verb::Verb;

/// Property that a probe tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbedProperty {
    /// The words of a WRITE become visible from left to right.
    Order,
    /// A completed WRITE is visible.
    Visible,
}

/// A probe: a number of WRITEs of one size, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteProbe {
    #[serde(rename = "question")]
    pub(super) property: ProbedProperty,
    pub(super) verb: Verb,
    pub(super) payload_bytes: usize,
    #[serde(rename = "writes")]
    pub(super) write_count: u32,
}

impl WriteProbe {
    /// Creates a probe of RDMA WRITEs over RC or UC.
    ///
    /// # Errors
    /// When the verb is another one, or the payload is not two or more whole words.
    pub fn new(
        property: ProbedProperty,
        verb: Verb,
        payload_bytes: usize,
        writes: u32,
    ) -> Result<Self> {
        if !matches!(verb, Verb::RcWrite | Verb::UcWrite) {
            bail!(
                "{} writes nothing into memory; probe rc-write or uc-write",
                verb.name()
            );
        }
        if payload_bytes < 16 || !payload_bytes.is_multiple_of(8) {
            bail!(
                "{payload_bytes} bytes are not two or more words of 8 bytes; take a multiple of 8 from 16 on"
            );
        }
        Ok(Self {
            property,
            verb,
            payload_bytes,
            write_count: writes,
        })
    }

    /// Returns the bytes of each WRITE.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }
}

/// Result of the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeResult {
    /// Number of inspected WRITEs. With [`ProbedProperty::Order`] the target misses some, because the
    /// requester does not wait for it.
    #[serde(rename = "looks")]
    pub inspected_writes: u64,
    /// Inspected WRITEs of which a word was missing: left of their last word, or after completion.
    #[serde(rename = "missing")]
    pub writes_with_missing_words: u64,
}
