//! The 40 bytes in front of a UD payload: a GRH (IBTA vol. 1, 8.3) or an IP header (annex A17).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::EINVAL;
use verbs_abi::ibv_global_route;

use super::link_layer::LinkLayer;

/// Offset of the IPv4 header in the 40 bytes: annex A17, and `ibv_init_ah_from_wc` reads it there.
const IPV4_HEADER_OFFSET: usize = 20;
/// Version 4, five 32-bit words: RFC 791, 3.1, without options (annex A17).
const IPV4_VERSION_IHL: u8 = 0x45;
/// Bytes of an IPv4 header without options.
const IPV4_HEADER_BYTES: u16 = 20;
/// Bytes of a UDP header: RFC 768.
const UDP_HEADER_BYTES: u16 = 8;
/// UDP in an IP header: IANA's protocol numbers.
const NEXT_HEADER_UDP: u8 = 17;
/// The IBA transport in a GRH: IBTA vol. 1, 8.3 (NxtHdr).
const NEXT_HEADER_IBA: u8 = 0x1b;
/// The 20 bits of a flow label: IBTA vol. 1, 8.3; RFC 8200, 3.
pub(super) const FLOW_LABEL_MASK: u32 = 0xf_ffff;

/// Returns the time to live on the wire. IP sends nothing with 0. The kernel replaces the program's value by that of
/// the route, 64 by default (`ib_resolve_unicast_gid_dmac`; `net.ipv4.ip_default_ttl`).
fn hop_limit_or_default(hop_limit: u8) -> u8 {
    if hop_limit == 0 { 64 } else { hop_limit }
}

/// Returns the bytes of a UD packet from BTH to ICRC, as lengths count it, for a message of `payload_bytes`. A UD
/// message is one packet, so at most the MTU.
///
/// BTH 12, DETH 8, ImmDt 4 if there is an immediate, the payload padded to 4, ICRC 4: IBTA vol. 1, 5.2 and 9.2. A
/// length of more than 16 bits becomes 65535; no MTU lets it happen.
pub(crate) fn ud_packet_bytes_from_bth_to_icrc(payload_bytes: u16, imm: bool) -> u16 {
    let headers = 12 + 8 + if imm { 4 } else { 0 };
    let bytes = headers + u32::from(payload_bytes).next_multiple_of(4) + 4;
    u16::try_from(bytes).unwrap_or(u16::MAX)
}

/// Enters the length of the packet: `bytes` from BTH to ICRC, see [`ud_packet_bytes_from_bth_to_icrc`].
///
/// A GRH's PayLen is exactly that (IBTA vol. 1, 8.3). An IPv6 payload length adds the UDP header, an IPv4
/// total length also its own 20 bytes; the IPv4 checksum follows.
pub(crate) fn set_grh_length(grh: &mut [u8; 40], bytes: u16) {
    match header_version(grh) {
        Some(IpHeaderVersion::V6) => {
            let udp = if grh[6] == NEXT_HEADER_UDP {
                UDP_HEADER_BYTES
            } else {
                0
            };
            grh[4..6].copy_from_slice(&bytes.saturating_add(udp).to_be_bytes());
        }
        Some(IpHeaderVersion::V4) => {
            let ip = &mut grh[IPV4_HEADER_OFFSET..];
            ip[2..4].copy_from_slice(
                &bytes
                    .saturating_add(IPV4_HEADER_BYTES + UDP_HEADER_BYTES)
                    .to_be_bytes(),
            );
            ip[10..12].fill(0);
            let checksum = !ones_complement_sum(ip);
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        None => {}
    }
}

/// The kind of header that the 40 bytes hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IpHeaderVersion {
    /// IPv4, in the last 20 bytes.
    V4,
    /// IPv6 or a GRH, which has the same layout (IBTA vol. 1, 8.3).
    V6,
}

/// Returns the kind of header that the 40 bytes hold; `None` if neither.
///
/// Follows `get_grh_header_version` of rdma-core's `libibverbs/verbs.c`. The bytes in front of an IPv4 header are
/// undefined and may look like version 6. So an IPv4 header with a right checksum takes precedence. rdma-core does not
/// check the version nibble in that case. Here it must be 4, which no IPv4 header fails and fewer IPv6 addresses pass.
pub(super) fn header_version(grh: &[u8; 40]) -> Option<IpHeaderVersion> {
    let ip = &grh[IPV4_HEADER_OFFSET..];
    if grh[0] >> 4 != 6 {
        return (ip[0] >> 4 == 4).then_some(IpHeaderVersion::V4);
    }
    // The sum over a header with a right checksum in it is all ones: RFC 1071, 1.
    if ip[0] == IPV4_VERSION_IHL && ones_complement_sum(ip) == 0xffff {
        Some(IpHeaderVersion::V4)
    } else {
        Some(IpHeaderVersion::V6)
    }
}

