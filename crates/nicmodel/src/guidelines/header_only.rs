use super::guideline::{Finding, Guideline, count_with_noun, most_frequent_violation};
use crate::op_profile::{CountedOperations, OperationProfile};
use crate::profile::Profile;
use crate::verb::Verb;

/// Guideline: send messages of up to four bytes as the immediate.
pub(super) const GUIDELINE: Guideline = Guideline {
    name: "header-only",
    section: "ATC'16, sections 3.2 and 4.2.1",
    rule: "A SEND of up to 4 bytes needs no payload: the immediate carries them, in one cache line and one DMA of the receiver.",
    find_violation: detect_violation,
    program_after_change: program_after_fix,
};

/// Size of an immediate.
const IMM_BYTES: u32 = 4;

fn could_be_header_only(counted: &CountedOperations) -> bool {
    let operation = &counted.operation;
    operation.verb == Verb::Send
        && !operation.has_imm
        && (1..=IMM_BYTES).contains(&operation.payload_bytes)
        && counted.count > 0
}

fn detect_violation(observed: &OperationProfile, _: &Profile) -> Option<Finding> {
    let (who, _, counted) = most_frequent_violation(
        observed,
        |qp| &qp.sent,
        |_, counted| could_be_header_only(counted),
    )?;
    Some(Finding {
        observed_violation: format!(
            "{who}: SENDs carry {} of payload and no immediate",
            count_with_noun(counted.operation.payload_bytes, "byte")
        ),
        advice:
            "post IBV_WR_SEND_WITH_IMM with num_sge = 0 and the data in imm_data; the receiver \
                 finds it in ibv_wc.imm_data, and its NIC writes no payload"
                .to_owned(),
    })
}

fn program_after_fix(observed: &OperationProfile, _: &Profile) -> Option<OperationProfile> {
    let mut fixed = observed.clone();
    for qp in &mut fixed.queue_pairs {
        for counted in qp.sent.iter_mut().chain(&mut qp.received) {
            if could_be_header_only(counted) {
                counted.operation.payload_bytes = 0;
                counted.operation.has_imm = true;
            }
        }
    }
    Some(fixed)
}
