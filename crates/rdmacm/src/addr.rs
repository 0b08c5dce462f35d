//! Addresses: between C and Rust, and which of them are this host's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::{io, ptr};

use libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

/// Reads an IPv4 or IPv6 address; `None` for NULL and for other families.
///
/// # Safety
/// `addr` is NULL or points to an address that is as long as its family says.
pub(crate) unsafe fn read(addr: *const sockaddr) -> Option<SocketAddr> {
    // SAFETY: not NULL, so at least the family is there; it says how much more is.
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

/// The address as C has it, and its length.
pub(crate) fn to_c(addr: SocketAddr) -> (sockaddr_storage, socklen_t) {
    // SAFETY: plain integers, for which zero is a value.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let at = &raw mut storage;
    let len = match addr {
        SocketAddr::V4(a) => {
            // SAFETY: as above.
            let mut c: sockaddr_in = unsafe { std::mem::zeroed() };
            c.sin_family = AF_INET as u16;
            c.sin_port = a.port().to_be();
            c.sin_addr.s_addr = u32::from_ne_bytes(a.ip().octets());
            // SAFETY: `sockaddr_storage` is large and aligned enough for every address.
            unsafe { at.cast::<sockaddr_in>().write(c) };
            size_of::<sockaddr_in>()
        }
        SocketAddr::V6(a) => {
            // SAFETY: as above.
            let mut c: sockaddr_in6 = unsafe { std::mem::zeroed() };
            c.sin6_family = AF_INET6 as u16;
            c.sin6_port = a.port().to_be();
            c.sin6_addr.s6_addr = a.ip().octets();
            c.sin6_flowinfo = a.flowinfo();
            c.sin6_scope_id = a.scope_id();
            // SAFETY: as above.
            unsafe { at.cast::<sockaddr_in6>().write(c) };
            size_of::<sockaddr_in6>()
        }
    };
    (storage, socklen_t::try_from(len).unwrap_or(0))
}

/// Whether the address is one that this host answers to: of an interface, or of the loopback network.
///
/// # Errors
/// What the system says where its addresses cannot be read.
pub(crate) fn is_local(ip: IpAddr) -> io::Result<bool> {
    let ip = ip.to_canonical();
    Ok(ip.is_loopback() || interface_addresses()?.contains(&ip))
}

/// The addresses of the network interfaces.
fn interface_addresses() -> io::Result<Vec<IpAddr>> {
    let mut list = ptr::null_mut();
    // SAFETY: a place for the head of the list, which is freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut addresses = Vec::new();
    let mut at: *const libc::ifaddrs = list;
    // SAFETY: the list stays as it is until it is freed; `ifa_addr` is NULL or an address of its family.
    unsafe {
        while let Some(entry) = at.as_ref() {
            addresses.extend(read(entry.ifa_addr).map(|a| a.ip()));
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
            let (c, len) = to_c(addr);
            // SAFETY: a whole address.
            let read = unsafe { read((&raw const c).cast()) };
            assert_eq!(read, Some(addr));
            assert_eq!(len, if addr.is_ipv4() { 16 } else { 28 });
        }
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { read(ptr::null()) }, None);
        let mut other = to_c("1.2.3.4:5".parse().unwrap()).0;
        other.ss_family = 27;
        // SAFETY: a whole address.
        assert_eq!(unsafe { read((&raw const other).cast()) }, None);
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
