//! The time of an operation from its post to its completion on idle machines.

use super::processing::{known_value, nic_ns_per_arriving_operation, send_ns_without_fetch_wait};
use crate::footprint::Footprint;
use crate::operation::{Operation, PostMethod};
use crate::pcie;
use crate::profile::Profile;
use crate::verb::{Transport, Verb};
use crate::wire::PacketCost;

/// Time from the post of one operation to the poll of its completion on idle machines, in ns. `None` if the profile
/// lacks the latency of its network or of its PCIe link.
///
/// The result is the least time: costs of cores that the profile lacks count as 0. Messages of several packets cut
/// through the network in this model, but not in simulated NICs. The completion of a datagram and of an operation on
/// UC says only that the message has left.
pub fn round_trip_ns(profile: &Profile, operation: &Operation, method: PostMethod) -> Option<f64> {
    let one = Footprint::of_postlist(profile, operation, method, 1).ok()?;
    let pcie = known_value(&profile.pcie.latency_ns)?;
    let network = known_value(&profile.port.latency_ns)?;
    let link = pcie::bandwidth_mbytes_per_s(profile) * 1e-3;
    let payload = f64::from(operation.payload_bytes);
    let poll = known_value(&profile.host.poll_cqe_ns).unwrap_or(0.0);
    let to_completion = post_to_network_ns(profile, operation, method, &one)? + poll + pcie;
    if operation.transport != Transport::Rc {
        return Some(to_completion);
    }
    let network = 2.0 * network
        + wire_ns(profile, &one.network_packets.to_responder)
        + wire_ns(profile, &one.network_packets.to_requester);
    let responder = nic_ns_per_arriving_operation(profile, operation)?
        + match operation.verb {
            Verb::Send | Verb::RdmaWrite => 0.0,
            Verb::RdmaRead => (2.0 * pcie).max(payload / link) + payload / link + pcie,
            Verb::Flush => 2.0 * pcie + pcie,
            Verb::AtomicCmpAndSwp | Verb::AtomicFetchAndAdd => {
                known_value(&profile.atomics.lock_hold_ns)? + pcie
            }
        };
    Some(to_completion + network + responder)
}

/// Time from the post of an operation until the responder's program has found its message, on idle machines, in ns.
///
/// The limits of [`round_trip_ns`] apply. A message without a RECV is found in memory at once.
pub(super) fn one_way_ns(
    profile: &Profile,
    operation: &Operation,
    method: PostMethod,
) -> Option<f64> {
    let one = Footprint::of_postlist(profile, operation, method, 1).ok()?;
    let arriving = nic_ns_per_arriving_operation(profile, operation)?;
    let found = if operation.consumes_recv() {
        let cost = |number| known_value(number).unwrap_or(0.0);
        cost(&profile.host.poll_cqe_ns) + cost(&profile.host.post_recv_ns)
    } else {
        0.0
    };
    let network = known_value(&profile.port.latency_ns)?
        + wire_ns(profile, &one.network_packets.to_responder);
    let to_memory = known_value(&profile.pcie.latency_ns)?;
    let sent = post_to_network_ns(profile, operation, method, &one)?;
    Some(sent + network + arriving + to_memory + found)
}

/// Time from the post of an operation until its NIC has processed it, in ns.
fn post_to_network_ns(
    profile: &Profile,
    operation: &Operation,
    method: PostMethod,
    one: &Footprint,
) -> Option<f64> {
    let pcie = known_value(&profile.pcie.latency_ns)?;
    // An MMIO write already blocks the core while it is on its way.
    let core = known_value(&profile.host.post_wqe_ns).unwrap_or(0.0);
    let link = pcie::bandwidth_mbytes_per_s(profile) * 1e-3;
    let payload = f64::from(operation.payload_bytes);
    let fetch_wqe = match method {
        PostMethod::WqeByMmio => 0.0,
        PostMethod::Doorbell => {
            known_value(&profile.processing.wqe_fetch_wait_ns).unwrap_or(2.0 * pcie)
        }
    };
    let sends = operation.verb.carries_payload_in_request();
    let fetch_payload = if sends && !operation.inline && payload > 0.0 {
        (2.0 * pcie).max(payload / link)
    } else {
        0.0
    };
    let units = profile.processing.units.as_ref();
    let units = units.map_or(1.0, |units| f64::from(units.value));
    let unit = units * send_ns_without_fetch_wait(profile, operation, one.wqe_cache_lines)?;
    Some(core + pcie + fetch_wqe + fetch_payload + unit)
}

/// Time of a message on the links, in ns. It passes two links and leaves the first while it enters the second, one
/// packet later.
fn wire_ns(profile: &Profile, packets: &PacketCost) -> f64 {
    let port = profile.port.gbps.value / 8.0;
    let bytes = packets.link_bytes_with_gaps(profile);
    (bytes + bytes / packets.count.max(1.0)) / port
}
