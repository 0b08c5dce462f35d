//! What clients recorded, and what it is judged to be.

use std::collections::BTreeMap;

use lincheck::{Operation, Violation};
use serde::{Deserialize, Serialize};

/// What clients recorded: the operations on each key, by its number.
#[derive(Debug, Default)]
pub struct History {
    pub(super) keys: BTreeMap<u64, Vec<Operation>>,
    pub(super) wrong: Vec<String>,
}

/// What a history was judged to be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Keys that were used.
    pub keys: u64,
    /// Operations on them.
    pub operations: u64,
    /// Of these, those whose outcome nobody knows.
    pub unknown: u64,
    /// The most states in which one key could be at a time.
    pub states_max: u64,
    /// What is wrong, in words; empty if the history is linearizable.
    pub violations: Vec<String>,
}

impl Verdict {
    /// Whether clients saw what a linearizable store shows.
    pub fn is_linearizable(&self) -> bool {
        self.violations.is_empty()
    }
}

impl History {
    /// Judges it, key by key.
    pub fn judge(&self) -> Verdict {
        let mut verdict = Verdict {
            violations: self.wrong.clone(),
            ..Verdict::default()
        };
        for (key, operations) in &self.keys {
            verdict.keys += 1;
            verdict.operations += operations.len() as u64;
            match lincheck::check(operations) {
                Ok(judged) => {
                    verdict.unknown += judged.unknown;
                    verdict.states_max = verdict.states_max.max(judged.states_max);
                }
                Err(violation) => verdict.violations.push(words(*key, &violation)),
            }
        }
        verdict
    }
}

fn words(key: u64, violation: &Violation) -> String {
    format!("key {key}: {violation}")
}
