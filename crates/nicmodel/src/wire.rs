//! Bytes on the network.
//!
//! Sizes of headers: IBTA vol. 1, chapter 9, and annexes 17 for RoCEv2 and 19 for FLUSH.

use serde::Serialize;

use crate::operation::Operation;
use crate::profile::{LinkLayer, Profile};
use crate::verb::{ATOMIC_BYTES, Transport, Verb};

/// Base transport header.
const BTH_BYTES: u32 = 12;
/// Datagram extended transport header.
const DETH_BYTES: u32 = 8;
/// RDMA extended transport header.
const RETH_BYTES: u32 = 16;
/// ACK extended transport header.
const AETH_BYTES: u32 = 4;
/// Atomic extended transport header.
const ATOMIC_ETH_BYTES: u32 = 28;
/// FLUSH extended transport header (annex A19), in front of a [`RETH_BYTES`].
const FETH_BYTES: u32 = 4;
/// Immediate.
const IMM_BYTES: u32 = 4;
/// Headers and trailers around the transport on InfiniBand: LRH 8, ICRC 4, VCRC 2.
const INFINIBAND_OVERHEAD_BYTES: u32 = 8 + 4 + 2;
/// Headers and trailers around the transport on RoCEv2: Ethernet 14, IPv4 20, UDP 8, ICRC 4, FCS 4.
const ROCE_OVERHEAD_BYTES: u32 = 14 + 20 + 8 + 4 + 4;

/// Packets in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PacketCost {
    /// Number of packets.
    pub count: f64,
    /// Bytes of the packets with all headers, without the gaps between packets.
    #[serde(rename = "bytes")]
    pub bytes_without_gaps: f64,
    /// Number of packets that are READ responses. The gaps between those are larger (`port.read_response_gap_bytes`).
    #[serde(rename = "read_responses")]
    pub read_response_packets: f64,
}

impl PacketCost {
    /// Returns the bytes of the link that the packets take, gaps included.
    pub fn link_bytes_with_gaps(&self, profile: &Profile) -> f64 {
        let port = &profile.port;
        let response = port.read_response_gap_bytes.as_ref();
        self.bytes_without_gaps
            + self.count * port.packet_gap_bytes.value
            + self.read_response_packets * response.map_or(0.0, |gap| gap.value)
    }

    pub(crate) fn scaled(self, factor: f64) -> Self {
        Self {
            count: self.count * factor,
            bytes_without_gaps: self.bytes_without_gaps * factor,
            read_response_packets: self.read_response_packets * factor,
        }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            bytes_without_gaps: self.bytes_without_gaps + other.bytes_without_gaps,
            read_response_packets: self.read_response_packets + other.read_response_packets,
        }
    }
}

/// The packets of one operation, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OperationPackets {
    /// Packets from the requester to the responder.
    pub to_responder: PacketCost,
    /// Packets from the responder to the requester: responses of READs, atomics and FLUSHes, and on RC one
    /// acknowledgement for each other message.
    pub to_requester: PacketCost,
}

/// Computes the packets of one operation.
pub fn packets_of_operation(profile: &Profile, operation: &Operation) -> OperationPackets {
    let around = match profile.link_layer {
        LinkLayer::Infiniband => INFINIBAND_OVERHEAD_BYTES,
        LinkLayer::Roce => ROCE_OVERHEAD_BYTES,
    };
    let packet =
        |extended: u32, payload: u32| f64::from(around + BTH_BYTES + extended + pad4(payload));
    let one = |bytes: f64| PacketCost {
        count: 1.0,
        bytes_without_gaps: bytes,
        ..PacketCost::default()
    };
    // A message has the headers `first` in its first packet, `last` in its last, and `every` in each.
    let message = |every: u32, first: u32, last: u32, payload: u32| {
        let packets = packet_count(payload, profile.port.mtu_bytes.value);
        let padding = pad4(payload) - payload;
        let headers = f64::from(around + BTH_BYTES + every) * packets;
        PacketCost {
            count: packets,
            bytes_without_gaps: headers
                + f64::from(first + last)
                + f64::from(payload)
                + f64::from(padding),
            read_response_packets: 0.0,
        }
    };
    let imm = if operation.has_imm { IMM_BYTES } else { 0 };
    let payload = operation.payload_bytes;
    let ack = if operation.transport.is_reliable() {
        one(packet(AETH_BYTES, 0))
    } else {
        PacketCost::default()
    };
    match operation.verb {
        Verb::Send => {
            let every = if operation.transport == Transport::Ud {
                DETH_BYTES
            } else {
                0
            };
            OperationPackets {
                to_responder: message(every, 0, imm, payload),
                to_requester: ack,
            }
        }
        Verb::RdmaWrite => OperationPackets {
            to_responder: message(0, RETH_BYTES, imm, payload),
            to_requester: ack,
        },
        Verb::RdmaRead => {
            let responses = packet_count(payload, profile.port.mtu_bytes.value);
            // The first and the last response carry an AETH, the others do not.
            let further = if responses > 1.0 { AETH_BYTES } else { 0 };
            OperationPackets {
                to_responder: one(packet(RETH_BYTES, 0)),
                to_requester: PacketCost {
                    read_response_packets: responses,
                    ..message(0, AETH_BYTES, further, payload)
                },
            }
        }
        Verb::AtomicCmpAndSwp | Verb::AtomicFetchAndAdd => OperationPackets {
            to_responder: one(packet(ATOMIC_ETH_BYTES, 0)),
            to_requester: one(packet(AETH_BYTES, ATOMIC_BYTES)),
        },
        // The response equals that of a READ of zero bytes.
        Verb::Flush => OperationPackets {
            to_responder: one(packet(FETH_BYTES + RETH_BYTES, 0)),
            to_requester: one(packet(AETH_BYTES, 0)),
        },
    }
}

