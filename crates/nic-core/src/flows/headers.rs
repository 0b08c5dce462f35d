//! The headers of an Ethernet frame: the fields that flows match, and the checksums.

use std::ops::Range;

use etherparse::checksum::Sum16BitWords;
use etherparse::{LaxLinkExtSlice, LaxNetSlice, LaxSlicedPacket, LinkSlice, TransportSlice};

/// Bytes of the fields that flows match, with the layout of [`field`].
pub const MATCH_FIELDS_BYTES: usize = 64;

/// Bits for the layers of a frame.
pub mod layer {
    /// An IEEE 802.1Q tag.
    pub const VLAN: u32 = 1;
    /// Internet protocol, version 4.
    pub const IPV4: u32 = 2;
    /// Internet protocol, version 6.
    pub const IPV6: u32 = 4;
    /// Transmission control protocol.
    pub const TCP: u32 = 8;
    /// User datagram protocol.
    pub const UDP: u32 = 16;
}

/// Positions of the fields in [`FrameHeaders::parsed_field_values`], each in network byte order. IPv4 and IPv6 share
/// fields.
pub mod field {
    use std::ops::Range;

    /// Ethernet destination address.
    pub const DST_MAC: Range<usize> = 0..6;
    /// Ethernet source address.
    pub const SRC_MAC: Range<usize> = 6..12;
    /// EtherType after the last VLAN tag.
    pub const ETHER_TYPE: Range<usize> = 12..14;
    /// First VLAN tag.
    pub const VLAN_TAG: Range<usize> = 14..16;
    /// Source IP address; IPv4 uses the first 4 bytes.
    pub const SRC_IP: Range<usize> = 16..32;
    /// Destination IP address; IPv4 uses the first 4 bytes.
    pub const DST_IP: Range<usize> = 32..48;
    /// IPv6 flow label.
    pub const FLOW_LABEL: Range<usize> = 48..52;
    /// Protocol after the IP header; for IPv6, after the extension headers.
    pub const PROTOCOL: Range<usize> = 52..53;
    /// IPv6 traffic class, or IPv4 type of service.
    pub const TRAFFIC_CLASS: Range<usize> = 53..54;
    /// IPv6 hop limit, or IPv4 time to live.
    pub const HOP_LIMIT: Range<usize> = 54..55;
    /// IPv4 flags.
    pub const IP_FLAGS: Range<usize> = 55..56;
    /// TCP or UDP source port.
    pub const SRC_PORT: Range<usize> = 56..58;
    /// TCP or UDP destination port.
    pub const DST_PORT: Range<usize> = 58..60;
}

/// Bits of the field [`IP_FLAGS`](field::IP_FLAGS): `enum ib_ipv4_flags` of `linux:include/rdma/ib_verbs.h`.
const DONT_FRAGMENT: u8 = 2;
const MORE_FRAGMENTS: u8 = 4;

/// The headers of a frame.
pub struct FrameHeaders {
    /// Layers of the frame: bits of [`layer`].
    pub layers: u32,
    /// Values of the fields of the frame, at the positions of [`field`]; 0 for missing fields.
    pub parsed_field_values: [u8; MATCH_FIELDS_BYTES],
    /// Position of the IPv4 header in the frame.
    ipv4: Option<Range<usize>>,
    /// Position of a complete TCP segment or UDP datagram in the frame.
    transport_range: Option<Range<usize>>,
}

