use super::guideline::{Finding, Guideline, count_with_noun, most_frequent_violation};
use crate::footprint::Footprint;
use crate::op_profile::{CountedOperations, OperationProfile, QueuePair};
use crate::operation::PostMethod;
use crate::profile::Profile;

/// Guideline: copy small payloads into the WQE.
pub(super) const GUIDELINE: Guideline = Guideline {
    name: "inlining",
    section: "ATC'16, section 2.2.1",
    rule: "Small payloads go within the WQE: the NIC need not fetch them by a DMA read of their own.",
    find_violation: detect_violation,
    program_after_change: program_after_fix,
};

/// Returns true if inlining saves bytes on the PCIe link to the NIC.
fn should_be_inlined(profile: &Profile, qp: &QueuePair, counted: &CountedOperations) -> bool {
    let operation = counted.operation;
    if operation.inline
        || operation.payload_bytes == 0
        || !operation.verb.carries_payload_in_request()
    {
        return false;
    }
    let postlist = qp.mean_postlist_len();
    let bytes = |operation| {
        let method = PostMethod::of_postlist(postlist);
        let one = Footprint::of_one(profile, &operation, method, postlist).ok()?;
        Some(one.requester.bytes_to_device())
    };
    let saves = bytes(operation)
        .zip(bytes(operation.inlined()))
        .is_some_and(|(now, inlined)| inlined <= now);
    counted.count > 0 && saves
}

fn detect_violation(observed: &OperationProfile, profile: &Profile) -> Option<Finding> {
    let wanted =
        |qp: &QueuePair, counted: &CountedOperations| should_be_inlined(profile, qp, counted);
    let (who, _, counted) = most_frequent_violation(observed, |qp| &qp.sent, wanted)?;
    let operation = &counted.operation;
    Some(Finding {
        observed_violation: format!(
            "{who}: the NIC fetches the {} of each {} by a DMA read",
            count_with_noun(operation.payload_bytes, "byte"),
            operation.verb
        ),
        advice: format!(
            "set IBV_SEND_INLINE, with max_inline_data of at least {} in ibv_create_qp: no DMA \
             read for payload, and the buffer is free at once",
            operation.payload_bytes
        ),
    })
}

fn program_after_fix(observed: &OperationProfile, profile: &Profile) -> Option<OperationProfile> {
    let mut fixed = observed.clone();
    for (qp, old) in fixed.queue_pairs.iter_mut().zip(&observed.queue_pairs) {
        for counted in &mut qp.sent {
            if should_be_inlined(profile, old, counted) {
                counted.operation.inline = true;
            }
        }
    }
    Some(fixed)
}
