//! Addresses: conversion between C and Rust, and lookup of this host's addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::{io, ptr};

use rustix::net::sockopt;

use libc::{
    AF_INET, AF_INET6, c_int, in_addr, in6_addr, sockaddr, sockaddr_in, sockaddr_in6,
    sockaddr_storage, socklen_t,
};
use verbs_abi::{AF_IB, rdma_port_space, sockaddr_ib};

use crate::errno::{Errno, Result};
use crate::ib_addr::IbAddr;

/// The address of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdAddress {
    /// An address of IPv4 or IPv6.
    Ip(SocketAddr),
    /// An address of `AF_IB`: a GID and a service id.
    Ib(IbAddr),
}

impl From<SocketAddr> for IdAddress {
    fn from(addr: SocketAddr) -> Self {
        Self::Ip(addr)
    }
}

impl From<IpAddr> for IdAddress {
    fn from(ip: IpAddr) -> Self {
        Self::Ip(SocketAddr::new(ip, 0))
    }
}

impl IdAddress {
    /// The address of an id that is not bound yet.
    pub const UNBOUND: Self = Self::Ip(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0));

    /// Returns the IP address.
    ///
    /// # Errors
    /// `EAFNOSUPPORT` if the address is not an IP address.
    pub fn ip_socket_addr(self) -> Result<SocketAddr> {
        match self {
            Self::Ip(addr) => Ok(addr),
            Self::Ib(_) => Err(Errno(libc::EAFNOSUPPORT)),
        }
    }

    /// Returns the port of the address; 0 for any port.
    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Ip(addr) => addr.port(),
            Self::Ib(addr) => addr.port(),
        }
    }

    /// Returns the port that `rdma_get_src_port(3)` and `rdma_get_dst_port(3)` report.
    pub(crate) fn reported_port(&self) -> u16 {
        match self {
            Self::Ip(addr) => addr.port(),
            // The mask is ignored.
            Self::Ib(addr) => addr.service_id as u16,
        }
    }

    /// Returns the address of an id that has got its port.
    pub(crate) fn with_port(self, port: u16) -> Self {
        match self {
            Self::Ip(mut addr) => {
                addr.set_port(port);
                Self::Ip(addr)
            }
            Self::Ib(addr) => Self::Ib(addr.with_port(port)),
        }
    }

    /// Returns port space and port of the service at this address, for an id of `port_space`. Addresses of `AF_IB`
    /// contain their own port space. `None` if their service id does not fit any port space.
    pub(crate) fn port_space_and_port(
        &self,
        port_space: rdma_port_space,
    ) -> Option<(rdma_port_space, u16)> {
        match self {
            Self::Ip(addr) => Some((port_space, addr.port())),
            Self::Ib(addr) => addr.port_space_and_port(),
        }
    }

    /// Returns true for a wildcard address.
    pub(crate) fn is_any(&self) -> bool {
        match self {
            Self::Ip(addr) => addr.ip().is_unspecified(),
            Self::Ib(addr) => addr.is_any(),
        }
    }
}

/// Returns the bytes of an address of that family, or `None` for families that ids do not support.
#[must_use]
pub fn sockaddr_bytes_of_family(family: c_int) -> Option<usize> {
    match family {
        AF_INET => Some(size_of::<sockaddr_in>()),
        AF_INET6 => Some(size_of::<sockaddr_in6>()),
        AF_IB => Some(size_of::<sockaddr_ib>()),
        _ => None,
    }
}

/// Reads an address of IPv4, IPv6 or `AF_IB`; `None` for NULL and for other families.
///
/// # Safety
/// `addr` is NULL or points to an address of the length of its family.
#[must_use]
pub unsafe fn read_sockaddr(addr: *const sockaddr) -> Option<IdAddress> {
    // SAFETY: contract of this function. The pointer is not NULL, so at least the family can be read.
    unsafe {
        if i32::from(addr.as_ref()?.sa_family) == AF_IB {
            let c = addr.cast::<sockaddr_ib>().read_unaligned();
            return Some(IdAddress::Ib(IbAddr::from_c(&c)));
        }
        read_ip_sockaddr(addr).map(IdAddress::Ip)
    }
}

/// Reads an IPv4 or IPv6 address; `None` for NULL and for other families.
///
/// # Safety
/// As for [`read_sockaddr`].
unsafe fn read_ip_sockaddr(addr: *const sockaddr) -> Option<SocketAddr> {
    // SAFETY: the pointer is not NULL, so at least the family can be read, and the family determines the length.
    unsafe {
        match i32::from(addr.as_ref()?.sa_family) {
            AF_INET => {
                let a = addr.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(a.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::V4(SocketAddrV4::new(
                    ip,
                    u16::from_be(a.sin_port),
                )))
            }
            AF_INET6 => {
                let a = addr.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
                let port = u16::from_be(a.sin6_port);
                Some(SocketAddr::V6(SocketAddrV6::new(
                    ip,
                    port,
                    a.sin6_flowinfo,
                    a.sin6_scope_id,
                )))
            }
            _ => None,
        }
    }
}

/// Converts the address to C; returns the structure and its length.
#[must_use]
pub fn to_sockaddr(addr: IdAddress) -> (sockaddr_storage, socklen_t) {
    match addr {
        IdAddress::Ip(SocketAddr::V4(a)) => to_sockaddr_storage(sockaddr_in {
            sin_family: AF_INET as u16,
            sin_port: a.port().to_be(),
            sin_addr: in_addr {
                s_addr: u32::from_ne_bytes(a.ip().octets()),
            },
            sin_zero: [0; 8],
        }),
        IdAddress::Ip(SocketAddr::V6(a)) => to_sockaddr_storage(sockaddr_in6 {
            sin6_family: AF_INET6 as u16,
            sin6_port: a.port().to_be(),
            sin6_flowinfo: a.flowinfo(),
            sin6_addr: in6_addr {
                s6_addr: a.ip().octets(),
            },
            sin6_scope_id: a.scope_id(),
        }),
        IdAddress::Ib(a) => to_sockaddr_storage(a.to_c()),
    }
}

