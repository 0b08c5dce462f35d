use super::{Finding, Guideline, plural};
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

/// By how much the queue pairs are to be multiplied until something else binds; 1 if there are enough.
pub(super) fn times(observed: &OperationProfile, profile: &Profile) -> u32 {
    let units = profile.processing.units.as_ref();
    if !is_bound(observed, profile) {
        return 1;
    }
    // More queue pairs than units bring nothing.
    let most = units.map_or(1, |units| units.value.div_ceil(observed.even_queue_pairs()));
    let enough = (2..most).find(|times| !is_bound(&spread(observed, *times), profile));
    enough.unwrap_or(most)
}

/// How many queue pairs each posting thread has then.
pub(super) fn each(observed: &OperationProfile, profile: &Profile, times: u32) -> u32 {
    let busy = u32::try_from(observed.active().count()).unwrap_or(u32::MAX);
    let units = profile.processing.units.as_ref();
    let enough = units.map_or(u32::MAX, |units| units.value.max(busy));
    let all = busy.saturating_mul(times).min(enough);
    all.div_ceil(observed.posting_threads())
}

fn is_bound(observed: &OperationProfile, profile: &Profile) -> bool {
    let Ok(Some(prediction)) = observed.predict(profile) else {
        return false;
    };
    prediction.slower == Role::Requester && prediction.bottleneck == Resource::QueuePairUnits
}

fn finds(observed: &OperationProfile, profile: &Profile) -> Option<Finding> {
    // Who waits for each operation before the next has nothing to spread.
    let times = times(observed, profile);
    if times == 1 || observed.waits_for_each() {
        return None;
    }
    let busy = u32::try_from(observed.active().count()).unwrap_or(u32::MAX);
    let words = if observed.active().all(|qp| qp.transport == Transport::Ud) {
        "create several UD queue pairs and rotate whole postlists over them"
    } else {
        "give each thread several queue pairs to its peers and rotate whole postlists over them"
    };
    let bound = if busy == 1 {
        "the processing unit behind it bounds the rate"
    } else {
        "the processing units behind them bound the rate"
    };
    Some(Finding {
        seen: format!(
            "{} of {}: {bound}",
            plural(busy, "queue pair"),
            plural(observed.posting_threads(), "posting thread"),
        ),
        advice: format!("{words}: {} a thread", each(observed, profile, times)),
    })
}

fn fixed(observed: &OperationProfile, profile: &Profile) -> Option<OperationProfile> {
    Some(spread(observed, times(observed, profile)))
}

/// The same program on so many times as many queue pairs.
pub(super) fn spread(observed: &OperationProfile, times: u32) -> OperationProfile {
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
    fixed
}
