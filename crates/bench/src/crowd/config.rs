//! Communication patterns of a crowd.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

/// Communication pattern of a crowd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CrowdPattern {
    /// Pairs: one process SENDs a message and waits for the answer.
    PingPong,
    /// Pairs: one process SENDs, and the other answers each 32nd message.
    Stream,
    /// Each process sends to every other process and answers every message.
    AllToAll,
    /// One ping-pong pair beside a process that computes and never waits.
    BesideBusy,
}

impl CrowdPattern {
    /// All kinds.
    pub const ALL: [CrowdPattern; 4] = [
        CrowdPattern::PingPong,
        CrowdPattern::Stream,
        CrowdPattern::AllToAll,
        CrowdPattern::BesideBusy,
    ];

    /// Returns the name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CrowdPattern::PingPong => "ping-pong",
            CrowdPattern::Stream => "stream",
            CrowdPattern::AllToAll => "all-to-all",
            CrowdPattern::BesideBusy => "beside-busy",
        }
    }
}

/// Kind and size of a crowd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrowdConfig {
    /// Communication pattern of the processes.
    #[serde(rename = "kind")]
    pub pattern: CrowdPattern,
    /// Number of polling processes.
    pub processes: usize,
    /// Messages from each process to each peer that it asks, without the answers.
    #[serde(rename = "messages_each")]
    pub messages_per_peer: u64,
}

/// Flow control of the messages from one process to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FlowControl {
    /// Maximum number of messages that are sent and not answered.
    #[serde(rename = "window")]
    pub(super) max_unanswered_messages: u64,
    /// Messages per answer.
    #[serde(rename = "answer_every")]
    pub(super) messages_per_answer: u64,
}

impl CrowdConfig {
    /// Creates the description of a crowd of `processes` processes. [`CrowdPattern::BesideBusy`] always has
    /// 2.
    ///
    /// # Errors
    /// When the number of processes makes no pairs.
    pub fn new(kind: CrowdPattern, processes: usize, messages_each: u64) -> Result<CrowdConfig> {
        if processes < 2 || (kind != CrowdPattern::AllToAll && !processes.is_multiple_of(2)) {
            bail!("{processes} processes make no pairs; take an even number from 2 on");
        }
        let processes = if kind == CrowdPattern::BesideBusy {
            2
        } else {
            processes
        };
        Ok(CrowdConfig {
            pattern: kind,
            processes,
            messages_per_peer: messages_each,
        })
    }

    /// Returns the number of messages of the whole crowd, without the answers.
    #[must_use]
    pub fn total_messages(&self) -> u64 {
        let pairs = self.process_pairs().len() as u64;
        let ways = if self.pattern == CrowdPattern::AllToAll {
            2
        } else {
            1
        };
        pairs * ways * self.messages_per_peer
    }

    /// Returns the pairs of processes that talk to each other.
    pub(super) fn process_pairs(&self) -> Vec<(usize, usize)> {
        match self.pattern {
            CrowdPattern::AllToAll => (0..self.processes)
                .flat_map(|one| (one + 1..self.processes).map(move |other| (one, other)))
                .collect(),
            _ => (0..self.processes / 2)
                .map(|pair| (2 * pair, 2 * pair + 1))
                .collect(),
        }
    }

    /// Returns true if the second process of a pair asks too.
    pub(super) fn is_bidirectional(&self) -> bool {
        self.pattern == CrowdPattern::AllToAll
    }

    pub(super) fn flow_control(&self) -> FlowControl {
        let (window, answer_every) = match self.pattern {
            CrowdPattern::PingPong | CrowdPattern::BesideBusy => (1, 1),
            CrowdPattern::Stream => (128, 32),
            CrowdPattern::AllToAll => (8, 1),
        };
        FlowControl {
            max_unanswered_messages: window,
            messages_per_answer: answer_every,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_and_messages() {
        let all = CrowdConfig::new(CrowdPattern::AllToAll, 8, 10).unwrap();
        assert_eq!((all.process_pairs().len(), all.total_messages()), (28, 560));
        let pairs = CrowdConfig::new(CrowdPattern::Stream, 4, 10).unwrap();
        assert_eq!(
            (pairs.process_pairs(), pairs.total_messages()),
            (vec![(0, 1), (2, 3)], 20)
        );
        assert!(CrowdConfig::new(CrowdPattern::PingPong, 3, 1).is_err());
        assert!(CrowdConfig::new(CrowdPattern::AllToAll, 3, 1).is_ok());
        assert_eq!(
            CrowdConfig::new(CrowdPattern::BesideBusy, 8, 1)
                .unwrap()
                .processes,
            2
        );
    }
}