/// Stores a C address in the type that is large enough for all families.
fn to_sockaddr_storage<T>(addr: T) -> (sockaddr_storage, socklen_t) {
    const {
        assert!(size_of::<T>() <= size_of::<sockaddr_storage>());
        assert!(align_of::<T>() <= align_of::<sockaddr_storage>());
    }
    // SAFETY: the type has only integers, for which zero is valid; it is large and aligned enough (asserted above).
    let storage = unsafe {
        let mut storage: sockaddr_storage = std::mem::zeroed();
        (&raw mut storage).cast::<T>().write(addr);
        storage
    };
    (storage, size_of::<T>() as socklen_t)
}

/// Returns the GID of an IP address.
pub(crate) fn gid_of_ip(ip: IpAddr) -> [u8; 16] {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Returns true if the address belongs to this host: to an interface, or to the loopback network.
///
/// # Errors
/// The error of the system call that reads the interface addresses.
pub(crate) fn is_local(ip: IpAddr) -> io::Result<bool> {
    let ip = ip.to_canonical();
    Ok(ip.is_loopback() || interface_addresses()?.contains(&ip))
}

/// Returns the local address from which the host's routes lead to `dst`.
///
/// # Errors
/// The error of the system call, e.g. if the host has no route to `dst`.
pub(crate) fn source_address_to(dst: SocketAddr) -> io::Result<IpAddr> {
    Ok(udp_socket_connected_to(dst)?.local_addr()?.ip())
}

/// Returns the size of the largest unfragmented IP packet to `dst`, as far as the host knows.
///
/// # Errors
/// As for [`source_address_to`].
pub(crate) fn path_mtu_bytes_to(dst: SocketAddr) -> io::Result<u32> {
    let socket = udp_socket_connected_to(dst)?;
    let mtu = if dst.is_ipv4() {
        sockopt::ip_mtu(&socket)
    } else {
        sockopt::ipv6_mtu(&socket)
    };
    Ok(mtu?)
}

/// Returns a UDP socket connected to `dst`, to ask the kernel for the route. No packet is sent.
fn udp_socket_connected_to(dst: SocketAddr) -> io::Result<UdpSocket> {
    let any = if dst.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    // No packet is sent, so any port other than 0 works.
    socket.connect(with_port(dst, roce::UDP_PORT))?;
    Ok(socket)
}

/// Returns the same address, including its scope, with another port.
fn with_port(mut addr: SocketAddr, port: u16) -> SocketAddr {
    addr.set_port(port);
    addr
}

/// Returns the addresses of the network interfaces.
fn interface_addresses() -> io::Result<Vec<IpAddr>> {
    let mut list = ptr::null_mut();
    // SAFETY: `list` receives the head of the list, which is freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut addresses = Vec::new();
    let mut at: *const libc::ifaddrs = list;
    // SAFETY: the list does not change until it is freed; `ifa_addr` is NULL or an address of its family.
    unsafe {
        while let Some(entry) = at.as_ref() {
            addresses.extend(read_ip_sockaddr(entry.ifa_addr).map(|a| a.ip()));
            at = entry.ifa_next;
        }
        libc::freeifaddrs(list);
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_through_c() {
        for text in [
            "192.0.2.7:0",
            "127.0.0.1:7471",
            "[fe80::1%3]:65535",
            "[::]:1",
        ] {
            let addr: SocketAddr = text.parse().unwrap();
            let (c, len) = to_sockaddr(addr.into());
            // SAFETY: the address is complete.
            let read = unsafe { read_sockaddr((&raw const c).cast()) };
            assert_eq!(read, Some(addr.into()));
            assert_eq!(len, if addr.is_ipv4() { 16 } else { 28 });
        }
        let ib = IdAddress::Ib(IbAddr {
            pkey: 1,
            flowinfo: 2,
            gid: [3; 16],
            service_id: 4,
            service_id_mask: 5,
            scope_id: 6,
        });
        let (c, len) = to_sockaddr(ib);
        // SAFETY: the address is complete.
        assert_eq!(unsafe { read_sockaddr((&raw const c).cast()) }, Some(ib));
        assert_eq!(len, 48);
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { read_sockaddr(ptr::null()) }, None);
        let mut other = to_sockaddr(IdAddress::UNBOUND).0;
        other.ss_family = libc::AF_UNIX as u16;
        // SAFETY: the address is complete.
        assert_eq!(unsafe { read_sockaddr((&raw const other).cast()) }, None);
    }

    #[test]
    fn routes_have_a_source_and_an_mtu() {
        let to = "127.0.0.1:7".parse().unwrap();
        assert!(source_address_to(to).unwrap().is_loopback());
        assert!(path_mtu_bytes_to(to).unwrap() >= 1280);
        assert!(path_mtu_bytes_to("255.255.255.255:7".parse().unwrap()).is_err());
    }

    #[test]
    fn the_loopback_network_is_local_and_the_documentation_network_is_not() {
        assert!(is_local("127.0.0.1".parse().unwrap()).unwrap());
        assert!(is_local("127.9.9.9".parse().unwrap()).unwrap());
        assert!(is_local("::1".parse().unwrap()).unwrap());
        assert!(is_local("::ffff:127.0.0.1".parse().unwrap()).unwrap());
        assert!(!is_local("192.0.2.1".parse().unwrap()).unwrap());
    }
}