impl FrameHeaders {
    /// Parses a frame without its check sequence; `None` if it is shorter than an Ethernet header.
    #[must_use]
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let packet = LaxSlicedPacket::from_ethernet(frame).ok()?;
        let Some(LinkSlice::Ethernet2(ethernet)) = &packet.link else {
            return None;
        };
        let mut headers = Self {
            layers: 0,
            parsed_field_values: [0; MATCH_FIELDS_BYTES],
            ipv4: None,
            transport_range: None,
        };
        headers.set_field(field::DST_MAC, &ethernet.destination());
        headers.set_field(field::SRC_MAC, &ethernet.source());
        let mut ether_type = ethernet.ether_type();
        for extension in &packet.link_exts {
            if let LaxLinkExtSlice::Vlan(vlan) = extension {
                ether_type = vlan.ether_type();
                if headers.layers & layer::VLAN == 0 {
                    headers.layers |= layer::VLAN;
                    headers.set_field(field::VLAN_TAG, &vlan.header_slice()[..2]);
                }
            }
        }
        headers.set_field(field::ETHER_TYPE, &ether_type.0.to_be_bytes());
        match &packet.net {
            Some(LaxNetSlice::Ipv4(ip)) => {
                let header = ip.header();
                headers.layers |= layer::IPV4;
                headers.ipv4 = Some(range_within(frame, header.slice()));
                headers.set_field(field::SRC_IP, &header.source());
                headers.set_field(field::DST_IP, &header.destination());
                headers.set_field(field::PROTOCOL, &[header.protocol().0]);
                headers.set_field(field::TRAFFIC_CLASS, &header.slice()[1..2]);
                headers.set_field(field::HOP_LIMIT, &[header.ttl()]);
                let flag = |set, bit| if set { bit } else { 0 };
                let flags = flag(header.dont_fragment(), DONT_FRAGMENT)
                    | flag(header.more_fragments(), MORE_FRAGMENTS);
                headers.set_field(field::IP_FLAGS, &[flags]);
            }
            Some(LaxNetSlice::Ipv6(ip)) => {
                let header = ip.header();
                headers.layers |= layer::IPV6;
                headers.set_field(field::SRC_IP, &header.source());
                headers.set_field(field::DST_IP, &header.destination());
                headers.set_field(field::PROTOCOL, &[ip.payload().ip_number.0]);
                headers.set_field(field::TRAFFIC_CLASS, &[header.traffic_class()]);
                headers.set_field(field::HOP_LIMIT, &[header.hop_limit()]);
                let label = header.flow_label().value().to_be_bytes();
                headers.set_field(field::FLOW_LABEL, &label);
            }
            _ => {}
        }
        let (which, source, destination, segment) = match &packet.transport {
            Some(TransportSlice::Udp(udp)) => (
                layer::UDP,
                udp.source_port(),
                udp.destination_port(),
                udp.slice(),
            ),
            Some(TransportSlice::Tcp(tcp)) => (
                layer::TCP,
                tcp.source_port(),
                tcp.destination_port(),
                tcp.slice(),
            ),
            _ => return Some(headers),
        };
        headers.layers |= which;
        headers.set_field(field::SRC_PORT, &source.to_be_bytes());
        headers.set_field(field::DST_PORT, &destination.to_be_bytes());
        headers.transport_range = Some(range_within(frame, segment));
        Some(headers)
    }

    /// Sets the first bytes of a field.
    fn set_field(&mut self, at: Range<usize>, value: &[u8]) {
        self.parsed_field_values[at.start..at.start + value.len()].copy_from_slice(value);
    }

    /// Returns the bytes of a field, which is a range of [`field`].
    #[must_use]
    pub fn field(&self, at: Range<usize>) -> &[u8] {
        &self.parsed_field_values[at]
    }

    /// Returns true if the frame has one of the layers in `layer`, bits of [`layer`].
    #[must_use]
    pub fn has_any_layer_of(&self, layer: u32) -> bool {
        self.layers & layer != 0
    }

    /// Returns true if the destination is a group address: IEEE 802, 8.2.
    #[must_use]
    pub fn is_multicast(&self) -> bool {
        self.parsed_field_values[0] & 1 != 0
    }

    /// Returns the one's complement sum of a TCP segment or UDP datagram with its pseudo header: RFC 9293, 3.1; RFC 768.
    fn transport_ones_complement_sum(&self, segment: &[u8]) -> Sum16BitWords {
        let length = u32::try_from(segment.len()).unwrap_or(u32::MAX);
        let sum = Sum16BitWords::new()
            .add_slice(self.field(field::SRC_IP))
            .add_slice(self.field(field::DST_IP))
            .add_2bytes([0, self.parsed_field_values[field::PROTOCOL.start]]);
        // The length is added as two 16-bit halves; for IPv4 the upper half is 0.
        let [a, b, c, d] = length.to_be_bytes();
        sum.add_2bytes([a, b]).add_2bytes([c, d]).add_slice(segment)
    }

    /// Returns true if the checksums of an IPv4 header and its TCP or UDP header are correct. mlx5 devices report this
    /// as `IBV_WC_IP_CSUM_OK`.
    #[must_use]
    pub fn checksums_are_right(&self, frame: &[u8]) -> bool {
        let (Some(ip), Some(transport)) = (&self.ipv4, &self.transport_range) else {
            return false;
        };
        let segment = &frame[transport.clone()];
        // "An all zero transmitted checksum value means that the transmitter generated no checksum": RFC 768.
        let none = self.has_any_layer_of(layer::UDP) && segment[UDP_CHECKSUM_RANGE] == [0, 0];
        let header = Sum16BitWords::new().add_slice(&frame[ip.clone()]);
        header.ones_complement() == 0
            && (none
                || self
                    .transport_ones_complement_sum(segment)
                    .ones_complement()
                    == 0)
    }

    /// Computes the checksums of IPv4, TCP and UDP headers: `IBV_SEND_IP_CSUM`.
    pub fn fill_in_checksums(&self, frame: &mut [u8]) {
        if let Some(ip) = &self.ipv4 {
            let header = &mut frame[ip.clone()];
            header[IPV4_CHECKSUM_RANGE].fill(0);
            let sum = Sum16BitWords::new().add_slice(header).ones_complement();
            header[IPV4_CHECKSUM_RANGE].copy_from_slice(&sum.to_ne_bytes());
        }
        if let Some(transport) = &self.transport_range {
            let segment = &mut frame[transport.clone()];
            let udp = self.has_any_layer_of(layer::UDP);
            let at = if udp {
                UDP_CHECKSUM_RANGE
            } else {
                TCP_CHECKSUM_RANGE
            };
            segment[at.clone()].fill(0);
            let sum = self.transport_ones_complement_sum(segment);
            let sum = if udp {
                sum.to_ones_complement_with_no_zero()
            } else {
                sum.ones_complement()
            };
            segment[at].copy_from_slice(&sum.to_ne_bytes());
        }
    }
}

