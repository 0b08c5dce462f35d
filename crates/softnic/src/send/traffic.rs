//! Counts what a send queue sends and gets back, for the [traffic counters](crate::path::traffic) of its port and of
//! the ports of its destinations.
//!
//! Counting costs a fast path one comparison. As long as a program posts messages of one length, the number of packets
//! is the distance that `posted` has moved since the first of them. Only a message of another length, or one on the
//! general path, writes to memory. A datagram to another port counts as one of another length. The counts reach the
//! ports after [`WRS_PER_COUNTER_PUBLICATION`] work requests or [`OCTETS_PER_COUNTER_PUBLICATION`], before the program
//! sleeps ([`MIN_WRS_TO_PUBLISH_BEFORE_SLEEP`]), and when the queue pair is reset or destroyed.

use std::sync::Arc;

use verbs_abi::*;

use crate::path::traffic::{
    Direction, HostPortId, OctetAndPacketCounts, PortTrafficCounters, ethernet_ip_udp_header_octets,
};

/// Number of work requests after which a poll adds the counts to the ports' traffic counters.
const WRS_PER_COUNTER_PUBLICATION: u64 = 512;

/// Number of work requests after which the counts are added before the program sleeps: when it arms a completion queue.
const MIN_WRS_TO_PUBLISH_BEFORE_SLEEP: u64 = 16;

/// Octets after which the general path adds the counts to the ports' traffic counters.
const OCTETS_PER_COUNTER_PUBLICATION: u64 = 1 << 20;

/// Sizes of headers and of the ICRC, in octets (IBTA vol. 1, 7.7, 7.8, 8.3, 9.2 and 9.3).
mod header {
    pub(super) const BTH: u64 = 12;
    pub(super) const DETH: u64 = 8;
    pub(super) const XRCETH: u64 = 4;
    pub(super) const RETH: u64 = 16;
    pub(super) const ATOMIC_ETH: u64 = 28;
    pub(super) const AETH: u64 = 4;
    pub(super) const ATOMIC_ACK_ETH: u64 = 8;
    pub(super) const IMM_DT: u64 = 4;
    pub(super) const IETH: u64 = 4;
    pub(super) const FETH: u64 = 4;
    pub(super) const ICRC: u64 = 4;
    pub(super) const LRH: u64 = 8;
    pub(super) const GRH: u64 = 40;
}

/// The kind of a short message on a fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShortMessageKind {
    Send = 0,
    Write = 1,
}

/// The part of a packet that is the same for all messages of a queue pair.
#[derive(Clone, Copy, Debug)]
struct PacketOverhead {
    /// Octets of a packet without extended headers and payload.
    overhead_octets: u64,
    mtu_bytes: u64,
}

impl PacketOverhead {
    /// The packets of a message of `len` bytes, whose extended headers have `extended` octets in all.
    fn message_traffic(self, len: u64, extended: u64) -> OctetAndPacketCounts {
        let packets = len.div_ceil(self.mtu_bytes).max(1);
        OctetAndPacketCounts {
            octets: packets * self.overhead_octets + len.next_multiple_of(4) + extended,
            packets,
            multicast_packets: 0,
        }
    }

    /// The packets of a work request of `len` bytes, and those that answer it. `None`: the NIC itself executes it.
    fn request_and_answer_traffic(
        self,
        opcode: ibv_wr_opcode,
        len: u64,
    ) -> Option<(OctetAndPacketCounts, OctetAndPacketCounts)> {
        let none = OctetAndPacketCounts::default();
        Some(match opcode {
            IBV_WR_SEND => (self.message_traffic(len, 0), none),
            IBV_WR_SEND_WITH_IMM => (self.message_traffic(len, header::IMM_DT), none),
            IBV_WR_SEND_WITH_INV => (self.message_traffic(len, header::IETH), none),
            IBV_WR_RDMA_WRITE => (self.message_traffic(len, header::RETH), none),
            IBV_WR_RDMA_WRITE_WITH_IMM => (
                self.message_traffic(len, header::RETH + header::IMM_DT),
                none,
            ),
            IBV_WR_RDMA_READ => {
                // The first and the last packet of a response have an AETH.
                let packets = len.div_ceil(self.mtu_bytes).clamp(1, 2);
                let response = self.message_traffic(len, packets * header::AETH);
                (self.message_traffic(0, header::RETH), response)
            }
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let response = self.message_traffic(0, header::AETH + header::ATOMIC_ACK_ETH);
                (self.message_traffic(0, header::ATOMIC_ETH), response)
            }
            IBV_WR_ATOMIC_WRITE => {
                let response = self.message_traffic(0, header::AETH);
                (self.message_traffic(8, header::RETH), response)
            }
            IBV_WR_FLUSH => {
                let response = self.message_traffic(0, header::AETH);
                (
                    self.message_traffic(0, header::FETH + header::RETH),
                    response,
                )
            }
            _ => return None,
        })
    }
}

