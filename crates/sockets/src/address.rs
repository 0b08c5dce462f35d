//! The local and the remote address of a socket.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::{sockaddr_storage, socklen_t};

/// Returns the local and the peer's address of a connected socket.
pub(crate) fn socket_addresses(fd: c_int) -> Option<(SocketAddr, SocketAddr)> {
    Some((
        call_for_address(fd, libc::getsockname)?,
        call_for_address(fd, libc::getpeername)?,
    ))
}

/// Returns true if the addresses show that the peer is on this host.
pub(crate) fn is_this_host(own: SocketAddr, peer: SocketAddr) -> bool {
    peer.ip().is_loopback() || own.ip() == peer.ip()
}

type AddressCall = unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut socklen_t) -> c_int;

fn call_for_address(fd: c_int, ask: AddressCall) -> Option<SocketAddr> {
    // SAFETY: any bytes are a valid value.
    let mut raw: sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = socklen_t::try_from(size_of::<sockaddr_storage>()).ok()?;
    // SAFETY: room for any address.
    if unsafe { ask(fd, (&raw mut raw).cast(), &raw mut len) } != 0 {
        return None;
    }
    match c_int::from(raw.ss_family) {
        libc::AF_INET => {
            // SAFETY: the address family determines the structure.
            let v4 = unsafe { &*(&raw const raw).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*(&raw const raw).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            // The peer of a dual-stack socket may have an IPv4-mapped address.
            let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
            Some(SocketAddr::new(ip, u16::from_be(v6.sin6_port)))
        }
        _ => None,
    }
}
