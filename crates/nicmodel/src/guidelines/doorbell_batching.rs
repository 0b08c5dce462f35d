use std::cmp::Reverse;

use super::{Finding, Guideline};
use crate::op_profile::{OperationProfile, QueuePair, whole};
use crate::profile::Profile;

/// Post WRs that wait as one list.
pub(super) const GUIDELINE: Guideline = Guideline {
    name: "doorbell-batching",
    section: "ATC'16, section 3.1",
    rule: "WRs that are ready at the same time go to the NIC as one postlist: one MMIO write for all.",
    finds,
    fixed,
};

/// Longest list that is proposed: beyond it a doorbell's share of a WR hardly shrinks.
const LONGEST: f64 = 32.0;

/// Fewer WRs than this at a time are not worth a list: its doorbell and DMA cost what they save.
const WORTHWHILE: f64 = 3.0;

fn could_batch(qp: &QueuePair) -> bool {
    qp.mean_run() >= WORTHWHILE && qp.mean_postlist() < qp.mean_run().min(LONGEST) / 2.0
}

fn finds(observed: &OperationProfile, profile: &Profile) -> Option<Finding> {
    let qp = observed
        .active()
        .filter(|qp| could_batch(qp))
        .min_by_key(|qp| Reverse(qp.operations()))?;
    let lines = qp.sent.iter().map(|counted| {
        let lines = crate::wqe::lines(crate::wqe::bytes(profile, &counted.operation));
        f64::from(lines) * crate::op_profile::real(counted.count)
    });
    let lines = lines.sum::<f64>() / crate::op_profile::real(qp.operations());
    let run = qp.mean_run().min(LONGEST);
    Some(Finding {
        seen: format!(
            "QP {:#x} posts {:.1} WRs a doorbell; {:.1} were waiting on average",
            qp.qpn,
            qp.mean_postlist(),
            qp.mean_run(),
        ),
        advice: format!(
            "link them by ibv_send_wr.next and post them by one ibv_post_send: 1 MMIO write \
             instead of {:.0}",
            lines * run
        ),
    })
}

fn fixed(observed: &OperationProfile, _: &Profile) -> Option<OperationProfile> {
    let mut fixed = observed.clone();
    for qp in fixed.queue_pairs.iter_mut().filter(|qp| could_batch(qp)) {
        let lists = crate::op_profile::real(qp.operations()) / qp.mean_run().min(LONGEST);
        qp.postlists = u64::from(whole(lists.ceil()));
        qp.runs = qp.runs.min(qp.postlists);
    }
    Some(fixed)
}