/// The packets of a queue pair, apart from their messages.
pub(super) struct PacketFormat {
    pub(super) is_roce: bool,
    /// True if packets of RoCE have an IPv4 header.
    pub(super) is_ipv4: bool,
    /// True if packets of InfiniBand have a GRH.
    pub(super) has_grh: bool,
    /// Octets of the extended header that every packet of the transport service has.
    pub(super) service_header_octets: u64,
    /// Octets of payload in a full packet.
    pub(super) mtu_bytes: u64,
}

impl PacketFormat {
    /// Octets of the DETH, which every packet of UD has.
    pub(super) const UD_HEADER_OCTETS: u64 = header::DETH;
    /// Octets of the XRCETH, which every packet of an XRC send queue pair has.
    pub(super) const XRC_HEADER_OCTETS: u64 = header::XRCETH;

    /// Returns the octets of a packet without extended headers and payload, and the path MTU.
    fn packet_overhead(&self) -> PacketOverhead {
        let network = match (self.is_roce, self.has_grh) {
            (true, _) => ethernet_ip_udp_header_octets(self.is_ipv4),
            (false, true) => header::LRH + header::GRH,
            (false, false) => header::LRH,
        };
        PacketOverhead {
            overhead_octets: network + header::BTH + self.service_header_octets + header::ICRC,
            mtu_bytes: self.mtu_bytes,
        }
    }
}

/// Messages of one kind and length to one destination: their number is the distance of `posted` from
/// `posted_wrs_at_run_start`.
#[derive(Clone, Copy)]
struct EqualMessageRun {
    /// The destination, times 2^32, plus the length, times two, plus one for WRITEs; [`NO_RUN`] before the first
    /// message.
    packed_destination_len_and_kind: u64,
    posted_wrs_at_run_start: u64,
    /// Octets of each message, which is one packet.
    octets_per_message: u64,
}

const NO_RUN: u64 = u64::MAX;

impl EqualMessageRun {
    #[inline(always)]
    fn pack_key(kind: ShortMessageKind, len: usize, to: DestinationPort) -> u64 {
        #[allow(clippy::cast_possible_truncation)] // short
        let message = (len as u32) << 1 | kind as u32;
        u64::from(to.0) << 32 | u64::from(message)
    }

    /// The length, times two, plus one for WRITEs.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // that half of it
    fn length_and_kind(of: u64) -> u32 {
        of as u32
    }
}

/// A port to which a send queue sends, by its index among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DestinationPort(u32);

impl DestinationPort {
    /// The port of the peer of a connected queue pair.
    pub(super) const PEER: Self = Self(0);

    fn index(self) -> usize {
        self.0 as usize
    }
}

/// The counts of the messages to one port that are not published yet.
#[derive(Default)]
struct UnpublishedTrafficToPort {
    port_id: Option<HostPortId>,
    port_counters: Option<Arc<PortTrafficCounters>>,
    sent: OctetAndPacketCounts,
    /// Copies of messages to multicast groups. The own port counts such a message once.
    multicast_copies: OctetAndPacketCounts,
    answers_received: OctetAndPacketCounts,
}

/// The counts of a send queue that are not published yet.
pub(super) struct UnpublishedTraffic {
    equal_message_run: EqualMessageRun,
    /// The longest message on a fast path that is one packet.
    max_short_message_bytes: u32,
    packet_overhead: PacketOverhead,
    /// Messages to multicast groups.
    sent_to_multicast_groups: OctetAndPacketCounts,
    /// By [`DestinationPort`]; the first is [`DestinationPort::PEER`].
    destinations: Vec<UnpublishedTrafficToPort>,
    /// Number of work requests that were posted before the last publication.
    posted_wrs_at_last_publication: u64,
    own_port_id: Option<HostPortId>,
    own_port_counters: Option<Arc<PortTrafficCounters>>,
}

