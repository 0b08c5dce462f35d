//! Performance management: the counters of ports (IBTA 16.1.3).

use crate::mad::{
    MadFields, SMP_AND_PERF_DATA_OFFSET, method, request_copy_as_response, status, store_low_bytes,
};
use crate::topology::{MadArrivalNode, PortTraffic, Subnet};

const CLASS_PORT_INFO: u16 = 0x01;
const PORT_COUNTERS: u16 = 0x12;
const PORT_COUNTERS_EXTENDED: u16 = 0x1d;

/// `CapabilityMask` in `ClassPortInfo`: the sum of all ports; extended counters, also those of unicast and multicast packets.
const PERF_CAPABILITY_MASK: u64 = 1 << 8 | 1 << 9;
/// The number of all ports together.
const ALL_PORTS: u8 = 255;

/// Answers a request for the counters of a port of `node`.
pub(crate) fn answer_performance_request(
    subnet: &Subnet,
    request: &[u8],
    node: MadArrivalNode<'_>,
) -> Vec<u8> {
    let mad = MadFields(request);
    if mad.method() != method::GET {
        return request_copy_as_response(request, status::UNSUPPORTED_METHOD);
    }
    let mut answer = request_copy_as_response(request, 0);
    let data = answer
        .get_mut(SMP_AND_PERF_DATA_OFFSET..)
        .unwrap_or_default();
    data.fill(0);
    let asked = request
        .get(SMP_AND_PERF_DATA_OFFSET + 1)
        .copied()
        .unwrap_or(0);
    match mad.attribute() {
        CLASS_PORT_INFO => {
            data[0] = 1;
            data[1] = 1;
            store_low_bytes(data, 2, 2, PERF_CAPABILITY_MASK);
        }
        PORT_COUNTERS | PORT_COUNTERS_EXTENDED => {
            let Some(traffic) = traffic_of_port(subnet, node, asked) else {
                return request_copy_as_response(request, status::INVALID_FIELD);
            };
            data[1] = asked;
            if mad.attribute() == PORT_COUNTERS {
                put_counters(data, &traffic);
            } else {
                put_extended_counters(data, &traffic);
            }
        }
        _ => return request_copy_as_response(request, status::UNSUPPORTED_ATTRIBUTE),
    }
    answer
}

/// Returns the traffic of the node's port with this number, or the sum of all ports.
///
/// A port of the switch has sent what the adapter behind it has received. Port 0 of the switch has no link.
fn traffic_of_port(subnet: &Subnet, node: MadArrivalNode<'_>, number: u8) -> Option<PortTraffic> {
    match node {
        MadArrivalNode::Adapter(adapter, _) => {
            let ports = adapter.ports.iter();
            traffic_of_port_or_sum(ports.map(|port| (port.number, port.traffic)), number)
        }
        MadArrivalNode::Switch(_) if number == 0 => Some(PortTraffic::default()),
        MadArrivalNode::Switch(_) => {
            let behind = subnet
                .ports()
                .map(|(_, port)| port.traffic.at_the_other_end());
            traffic_of_port_or_sum((1..ALL_PORTS).zip(behind), number)
        }
    }
}

fn traffic_of_port_or_sum(
    mut ports: impl Iterator<Item = (u8, PortTraffic)>,
    number: u8,
) -> Option<PortTraffic> {
    if number == ALL_PORTS {
        return Some(ports.fold(PortTraffic::default(), |sum, (_, port)| sum.plus(port)));
    }
    ports
        .find(|(of_port, _)| *of_port == number)
        .map(|(_, traffic)| traffic)
}

fn put_counters(data: &mut [u8], traffic: &PortTraffic) {
    for (at, value) in [
        (24, traffic.xmit_words_of_4_octets),
        (28, traffic.rcv_words_of_4_octets),
        (32, traffic.xmit_packets),
        (36, traffic.rcv_packets),
    ] {
        // These counters stop at their largest value.
        store_low_bytes(data, at, 4, value.min(u32::MAX.into()));
    }
}

fn put_extended_counters(data: &mut [u8], traffic: &PortTraffic) {
    for (at, value) in [
        (8, traffic.xmit_words_of_4_octets),
        (16, traffic.rcv_words_of_4_octets),
        (24, traffic.xmit_packets),
        (32, traffic.rcv_packets),
        // Unicast packets; multicast packets are not counted apart.
        (40, traffic.xmit_packets),
        (48, traffic.rcv_packets),
    ] {
        store_low_bytes(data, at, 8, value);
    }
}
