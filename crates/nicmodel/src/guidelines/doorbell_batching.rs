use std::cmp::Reverse;

use super::guideline::{Finding, Guideline, queue_pair_text};
use crate::footprint::Footprint;
use crate::op_profile::{OperationProfile, QueuePair, count_to_f64, round_to_u32_at_least_1};
use crate::operation::PostMethod;
use crate::profile::Profile;

/// Guideline: post waiting WRs as one postlist.
pub(super) const GUIDELINE: Guideline = Guideline {
    name: "doorbell-batching",
    section: "ATC'16, section 3.1",
    rule: "WRs that are ready at the same time go to the NIC as one postlist: one MMIO write for all.",
    find_violation: detect_violation,
    program_after_change: program_after_fix,
};

/// Longest postlist that is advised: beyond it a doorbell's cost per WR hardly shrinks.
const MAX_ADVISED_POSTLIST_LEN: f64 = 32.0;

/// Fewest WRs that are worth a postlist: with fewer, its doorbell and DMA cost as much as they save.
const MIN_WORTHWHILE_POSTLIST_LEN: f64 = 3.0;

/// WRs of a run, on average, but no more than messages that can have been waiting.
fn mean_waiting(observed: &OperationProfile, qp: &QueuePair) -> f64 {
    let most = observed.max_ready().unwrap_or(f64::INFINITY);
    qp.mean_operations_per_run().min(most)
}

fn could_batch(observed: &OperationProfile, qp: &QueuePair) -> bool {
    let waiting = mean_waiting(observed, qp);
    waiting >= MIN_WORTHWHILE_POSTLIST_LEN
        && qp.mean_postlist_len() < waiting.min(MAX_ADVISED_POSTLIST_LEN) / 2.0
}

fn detect_violation(observed: &OperationProfile, profile: &Profile) -> Option<Finding> {
    let all: Vec<_> = observed
        .posting_queue_pairs()
        .filter(|qp| could_batch(observed, qp))
        .collect();
    let qp = *all
        .iter()
        .min_by_key(|qp| Reverse(qp.posted_operations()))?;
    let waiting = mean_waiting(observed, qp);
    let run = waiting.min(MAX_ADVISED_POSTLIST_LEN);
    let seen = format!(
        "{} posts {:.1} WRs a doorbell; {:.1} were waiting on average",
        queue_pair_text(qp.qpn, all.len() - 1),
        qp.mean_postlist_len(),
        waiting,
    );
    let mut advice = "link them by ibv_send_wr.next and post them by one ibv_post_send".to_owned();
    if run < waiting {
        advice.push_str(&format!(", up to {MAX_ADVISED_POSTLIST_LEN} at a time"));
    }
    let instead = run * mmio_writes_per_wr(qp, profile)?;
    advice.push_str(&format!(": 1 MMIO write instead of {instead:.0}"));
    Some(Finding {
        observed_violation: seen,
        advice,
    })
}

/// MMIO writes for each WR of the unchanged program.
fn mmio_writes_per_wr(qp: &QueuePair, profile: &Profile) -> Option<f64> {
    let postlist = qp.mean_postlist_len();
    let method = PostMethod::of_postlist(postlist);
    let writes = qp.sent.iter().map(|counted| {
        let one = Footprint::of_one(profile, &counted.operation, method, postlist).ok()?;
        Some(one.requester.mmio_writes() * count_to_f64(counted.count))
    });
    Some(writes.sum::<Option<f64>>()? / count_to_f64(qp.posted_operations()))
}

fn program_after_fix(observed: &OperationProfile, _: &Profile) -> Option<OperationProfile> {
    let mut fixed = observed.clone();
    let to_change = |qp: &&mut QueuePair| could_batch(observed, qp);
    for qp in fixed.queue_pairs.iter_mut().filter(to_change) {
        let lists = count_to_f64(qp.posted_operations())
            / mean_waiting(observed, qp).min(MAX_ADVISED_POSTLIST_LEN);
        qp.postlists = u64::from(round_to_u32_at_least_1(lists.ceil()));
        qp.unpolled_postlist_runs = qp.unpolled_postlist_runs.min(qp.postlists);
    }
    Some(fixed)
}
