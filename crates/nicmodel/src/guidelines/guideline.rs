//! What a guideline is, and the words of its findings.

use std::cmp::Reverse;

use serde::Serialize;

use crate::op_profile::{Counted, OperationProfile, QueuePair};
use crate::profile::Profile;

/// A guideline.
#[derive(Clone, Copy, Debug)]
pub struct Guideline {
    /// Short name.
    pub name: &'static str,
    /// Where it is published.
    pub section: &'static str,
    /// What it says, in one sentence.
    pub rule: &'static str,
    /// Where a program breaks it, and what to do about it; nothing if it keeps it.
    pub finds: fn(&OperationProfile, &Profile) -> Option<Finding>,
    /// The same program if it did so; nothing where the model has no rate for the difference.
    pub fixed: fn(&OperationProfile, &Profile) -> Option<OperationProfile>,
}

/// Where a program breaks a guideline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it does.
    pub seen: String,
    /// What to do instead, by the names of the verbs.
    pub advice: String,
}

/// The kind of operation that a program does most among those that break a guideline, its queue pair, and that in
/// words.
pub(super) fn most<'a>(
    observed: &'a OperationProfile,
    side: fn(&QueuePair) -> &[Counted],
    wanted: impl Fn(&QueuePair, &Counted) -> bool,
) -> Option<(String, &'a QueuePair, &'a Counted)> {
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
    Some((queue_pair(qp.qpn, others), qp, counted))
}

/// A queue pair in words, with how many others are like it.
pub(super) fn queue_pair(qpn: u32, others: usize) -> String {
    match others {
        0 => format!("QP {qpn:#x}"),
        more => format!("QP {qpn:#x} (and {more} more)"),
    }
}

/// So many of something, in words.
pub(super) fn plural(count: u32, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}