impl UnpublishedTraffic {
    pub(super) fn new() -> Self {
        Self {
            equal_message_run: EqualMessageRun {
                packed_destination_len_and_kind: NO_RUN,
                posted_wrs_at_run_start: 0,
                octets_per_message: 0,
            },
            max_short_message_bytes: 0,
            packet_overhead: PacketOverhead {
                overhead_octets: 0,
                mtu_bytes: 1,
            },
            sent_to_multicast_groups: OctetAndPacketCounts::default(),
            destinations: vec![UnpublishedTrafficToPort::default()],
            posted_wrs_at_last_publication: 0,
            own_port_id: None,
            own_port_counters: None,
        }
    }

    /// Sets the own port, and the headers and the MTU of packets, when the queue pair begins to send.
    pub(super) fn start_counting(&mut self, posted: u64, own: HostPortId, packets: &PacketFormat) {
        self.add_run_to_sums(posted);
        self.equal_message_run.packed_destination_len_and_kind = NO_RUN;
        self.equal_message_run.octets_per_message = 0;
        self.packet_overhead = packets.packet_overhead();
        self.max_short_message_bytes = u32::try_from(packets.mtu_bytes).unwrap_or(0);
        self.own_port_id = Some(own);
        self.own_port_counters = None;
        // The peer is another one, perhaps.
        if let Some(peer) = self.destinations.first_mut() {
            (peer.port_id, peer.port_counters) = (None, None);
        }
    }

    /// Returns the destination for messages to a port.
    pub(super) fn find_or_add_destination(&mut self, name: HostPortId) -> DestinationPort {
        let known = self.destinations.iter().skip(1);
        let known = known
            .take_while(|counts| counts.port_id != Some(name))
            .count()
            + 1;
        if known == self.destinations.len() {
            self.destinations.push(UnpublishedTrafficToPort {
                port_id: Some(name),
                ..UnpublishedTrafficToPort::default()
            });
        }
        DestinationPort(u32::try_from(known).unwrap_or(0))
    }

    /// Counts a message that is posted next, at position `posted`. Returns false if it may be more than a packet, and
    /// counts nothing then: the general path counts it.
    #[inline(always)]
    pub(super) fn try_count_short_message(
        &mut self,
        posted: u64,
        kind: ShortMessageKind,
        len: usize,
        to: DestinationPort,
    ) -> bool {
        let of = EqualMessageRun::pack_key(kind, len, to);
        of == self.equal_message_run.packed_destination_len_and_kind || self.begin_run(posted, of)
    }

    /// Returns the length of the messages of the run, if they are of this kind and go to this destination. A loop over
    /// a postlist keeps the length in a register, and calls
    /// [`try_count_short_message_of_other_len`](Self::try_count_short_message_of_other_len) for messages of other
    /// lengths only.
    #[inline(always)]
    pub(super) fn run_message_bytes_or_max(
        &self,
        kind: ShortMessageKind,
        to: DestinationPort,
    ) -> usize {
        let len = (EqualMessageRun::length_and_kind(
            self.equal_message_run.packed_destination_len_and_kind,
        ) >> 1) as usize;
        if self.equal_message_run.packed_destination_len_and_kind != NO_RUN
            && self.equal_message_run.packed_destination_len_and_kind
                == EqualMessageRun::pack_key(kind, len, to)
        {
            len
        } else {
            usize::MAX
        }
    }

    /// [`try_count_short_message`](Self::try_count_short_message) for a message whose length differs from that of the
    /// run.
    #[cold]
    #[inline(never)]
    pub(super) fn try_count_short_message_of_other_len(
        &mut self,
        posted: u64,
        kind: ShortMessageKind,
        len: usize,
        to: DestinationPort,
    ) -> bool {
        self.try_count_short_message(posted, kind, len, to)
    }

    #[inline(always)]
    fn begin_run(&mut self, posted: u64, of: u64) -> bool {
        let message = EqualMessageRun::length_and_kind(of);
        if message >> 1 > self.max_short_message_bytes {
            return false;
        }
        self.add_run_to_sums(posted);
        let extended = if message & 1 == 0 { 0 } else { header::RETH };
        let payload = u64::from(message >> 1).next_multiple_of(4);
        self.equal_message_run.octets_per_message =
            self.packet_overhead.overhead_octets + payload + extended;
        self.equal_message_run.packed_destination_len_and_kind = of;
        true
    }

