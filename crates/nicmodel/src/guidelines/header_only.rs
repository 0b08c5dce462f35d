use std::cmp::Reverse;

use super::{Finding, Guideline};
use crate::op_profile::{Counted, OperationProfile};
use crate::profile::Profile;
use crate::verb::Verb;

/// Four bytes fit the immediate.
pub(super) const GUIDELINE: Guideline = Guideline {
    name: "header-only",
    section: "ATC'16, sections 3.2 and 4.2.1",
    rule: "A SEND of up to 4 bytes needs no payload: the immediate carries them, in one cache line and one DMA of the receiver.",
    finds,
    fixed,
};

/// What an immediate carries.
const IMM_BYTES: u32 = 4;

fn could(counted: &Counted) -> bool {
    let operation = &counted.operation;
    operation.verb == Verb::Send
        && !operation.imm
        && (1..=IMM_BYTES).contains(&operation.payload_bytes)
        && counted.count > 0
}

fn finds(observed: &OperationProfile, _: &Profile) -> Option<Finding> {
    let all = observed
        .queue_pairs
        .iter()
        .flat_map(|qp| qp.sent.iter().map(move |counted| (qp, counted)));
    let (qp, counted) = all
        .filter(|(_, counted)| could(counted))
        .min_by_key(|(_, counted)| Reverse(counted.count))?;
    Some(Finding {
        seen: format!(
            "QP {:#x}: SENDs carry {} bytes of payload and no immediate",
            qp.qpn, counted.operation.payload_bytes
        ),
        advice:
            "post IBV_WR_SEND_WITH_IMM with num_sge = 0 and the data in imm_data; the receiver \
                 finds it in ibv_wc.imm_data, and its NIC writes no payload"
                .to_owned(),
    })
}

fn fixed(observed: &OperationProfile, _: &Profile) -> Option<OperationProfile> {
    let mut fixed = observed.clone();
    for qp in &mut fixed.queue_pairs {
        for counted in qp.sent.iter_mut().chain(&mut qp.received) {
            if could(counted) {
                counted.operation.payload_bytes = 0;
                counted.operation.imm = true;
            }
        }
    }
    Some(fixed)
}
