use super::guideline::{Finding, Guideline};
use crate::op_profile::{OperationProfile, count_to_f64};
use crate::profile::Profile;
use crate::verb::Verb;

/// Guideline: keep few READs outstanding.
pub(super) const GUIDELINE: Guideline = Guideline {
    name: "read-window",
    section: "ATC'16, section 5.3.2",
    rule: "READs that are outstanding keep WQEs in the NIC's cache: more than it holds are fetched again by DMA.",
    find_violation: detect_violation,
    program_after_change: |_, _| None,
};

fn detect_violation(observed: &OperationProfile, profile: &Profile) -> Option<Finding> {
    let best = profile.cache.read_window.as_ref()?.value;
    let reading = observed
        .posting_queue_pairs()
        .filter(|qp| qp.operations_of_verb(Verb::RdmaRead) > 0);
    let outstanding: f64 = reading
        .map(|qp| {
            let share = count_to_f64(qp.operations_of_verb(Verb::RdmaRead))
                / count_to_f64(qp.posted_operations());
            qp.mean_outstanding * share
        })
        .sum();
    // Only queue pairs that were in use at the same time count.
    let all = observed.posting_queue_pairs().count().max(1);
    let at_a_time = f64::from(observed.max_concurrent_queue_pairs()) / count_to_f64(all as u64);
    let threads = f64::from(observed.max_concurrent_posters());
    let each = outstanding * at_a_time / threads;
    (each > f64::from(best)).then(|| Finding {
        observed_violation: format!("{each:.0} READs outstanding a thread on average"),
        advice: format!(
            "keep at most {best} READs outstanding a thread on this NIC; beyond that its WQE cache \
             misses (compare PCIeRdCur with the expected DMA reads)"
        ),
    })
}
