//! A NIC's processing times for one operation.

use crate::operation::Operation;
use crate::profile::{Profile, Sourced};
use crate::verb::Verb;

/// Returns the value of a number; `None` if the profile lacks it.
pub(super) fn known_value(number: &Option<Sourced<f64>>) -> Option<f64> {
    number.as_ref().map(|number| number.value)
}

/// Time for which sending one operation occupies the whole NIC, in ns, without the wait for its WQE.
pub(super) fn send_ns_without_fetch_wait(
    profile: &Profile,
    operation: &Operation,
    wqe_lines: u32,
) -> Option<f64> {
    let processing = &profile.processing;
    match operation.verb {
        Verb::Send | Verb::RdmaWrite => {
            let further = f64::from(wqe_lines.saturating_sub(1));
            let lines = if further > 0.0 {
                further * known_value(&processing.wqe_line_ns)?
            } else {
                0.0
            };
            Some(known_value(&processing.send_ns)? + lines)
        }
        // The requester handles an atomic or a FLUSH like a READ: a request and its response.
        Verb::RdmaRead | Verb::AtomicCmpAndSwp | Verb::AtomicFetchAndAdd | Verb::Flush => {
            known_value(&processing.read_ns)
        }
    }
}

/// Time for which an arriving operation occupies the whole NIC, in ns; `None` if the profile does not say.
pub fn nic_ns_per_arriving_operation(profile: &Profile, operation: &Operation) -> Option<f64> {
    let processing = &profile.processing;
    if operation.verb.is_atomic() {
        return known_value(&processing.atomic_ns);
    }
    let base = known_value(&processing.inbound_ns)?;
    if operation.arrives_in_cqe(profile) {
        return Some(base + known_value(&processing.inline_recv_ns)?);
    }
    if operation.consumes_recv() && operation.payload_bytes > 0 {
        return Some(base + known_value(&processing.inbound_dma_ns)?);
    }
    Some(base)
}
