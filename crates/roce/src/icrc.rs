//! The invariant CRC of a RoCEv2 frame (IBTA annex A17.3.3).
//!
//! The ICRC covers the IP header, the UDP header and everything from the BTH through the pad. Fields that routers
//! change count as ones. With IPv4 these are TOS, TTL and header checksum. With IPv6 they are traffic class, flow label
//! and hop limit. With both they are the UDP checksum, and the byte of the BTH in front of the destination queue pair.
//! IPv4 identification and flags are covered.
//!
//! A receiver on a UDP socket does not see the IPv4 identification. CRCs are affine, so
//! [`recover_identification_if_icrc_valid`] computes the only identification with which the ICRC is right. The cost:
//! because the identification is free, a check misses 2^-16 of the corrupted packets instead of 2^-32. A caller that
//! knows the identification that a peer sends compares the result with it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use crc32fast::Hasher;

/// Bytes of an ICRC on the wire.
pub const ICRC_BYTES: usize = 4;

/// CRC-32 of eight bytes of ones, in place of the local route header, which RoCEv2 does not have.
const CRC_OF_LRH: u32 = 0x2144_df1c;
/// Bytes of an IPv4 header without options.
const IPV4_HEADER_BYTES: u16 = 20;
const UDP_HEADER_BYTES: u16 = 8;
/// Protocol number of UDP.
const PROTOCOL_UDP: u8 = 17;
/// Flags of the IPv4 header: don't fragment.
const DONT_FRAGMENT: [u8; 2] = [0x40, 0];
/// Index of the BTH byte with FECN and BECN, which counts as ones.
const MASKED_BTH_BYTE_INDEX: usize = 4;

/// Source and destination address of a frame, both IPv4 or both IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpAddressPair {
    /// IPv4.
    V4 {
        /// Source address.
        src: Ipv4Addr,
        /// Destination address.
        dst: Ipv4Addr,
    },
    /// IPv6.
    V6 {
        /// Source address.
        src: Ipv6Addr,
        /// Destination address.
        dst: Ipv6Addr,
    },
}

impl IpAddressPair {
    /// Pairs source and destination; `None` if one is IPv4 and the other IPv6. IPv4-mapped IPv6 addresses count as
    /// IPv4.
    #[must_use]
    pub fn new(src: IpAddr, dst: IpAddr) -> Option<Self> {
        match (src.to_canonical(), dst.to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Self::V4 { src, dst }),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Self::V6 { src, dst }),
            _ => None,
        }
    }

    /// Returns the source address.
    #[must_use]
    pub const fn src(&self) -> IpAddr {
        match *self {
            Self::V4 { src, .. } => IpAddr::V4(src),
            Self::V6 { src, .. } => IpAddr::V6(src),
        }
    }

    /// Returns the destination address.
    #[must_use]
    pub const fn dst(&self) -> IpAddr {
        match *self {
            Self::V4 { dst, .. } => IpAddr::V4(dst),
            Self::V6 { dst, .. } => IpAddr::V6(dst),
        }
    }
}

/// The fields of the IP and UDP headers that the ICRC covers. The IPv4 header has no options, and DF is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IcrcFields {
    /// IP addresses.
    pub addresses: IpAddressPair,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
    /// Identification of the IPv4 header; unused with IPv6.
    pub identification: u16,
}

impl IcrcFields {
    /// Returns the frame of segment `k` of a UDP GSO send whose first segment has this frame. The kernel increments the
    /// identification with each segment.
    #[must_use]
    pub const fn for_gso_segment(self, k: u16) -> Self {
        Self {
            identification: self.identification.wrapping_add(k),
            ..self
        }
    }

