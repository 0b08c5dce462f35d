//! The type of a guideline, and functions that word its findings.

use std::cmp::Reverse;

use serde::Serialize;

use crate::op_profile::{CountedOperations, OperationProfile, QueuePair};
use crate::profile::Profile;

/// A rule of the paper as code: how to find a violation, and the program without the violation.
#[derive(Clone, Copy, Debug)]
pub struct Guideline {
    /// Short name.
    pub name: &'static str,
    /// Publication and section of the rule.
    pub section: &'static str,
    /// The rule in one sentence.
    pub rule: &'static str,
    /// Returns where a program breaks the rule and how to change the program; `None` if the program keeps the rule.
    pub find_violation: fn(&OperationProfile, &Profile) -> Option<Finding>,
    /// Returns the program after the change; `None` if the model computes no rate for the difference.
    pub program_after_change: fn(&OperationProfile, &Profile) -> Option<OperationProfile>,
}

/// A place where a program breaks a guideline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The violation: what the program does.
    #[serde(rename = "seen")]
    pub observed_violation: String,
    /// The advised change, with the names of the verbs.
    pub advice: String,
}

/// Finds the most frequent kind of operation that breaks a guideline, and its queue pair. The text names the queue
/// pair and the number of other queue pairs that break the guideline.
pub(super) fn most_frequent_violation<'a>(
    observed: &'a OperationProfile,
    side: fn(&QueuePair) -> &[CountedOperations],
    wanted: impl Fn(&QueuePair, &CountedOperations) -> bool,
) -> Option<(String, &'a QueuePair, &'a CountedOperations)> {
    let worst = |qp: &'a QueuePair| {
        let all = side(qp).iter().filter(|counted| wanted(qp, counted));
        all.min_by_key(|counted| Reverse(counted.count))
    };
    let mut found: Vec<_> = observed
        .queue_pairs
        .iter()
        .filter_map(|qp| Some((qp, worst(qp)?)))
        .collect();
    let others = found.len().checked_sub(1)?;
    found.sort_by_key(|(_, counted)| Reverse(counted.count));
    let (qp, counted) = *found.first()?;
    Some((queue_pair_text(qp.qpn, others), qp, counted))
}

/// Names a queue pair in text, with the number of similar queue pairs.
pub(super) fn queue_pair_text(qpn: u32, others: usize) -> String {
    match others {
        0 => format!("QP {qpn:#x}"),
        more => format!("QP {qpn:#x} (and {more} more)"),
    }
}

/// Formats a count with its noun in singular or plural.
pub(super) fn count_with_noun(count: u32, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}
