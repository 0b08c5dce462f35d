use super::guideline::{Finding, Guideline, most};
use crate::op_profile::{Counted, OperationProfile, QueuePair};
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

/// Longest period that is proposed: beyond it a completion's share of a WR hardly shrinks.
const LONGEST: u32 = 64;

/// The period that is proposed: the second half of the send queue must have room while the first waits for its
/// completion.
fn period(qp: &QueuePair) -> u32 {
    match qp.max_send_wr {
        0 => LONGEST,
        room => (room / 2).clamp(1, LONGEST),
    }
}

fn often(qp: &QueuePair, counted: &Counted) -> bool {
    // The result of a READ or atomic is there when it completes, so these need theirs. A loop with one operation outstanding
    // waits for its completion.
    counted.count > 0
        && qp.max_outstanding != 1
        && counted.operation.verb.sends_payload()
        && counted.operation.signaled > OFTEN.max(1.0 / f64::from(period(qp)))
}

fn finds(observed: &OperationProfile, _: &Profile) -> Option<Finding> {
    let (who, qp, counted) = most(observed, |qp| &qp.sent, often)?;
    let bound = match qp.max_send_wr {
        0 => "The period must be at most half of max_send_wr".to_owned(),
        room => format!("The period must be at most half of max_send_wr, which is {room}"),
    };
    Some(Finding {
        seen: format!(
            "{who}: {:.0} % of {}s are signaled",
            100.0 * counted.operation.signaled,
            counted.operation.verb
        ),
        advice: format!(
            "leave out IBV_SEND_SIGNALED (with sq_sig_all = 0) but for one WR in {}; that one's \
             completion frees all before it. {bound}, or the send queue fills before a completion \
             comes",
            period(qp)
        ),
    })
}

fn fixed(observed: &OperationProfile, _: &Profile) -> Option<OperationProfile> {
    let mut fixed = observed.clone();
    for (qp, old) in fixed.queue_pairs.iter_mut().zip(&observed.queue_pairs) {
        for counted in &mut qp.sent {
            if often(old, counted) {
                counted.operation.signaled = 1.0 / f64::from(period(old));
            }
        }
    }
    Some(fixed)
}
