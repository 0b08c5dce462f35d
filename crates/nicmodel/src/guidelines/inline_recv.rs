use super::guideline::{Finding, Guideline, count_with_noun, most_frequent_violation};
use crate::op_profile::{CountedOperations, OperationProfile, QueuePair};
use crate::operation::PayloadDestination;
use crate::profile::Profile;

/// Guideline: receive small payloads within the completion.
pub(super) const GUIDELINE: Guideline = Guideline {
    name: "inline-recv",
    section: "ATC'16, section 3.2",
    rule: "Small payloads can arrive within the CQE: one DMA write of the receiver's NIC instead of two.",
    find_violation: detect_violation,
    program_after_change: program_after_fix,
};

fn could_be_inlined(profile: &Profile, counted: &CountedOperations) -> bool {
    let operation = &counted.operation;
    let inline = operation.with_recv_destination(PayloadDestination::Inline);
    counted.count > 0 && !operation.arrives_in_cqe(profile) && inline.arrives_in_cqe(profile)
}

fn detect_violation(observed: &OperationProfile, profile: &Profile) -> Option<Finding> {
    let wanted = |_: &QueuePair, counted: &CountedOperations| could_be_inlined(profile, counted);
    let (who, _, counted) = most_frequent_violation(observed, |qp| &qp.received, wanted)?;
    Some(Finding {
        observed_violation: format!(
            "{who}: RECVs take {} into a buffer, two DMA writes each",
            count_with_noun(counted.operation.payload_bytes, "byte")
        ),
        advice: "let the NIC scatter to the CQE (max_inl_recv of ibv_exp_create_qp or of the \
                 device's own API; by default on some NICs): one DMA write"
            .to_owned(),
    })
}

fn program_after_fix(observed: &OperationProfile, profile: &Profile) -> Option<OperationProfile> {
    let mut fixed = observed.clone();
    for counted in fixed.queue_pairs.iter_mut().flat_map(|qp| &mut qp.received) {
        if could_be_inlined(profile, counted) {
            counted.operation.payload_destination = PayloadDestination::Inline;
        }
    }
    Some(fixed)
}
