use super::{Finding, Guideline};
use crate::bounds::{Resource, Role};
use crate::op_profile::{OperationProfile, QueuePair};
use crate::profile::Profile;
use crate::verb::Transport;

/// Spread over several queue pairs.
pub(super) const GUIDELINE: Guideline = Guideline {
    name: "multi-queue",
    section: "ATC'16, section 3.3",
    rule: "A queue pair is served by one of the NIC's processing units: a core that batches needs several.",
    finds,
    fixed,
};

/// Queue pairs for each posting thread, beyond which more bring little: the paper's sequencer uses
/// 6, its SENDs of Figure 11 use 4.
const A_THREAD: u32 = 4;

/// By how much the queue pairs are to be multiplied; 1 if there are enough.
fn times(observed: &OperationProfile) -> u32 {
    let wanted = observed.posting_threads().saturating_mul(A_THREAD);
    let busy = u32::try_from(observed.active().count()).unwrap_or(u32::MAX);
    wanted.div_ceil(busy.max(1))
}

fn is_bound(observed: &OperationProfile, profile: &Profile) -> bool {
    let Ok(Some(prediction)) = observed.predict(profile) else {
        return false;
    };
    prediction.slower == Role::Requester && prediction.bottleneck == Resource::QueuePairUnits
}

fn finds(observed: &OperationProfile, profile: &Profile) -> Option<Finding> {
    // Who waits for each operation before the next has nothing to spread.
    if times(observed) == 1 || observed.waits_for_each() || !is_bound(observed, profile) {
        return None;
    }
    let busy = observed.active().count();
    let words = if observed.active().all(|qp| qp.transport == Transport::Ud) {
        "create several UD queue pairs and rotate whole postlists over them"
    } else {
        "give each thread several queue pairs to its peers and rotate whole postlists over them"
    };
    Some(Finding {
        seen: format!(
            "{busy} queue pair{} of {} posting thread{}: the processing units behind them bound the rate",
            if busy == 1 { "" } else { "s" },
            observed.posting_threads(),
            if observed.posting_threads() == 1 {
                ""
            } else {
                "s"
            },
        ),
        advice: format!("{words}: {A_THREAD} a thread"),
    })
}

fn fixed(observed: &OperationProfile, _: &Profile) -> Option<OperationProfile> {
    let times = times(observed);
    let mut fixed = observed.clone();
    let share = |count: u64| count.div_ceil(u64::from(times));
    fixed.queue_pairs = observed
        .queue_pairs
        .iter()
        .flat_map(|qp| {
            let mut one = QueuePair {
                postlists: share(qp.postlists),
                runs: share(qp.runs),
                adjacent_reads: share(qp.adjacent_reads),
                ..qp.clone()
            };
            let counts = one.sent.iter_mut().chain(&mut one.received);
            counts.for_each(|counted| counted.count = share(counted.count));
            one.atomic_slots
                .iter_mut()
                .for_each(|slot| slot.count = share(slot.count));
            let copies = if qp.operations() == 0 { 1 } else { times };
            std::iter::repeat_n(one, usize::try_from(copies).unwrap_or(1))
        })
        .collect();
    Some(fixed)
}
