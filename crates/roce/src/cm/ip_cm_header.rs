//! The RDMA IP CM service: IP addresses in front of the private data of REQ and SIDR_REQ (IBTA vol. 1, annex A11).

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::icrc::IpAddressPair;

/// Bytes of the header in front of the consumer's private data.
pub const IP_CM_HEADER_BYTES: usize = 36;

/// A port space of `rdma_cm`, as encoded in service ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortSpace {
    /// `RDMA_PS_IPOIB`.
    Ipoib,
    /// `RDMA_PS_TCP`.
    Tcp,
    /// `RDMA_PS_UDP`.
    Udp,
    /// `RDMA_PS_IB`.
    Ib,
}

impl PortSpace {
    pub(super) const ALL: [Self; 4] = [Self::Ipoib, Self::Tcp, Self::Udp, Self::Ib];

    /// Returns the value of `enum rdma_port_space`.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::Ipoib => 0x0002,
            Self::Tcp => 0x0106,
            Self::Udp => 0x0111,
            Self::Ib => 0x013f,
        }
    }

    /// Returns the service id of a port.
    #[must_use]
    pub fn service_id(self, port: u16) -> u64 {
        u64::from(self.number()) << 16 | u64::from(port)
    }

    /// Returns port space and port of a service id; `None` if the service id belongs to no port space.
    #[must_use]
    pub fn split_service_id(service_id: u64) -> Option<(Self, u16)> {
        let [0, 0, 0, 0, s0, s1, p0, p1] = service_id.to_be_bytes() else {
            return None;
        };
        let number = u16::from_be_bytes([s0, s1]);
        let space = Self::ALL
            .into_iter()
            .find(|space| space.number() == number)?;
        Some((space, u16::from_be_bytes([p0, p1])))
    }
}

/// The IP addresses and the source port of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpCmHeader {
    /// Addresses of the sender and the receiver of the request.
    pub addresses: IpAddressPair,
    /// Source port of the sender.
    pub src_port: u16,
}

/// The reason why private data has no IP CM header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum IpCmHeaderError {
    /// The private data is shorter than the header.
    #[error("private data is shorter than the header of the IP CM service")]
    Truncated,
    /// The version of the header is not 0.
    #[error("version {0:#04x} of the IP CM service is unknown")]
    Version(u8),
    /// The IP version is neither 4 nor 6.
    #[error("IP version {0} is neither 4 nor 6")]
    IpVersion(u8),
}

impl IpCmHeader {
    /// Parses the header; also returns the consumer's private data, which follows it.
    ///
    /// # Errors
    /// The private data does not begin with a valid header.
    pub fn parse(private_data: &[u8]) -> Result<(Self, &[u8]), IpCmHeaderError> {
        let (header, consumer) = private_data
            .split_first_chunk::<IP_CM_HEADER_BYTES>()
            .ok_or(IpCmHeaderError::Truncated)?;
        let [version, ip, p0, p1, addresses @ ..] = header;
        if *version != 0 {
            return Err(IpCmHeaderError::Version(*version));
        }
        let addresses: &[u8; 32] = addresses;
        let halves = addresses.as_chunks::<16>().0;
        let [src, dst] = *halves else {
            return Err(IpCmHeaderError::Truncated);
        };
        let addresses = match ip >> 4 {
            4 => {
                let [src, dst] = [src, dst].map(|[.., a, b, c, d]| Ipv4Addr::new(a, b, c, d));
                IpAddressPair::V4 { src, dst }
            }
            6 => {
                let [src, dst] = [src, dst].map(Ipv6Addr::from_octets);
                IpAddressPair::V6 { src, dst }
            }
            other => return Err(IpCmHeaderError::IpVersion(other)),
        };
        let src_port = u16::from_be_bytes([*p0, *p1]);
        let header = Self {
            addresses,
            src_port,
        };
        Ok((header, consumer))
    }

    /// Encodes the header, which precedes the consumer's private data.
    #[must_use]
    pub fn emit(&self) -> [u8; IP_CM_HEADER_BYTES] {
        let mut header = [0; IP_CM_HEADER_BYTES];
        header[2..4].copy_from_slice(&self.src_port.to_be_bytes());
        match self.addresses {
            IpAddressPair::V4 { src, dst } => {
                header[1] = 4 << 4;
                header[16..20].copy_from_slice(&src.octets());
                header[32..].copy_from_slice(&dst.octets());
            }
            IpAddressPair::V6 { src, dst } => {
                header[1] = 6 << 4;
                header[4..20].copy_from_slice(&src.octets());
                header[20..].copy_from_slice(&dst.octets());
            }
        }
        header
    }
}
