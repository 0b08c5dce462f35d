//! Batches of packets to send.

use roce::icrc::{self, ICRC_BYTES, IcrcFields, IpAddressPair};

/// Largest number of segments of a burst: the limit of kernels since 4.18 (`UDP_MAX_SEGMENTS`).
const MAX_SEGMENTS_PER_BURST: u16 = 64;

/// Largest number of bytes of a burst: the longest UDP payload over IPv6 without extension headers, which is less than
/// over IPv4.
const MAX_BURST_BYTES: usize = 65_535 - 40 - 8;

/// The addresses and IP header fields of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketFlow {
    /// Source, which must be an address of the endpoint, and destination.
    pub addresses: IpAddressPair,
    /// Traffic class: DSCP and ECN (IPv4: type of service).
    pub traffic_class: u8,
    /// Hop limit (IPv4: time to live); 0 for the host's default.
    pub hop_limit: u8,
}

/// A batch of packets to send, grouped into bursts that the kernel segments (UDP GSO).
///
/// Consecutive packets of the same flow, length and destination process form a burst; its last packet may be shorter.
/// Segment `k` of a burst gets `k` as its IPv4 identification, which the ICRC covers, so the batch computes the ICRC.
#[derive(Debug)]
pub struct PacketBatch {
    src_udp_port: u16,
    bytes: Vec<u8>,
    bursts: Vec<GsoBurst>,
    /// Number of bursts that the kernel has taken.
    sent_burst_count: usize,
}

/// A range of the batch's bytes that is sent as one message of a system call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GsoBurst {
    pub(crate) flow: PacketFlow,
    /// Slot of the process in the destination QPN. A burst is delivered to one socket as a whole, so packets for two
    /// processes are in different bursts.
    dest_process_slot: u16,
    start: usize,
    end: usize,
    /// Bytes of each packet except the last.
    pub(crate) segment_bytes: usize,
    pub(crate) packet_count: u16,
    /// True if no further packet may be added.
    is_closed: bool,
}

impl GsoBurst {
    /// Bytes of all its packets.
    pub(crate) fn byte_count(&self) -> usize {
        self.end - self.start
    }

    fn accepts(&self, flow: &PacketFlow, slot: u16, len: usize) -> bool {
        let whole = self.end - self.start == usize::from(self.packet_count) * self.segment_bytes;
        whole
            && !self.is_closed
            && self.flow == *flow
            && self.dest_process_slot == slot
            && len <= self.segment_bytes
            && self.packet_count < MAX_SEGMENTS_PER_BURST
            && self.end - self.start + len <= MAX_BURST_BYTES
    }
}

impl PacketBatch {
    /// Makes an empty batch; `port` is the UDP source and destination port.
    #[must_use]
    pub fn new(port: u16) -> PacketBatch {
        PacketBatch {
            src_udp_port: port,
            bytes: Vec::new(),
            bursts: Vec::new(),
            sent_burst_count: 0,
        }
    }

    /// Appends a packet, from the BTH through the pad, without ICRC.
    pub fn push(&mut self, flow: &PacketFlow, packet: &[u8]) {
        self.push_with(flow, |out| out.extend_from_slice(packet));
    }

    /// Appends the packet that `write` appends to the vector, from the BTH through the pad, without ICRC. If `write`
    /// appends nothing, no packet is added.
    ///
    /// A packet that is too long for UDP is dropped. If `write` shortens the vector, the batch is emptied.
    pub fn push_with<R>(&mut self, flow: &PacketFlow, write: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        let start = self.bytes.len();
        let result = write(&mut self.bytes);
        if self.bytes.len() < start {
            self.clear();
        } else if self.bytes.len() > start {
            self.add_packet_to_burst(flow, start);
        }
        result
    }

    /// Appends a packet as [`push`](Self::push) does, and inverts a bit of it, so that its ICRC is wrong. `bit` counts
    /// from the first bit of the packet; beyond the ICRC it has no effect.
    ///
    /// The packet is a burst of its own, since splitting a burst computes its ICRCs anew.
    pub fn push_damaged(&mut self, flow: &PacketFlow, packet: &[u8], bit: u32) {
        self.close_last_burst();
        let start = self.bytes.len();
        self.push(flow, packet);
        self.close_last_burst();
        if let Some(byte) = self.bytes[start..].get_mut(bit as usize / 8) {
            *byte ^= 1 << (bit % 8);
        }
    }

    fn close_last_burst(&mut self) {
        if let Some(burst) = self.bursts.last_mut() {
            burst.is_closed = true;
        }
    }

