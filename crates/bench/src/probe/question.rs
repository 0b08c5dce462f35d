//! What is asked about WRITEs, and what the target saw.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::micro::verb::Verb;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// Whether the words of a WRITE are seen from left to right.
    Order,
    /// Whether a WRITE that has completed is seen.
    Visible,
}

/// A probe: so many WRITEs of one size, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    pub(super) question: Question,
    pub(super) verb: Verb,
    pub(super) payload_bytes: usize,
    pub(super) writes: u32,
}

impl Probe {
    /// A probe of RDMA WRITEs over RC or UC.
    ///
    /// # Errors
    /// Another verb; a payload that is not of whole words, or of fewer than two.
    pub fn new(question: Question, verb: Verb, payload_bytes: usize, writes: u32) -> Result<Self> {
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
            question,
            verb,
            payload_bytes,
            writes,
        })
    }

    /// Bytes of each WRITE.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }
}

/// What the target saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// WRITEs that were looked at. Where the order is asked for, the target misses some: they do not wait for it.
    pub looks: u64,
    /// Of these, how many had a word that was not there yet: left of their last one, or after they had completed.
    pub missing: u64,
}
