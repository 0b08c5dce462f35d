//! Socket addresses in the kernel's format.

use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A `sockaddr` of IPv4 or IPv6.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union RawAddress {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl RawAddress {
    /// An address without a family.
    pub(crate) const NONE: RawAddress = RawAddress {
        // SAFETY: `sockaddr_in6` has only integers and arrays of them, for which zero bytes are valid.
        v6: unsafe { MaybeUninit::zeroed().assume_init() },
    };

    /// Converts an address; returns the structure and its length.
    pub(crate) fn new(address: &SocketAddr) -> (RawAddress, libc::socklen_t) {
        let mut raw = RawAddress::NONE;
        let len = match address {
            SocketAddr::V4(address) => {
                raw.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(address.ip().octets()),
                    },
                    sin_zero: [0; 8],
                };
                size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(address) => {
                raw.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr {
                        s6_addr: address.ip().octets(),
                    },
                    sin6_scope_id: address.scope_id(),
                };
                size_of::<libc::sockaddr_in6>()
            }
        };
        (raw, len as libc::socklen_t)
    }

    /// Returns the IP address and the port, or `None` for other families.
    pub(crate) fn ip_and_port(&self) -> Option<(IpAddr, u16)> {
        // SAFETY: all bytes of a `RawAddress` are initialised (`NONE` writes the largest variant), and every variant
        // has only integers, for which all bytes are valid.
        let (family, v4, v6) = unsafe { (self.family, self.v4, self.v6) };
        match i32::from(family) {
            libc::AF_INET => {
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Some((ip.into(), u16::from_be(v4.sin_port)))
            }
            libc::AF_INET6 => {
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                Some((ip.into(), u16::from_be(v6.sin6_port)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_were() {
        for text in ["127.0.0.3:4791", "[fd00::7]:4792"] {
            let address: SocketAddr = text.parse().unwrap();
            let (raw, _) = RawAddress::new(&address);
            assert_eq!(raw.ip_and_port(), Some((address.ip(), address.port())));
        }
        assert_eq!(RawAddress::NONE.ip_and_port(), None);
    }
}
