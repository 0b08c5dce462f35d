use super::guideline::{Finding, Guideline, most_frequent_violation};
use crate::op_profile::{CountedOperations, OperationProfile, QueuePair};
use crate::profile::Profile;

/// Guideline: signal few WRs.
pub(super) const GUIDELINE: Guideline = Guideline {
    name: "unsignaled",
    section: "ATC'16, section 2.2.1",
    rule: "Most WRs need no completion: each is a DMA write of the NIC and a poll of the processor.",
    find_violation: detect_violation,
    program_after_change: program_after_fix,
};

/// Largest share of signaled WRs that is not reported.
const MAX_UNREPORTED_SIGNALED_SHARE: f64 = 0.125;

/// Longest signaling period that is advised: beyond it a completion's cost per WR hardly shrinks.
const MAX_ADVISED_SIGNALING_PERIOD: u32 = 64;

/// Returns the advised signaling period. The second half of the send queue must have room while the first waits for
/// its completion.
fn advised_signaling_period(qp: &QueuePair) -> u32 {
    match qp.max_send_wr {
        0 => MAX_ADVISED_SIGNALING_PERIOD,
        room => (room / 2).clamp(1, MAX_ADVISED_SIGNALING_PERIOD),
    }
}

fn is_signaled_too_often(qp: &QueuePair, counted: &CountedOperations) -> bool {
    // The result of a READ or atomic is valid at its completion, so these operations need theirs. A loop with one
    // operation outstanding waits for its completion.
    counted.count > 0
        && qp.max_outstanding != 1
        && counted.operation.verb.carries_payload_in_request()
        && counted.operation.signaled_fraction
            > MAX_UNREPORTED_SIGNALED_SHARE.max(1.0 / f64::from(advised_signaling_period(qp)))
}

fn detect_violation(observed: &OperationProfile, _: &Profile) -> Option<Finding> {
    let (who, qp, counted) =
        most_frequent_violation(observed, |qp| &qp.sent, is_signaled_too_often)?;
    let bound = match qp.max_send_wr {
        0 => "The period must be at most half of max_send_wr".to_owned(),
        room => format!("The period must be at most half of max_send_wr, which is {room}"),
    };
    Some(Finding {
        observed_violation: format!(
            "{who}: {:.0} % of {}s are signaled",
            100.0 * counted.operation.signaled_fraction,
            counted.operation.verb
        ),
        advice: format!(
            "leave out IBV_SEND_SIGNALED (with sq_sig_all = 0) but for one WR in {}; that one's \
             completion frees all before it. {bound}, or the send queue fills before a completion \
             comes",
            advised_signaling_period(qp)
        ),
    })
}

fn program_after_fix(observed: &OperationProfile, _: &Profile) -> Option<OperationProfile> {
    let mut fixed = observed.clone();
    for (qp, old) in fixed.queue_pairs.iter_mut().zip(&observed.queue_pairs) {
        for counted in &mut qp.sent {
            if is_signaled_too_often(old, counted) {
                counted.operation.signaled_fraction =
                    1.0 / f64::from(advised_signaling_period(old));
            }
        }
    }
    Some(fixed)
}
