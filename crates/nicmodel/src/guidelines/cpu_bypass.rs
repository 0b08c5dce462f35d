use super::guideline::{Finding, Guideline, count_with_noun};
use crate::bounds::{Resource, Role};
use crate::op_profile::{
    CountedOperations, OperationProfile, PeersWork, QueuePair, count_to_f64, saturating_sum,
};
use crate::operation::Operation;
use crate::profile::{Profile, Sourced};
use crate::verb::{Transport, Verb};

/// Guideline: let the peer's processor do work that its NIC does slowly.
pub(super) const GUIDELINE: Guideline = Guideline {
    name: "cpu-bypass",
    section: "ATC'16, sections 4.2.3 and 4.3.2",
    rule: "Bypassing the peer's processor is no aim: where READs and atomics are slower than a request and a response, use an RPC.",
    find_violation: detect_violation,
    program_after_change: program_after_fix,
};

/// Least factor by which the rate must rise for the advice to change the design.
const MIN_RATE_GAIN_FACTOR: f64 = 1.3;

/// Size of a request: a key and an operation.
const REQUEST_BY_WRITE_BYTES: u32 = 16;

fn detect_violation(observed: &OperationProfile, profile: &Profile) -> Option<Finding> {
    let now = observed.predict(profile).ok()??;
    let other = program_after_fix(observed, profile)?;
    let then = other.predict(profile).ok()??;
    let gets = read_pairs_of_gets(observed);
    // A bottleneck on the program's own machine does not come from the peer's NIC; but a saved READ relieves it too.
    let of_reads = !gets.is_empty()
        && matches!(
            now.bottleneck,
            Resource::NicOutbound | Resource::NicInbound | Resource::LinkIn
        );
    // `work` compares equal work: two READs may become one request.
    let work = count_to_f64(observed.posted_or_received_operations())
        / count_to_f64(other.posted_or_received_operations());
    if now.slower_role != Role::Responder && !of_reads
        || then.rate_mops * work < MIN_RATE_GAIN_FACTOR * now.rate_mops
        || then
            .peer_bounds
            .unknown_resources
            .iter()
            .any(|r| *r != Resource::Cpu)
    {
        return None;
    }
    let count = |name: &str, wanted: fn(Verb) -> bool| {
        let all = observed.queue_pairs.iter().flat_map(|qp| &qp.sent);
        let wanted = all.filter(|counted| wanted(counted.operation.verb));
        match saturating_sum(wanted.map(|counted| counted.count)) {
            0 => None,
            count => Some(format!("{count} {name}")),
        }
    };
    let counts = [
        count("READs", |verb| verb == Verb::RdmaRead),
        count("atomics", Verb::is_atomic),
    ];
    let counts: Vec<_> = counts.into_iter().flatten().collect();
    let mut seen = counts.join(" and ");
    if let Some((first, second)) = gets.first() {
        seen.push_str(&format!(
            ", as many of {} as of {}, as if each request took two,",
            count_with_noun(first.operation.payload_bytes, "byte"),
            count_with_noun(second.operation.payload_bytes, "byte"),
        ));
    }
    let mut advice =
        "send requests to the peer's processor (UC WRITE into a request region, or UD SEND) \
                      and let it answer by UD SENDs in postlists"
            .to_owned();
    let cores = other.peers_work.map_or(0, |work| work.cores);
    if then.peer_bounds.unknown_resources.contains(&Resource::Cpu) {
        advice.push_str("; what that takes of the peer's cores is not known");
    } else if let Some(most) = then.peer_bounds.rate_mops(Resource::Cpu) {
        advice.push_str(&format!(
            "; {:.1} M requests a second take {:.1} of the {} of a peer like this NIC's machine",
            then.rate_mops,
            f64::from(cores) * then.rate_mops / most,
            count_with_noun(cores, "core")
        ));
    }
    Some(Finding {
        observed_violation: format!(
            "{seen} are executed by the peer's NIC; what binds is {}",
            now.bottleneck
        ),
        advice,
    })
}

