//! The time of an operation from its post to its completion on idle machines.

use super::processing::{known_value, nic_ns_per_arriving_operation, send_ns_without_fetch_wait};
use crate::footprint::Footprint;
use crate::operation::{Operation, PostMethod};
use crate::pcie::{self, TransactionPurpose};
use crate::profile::Profile;
use crate::verb::{Transport, Verb};
use crate::wire::PacketCost;

/// Time from the post of one operation to the poll of its completion on idle machines, in ns. `None` if the profile
/// lacks the latency of its network or of its PCIe link.
///
/// The result is the least time: costs of cores that the profile lacks count as 0. The packets of a message follow each
/// other through the stages of their way: PCIe, both links of the network, PCIe. The slowest stage decides about all of
/// them, and each other stage adds one packet. The completion of a datagram and of an operation on UC says only that
/// the message has left.
pub fn round_trip_ns(profile: &Profile, operation: &Operation, method: PostMethod) -> Option<f64> {
    let one = Footprint::of_postlist(profile, operation, method, 1).ok()?;
    let pcie = known_value(&profile.pcie.latency_ns)?;
    let network = known_value(&profile.port.latency_ns)?;
    let poll = known_value(&profile.host.poll_cqe_ns).unwrap_or(0.0);
    let to_completion = post_to_network_ns(profile, operation, method, &one)?
        + further_packets_ns(profile, operation, &one, |purpose| {
            // A requester does not wait for the write of its payload to the responder's memory.
            purpose != TransactionPurpose::PayloadPlacement
        })
        + poll
        + pcie;
    if operation.transport != Transport::Rc {
        return Some(to_completion);
    }
    let network = 2.0 * network
        + first_packet_wire_ns(profile, operation, &one.network_packets.to_responder)
        + first_packet_wire_ns(profile, operation, &one.network_packets.to_requester);
    let packet = first_packet_pcie_ns(profile, operation, &one);
    let responder = nic_ns_per_arriving_operation(profile, operation)?
        + match operation.verb {
            Verb::Send | Verb::RdmaWrite => 0.0,
            Verb::RdmaRead => (2.0 * pcie).max(packet) + packet + pcie,
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
        + first_packet_wire_ns(profile, operation, &one.network_packets.to_responder)
        + further_packets_ns(profile, operation, &one, |_| true);
    let to_memory = known_value(&profile.pcie.latency_ns)?;
    let sent = post_to_network_ns(profile, operation, method, &one)?;
    Some(sent + network + arriving + to_memory + found)
}

/// Time from the post of an operation until its NIC has processed it and has the first packet, in ns.
fn post_to_network_ns(
    profile: &Profile,
    operation: &Operation,
    method: PostMethod,
    one: &Footprint,
) -> Option<f64> {
    let pcie = known_value(&profile.pcie.latency_ns)?;
    // An MMIO write already blocks the core while it is on its way.
    let core = known_value(&profile.host.post_wqe_ns).unwrap_or(0.0);
    let fetch_wqe = match method {
        PostMethod::WqeByMmio => 0.0,
        PostMethod::Doorbell => {
            known_value(&profile.processing.wqe_fetch_wait_ns).unwrap_or(2.0 * pcie)
        }
    };
    let sends = operation.verb.carries_payload_in_request();
    let fetch_payload = if sends && !operation.inline && operation.payload_bytes > 0 {
        (2.0 * pcie).max(first_packet_pcie_ns(profile, operation, one))
    } else {
        0.0
    };
    let units = profile.processing.units.as_ref();
    let units = units.map_or(1.0, |units| f64::from(units.value));
    let unit = units * send_ns_without_fetch_wait(profile, operation, one.wqe_cache_lines)?;
    Some(core + pcie + fetch_wqe + fetch_payload + unit)
}

/// Time of the first packet of a message on the links, in ns. It passes two links, one after the other.
fn first_packet_wire_ns(profile: &Profile, operation: &Operation, packets: &PacketCost) -> f64 {
    let share = first_packet_share(profile, operation, packets.count);
    2.0 * share * wire_ns(profile, packets)
}

/// Time of the first packet's payload on a PCIe link, in ns.
fn first_packet_pcie_ns(profile: &Profile, operation: &Operation, one: &Footprint) -> f64 {
    let link = pcie::bandwidth_mbytes_per_s(profile) * 1e-3;
    let share = first_packet_share(profile, operation, largest_packet_count(one));
    share * f64::from(operation.payload_bytes) / link
}

/// Time of all packets of a message but the first one at the slowest stage of their way, in ns. PCIe transfers for the
/// purposes `of` are stages.
fn further_packets_ns(
    profile: &Profile,
    operation: &Operation,
    one: &Footprint,
    of: impl Fn(TransactionPurpose) -> bool,
) -> f64 {
    let link = pcie::bandwidth_mbytes_per_s(profile) * 1e-3;
    let link_layer = profile.pcie.link_layer_bytes_per_tlp.value;
    let sides = [&one.requester, &one.responder];
    let transfers = sides.into_iter().flat_map(|side| &side.transactions);
    let transfers = transfers.filter(|part| part.purpose.moves_payload() && of(part.purpose));
    let transfers = transfers.map(|part| {
        let overhead = link_layer * (part.tlps_to_device + part.tlps_to_host);
        (part.bytes_to_device().max(part.bytes_to_host()) + overhead) / link
    });
    let network = &one.network_packets;
    let directions = [&network.to_responder, &network.to_requester];
    let slowest = directions
        .map(|packets| wire_ns(profile, packets))
        .into_iter()
        .chain(transfers)
        .fold(0.0, f64::max);
    (1.0 - first_packet_share(profile, operation, largest_packet_count(one))) * slowest
}

fn largest_packet_count(one: &Footprint) -> f64 {
    let network = &one.network_packets;
    network.to_responder.count.max(network.to_requester.count)
}

/// Share of the first packet in a message of `packets` packets. All packets but the last one are full.
fn first_packet_share(profile: &Profile, operation: &Operation, packets: f64) -> f64 {
    if packets > 1.0 {
        f64::from(profile.port.mtu_bytes.value) / f64::from(operation.payload_bytes)
    } else {
        1.0
    }
}

/// Time of a message on a link, in ns.
fn wire_ns(profile: &Profile, packets: &PacketCost) -> f64 {
    packets.link_bytes_with_gaps(profile) / (profile.port.gbps.value / 8.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::builtin_profile;

    fn round_trip(verb: Verb, payload_bytes: u32) -> f64 {
        let profile = builtin_profile("cib").expect("built in");
        let operation = Operation::new(verb, Transport::Rc, payload_bytes);
        round_trip_ns(profile, &operation, PostMethod::WqeByMmio).expect("known")
    }

    #[test]
    fn each_further_packet_takes_its_time_on_the_port() {
        let profile = builtin_profile("cib").expect("built in");
        let port = profile.port.gbps.value / 8.0;
        for (verb, header_bytes) in [(Verb::RdmaWrite, 26.0), (Verb::RdmaRead, 26.0 + 21.0)] {
            let packets = [1, 2, 16, 256].map(|packets| round_trip(verb, packets * 4096));
            for (few, many, further) in [(0, 1, 1.0), (1, 2, 14.0), (2, 3, 240.0)] {
                let expected = further * (4096.0 + header_bytes) / port;
                let time = packets[many] - packets[few];
                assert!(
                    (time / expected - 1.0).abs() < 0.03,
                    "{verb:?}: {packets:?}"
                );
            }
        }
    }

    #[test]
    fn a_byte_above_a_packet_takes_little_more() {
        for verb in [Verb::Send, Verb::RdmaWrite, Verb::RdmaRead] {
            let more = round_trip(verb, 4097) - round_trip(verb, 4096);
            assert!((0.0..20.0).contains(&more), "{verb:?}: {more}");
        }
    }
}
