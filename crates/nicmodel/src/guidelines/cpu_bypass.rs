use super::{Finding, Guideline};
use crate::bounds::Role;
use crate::op_profile::{Counted, OperationProfile, total};
use crate::operation::Operation;
use crate::profile::Profile;
use crate::verb::{Transport, Verb};

/// Let the peer's processor do what its NIC does slowly.
pub(super) const GUIDELINE: Guideline = Guideline {
    name: "cpu-bypass",
    section: "ATC'16, sections 4.2.3 and 4.3.2",
    rule: "Bypassing the peer's processor is no aim: where READs and atomics are slower than a request and a response, use an RPC.",
    finds,
    fixed,
};

/// A design is not changed for less.
const WORTHWHILE: f64 = 1.5;

/// A request: a key and an operation.
const REQUEST_BYTES: u32 = 16;

fn finds(observed: &OperationProfile, profile: &Profile) -> Option<Finding> {
    let now = observed.predict(profile).ok()??;
    let then = fixed(observed, profile)?.predict(profile).ok()??;
    // What binds on the program's own machine is no work of the peer's NIC.
    if now.slower != Role::Responder
        || then.rate_mops < WORTHWHILE * now.rate_mops
        || !then.responder.unknown.is_empty()
    {
        return None;
    }
    let count = |name: &str, wanted: fn(Verb) -> bool| {
        let all = observed.queue_pairs.iter().flat_map(|qp| &qp.sent);
        let wanted = all.filter(|counted| wanted(counted.operation.verb));
        match total(wanted.map(|counted| counted.count)) {
            0 => None,
            count => Some(format!("{count} {name}")),
        }
    };
    let counts = [
        count("READs", |verb| verb == Verb::RdmaRead),
        count("atomics", Verb::is_atomic),
    ];
    let counts: Vec<_> = counts.into_iter().flatten().collect();
    Some(Finding {
        seen: format!(
            "{} are executed by the peer's NIC, where this binds: {}",
            counts.join(" and "),
            now.bottleneck
        ),
        advice: "send requests to the peer's processor (UC WRITE into a request region, or UD \
                 SEND) and let it answer by UD SENDs in postlists"
            .to_owned(),
    })
}

/// Each READ or atomic becomes a request by UC WRITE and a response by UD SEND.
fn fixed(observed: &OperationProfile, profile: &Profile) -> Option<OperationProfile> {
    let request = Operation::new(Verb::RdmaWrite, Transport::Uc, REQUEST_BYTES).inlined();
    let most = profile.wqe.max_inline_bytes.value;
    let mut changed = false;
    let mut fixed = observed.clone();
    for qp in &mut fixed.queue_pairs {
        for counted in &mut qp.sent {
            let operation = counted.operation;
            if !operation.verb.is_atomic() && operation.verb != Verb::RdmaRead {
                continue;
            }
            let response = Operation {
                inline: operation.payload_bytes <= most,
                ..Operation::new(Verb::Send, Transport::Ud, operation.payload_bytes)
            };
            qp.received.push(Counted {
                operation: response,
                count: counted.count,
            });
            counted.operation = request;
            changed |= counted.count > 0;
        }
        qp.atomic_slots.clear();
        qp.adjacent_reads = 0;
    }
    changed.then_some(fixed)
}