    fn add_packet_to_burst(&mut self, flow: &PacketFlow, start: usize) {
        let end = self.bytes.len() + ICRC_BYTES;
        let len = end - start;
        if len > MAX_BURST_BYTES {
            self.bytes.truncate(start);
            return;
        }
        let slot = dest_process_slot(&self.bytes[start..]).unwrap_or(0);
        let open = self.bursts.len() > self.sent_burst_count;
        let identification = match self.bursts.last_mut() {
            Some(burst) if open && burst.accepts(flow, slot, len) => {
                burst.end = end;
                burst.packet_count += 1;
                burst.packet_count - 1
            }
            _ => {
                self.bursts.push(GsoBurst {
                    flow: *flow,
                    dest_process_slot: slot,
                    start,
                    end,
                    segment_bytes: len,
                    packet_count: 1,
                    is_closed: false,
                });
                0
            }
        };
        let frame = self
            .first_segment_icrc_fields(flow)
            .for_gso_segment(identification);
        icrc::append_icrc(&frame, &mut self.bytes, start);
    }

    /// Returns the frame of the first segment of a burst.
    fn first_segment_icrc_fields(&self, flow: &PacketFlow) -> IcrcFields {
        IcrcFields {
            addresses: flow.addresses,
            src_port: self.src_udp_port,
            dst_port: self.src_udp_port,
            identification: 0,
        }
    }

    /// Returns the number of packets that are not sent yet.
    #[must_use]
    pub fn unsent_packet_count(&self) -> usize {
        self.unsent_bursts()
            .iter()
            .map(|b| usize::from(b.packet_count))
            .sum()
    }

    /// Returns true if all packets have been sent.
    #[must_use]
    pub fn is_all_sent(&self) -> bool {
        self.unsent_bursts().is_empty()
    }

    /// Removes all packets and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bursts.clear();
        self.sent_burst_count = 0;
    }

    /// Returns the bursts that the kernel has not taken yet.
    pub(crate) fn unsent_bursts(&self) -> &[GsoBurst] {
        &self.bursts[self.sent_burst_count..]
    }

    /// Removes the first `count` waiting bursts.
    pub(crate) fn remove_first_unsent_bursts(&mut self, count: usize) {
        self.sent_burst_count += count;
        if self.sent_burst_count >= self.bursts.len() {
            self.clear();
        }
    }

    pub(crate) fn bytes_of_burst(&self, burst: &GsoBurst) -> &[u8] {
        &self.bytes[burst.start..burst.end]
    }

    /// Returns the packets of a burst as sent on the wire, each with its frame.
    pub(crate) fn packets_of_burst(
        &self,
        burst: &GsoBurst,
    ) -> impl Iterator<Item = (IcrcFields, &[u8])> {
        let first = self.first_segment_icrc_fields(&burst.flow);
        let packets = self.bytes_of_burst(burst).chunks(burst.segment_bytes);
        (0..)
            .zip(packets)
            .map(move |(k, bytes)| (first.for_gso_segment(k), bytes))
    }

    /// Splits the first waiting burst into bursts of one packet each, with the ICRC of identification 0.
    pub(crate) fn split_first_unsent_into_packets(&mut self) {
        let Some(burst) = self.unsent_bursts().first().copied() else {
            return;
        };
        let frame = self.first_segment_icrc_fields(&burst.flow);
        let mut singles = Vec::with_capacity(usize::from(burst.packet_count));
        for packet in self.bytes[burst.start..burst.end].chunks_mut(burst.segment_bytes) {
            let start = singles.last().map_or(burst.start, |b: &GsoBurst| b.end);
            let (covered, field) = packet.split_at_mut(packet.len() - ICRC_BYTES);
            field.copy_from_slice(&icrc::icrc(&frame, covered).to_le_bytes());
            singles.push(GsoBurst {
                start,
                end: start + packet.len(),
                segment_bytes: packet.len(),
                packet_count: 1,
                ..burst
            });
        }
        self.bursts
            .splice(self.sent_burst_count..=self.sent_burst_count, singles);
    }
}

