use super::guideline::{Finding, Guideline, count_with_noun, queue_pair_text};
use crate::bounds::{Bounds, Mix, MixOperation, Resource, Role};
use crate::op_profile::{OperationProfile, QueuePair, count_to_f64, round_to_u32_at_least_1};
use crate::operation::Operation;
use crate::profile::Profile;
use crate::verb::Verb;

/// Guideline: replace several small READs by a larger one.
pub(super) const GUIDELINE: Guideline = Guideline {
    name: "read-size",
    section: "ATC'16, section 5.3.1",
    rule: "Up to the payload at which the link binds, a larger READ costs what a small one does: fetch neighbours at once.",
    find_violation: detect_violation,
    program_after_change: program_after_fix,
};

/// Returns true if the NIC and not the link limits the rate of READs of this size.
fn is_limited_by_nic(profile: &Profile, payload_bytes: u32, read: &Operation) -> bool {
    let larger = Operation {
        payload_bytes,
        ..*read
    };
    let mix = Mix::new(vec![MixOperation::new(larger, Role::Responder)]);
    Bounds::of(profile, &mix).is_ok_and(|b| b.bottleneck() == Some(Resource::NicInbound))
}

/// Returns the READs of a queue pair that could be half as many and twice as long.
fn reads_that_could_be_merged<'a>(qp: &'a QueuePair, profile: &Profile) -> Option<&'a Operation> {
    let reads = qp.operations_of_verb(Verb::RdmaRead);
    let read = qp
        .sent
        .iter()
        .find(|c| c.operation.verb == Verb::RdmaRead)?;
    let twice = read.operation.payload_bytes.saturating_mul(2);
    let many = qp.adjacent_reads.saturating_mul(4) >= reads && reads > 1;
    (many && is_limited_by_nic(profile, twice, &read.operation)).then_some(&read.operation)
}

fn detect_violation(observed: &OperationProfile, profile: &Profile) -> Option<Finding> {
    let all = observed.posting_queue_pairs();
    let all: Vec<_> = all
        .filter_map(|qp| Some((qp, reads_that_could_be_merged(qp, profile)?)))
        .collect();
    let (qp, read) = *all.first()?;
    let twice = read.payload_bytes.saturating_mul(2);
    Some(Finding {
        observed_violation: format!(
            "{}: {} of {} READs of {} continue the one before",
            queue_pair_text(qp.qpn, all.len() - 1),
            qp.adjacent_reads,
            qp.operations_of_verb(Verb::RdmaRead),
            count_with_noun(read.payload_bytes, "byte")
        ),
        advice: format!(
            "fetch neighbours by one READ: {twice} bytes cost this NIC's responder what {} do",
            read.payload_bytes
        ),
    })
}

fn program_after_fix(observed: &OperationProfile, profile: &Profile) -> Option<OperationProfile> {
    let mut fixed = observed.clone();
    for qp in &mut fixed.queue_pairs {
        if reads_that_could_be_merged(qp, profile).is_none() {
            continue;
        }
        let merged = qp.adjacent_reads;
        let read = qp
            .sent
            .iter_mut()
            .find(|c| c.operation.verb == Verb::RdmaRead);
        if let Some(read) = read {
            // Two adjacent READs become one READ of the same bytes.
            let pairs = merged.min(read.count / 2);
            let bytes = count_to_f64(read.count) * f64::from(read.operation.payload_bytes);
            read.count -= pairs;
            read.operation.payload_bytes =
                round_to_u32_at_least_1(bytes / count_to_f64(read.count));
            qp.adjacent_reads = merged.saturating_sub(2 * pairs);
            qp.postlists = qp.postlists.min(qp.posted_operations());
            qp.unpolled_postlist_runs = qp.unpolled_postlist_runs.min(qp.postlists);
        }
    }
    Some(fixed)
}