    /// Adds the messages of the run to the sums of their destination. The run goes on with the next message.
    #[inline(always)]
    fn add_run_to_sums(&mut self, posted: u64) {
        let count = posted.wrapping_sub(self.equal_message_run.posted_wrs_at_run_start);
        if let Some(to) = self
            .destinations
            .get_mut((self.equal_message_run.packed_destination_len_and_kind >> 32) as usize)
        {
            to.sent.packets += count;
            to.sent.octets += count * self.equal_message_run.octets_per_message;
        }
        self.equal_message_run.posted_wrs_at_run_start = posted;
    }

    /// Counts the immediates of short messages of the run.
    #[inline(always)]
    pub(super) fn count_immediates(&mut self, count: u64) {
        if let Some(to) = self
            .destinations
            .get_mut((self.equal_message_run.packed_destination_len_and_kind >> 32) as usize)
        {
            to.sent.octets += count * header::IMM_DT;
        }
    }

    /// Leaves out a work request that the general path counts, or that sends nothing.
    #[inline(always)]
    pub(super) fn exclude_wr(&mut self) {
        self.equal_message_run.posted_wrs_at_run_start += 1;
    }

    /// Counts a work request that the general path has executed by shared memory. Returns true if it is time to
    /// publish.
    pub(super) fn count_request(
        &mut self,
        opcode: ibv_wr_opcode,
        len: u64,
        to: DestinationPort,
    ) -> bool {
        let Some((sent, returned)) = self.packet_overhead.request_and_answer_traffic(opcode, len)
        else {
            return false;
        };
        let Some(to) = self.destinations.get_mut(to.index()) else {
            return false;
        };
        to.sent.add(sent);
        to.answers_received.add(returned);
        to.sent.octets + to.answers_received.octets >= OCTETS_PER_COUNTER_PUBLICATION
    }

    /// Counts a datagram to a multicast group with members at the ports `to`. Returns true if it is time to publish.
    pub(super) fn count_multicast_datagram(
        &mut self,
        opcode: ibv_wr_opcode,
        len: u64,
        to: &[DestinationPort],
    ) -> bool {
        let Some((sent, _)) = self.packet_overhead.request_and_answer_traffic(opcode, len) else {
            return false;
        };
        let sent = OctetAndPacketCounts {
            multicast_packets: sent.packets,
            ..sent
        };
        self.sent_to_multicast_groups.add(sent);
        for to in to {
            if let Some(to) = self.destinations.get_mut(to.index()) {
                to.multicast_copies.add(sent);
            }
        }
        self.sent_to_multicast_groups.octets >= OCTETS_PER_COUNTER_PUBLICATION
    }

    /// Returns true if a poll should publish.
    #[inline(always)]
    pub(super) fn is_publication_due(&self, posted: u64) -> bool {
        posted.wrapping_sub(self.posted_wrs_at_last_publication) >= WRS_PER_COUNTER_PUBLICATION
    }

    /// Returns true if a thread that is about to sleep should publish.
    pub(super) fn is_publication_due_before_sleep(&self, posted: u64) -> bool {
        posted.wrapping_sub(self.posted_wrs_at_last_publication) >= MIN_WRS_TO_PUBLISH_BEFORE_SLEEP
    }