/// The pairs of READs of one GET on each queue pair, the smaller first. The first READ looks up the address and the
/// second fetches the value. A queue pair counts if its READs have two sizes, in about equal numbers.
fn read_pairs_of_gets(observed: &OperationProfile) -> Vec<(CountedOperations, CountedOperations)> {
    observed
        .posting_queue_pairs()
        .filter_map(read_pair_of_get)
        .collect()
}

fn read_pair_of_get(qp: &QueuePair) -> Option<(CountedOperations, CountedOperations)> {
    let reads = |counted: &&CountedOperations| {
        counted.operation.verb == Verb::RdmaRead && counted.count > 0
    };
    let mut reads: Vec<_> = qp.sent.iter().filter(reads).cloned().collect();
    reads.sort_by_key(|counted| counted.operation.payload_bytes);
    let [a, b]: [CountedOperations; 2] = reads.try_into().ok()?;
    let differ = a.operation.payload_bytes < b.operation.payload_bytes;
    (differ && a.count.abs_diff(b.count) <= a.count.min(b.count) / 10).then_some((a, b))
}

/// The program with each READ or atomic replaced by a request by UC WRITE and a response by UD SEND. Two READs of one
/// GET become one request.
fn program_after_fix(observed: &OperationProfile, profile: &Profile) -> Option<OperationProfile> {
    let request = Operation::new(Verb::RdmaWrite, Transport::Uc, REQUEST_BY_WRITE_BYTES).inlined();
    let most = profile.wqe.max_inline_bytes.value;
    let (mut answered, mut atomics) = (0u64, 0u64);
    let mut fixed = observed.clone();
    for qp in &mut fixed.queue_pairs {
        if let Some((first, _)) = read_pair_of_get(qp) {
            qp.sent.retain(|counted| *counted != first);
        }
        for counted in &mut qp.sent {
            let operation = counted.operation;
            if !operation.verb.is_atomic() && operation.verb != Verb::RdmaRead {
                continue;
            }
            let response = Operation {
                inline: operation.payload_bytes <= most,
                ..Operation::new(Verb::Send, Transport::Ud, operation.payload_bytes)
            };
            qp.received.push(CountedOperations {
                operation: response,
                count: counted.count,
            });
            counted.operation = request;
            answered = counted.count.saturating_add(answered);
            if operation.verb.is_atomic() {
                atomics = counted.count.saturating_add(atomics);
            }
        }
        qp.atomics_by_low_address_bits.clear();
        qp.adjacent_reads = 0;
        qp.postlists = qp.postlists.min(qp.posted_operations());
        qp.unpolled_postlist_runs = qp.unpolled_postlist_runs.min(qp.postlists);
    }
    if answered == 0 {
        return None;
    }
    let each = |count| count_to_f64(count) / count_to_f64(fixed.posted_operations());
    fixed.peers_work = Some(peers_work(observed, profile, each(answered), each(atomics)));
    Some(fixed)
}

/// The work of a peer with this NIC that takes requests, executes them and answers. `requests` and `atomics` are
/// shares of the program's operations.
fn peers_work(
    observed: &OperationProfile,
    profile: &Profile,
    requests: f64,
    atomics: f64,
) -> PeersWork {
    let cores = profile.host.cores.value;
    let host = &profile.with_active_cores(cores).host;
    let words = observed.effective_atomic_locks();
    // Cores that add to few shared words wait for each other's cache lines.
    let contended = cores > 1 && words.is_some_and(|words| words < cores);
    let add = if contended {
        &host.contended_add_ns
    } else {
        &host.atomic_add_ns
    };
    let ns = |cost: &Option<Sourced<f64>>, times: f64| match times > 0.0 {
        true => cost.as_ref().map(|cost| cost.value * times),
        false => Some(0.0),
    };
    let add = ns(add, atomics);
    PeersWork {
        cores,
        app_ns_per_operation: ns(&host.request_ns, requests)
            .zip(add)
            .map(|(request, add)| request + add),
        serialized_ns: match (contended, words) {
            (true, Some(words)) => add.unwrap_or(0.0) / f64::from(words),
            _ => 0.0,
        },
    }
}