/// Returns the packets of a message; a message without payload is one packet.
fn packet_count(payload: u32, mtu: u32) -> f64 {
    f64::from(payload.div_ceil(mtu).max(1))
}

/// Pads a payload to a multiple of 4 bytes.
fn pad4(payload: u32) -> u32 {
    payload.saturating_add(payload.wrapping_neg() & 3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::builtin_profile;

    fn cib() -> &'static Profile {
        builtin_profile("cib").expect("built in")
    }

    #[test]
    fn packets_of_infiniband() {
        let bytes = |operation: Operation| {
            let exchange = packets_of_operation(cib(), &operation);
            (
                exchange.to_responder.bytes_without_gaps,
                exchange.to_requester.bytes_without_gaps,
            )
        };
        let new = Operation::new;
        // LRH 8, BTH 12, DETH 8, ICRC 4, VCRC 2, and the immediate.
        assert_eq!(bytes(Operation::header_only(Transport::Ud)), (38.0, 0.0));
        assert_eq!(bytes(new(Verb::Send, Transport::Ud, 8)), (42.0, 0.0));
        // 5 bytes are padded to 8.
        assert_eq!(bytes(new(Verb::Send, Transport::Ud, 5)), (42.0, 0.0));
        assert_eq!(bytes(new(Verb::RdmaWrite, Transport::Uc, 8)), (50.0, 0.0));
        assert_eq!(bytes(new(Verb::RdmaWrite, Transport::Rc, 8)), (50.0, 30.0));
        // The 30 bytes around the data of a READ response.
        assert_eq!(
            bytes(new(Verb::RdmaRead, Transport::Rc, 128)),
            (42.0, 158.0)
        );
        let atomic = new(Verb::AtomicFetchAndAdd, Transport::Rc, 8);
        assert_eq!(bytes(atomic), (54.0, 38.0));
        // A FLUSH equals a READ of zero bytes with a FETH.
        assert_eq!(bytes(new(Verb::RdmaRead, Transport::Rc, 0)), (42.0, 30.0));
        assert_eq!(bytes(new(Verb::Flush, Transport::Rc, 0)), (46.0, 30.0));
    }

    #[test]
    fn long_messages_are_cut_at_the_mtu() {
        let write = Operation::new(Verb::RdmaWrite, Transport::Rc, 10_000);
        let sent = packets_of_operation(cib(), &write).to_responder;
        assert_eq!(sent.count, 3.0);
        assert_eq!(sent.bytes_without_gaps, 3.0 * 26.0 + 16.0 + 10_000.0);
        let read = Operation::new(Verb::RdmaRead, Transport::Rc, 10_000);
        let answer = packets_of_operation(cib(), &read).to_requester;
        assert_eq!(
            (answer.count, answer.bytes_without_gaps),
            (3.0, 3.0 * 26.0 + 8.0 + 10_000.0)
        );
    }

    #[test]
    fn roce_packets_are_longer() {
        let bf2 = builtin_profile("bf2").expect("built in");
        let send = Operation::new(Verb::Send, Transport::Ud, 8);
        assert_eq!(
            packets_of_operation(bf2, &send)
                .to_responder
                .bytes_without_gaps,
            50.0 + 12.0 + 8.0 + 8.0
        );
    }

    #[test]
    fn the_largest_message_is_counted() {
        let read = Operation::new(Verb::RdmaRead, Transport::Rc, 1 << 31);
        assert_eq!(
            packets_of_operation(cib(), &read).to_requester.count,
            f64::from(1 << 19)
        );
    }
}