    /// Returns the masked headers in front of the BTH, and their length, for `transport_len` bytes from the BTH through
    /// the pad.
    fn masked_headers(&self, transport_len: usize) -> ([u8; 48], usize) {
        // Length fields have 16 bits; longer packets cannot be sent.
        let transport_len = u16::try_from(transport_len).unwrap_or(u16::MAX);
        let udp_len = transport_len.saturating_add(UDP_HEADER_BYTES + 4);
        let mut bytes = [0xff; 48];
        let ip_len = match self.addresses {
            IpAddressPair::V4 { src, dst } => {
                bytes[0] = 0x45;
                bytes[2..4]
                    .copy_from_slice(&udp_len.saturating_add(IPV4_HEADER_BYTES).to_be_bytes());
                bytes[4..6].copy_from_slice(&self.identification.to_be_bytes());
                bytes[6..8].copy_from_slice(&DONT_FRAGMENT);
                bytes[9] = PROTOCOL_UDP;
                bytes[12..16].copy_from_slice(&src.octets());
                bytes[16..20].copy_from_slice(&dst.octets());
                20
            }
            IpAddressPair::V6 { src, dst } => {
                // The masked traffic class leaves only the version in the first byte.
                bytes[0] = 0x6f;
                bytes[4..6].copy_from_slice(&udp_len.to_be_bytes());
                bytes[6] = PROTOCOL_UDP;
                bytes[8..24].copy_from_slice(&src.octets());
                bytes[24..40].copy_from_slice(&dst.octets());
                40
            }
        };
        let udp = &mut bytes[ip_len..ip_len + 6];
        udp[..2].copy_from_slice(&self.src_port.to_be_bytes());
        udp[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        udp[4..].copy_from_slice(&udp_len.to_be_bytes());
        (bytes, ip_len + usize::from(UDP_HEADER_BYTES))
    }
}

/// Computes the ICRC of a frame whose bytes from the BTH through the pad are `transport`. Its least significant byte is
/// sent first.
#[must_use]
pub fn icrc(frame: &IcrcFields, transport: &[u8]) -> u32 {
    let (mut head, headers_len) = frame.masked_headers(transport.len());
    // Calls the hasher once for the bytes in front of the masked byte and once for the rest.
    let front_len = transport.len().min(MASKED_BTH_BYTE_INDEX);
    let (front, rest) = transport.split_at(front_len);
    let mut hasher = Hasher::new_with_initial(CRC_OF_LRH);
    if headers_len + front_len < head.len() {
        head[headers_len..headers_len + front_len].copy_from_slice(front);
        // The bytes of `head` that follow are ones, as the masked byte must be.
        let masked = usize::from(!rest.is_empty());
        hasher.update(&head[..headers_len + front_len + masked]);
    } else {
        hasher.update(&head[..headers_len]);
        hasher.update(front);
        hasher.update(&[0xff][..usize::from(!rest.is_empty())]);
    }
    hasher.update(rest.get(1..).unwrap_or_default());
    hasher.finalize()
}

/// Computes the ICRC of the bytes of `out` from `start` on, and appends it.
///
/// # Panics
/// `start` is past the end of `out`.
pub fn append_icrc(frame: &IcrcFields, out: &mut Vec<u8>, start: usize) {
    let icrc = icrc(frame, &out[start..]);
    out.extend_from_slice(&icrc.to_le_bytes());
}

/// Splits a UDP datagram into the transport bytes and the ICRC; `None` if it is too short for an ICRC.
#[must_use]
pub fn split_off_icrc(datagram: &[u8]) -> Option<(&[u8], u32)> {
    let (transport, icrc) = datagram.split_last_chunk()?;
    Some((transport, u32::from_le_bytes(*icrc)))
}

/// Returns the identification with which `received` is the ICRC of the frame; `None` if the packet is corrupted.
///
/// For IPv4, the result is the frame's own identification or the only other one that yields the ICRC, since sockets do
/// not report it. For IPv6, the result is the frame's field, which has no meaning.
#[must_use]
pub fn recover_identification_if_icrc_valid(
    frame: &IcrcFields,
    transport: &[u8],
    received: u32,
) -> Option<u16> {
    let difference = icrc(frame, transport) ^ received;
    if difference == 0 {
        return Some(frame.identification);
    }
    match frame.addresses {
        IpAddressPair::V4 { .. } => {
            // The bytes from the identification on: the IPv4 header without its first 4 bytes, and all that follows.
            let behind = usize::from(IPV4_HEADER_BYTES - 4 + UDP_HEADER_BYTES) + transport.len();
            let at_identification = four_byte_change_causing_crc_difference(difference, behind);
            let changed = u16::try_from(at_identification).ok()?;
            Some(frame.identification ^ changed.swap_bytes())
        }
        IpAddressPair::V6 { .. } => None,
    }
}

/// The polynomial of CRC-32 with the coefficient of x^31 in bit 0, without x^32.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// Length of the factor table: packets with at most this many bytes after the identification use a table entry.
const INVERSE_POWER_COUNT: usize = 4096 + 256;

/// x^-8n modulo the polynomial for n = 0, 1, ... (one entry for each number of bytes n).
static INVERSE_POWERS: LazyLock<Vec<u32>> = LazyLock::new(|| {
    std::iter::successors(Some(POLYNOMIAL_ONE), |factor| Some(divide_by_x8(*factor)))
        .take(INVERSE_POWER_COUNT)
        .collect()
});

/// The polynomial 1: the register holds the coefficient of x^0 in bit 31.
const POLYNOMIAL_ONE: u32 = 1 << 31;

/// Returns the change of four bytes that changes the CRC by `difference`, in the byte order of the CRC register.
/// `bytes` is the number of bytes from the first of the four to the end.
///
/// Each zero byte multiplies the register by x^8, so the function multiplies by x^-8 for each byte.
fn four_byte_change_causing_crc_difference(difference: u32, bytes: usize) -> u32 {
    match INVERSE_POWERS.get(bytes) {
        Some(factor) => multiply_modulo_polynomial(difference, *factor),
        None => (0..bytes).fold(difference, |value, _| divide_by_x8(value)),
    }
}

/// Returns `value` times x^-8.
fn divide_by_x8(value: u32) -> u32 {
    (0..8).fold(value, |value, _| {
        // Inverts one step of the CRC. The polynomial contains the term 1, so bit 31 tells if the step added the
        // polynomial.
        if value >> 31 == 0 {
            value << 1
        } else {
            (value ^ POLYNOMIAL) << 1 | 1
        }
    })
}

/// Returns the product of two polynomials modulo the CRC polynomial.
fn multiply_modulo_polynomial(left: u32, right: u32) -> u32 {
    let mut power = right;
    (0..32).fold(0, |product, degree| {
        let product = product ^ power & 0u32.wrapping_sub(left >> (31 - degree) & 1);
        power = power >> 1 ^ POLYNOMIAL & 0u32.wrapping_sub(power & 1);
        product
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(v6: bool, identification: u16) -> IcrcFields {
        let addresses = if v6 {
            IpAddressPair::V6 {
                src: Ipv6Addr::LOCALHOST,
                dst: Ipv6Addr::LOCALHOST,
            }
        } else {
            IpAddressPair::V4 {
                src: Ipv4Addr::new(10, 0, 0, 1),
                dst: Ipv4Addr::new(10, 0, 0, 2),
            }
        };
        IcrcFields {
            addresses,
            src_port: 0xc123,
            dst_port: 4791,
            identification,
        }
    }

    proptest! {
        #[test]
        fn any_identification_is_found(
            transport in proptest::collection::vec(any::<u8>(), 0..5000),
            sent: u16,
            guessed: u16,
        ) {
            let icrc = icrc(&frame(false, sent), &transport);
            prop_assert_eq!(recover_identification_if_icrc_valid(&frame(false, guessed), &transport, icrc), Some(sent));
        }

        #[test]
        fn corruption_never_passes_as_the_same_identification(
            mut transport in proptest::collection::vec(any::<u8>(), 12..300),
            at: prop::sample::Index,
            flip in 1u8..,
            v6: bool,
        ) {
            let frame = frame(v6, 0);
            let icrc = icrc(&frame, &transport);
            let at = at.index(transport.len());
            transport[at] ^= flip;
            let found = recover_identification_if_icrc_valid(&frame, &transport, icrc);
            if at == MASKED_BTH_BYTE_INDEX {
                prop_assert_eq!(found, Some(0));
            } else if v6 {
                prop_assert_eq!(found, None);
            } else {
                prop_assert_ne!(found, Some(0));
            }
        }

        #[test]
        fn any_bytes_have_an_icrc(
            transport in proptest::collection::vec(any::<u8>(), 0..20),
            received: u32,
            v6: bool,
        ) {
            let frame = frame(v6, 5);
            let expected = icrc(&frame, &transport);
            if let Some(identification) = recover_identification_if_icrc_valid(&frame, &transport, received) {
                let explained = IcrcFields { identification, ..frame };
                prop_assert_eq!(icrc(&explained, &transport), received);
            } else {
                prop_assert_ne!(expected, received);
            }
        }
    }

    #[test]
    fn the_start_is_the_crc_of_eight_bytes_of_ones() {
        assert_eq!(crc32fast::hash(&[0xff; 8]), CRC_OF_LRH);
    }

    #[test]
    fn the_longest_datagram_has_an_icrc() {
        let transport = vec![1; 70_000];
        let icrc = icrc(&frame(false, 9), &transport);
        assert_eq!(
            recover_identification_if_icrc_valid(&frame(false, 0), &transport, icrc),
            Some(9)
        );
    }
}