/// Returns the one's complement sum of big-endian 16-bit words: RFC 1071, 1.
pub(super) fn ones_complement_sum(bytes: &[u8]) -> u16 {
    bytes.as_chunks::<2>().0.iter().fold(0, |sum: u16, &word| {
        let (sum, carry) = sum.overflowing_add(u16::from_be_bytes(word));
        sum + u16::from(carry)
    })
}

/// Returns the GID of an address: an IPv6 address as it is, an IPv4 address as ::ffff:a.b.c.d (annex A17; RFC 4291,
/// 2.5.5.2).
pub(super) fn gid_of_ip(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Returns the IPv4 address in a GID, if the GID is one.
pub(super) fn mapped_ipv4(gid: [u8; 16]) -> Option<[u8; 4]> {
    Ipv6Addr::from(gid).to_ipv4_mapped().map(|ip| ip.octets())
}

/// Returns the header of a datagram from `sgid` by `route`, see
/// [`Port::grh_at_receiver`](super::Port::grh_at_receiver).
pub(super) fn datagram_grh(
    link_layer: LinkLayer,
    sgid: [u8; 16],
    route: &ibv_global_route,
) -> [u8; 40] {
    let dgid = route.dgid.bytes();
    let mut grh = [0; 40];
    if link_layer == LinkLayer::Ethernet
        && let (Some(source), Some(destination)) = (mapped_ipv4(sgid), mapped_ipv4(dgid))
    {
        let ip = &mut grh[IPV4_HEADER_OFFSET..];
        ip[0] = IPV4_VERSION_IHL;
        ip[1] = route.traffic_class;
        // Don't fragment: annex A17. The identification stays 0 (RFC 6864, 4.1).
        ip[6] = 0x40;
        ip[8] = hop_limit_or_default(route.hop_limit);
        ip[9] = NEXT_HEADER_UDP;
        ip[12..16].copy_from_slice(&source);
        ip[16..20].copy_from_slice(&destination);
        set_grh_length(&mut grh, 0);
        return grh;
    }
    let word =
        6 << 28 | u32::from(route.traffic_class) << 20 | (route.flow_label & FLOW_LABEL_MASK);
    grh[0..4].copy_from_slice(&word.to_be_bytes());
    (grh[6], grh[7]) = match link_layer {
        LinkLayer::Ethernet => (NEXT_HEADER_UDP, hop_limit_or_default(route.hop_limit)),
        LinkLayer::InfiniBand => (NEXT_HEADER_IBA, route.hop_limit),
    };
    grh[8..24].copy_from_slice(&sgid);
    grh[24..40].copy_from_slice(&dgid);
    set_grh_length(&mut grh, 0);
    grh
}

/// Source and destination of a datagram, as the 40 bytes in front of its payload give them.
pub(super) struct ParsedGrh {
    pub(super) link_layer: LinkLayer,
    pub(super) source: [u8; 16],
    pub(super) destination: [u8; 16],
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
}

impl ParsedGrh {
    /// Reads the 40 bytes in front of a payload.
    ///
    /// # Errors
    /// - `EINVAL`: the destination is a multicast address.
    /// - `EPROTONOSUPPORT`: the 40 bytes are neither an IPv4 header, an IPv6 header with UDP, nor a GRH.
    pub(super) fn parse(grh: &[u8; 40]) -> Result<Self, i32> {
        match header_version(grh).ok_or(libc::EPROTONOSUPPORT)? {
            IpHeaderVersion::V4 => {
                let ip = &grh[IPV4_HEADER_OFFSET..];
                let source = Ipv4Addr::new(ip[12], ip[13], ip[14], ip[15]);
                let destination = Ipv4Addr::new(ip[16], ip[17], ip[18], ip[19]);
                if destination.is_multicast() {
                    return Err(EINVAL);
                }
                Ok(Self {
                    link_layer: LinkLayer::Ethernet,
                    source: gid_of_ip(source.into()),
                    destination: gid_of_ip(destination.into()),
                    traffic_class: ip[1],
                    hop_limit: ip[8],
                })
            }
            IpHeaderVersion::V6 => {
                let (mut source, mut destination) = ([0; 16], [0; 16]);
                source.copy_from_slice(&grh[8..24]);
                destination.copy_from_slice(&grh[24..40]);
                // Multicast GIDs start with 0xff: IBTA vol. 1, 4.1.1.
                if destination[0] == 0xff {
                    return Err(EINVAL);
                }
                Ok(Self {
                    link_layer: match grh[6] {
                        NEXT_HEADER_UDP => LinkLayer::Ethernet,
                        NEXT_HEADER_IBA => LinkLayer::InfiniBand,
                        _ => return Err(libc::EPROTONOSUPPORT),
                    },
                    source,
                    destination,
                    // Bits 20 to 27 of the first word.
                    traffic_class: grh[0] << 4 | grh[1] >> 4,
                    hop_limit: grh[7],
                })
            }
        }
    }
}
