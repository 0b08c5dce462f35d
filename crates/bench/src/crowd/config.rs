//! Communication patterns of a crowd.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

/// Communication pattern of a crowd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Pairs: one process SENDs a message and waits for the answer.
    PingPong,
    /// Pairs: one process SENDs, and the other answers each 32nd message.
    Stream,
    /// Each process sends to every other process and answers every message.
    AllToAll,
    /// One ping-pong pair beside a process that computes and never waits.
    BesideBusy,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 4] = [
        Kind::PingPong,
        Kind::Stream,
        Kind::AllToAll,
        Kind::BesideBusy,
    ];

    /// Returns the name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::PingPong => "ping-pong",
            Kind::Stream => "stream",
            Kind::AllToAll => "all-to-all",
            Kind::BesideBusy => "beside-busy",
        }
    }
}

/// Kind and size of a crowd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrowdConfig {
    /// Communication pattern of the processes.
    pub kind: Kind,
    /// Number of polling processes.
    pub processes: usize,
    /// Messages from each process to each peer that it asks, without the answers.
    pub messages_each: u64,
}

/// Flow control of the messages from one process to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FlowControl {
    /// Maximum number of messages that are sent and not answered.
    pub(super) window: u64,
    /// Messages per answer.
    pub(super) answer_every: u64,
}

impl CrowdConfig {
    /// Creates the description of a crowd of `processes` processes. [`Kind::BesideBusy`] always has
    /// 2.
    ///
    /// # Errors
    /// When the number of processes makes no pairs.
    pub fn new(kind: Kind, processes: usize, messages_each: u64) -> Result<CrowdConfig> {
        if processes < 2 || (kind != Kind::AllToAll && !processes.is_multiple_of(2)) {
            bail!("{processes} processes make no pairs; take an even number from 2 on");
        }
        let processes = if kind == Kind::BesideBusy {
            2
        } else {
            processes
        };
        Ok(CrowdConfig {
            kind,
            processes,
            messages_each,
        })
    }

    /// Returns the number of messages of the whole crowd, without the answers.
    #[must_use]
    pub fn messages(&self) -> u64 {
        let pairs = self.pairs().len() as u64;
        let ways = if self.kind == Kind::AllToAll { 2 } else { 1 };
        pairs * ways * self.messages_each
    }

    /// Returns the pairs of processes that talk to each other.
    pub(super) fn pairs(&self) -> Vec<(usize, usize)> {
        match self.kind {
            Kind::AllToAll => (0..self.processes)
                .flat_map(|one| (one + 1..self.processes).map(move |other| (one, other)))
                .collect(),
            _ => (0..self.processes / 2)
                .map(|pair| (2 * pair, 2 * pair + 1))
                .collect(),
        }
    }

    /// Returns true if the second process of a pair asks too.
    pub(super) fn both_ask(&self) -> bool {
        self.kind == Kind::AllToAll
    }

    pub(super) fn flow_control(&self) -> FlowControl {
        let (window, answer_every) = match self.kind {
            Kind::PingPong | Kind::BesideBusy => (1, 1),
            Kind::Stream => (128, 32),
            Kind::AllToAll => (8, 1),
        };
        FlowControl {
            window,
            answer_every,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_and_messages() {
        let all = CrowdConfig::new(Kind::AllToAll, 8, 10).unwrap();
        assert_eq!((all.pairs().len(), all.messages()), (28, 560));
        let pairs = CrowdConfig::new(Kind::Stream, 4, 10).unwrap();
        assert_eq!(
            (pairs.pairs(), pairs.messages()),
            (vec![(0, 1), (2, 3)], 20)
        );
        assert!(CrowdConfig::new(Kind::PingPong, 3, 1).is_err());
        assert!(CrowdConfig::new(Kind::AllToAll, 3, 1).is_ok());
        assert_eq!(
            CrowdConfig::new(Kind::BesideBusy, 8, 1).unwrap().processes,
            2
        );
    }
}
