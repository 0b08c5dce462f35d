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

/// How the two ends of a connection find and reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionKind {
    /// Both ends map one page.
    SharedPage,
    /// Each end has its own page.
    BetweenHosts,
    /// The software NIC does not reach the peer.
    Tcp,
}

/// Returns the kind of the connection between these addresses.
pub(crate) fn connection_kind(own: SocketAddr, peer: SocketAddr) -> ConnectionKind {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let path = std::env::var_os("VERBATIM_PATH").unwrap_or_default();
    // The software NIC of a process that captures its packets sends them on one host, too.
    let are_all_packets = path == "packets" || path.is_empty() && is_set("VERBATIM_PCAP");
    connection_kind_with_config(own, peer, are_all_packets, path == "local")
}

fn connection_kind_with_config(
    own: SocketAddr,
    peer: SocketAddr,
    are_all_packets: bool,
    is_local_only: bool,
) -> ConnectionKind {
    let is_this_host = peer.ip().is_loopback() || own.ip() == peer.ip();
    match (is_this_host, are_all_packets, is_local_only) {
        (true, false, _) => ConnectionKind::SharedPage,
        (false, _, true) => ConnectionKind::Tcp,
        _ => ConnectionKind::BetweenHosts,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_on_one_host_are_as_between_hosts() {
        let here = SocketAddr::from(([127, 0, 0, 1], 1));
        let there = SocketAddr::from(([192, 0, 2, 1], 2));
        assert_eq!(
            connection_kind_with_config(here, here, false, false),
            ConnectionKind::SharedPage
        );
        assert_eq!(
            connection_kind_with_config(here, here, false, true),
            ConnectionKind::SharedPage
        );
        assert_eq!(
            connection_kind_with_config(here, here, true, false),
            ConnectionKind::BetweenHosts
        );
        assert_eq!(
            connection_kind_with_config(here, there, false, false),
            ConnectionKind::BetweenHosts
        );
        assert_eq!(
            connection_kind_with_config(here, there, false, true),
            ConnectionKind::Tcp
        );
    }
}
