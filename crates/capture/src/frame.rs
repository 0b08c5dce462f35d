//! Ethernet frames around UDP payload.

use std::net::{IpAddr, SocketAddr};

use etherparse::{IpDscp, IpEcn, IpHeaders, IpNumber, Ipv4Header, Ipv6Header, PacketBuilder};

/// A UDP datagram, as sent or received.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Source address and UDP port.
    pub src: SocketAddr,
    /// Destination address and UDP port.
    pub dst: SocketAddr,
    /// Identification of the IPv4 header, which the ICRC covers; unused for IPv6.
    pub identification: u16,
    /// TOS of IPv4 or traffic class of IPv6, with the ECN bits.
    pub traffic_class: u8,
    /// TTL of IPv4 or hop limit of IPv6.
    pub hop_limit: u8,
    /// The UDP payload: BTH to ICRC.
    pub payload: &'a [u8],
}

/// The reason why a datagram has no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// One address is IPv4 and the other IPv6.
    #[error("source {src} and destination {dst} are addresses of two families")]
    MixedAddressFamilies {
        /// Source.
        src: IpAddr,
        /// Destination.
        dst: IpAddr,
    },
    /// The payload exceeds 65,507 bytes, the maximum of a UDP datagram.
    #[error("{0} bytes do not fit in a UDP datagram")]
    TooLong(usize),
}

/// Returns an Ethernet address for an IP address: locally administered, with the last four bytes of
/// the IP address.
fn ethernet_address(ip: IpAddr) -> [u8; 6] {
    let [a, b, c, d] = match ip {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => {
            let [.., a, b, c, d] = ip.octets();
            [a, b, c, d]
        }
    };
    [2, 0, a, b, c, d]
}

impl Datagram<'_> {
    /// Appends the Ethernet frame of the datagram, with checksums.
    pub(crate) fn append_frame(&self, out: &mut Vec<u8>) -> Result<(), FrameError> {
        let too_long = FrameError::TooLong(self.payload.len());
        let udp_len = u16::try_from(self.payload.len() + 8).map_err(|_| too_long)?;
        let (src, dst) = (self.src.ip().to_canonical(), self.dst.ip().to_canonical());
        let ip = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let (ttl, protocol) = (self.hop_limit, IpNumber::UDP);
                let header = Ipv4Header::new(udp_len, ttl, protocol, src.octets(), dst.octets());
                let mut header = header.map_err(|_| too_long)?;
                // Values of six and two bits always fit.
                header.dscp = IpDscp::try_new(self.traffic_class >> 2).unwrap_or_default();
                header.ecn = IpEcn::try_new(self.traffic_class & 3).unwrap_or_default();
                header.identification = self.identification;
                // RoCEv2 packets are not fragmented, and the ICRC covers the flag.
                header.dont_fragment = true;
                IpHeaders::Ipv4(header, Default::default())
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let header = Ipv6Header {
                    traffic_class: self.traffic_class,
                    payload_length: udp_len,
                    next_header: IpNumber::UDP,
                    hop_limit: self.hop_limit,
                    source: src.octets(),
                    destination: dst.octets(),
                    ..Ipv6Header::default()
                };
                IpHeaders::Ipv6(header, Default::default())
            }
            (src, dst) => return Err(FrameError::MixedAddressFamilies { src, dst }),
        };
        PacketBuilder::ethernet2(ethernet_address(src), ethernet_address(dst))
            .ip(ip)
            .udp(self.src.port(), self.dst.port())
            .write(out, self.payload)
            .map_err(|_| too_long)
    }
}