    /// Adds the counts to those of the ports. `peer` is the port of the peer of a connected queue pair, and `open`
    /// opens the counters of a port.
    pub(super) fn publish_to_port_counters(
        &mut self,
        posted: u64,
        peer: Option<HostPortId>,
        open: impl Fn(HostPortId) -> Option<Arc<PortTrafficCounters>>,
    ) {
        self.add_run_to_sums(posted);
        self.posted_wrs_at_last_publication = posted;
        // A queue pair that has been reset has no port; its earlier one counts.
        if let (Some(counts), Some(_)) = (self.destinations.first_mut(), peer)
            && counts.port_id != peer
        {
            (counts.port_id, counts.port_counters) = (peer, None);
        }
        let mut transmitted = std::mem::take(&mut self.sent_to_multicast_groups);
        let mut received = OctetAndPacketCounts::default();
        for counts in &mut self.destinations {
            let sent = std::mem::take(&mut counts.sent);
            let returned = std::mem::take(&mut counts.answers_received);
            let mut arrived = std::mem::take(&mut counts.multicast_copies);
            transmitted.add(sent);
            received.add(returned);
            arrived.add(sent);
            if arrived.is_zero() && returned.is_zero() {
                continue;
            }
            if counts.port_counters.is_none() {
                counts.port_counters = counts.port_id.and_then(&open);
            }
            if let Some(port) = &counts.port_counters {
                port.add(Direction::Received, arrived);
                port.add(Direction::Transmitted, returned);
            }
        }
        if transmitted.is_zero() && received.is_zero() {
            return;
        }
        if self.own_port_counters.is_none() {
            self.own_port_counters = self.own_port_id.and_then(&open);
        }
        if let Some(own) = &self.own_port_counters {
            own.add(Direction::Transmitted, transmitted);
            own.add(Direction::Received, received);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: DestinationPort = DestinationPort::PEER;

    fn traffic() -> UnpublishedTraffic {
        let mut traffic = UnpublishedTraffic::new();
        let own = HostPortId {
            process_ports_key: 7,
            host_wide_number: 1,
        };
        let packets = PacketFormat {
            is_roce: true,
            is_ipv4: true,
            has_grh: false,
            service_header_octets: 0,
            mtu_bytes: 1024,
        };
        traffic.start_counting(0, own, &packets);
        traffic
    }

    fn sent(traffic: &UnpublishedTraffic, to: DestinationPort) -> (u64, u64) {
        let sent = traffic.destinations[to.index()].sent;
        (sent.packets, sent.octets)
    }

    #[test]
    fn messages_are_segmented_by_the_mtu_and_padded() {
        let framing = traffic().packet_overhead;
        for (len, extended, packets, octets) in [
            (0, 0, 1, 58),
            (1, 4, 1, 66),
            (1024, 16, 1, 1098),
            (1025, 16, 2, 116 + 1028 + 16),
            (1 << 20, 0, 1024, 1024 * 58 + (1 << 20)),
        ] {
            let amount = framing.message_traffic(len, extended);
            assert_eq!((amount.packets, amount.octets), (packets, octets), "{len}");
        }
    }

    #[test]
    fn short_messages_are_counted_by_the_distance_of_posted() {
        let mut traffic = traffic();
        let mut posted = 0;
        for (kind, len) in [
            (ShortMessageKind::Send, 6),
            (ShortMessageKind::Send, 6),
            (ShortMessageKind::Write, 6),
            (ShortMessageKind::Send, 8),
        ] {
            assert!(traffic.try_count_short_message(posted, kind, len, PEER));
            posted += 1;
        }
        // A work request of the general path, which counts it itself.
        posted += 1;
        traffic.exclude_wr();
        assert!(traffic.try_count_short_message(posted, ShortMessageKind::Send, 8, PEER));
        posted += 1;
        assert!(!traffic.try_count_short_message(posted, ShortMessageKind::Write, 1025, PEER));
        traffic.count_immediates(1);
        traffic.add_run_to_sums(posted);
        let octets = 2 * (58 + 8) + (58 + 8 + 16) + 2 * (58 + 8) + 4;
        assert_eq!(sent(&traffic, PEER), (5, octets));
        traffic.add_run_to_sums(posted);
        assert_eq!(sent(&traffic, PEER), (5, octets));
    }

    #[test]
    fn datagrams_count_at_the_port_of_their_destination() {
        let mut traffic = traffic();
        let name = |place| HostPortId {
            process_ports_key: 7,
            host_wide_number: place,
        };
        let [one, two, again] = [1, 2, 1].map(|place| traffic.find_or_add_destination(name(place)));
        assert_eq!(
            (one, two, again),
            (DestinationPort(1), DestinationPort(2), one)
        );
        // One length: only the destination differs.
        for (posted, to) in (0..).zip([one, two, two, one, two]) {
            assert!(traffic.try_count_short_message(posted, ShortMessageKind::Send, 8, to));
            assert_eq!(
                traffic.run_message_bytes_or_max(ShortMessageKind::Send, to),
                8
            );
        }
        assert_eq!(
            traffic.run_message_bytes_or_max(ShortMessageKind::Send, one),
            usize::MAX
        );
        assert_eq!(
            traffic.run_message_bytes_or_max(ShortMessageKind::Write, two),
            usize::MAX
        );
        traffic.add_run_to_sums(5);
        traffic.count_request(IBV_WR_SEND, 8, one);
        traffic.count_multicast_datagram(IBV_WR_SEND, 8, &[one, two]);
        assert_eq!(sent(&traffic, PEER), (0, 0));
        assert_eq!(sent(&traffic, one), (3, 3 * 66));
        assert_eq!(sent(&traffic, two), (3, 3 * 66));
        assert_eq!(traffic.sent_to_multicast_groups.multicast_packets, 1);
        assert_eq!(traffic.destinations[2].multicast_copies.packets, 1);
    }
}