/// Positions of the checksums: RFC 791, 3.1; RFC 768; RFC 9293, 3.1.
const IPV4_CHECKSUM_RANGE: Range<usize> = 10..12;
const UDP_CHECKSUM_RANGE: Range<usize> = 6..8;
const TCP_CHECKSUM_RANGE: Range<usize> = 16..18;

/// Returns the position in `whole` of its slice `part`.
fn range_within(whole: &[u8], part: &[u8]) -> Range<usize> {
    let start = part.as_ptr().addr() - whole.as_ptr().addr();
    start..start + part.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{PacketBuilder, VlanId};
    use proptest::prelude::*;

    const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const B: [u8; 6] = [1, 0, 0, 0, 0, 2];

    fn udp4(payload: &[u8]) -> Vec<u8> {
        let builder = PacketBuilder::ethernet2(A, B)
            .ipv4([1, 1, 1, 1], [2, 2, 2, 2], 64)
            .udp(1234, 5678);
        let mut frame = Vec::new();
        builder.write(&mut frame, payload).unwrap();
        frame
    }

    #[test]
    fn each_field_lies_where_it_is_said_to() {
        let headers = FrameHeaders::parse(&udp4(b"hello")).unwrap();
        assert_eq!(headers.layers, layer::IPV4 | layer::UDP);
        assert_eq!(headers.field(field::DST_MAC), B);
        assert_eq!(headers.field(field::SRC_MAC), A);
        assert_eq!(headers.field(field::ETHER_TYPE), [8, 0]);
        assert_eq!(headers.field(field::SRC_IP)[..4], [1, 1, 1, 1]);
        assert_eq!(headers.field(field::DST_IP)[..4], [2, 2, 2, 2]);
        assert_eq!(headers.field(field::PROTOCOL), [17]);
        assert_eq!(headers.field(field::HOP_LIMIT), [64]);
        assert_eq!(headers.field(field::IP_FLAGS), [DONT_FRAGMENT]);
        assert_eq!(headers.field(field::SRC_PORT), 1234u16.to_be_bytes());
        assert_eq!(headers.field(field::DST_PORT), 5678u16.to_be_bytes());
        assert!(headers.is_multicast());
    }

    #[test]
    fn ipv6_behind_a_vlan_tag() {
        let builder = PacketBuilder::ethernet2(A, A)
            .single_vlan(VlanId::try_new(0xc0c).unwrap())
            .ipv6([0xa0; 16], [0xb0; 16], 9)
            .tcp(1, 2, 3, 4);
        let mut frame = Vec::new();
        builder.write(&mut frame, b"x").unwrap();
        let headers = FrameHeaders::parse(&frame).unwrap();
        assert_eq!(headers.layers, layer::VLAN | layer::IPV6 | layer::TCP);
        assert_eq!(headers.field(field::VLAN_TAG), [0x0c, 0x0c]);
        assert_eq!(headers.field(field::ETHER_TYPE), [0x86, 0xdd]);
        assert_eq!(headers.field(field::SRC_IP), [0xa0; 16]);
        assert_eq!(headers.field(field::DST_IP), [0xb0; 16]);
        assert_eq!(headers.field(field::PROTOCOL), [6]);
        assert_eq!(headers.field(field::HOP_LIMIT), [9]);
        assert!(!headers.is_multicast());
    }

    #[test]
    fn checksums_are_checked_and_filled_in() {
        let whole = udp4(b"some payload");
        let headers = FrameHeaders::parse(&whole).unwrap();
        assert!(headers.checksums_are_right(&whole));
        for at in [14 + 10, 14 + 20 + 6, 14 + 20 + 8] {
            let mut wrong = whole.clone();
            wrong[at] ^= 0x55;
            assert!(!headers.checksums_are_right(&wrong), "byte {at}");
            if at != 14 + 20 + 8 {
                headers.fill_in_checksums(&mut wrong);
                assert_eq!(wrong, whole, "byte {at}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_have_headers_or_none(frame in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut frame = frame;
            if let Some(headers) = FrameHeaders::parse(&frame) {
                let _ = headers.checksums_are_right(&frame);
                headers.fill_in_checksums(&mut frame);
            }
        }

        #[test]
        fn any_damage_to_a_frame_is_survived(
            payload in prop::collection::vec(any::<u8>(), 0..64),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut frame = udp4(&payload);
            for (at, byte) in damage {
                let at = at.index(frame.len());
                frame[at] = byte;
            }
            frame.truncate(cut.index(frame.len()));
            if let Some(headers) = FrameHeaders::parse(&frame) {
                headers.fill_in_checksums(&mut frame);
                // The new checksums change no layer of the frame.
                let again = FrameHeaders::parse(&frame).map(|h| h.layers);
                prop_assert_eq!(again, Some(headers.layers));
            }
        }
    }
}