/// Returns the slot in the destination QPN of a packet, or `None` if the packet has no complete BTH.
#[must_use]
pub fn dest_process_slot(packet: &[u8]) -> Option<u16> {
    let [_, _, _, _, _, high, middle, _, ..] = *packet else {
        return None;
    };
    Some(u16::from_be_bytes([high, middle]) >> (crate::QPN_TO_PROCESS_SLOT_SHIFT - 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(last: u8) -> PacketFlow {
        PacketFlow {
            addresses: IpAddressPair::V4 {
                src: [127, 0, 0, 1].into(),
                dst: [127, 0, 0, last].into(),
            },
            traffic_class: 0,
            hop_limit: 0,
        }
    }

    fn packet(slot: u32, len: usize) -> Vec<u8> {
        let mut packet = vec![7; len];
        packet[4..8].copy_from_slice(&(slot << 14 | 17).to_be_bytes());
        packet
    }

    fn shape(batch: &PacketBatch) -> Vec<(u16, usize)> {
        let shape = |b: &GsoBurst| (b.packet_count, batch.bytes_of_burst(b).len());
        batch.unsent_bursts().iter().map(shape).collect()
    }

    #[test]
    fn equal_packets_of_a_flow_are_a_burst_and_a_shorter_one_ends_it() {
        let mut batch = PacketBatch::new(4791);
        for len in [20, 20, 16, 16, 20] {
            batch.push(&flow(2), &packet(3, len));
        }
        assert_eq!(shape(&batch), [(3, 68), (1, 20), (1, 24)]);
        batch.push(&flow(3), &packet(3, 20));
        batch.push(&flow(3), &packet(4, 20));
        assert_eq!(shape(&batch)[3..], [(1, 24), (1, 24)]);
        assert_eq!(batch.unsent_packet_count(), 7);
    }

    #[test]
    fn a_burst_has_64_segments_and_no_more_bytes_than_udp_takes() {
        let mut batch = PacketBatch::new(4791);
        (0..65).for_each(|_| batch.push(&flow(2), &packet(0, 20)));
        assert_eq!(shape(&batch), [(64, 64 * 24), (1, 24)]);
        batch.clear();
        (0..16).for_each(|_| batch.push(&flow(2), &packet(0, 4120)));
        assert_eq!(shape(&batch), [(15, 15 * 4124), (1, 4124)]);
        batch.push(&flow(2), &packet(0, 65_535));
        assert_eq!(batch.unsent_packet_count(), 16);
    }

    #[test]
    fn the_icrc_has_the_place_in_the_burst_and_0_after_a_split() {
        let mut batch = PacketBatch::new(4791);
        (0..3).for_each(|_| batch.push(&flow(2), &packet(0, 20)));
        batch.push(&flow(2), &packet(0, 12));
        let frame = batch.first_segment_icrc_fields(&flow(2));
        let identifications = |batch: &PacketBatch| -> Vec<Option<u16>> {
            let packets = |b| batch.bytes_of_burst(b).chunks(b.segment_bytes);
            let check = |packet| {
                let (transport, icrc) = icrc::split_off_icrc(packet)?;
                icrc::recover_identification_if_icrc_valid(&frame, transport, icrc)
            };
            let all = batch.unsent_bursts().iter().flat_map(packets);
            all.map(check).collect()
        };
        let expected: Vec<_> = (0..4).map(Some).collect();
        assert_eq!(identifications(&batch), expected);
        batch.split_first_unsent_into_packets();
        assert_eq!(identifications(&batch), [Some(0); 4]);
        assert_eq!(shape(&batch), [(1, 24), (1, 24), (1, 24), (1, 16)]);
    }

    #[test]
    fn a_damaged_packet_is_alone_and_its_icrc_is_wrong_whichever_bit_it_is() {
        for bit in [0, 8 * 20 - 1, 8 * 24 - 1] {
            let mut batch = PacketBatch::new(4791);
            batch.push(&flow(2), &packet(0, 20));
            batch.push_damaged(&flow(2), &packet(0, 20), bit);
            batch.push(&flow(2), &packet(0, 20));
            assert_eq!(shape(&batch), [(1, 24); 3]);
            let frame = batch.first_segment_icrc_fields(&flow(2));
            let is_whole = |b: &GsoBurst| {
                let (transport, icrc) = icrc::split_off_icrc(batch.bytes_of_burst(b))?;
                icrc::recover_identification_if_icrc_valid(&frame, transport, icrc)
            };
            let whole: Vec<_> = batch
                .unsent_bursts()
                .iter()
                .map(|b| is_whole(b).is_some())
                .collect();
            assert_eq!(whole, [true, false, true], "bit {bit}");
        }
        let mut batch = PacketBatch::new(4791);
        batch.push_damaged(&flow(2), &packet(0, 65_535), 3);
        assert!(batch.is_all_sent());
    }

    #[test]
    fn what_was_sent_takes_no_more_packets() {
        let mut batch = PacketBatch::new(4791);
        batch.push(&flow(2), &packet(0, 20));
        batch.push(&flow(3), &packet(0, 20));
        batch.remove_first_unsent_bursts(1);
        assert_eq!(batch.unsent_packet_count(), 1);
        batch.push(&flow(3), &packet(0, 20));
        assert_eq!(shape(&batch), [(2, 48)]);
        batch.remove_first_unsent_bursts(1);
        assert!(batch.is_all_sent());
    }

    #[test]
    fn a_writer_that_shortens_the_vector_loses_the_batch_and_nothing_else() {
        let mut batch = PacketBatch::new(4791);
        batch.push(&flow(2), &packet(0, 20));
        batch.push_with(&flow(2), Vec::clear);
        assert!(batch.is_all_sent());
        batch.push_with(&flow(2), |_| ());
        assert!(batch.is_all_sent());
    }

    #[test]
    fn the_slot_is_the_upper_10_bits_of_the_qpn() {
        assert_eq!(dest_process_slot(&packet(1023, 12)), Some(1023));
        assert_eq!(dest_process_slot(&packet(5, 8)), Some(5));
        assert_eq!(dest_process_slot(&[0; 7]), None);
    }
}
