use super::guideline::{Finding, Guideline, plural};
use crate::bounds::{Resource, Role};
use crate::op_profile::{OperationProfile, QueuePair, whole};
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
    let Ok(Some(now)) = observed.predict(profile) else {
        return 1;
    };
    let units = profile.processing.units.as_ref();
    let (Some(units), Some(bound)) = (units, now.requester.rate_mops(Resource::QueuePairUnits))
    else {
        return 1;
    };
    if now.slower != Role::Requester || now.bottleneck != Resource::QueuePairUnits {
        return 1;
    }
    // The units' rate is in proportion to the queue pairs, and the others do not change with them.
    let others = now.requester.bounds.iter();
    let others = others.filter(|bound| bound.resource != Resource::QueuePairUnits);
    let next = others
        .map(|bound| bound.rate_mops)
        .chain(now.responder.predicted_mops)
        .fold(f64::INFINITY, f64::min);
    let enough = whole((next / bound).ceil());
    // More queue pairs than units bring nothing.
    let most = units.value.div_ceil(observed.even_queue_pairs());
    enough.min(most)
}

/// How many queue pairs each posting thread has then.
pub(super) fn each(observed: &OperationProfile, profile: &Profile, times: u32) -> u32 {
    let busy = observed.concurrent_queue_pairs();
    let units = profile.processing.units.as_ref();
    let enough = units.map_or(u32::MAX, |units| units.value.max(busy));
    let all = busy.saturating_mul(times).min(enough);
    all.div_ceil(observed.posting_threads())
}

fn finds(observed: &OperationProfile, profile: &Profile) -> Option<Finding> {
    // Who waits for each operation before the next has nothing to spread.
    let times = times(observed, profile);
    if times == 1 || observed.waits_for_each() {
        return None;
    }
    let busy = observed.concurrent_queue_pairs();
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
    let busiest = observed.active().map(QueuePair::operations).max();
    // Who does less than the busiest will do then stays as it is.
    let stays = |qp: &QueuePair| share(busiest.unwrap_or(0)) >= qp.operations();
    fixed.queue_pairs = observed
        .queue_pairs
        .iter()
        .flat_map(|qp| {
            if times > 1 && stays(qp) {
                return std::iter::repeat_n(qp.clone(), 1);
            }
            let mut one = QueuePair {
                postlists: share(qp.postlists),
                runs: share(qp.runs),
                adjacent_reads: share(qp.adjacent_reads),
                ..qp.clone()
            };
            let counts = one.sent.iter_mut().chain(&mut one.received);
            counts.for_each(|counted| counted.count = share(counted.count));
            one.postlist_lengths
                .iter_mut()
                .for_each(|lengths| lengths.count = share(lengths.count));
            one.atomic_slots
                .iter_mut()
                .for_each(|slot| slot.count = share(slot.count));
            std::iter::repeat_n(one, usize::try_from(times).unwrap_or(1))
        })
        .collect();
    fixed
}
