//! Packets under a fault plan: lost, late, duplicated, damaged or marked, on their way out and on their way in.

use std::sync::Mutex;
use std::time::Duration;

use ::faults::{DelayQueue, Direction, PacketFacts, PacketVerdict, QueuePairIds};
use link::{PacketBatch, PacketFlow, ReceivedPacket};
use roce::icrc::{ICRC_BYTES, IcrcFields};
use roce::opcode::{Opcode, PacketOperation};
use shm::clock::now_ns;

use crate::faults;
use crate::lock::lock;

/// Congestion experienced: the ECN bits of a traffic class (RFC 3168).
const CONGESTION_EXPERIENCED: u8 = 3;

/// The late packets in both directions.
#[derive(Default)]
pub(super) struct FaultyWire {
    late_outgoing: Mutex<DelayQueue<OutgoingPacket>>,
    late_incoming: Mutex<DelayQueue<IncomingPacket>>,
}

/// A packet that leaves, from BTH to pad.
struct OutgoingPacket {
    flow: PacketFlow,
    bytes: Vec<u8>,
    damaged_bit: Option<u32>,
}

/// A packet that has arrived, from BTH to ICRC.
struct IncomingPacket {
    icrc_fields: IcrcFields,
    traffic_class: u8,
    hop_limit: Option<u8>,
    bytes: Vec<u8>,
}

impl FaultyWire {
    /// Makes a fault line, if the process has a plan.
    pub(super) fn new() -> Option<Self> {
        faults::has_plan().then(Self::default)
    }

    /// Applies the plan to a packet of the queue pair `qpn` that is about to leave.
    pub(super) fn enqueue_with_faults(
        &self,
        batch: &mut PacketBatch,
        qpn: u32,
        flow: &PacketFlow,
        bytes: &[u8],
    ) {
        let addresses = &flow.addresses;
        let fate = decide_packet_verdict(bytes, ICRC_BYTES, |facts| PacketFacts {
            direction: Direction::Send,
            source: addresses.src(),
            destination: addresses.dst(),
            queue_pair: faults::latest_queue_pair(qpn),
            peer_qpn: Some(dest_qpn(bytes)),
            ..facts
        });
        if fate.drop {
            return;
        }
        let mut flow = *flow;
        if fate.ecn {
            flow.traffic_class |= CONGESTION_EXPERIENCED;
        }
        let times = 1 + u32::from(fate.duplicate);
        if fate.delay_ns == 0 {
            (0..times).for_each(|_| push_to_batch(batch, &flow, bytes, fate.corrupt_bit));
            return;
        }
        let due_ns = now_ns().saturating_add(fate.delay_ns);
        let mut leaving = lock(&self.late_outgoing);
        for _ in 0..times {
            let bytes = bytes.to_vec();
            let damage = fate.corrupt_bit;
            leaving.push(
                due_ns,
                OutgoingPacket {
                    flow,
                    bytes,
                    damaged_bit: damage,
                },
            );
        }
    }

    /// Adds late packets that are due to `batch`.
    pub(super) fn release_late_outgoing(&self, batch: &mut PacketBatch) {
        let mut leaving = lock(&self.late_outgoing);
        while let Some(packet) = leaving.pop_due(now_ns()) {
            push_to_batch(batch, &packet.flow, &packet.bytes, packet.damaged_bit);
        }
    }

    /// Waits until the next late packet is due that may leave before `until_ns`. Returns false if there is none.
    pub(super) fn wait_for_late_outgoing(&self, until_ns: u64) -> bool {
        let next = lock(&self.late_outgoing).next_due_ns();
        let Some(due_ns) = next.filter(|due_ns| *due_ns <= until_ns) else {
            return false;
        };
        std::thread::sleep(Duration::from_nanos(due_ns.saturating_sub(now_ns())));
        true
    }

