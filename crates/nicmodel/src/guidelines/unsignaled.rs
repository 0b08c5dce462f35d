use std::cmp::Reverse;

use super::{Finding, Guideline};
use crate::op_profile::{Counted, OperationProfile};
use crate::profile::Profile;

/// Signal rarely.
pub(super) const GUIDELINE: Guideline = Guideline {
    name: "unsignaled",
    section: "ATC'16, section 2.2.1",
    rule: "Most WRs need no completion: each is a DMA write of the NIC and a poll of the processor.",
    finds,
    fixed,
};

/// More than this share signaled is worth a word.
const OFTEN: f64 = 0.125;

/// Share that is proposed.
const SELDOM: f64 = 1.0 / 64.0;

fn often(counted: &Counted) -> bool {
    // The result of a READ or atomic is there when it completes, so these need theirs.
    counted.count > 0
        && counted.operation.verb.sends_payload()
        && counted.operation.signaled > OFTEN
}

fn finds(observed: &OperationProfile, _: &Profile) -> Option<Finding> {
    let all = observed
        .queue_pairs
        .iter()
        .flat_map(|qp| qp.sent.iter().map(move |counted| (qp, counted)));
    let (qp, counted) = all
        .filter(|(_, counted)| often(counted))
        .min_by_key(|(_, counted)| Reverse(counted.count))?;
    Some(Finding {
        seen: format!(
            "QP {:#x}: {:.0} % of {} are signaled",
            qp.qpn,
            100.0 * counted.operation.signaled,
            counted.operation.verb
        ),
        advice:
            "leave out IBV_SEND_SIGNALED (with sq_sig_all = 0) but for one WR in 64; that one's \
                 completion frees all before it. The period must be at most half of max_send_wr, \
                 or the send queue fills before a completion comes"
                .to_owned(),
    })
}

fn fixed(observed: &OperationProfile, _: &Profile) -> Option<OperationProfile> {
    let mut fixed = observed.clone();
    for counted in fixed.queue_pairs.iter_mut().flat_map(|qp| &mut qp.sent) {
        if often(counted) {
            counted.operation.signaled = SELDOM;
        }
    }
    Some(fixed)
}
