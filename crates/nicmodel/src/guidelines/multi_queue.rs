use super::guideline::{Finding, Guideline, count_with_noun};
use crate::bounds::{Resource, Role};
use crate::op_profile::{OperationProfile, QueuePair};
use crate::profile::Profile;
use crate::verb::Transport;

/// Guideline: spread operations over several queue pairs.
pub(super) const GUIDELINE: Guideline = Guideline {
    name: "multi-queue",
    section: "ATC'16, section 3.3",
    rule: "A queue pair is served by one of the NIC's processing units: a core that batches needs several.",
    find_violation: detect_violation,
    program_after_change: program_after_fix,
};

/// Returns the factor by which to multiply the queue pairs until their units and ports are no longer the bottleneck.
/// Returns 1 if there are enough queue pairs.
pub(super) fn needed_queue_pair_factor(observed: &OperationProfile, profile: &Profile) -> u32 {
    let Ok(Some(now)) = observed.predict(profile) else {
        return 1;
    };
    let of_queue_pairs = [
        Resource::QueuePairUnits,
        Resource::LinkOut,
        Resource::LinkIn,
    ];
    if now.slower_role != Role::Requester || !of_queue_pairs.contains(&now.bottleneck) {
        return 1;
    }
    let busy = observed.effective_queue_pairs();
    // More queue pairs than units and ports do not raise the rate.
    let units = profile.processing.units.as_ref().map_or(1, |u| u.value);
    let ports = profile.port.count.value;
    let most = units.max(ports).div_ceil(busy);
    let used = |limit: u32, times: u32| f64::from(busy.saturating_mul(times).min(limit));
    let rate = |times: u32| {
        let more = |limit| used(limit, times) / used(limit, 1);
        let bounds = now.own_machine_bounds.bounds.iter().map(|bound| {
            bound.rate_mops
                * match bound.resource {
                    Resource::QueuePairUnits => f64::from(times),
                    Resource::LinkOut | Resource::LinkIn => more(ports),
                    // Each queue pair has a window of its own.
                    Resource::RoundTrips => f64::from(times),
                    _ => 1.0,
                }
        });
        let all = bounds.chain(now.peer_bounds.predicted_mops);
        all.fold(f64::INFINITY, f64::min)
    };
    let best = rate(most);
    let enough = (1..most).find(|times| rate(*times) >= best * (1.0 - 1e-9));
    enough.unwrap_or(most).max(1)
}

/// Returns the queue pairs of each posting thread after the multiplication.
pub(super) fn queue_pairs_per_thread_after_multiplying(
    observed: &OperationProfile,
    profile: &Profile,
    times: u32,
) -> u32 {
    let busy = observed.max_concurrent_queue_pairs();
    let units = profile.processing.units.as_ref().map_or(1, |u| u.value);
    let enough = units.max(profile.port.count.value).max(busy);
    let all = busy.saturating_mul(times).min(enough);
    all.div_ceil(observed.max_concurrent_posters())
}

fn detect_violation(observed: &OperationProfile, profile: &Profile) -> Option<Finding> {
    // A program that waits for each operation has no operations to spread.
    let times = needed_queue_pair_factor(observed, profile);
    if times == 1 || observed.waits_after_each_operation() {
        return None;
    }
    Some(too_few_queue_pairs_finding(observed, profile, times))
}

/// Builds the finding that there are too few queue pairs, and the advice to have `times` as many.
pub(super) fn too_few_queue_pairs_finding(
    observed: &OperationProfile,
    profile: &Profile,
    times: u32,
) -> Finding {
    let now = observed.predict(profile).ok().flatten();
    let bottleneck = now.map(|now| now.bottleneck);
    let busy = observed.max_concurrent_queue_pairs();
    let words = if observed
        .posting_queue_pairs()
        .all(|qp| qp.transport == Transport::Ud)
    {
        "create several UD queue pairs and rotate whole postlists over them"
    } else {
        "give each thread several queue pairs to its peers and rotate whole postlists over them"
    };
    let bound = match (bottleneck, busy) {
        (Some(Resource::LinkOut | Resource::LinkIn), 1) => "the port that it is on bounds the rate",
        (Some(Resource::LinkOut | Resource::LinkIn), _) => {
            "the ports that they are on bound the rate"
        }
        (Some(Resource::QueuePairUnits), 1) => "the processing unit behind it bounds the rate",
        (Some(Resource::QueuePairUnits), _) => "the processing units behind them bound the rate",
        (_, 1) => "the processing unit behind it is what the next steps would wait for",
        (..) => "the processing units behind them are what the next steps would wait for",
    };
    Finding {
        observed_violation: format!(
            "{} of {}: {bound}",
            count_with_noun(busy, "queue pair"),
            count_with_noun(observed.max_concurrent_posters(), "posting thread"),
        ),
        advice: format!(
            "{words}: {} a thread",
            queue_pairs_per_thread_after_multiplying(observed, profile, times)
        ),
    }
}

fn program_after_fix(observed: &OperationProfile, profile: &Profile) -> Option<OperationProfile> {
    Some(multiply_queue_pairs(
        observed,
        needed_queue_pair_factor(observed, profile),
    ))
}

/// Returns the program on `times` as many queue pairs.
pub(super) fn multiply_queue_pairs(observed: &OperationProfile, times: u32) -> OperationProfile {
    let mut fixed = observed.clone();
    let share = |count: u64| count.div_ceil(u64::from(times));
    let busiest = observed
        .posting_queue_pairs()
        .map(QueuePair::posted_operations)
        .max();
    // A queue pair with less load than the busiest has after the split stays as it is.
    let stays = |qp: &QueuePair| share(busiest.unwrap_or(0)) >= qp.posted_operations();
    fixed.queue_pairs = observed
        .queue_pairs
        .iter()
        .flat_map(|qp| {
            if times > 1 && stays(qp) {
                return std::iter::repeat_n(qp.clone(), 1);
            }
            let mut one = QueuePair {
                postlists: share(qp.postlists),
                unpolled_postlist_runs: share(qp.unpolled_postlist_runs),
                adjacent_reads: share(qp.adjacent_reads),
                ..qp.clone()
            };
            let counts = one.sent.iter_mut().chain(&mut one.received);
            counts.for_each(|counted| counted.count = share(counted.count));
            one.postlist_lengths
                .iter_mut()
                .for_each(|lengths| lengths.count = share(lengths.count));
            one.atomics_by_low_address_bits
                .iter_mut()
                .for_each(|slot| slot.count = share(slot.count));
            std::iter::repeat_n(one, usize::try_from(times).unwrap_or(1))
        })
        .collect();
    fixed
}