    /// Applies the plan to a packet that has arrived, and calls `take` with each packet that is to be received now.
    pub(super) fn receive_with_faults(
        &self,
        received: &ReceivedPacket<'_>,
        take: &mut impl FnMut(&ReceivedPacket<'_>),
    ) {
        let addresses = &received.icrc_fields.addresses;
        let fate = decide_packet_verdict(received.bytes, 0, |facts| PacketFacts {
            direction: Direction::Receive,
            source: addresses.src(),
            destination: addresses.dst(),
            queue_pair: faults::latest_queue_pair(received.dest_qpn()),
            peer_qpn: None,
            ..facts
        });
        if fate.drop {
            return;
        }
        let mut packet = IncomingPacket {
            icrc_fields: received.icrc_fields,
            traffic_class: received.traffic_class,
            hop_limit: received.hop_limit,
            bytes: received.bytes.to_vec(),
        };
        if fate.ecn {
            packet.traffic_class |= CONGESTION_EXPERIENCED;
        }
        if let Some(bit) = fate.corrupt_bit
            && let Some(byte) = packet.bytes.get_mut(bit as usize / 8)
        {
            *byte ^= 1 << (bit % 8);
        }
        if fate.delay_ns == 0 {
            (0..1 + u32::from(fate.duplicate)).for_each(|_| take(&packet.as_received_packet()));
            return;
        }
        let due_ns = now_ns().saturating_add(fate.delay_ns);
        let mut arriving = lock(&self.late_incoming);
        if fate.duplicate {
            arriving.push(due_ns, packet.copy());
        }
        arriving.push(due_ns, packet);
    }

    /// Calls `take` with late packets that are due. Returns their number.
    pub(super) fn release_late_incoming(
        &self,
        take: &mut impl FnMut(&ReceivedPacket<'_>),
    ) -> usize {
        let mut count = 0;
        loop {
            let next = lock(&self.late_incoming).pop_due(now_ns());
            let Some(packet) = next else { return count };
            take(&packet.as_received_packet());
            count += 1;
        }
    }

    /// Returns true if no packet is late.
    pub(super) fn has_no_late_packets(&self) -> bool {
        lock(&self.late_outgoing).is_empty() && lock(&self.late_incoming).is_empty()
    }
}

impl IncomingPacket {
    fn as_received_packet(&self) -> ReceivedPacket<'_> {
        ReceivedPacket {
            icrc_fields: self.icrc_fields,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            bytes: &self.bytes,
        }
    }

    fn copy(&self) -> Self {
        Self {
            bytes: self.bytes.clone(),
            ..*self
        }
    }
}

/// Returns the fate of the packet `bytes`, which is `more` bytes longer on the wire; `describe` adds its direction and
/// addresses.
fn decide_packet_verdict(
    bytes: &[u8],
    more: usize,
    describe: impl FnOnce(PacketFacts) -> PacketFacts,
) -> PacketVerdict {
    let nowhere = std::net::Ipv4Addr::UNSPECIFIED.into();
    let facts = PacketFacts {
        direction: Direction::Send,
        source: nowhere,
        destination: nowhere,
        queue_pair: QueuePairIds::default(),
        peer_qpn: None,
        operation: fault_operation_of_packet(bytes),
        len_bytes: u32::try_from(bytes.len() + more).unwrap_or(u32::MAX),
    };
    faults::decide_packet_verdict(&describe(facts))
}

fn push_to_batch(batch: &mut PacketBatch, flow: &PacketFlow, bytes: &[u8], damage: Option<u32>) {
    match damage {
        Some(bit) => batch.push_damaged(flow, bytes, bit),
        None => batch.push(flow, bytes),
    }
}

fn dest_qpn(bytes: &[u8]) -> u32 {
    match bytes {
        [_, _, _, _, _, a, b, c, ..] => u32::from_be_bytes([0, *a, *b, *c]),
        _ => 0,
    }
}

/// Returns the name that fault plans have for the operation of a packet.
fn fault_operation_of_packet(bytes: &[u8]) -> &'static str {
    let opcode = bytes.first().and_then(|byte| Opcode::from_byte(*byte));
    match opcode.map(|opcode| opcode.operation) {
        Some(PacketOperation::Send) | None => "SEND",
        Some(PacketOperation::Write) => "RDMA_WRITE",
        Some(PacketOperation::ReadRequest) => "RDMA_READ",
        Some(PacketOperation::ReadResponse) => "READ_RESPONSE",
        Some(PacketOperation::Acknowledge | PacketOperation::AtomicAcknowledge) => "ACK",
        Some(PacketOperation::CompareSwap | PacketOperation::FetchAdd) => "ATOMIC",
        Some(PacketOperation::Flush) => "FLUSH",
        Some(PacketOperation::AtomicWrite) => "ATOMIC_WRITE",
        Some(PacketOperation::Cnp) => "CNP",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_one_that_plans_can_name() {
        for byte in 0..=255 {
            assert!(::faults::OPERATIONS.contains(&fault_operation_of_packet(&[byte])));
        }
        assert_eq!(fault_operation_of_packet(&[]), "SEND");
    }
}
