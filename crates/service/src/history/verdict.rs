//! Histories and their verdicts.

use std::collections::BTreeMap;

use lincheck::{Operation, Violation};
use serde::{Deserialize, Serialize};

/// A history: the operations on each key, by the key's number.
#[derive(Debug, Default)]
pub struct KeyHistories {
    pub(super) operations_by_key: BTreeMap<u64, Vec<Operation>>,
    pub(super) observed_faults: Vec<String>,
}

/// Verdict on a history.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryVerdict {
    /// Number of keys that were used.
    pub keys: u64,
    /// Number of operations on these keys.
    pub operations: u64,
    /// Number of these operations whose outcome is unknown.
    #[serde(rename = "unknown")]
    pub unknown_outcomes: u64,
    /// Maximum number of states in which one key could be at a time.
    pub states_max: u64,
    /// Violations in words; empty if the history is linearizable.
    pub violations: Vec<String>,
}

impl HistoryVerdict {
    /// Returns true if the history is linearizable.
    pub fn is_linearizable(&self) -> bool {
        self.violations.is_empty()
    }
}

impl KeyHistories {
    /// Checks the history, key by key.
    pub fn check(&self) -> HistoryVerdict {
        let mut verdict = HistoryVerdict {
            violations: self.observed_faults.clone(),
            ..HistoryVerdict::default()
        };
        for (key, operations) in &self.operations_by_key {
            verdict.keys += 1;
            verdict.operations += operations.len() as u64;
            match lincheck::check(operations) {
                Ok(stats) => {
                    verdict.unknown_outcomes += stats.unknown_outcomes;
                    verdict.states_max = verdict.states_max.max(stats.max_possible_states);
                }
                Err(violation) => verdict
                    .violations
                    .push(describe_violation(*key, &violation)),
            }
        }
        verdict
    }
}

fn describe_violation(key: u64, violation: &Violation) -> String {
    format!("key {key}: {violation}")
}
