use std::cmp::Reverse;

use super::{Finding, Guideline};
use crate::op_profile::{Counted, OperationProfile};
use crate::operation::Receive;
use crate::profile::Profile;

/// Take small payloads within the completion.
pub(super) const GUIDELINE: Guideline = Guideline {
    name: "inline-recv",
    section: "ATC'16, section 3.2",
    rule: "Small payloads can arrive within the CQE: one DMA write of the receiver's NIC instead of two.",
    finds,
    fixed,
};

fn could(profile: &Profile, counted: &Counted) -> bool {
    let operation = &counted.operation;
    let inline = operation.received(Receive::Inline);
    counted.count > 0 && !operation.arrives_in_cqe(profile) && inline.arrives_in_cqe(profile)
}

fn finds(observed: &OperationProfile, profile: &Profile) -> Option<Finding> {
    let all = observed
        .queue_pairs
        .iter()
        .flat_map(|qp| qp.received.iter().map(move |counted| (qp, counted)));
    let (qp, counted) = all
        .filter(|(_, counted)| could(profile, counted))
        .min_by_key(|(_, counted)| Reverse(counted.count))?;
    Some(Finding {
        seen: format!(
            "QP {:#x}: RECVs take {} bytes into a buffer, two DMA writes each",
            qp.qpn, counted.operation.payload_bytes
        ),
        advice: "let the NIC scatter to the CQE (max_inl_recv of ibv_exp_create_qp or of the \
                 device's own API; by default on some NICs): one DMA write"
            .to_owned(),
    })
}

fn fixed(observed: &OperationProfile, profile: &Profile) -> Option<OperationProfile> {
    let mut fixed = observed.clone();
    for counted in fixed.queue_pairs.iter_mut().flat_map(|qp| &mut qp.received) {
        if could(profile, counted) {
            counted.operation.receive = Receive::Inline;
        }
    }
    Some(fixed)
}
