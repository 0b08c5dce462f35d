//! The addresses of this host's network interfaces.

use std::ffi::{CStr, c_char, c_int};
use std::net::{IpAddr, Ipv4Addr};
use std::{fs, io, ptr};

use super::guid::guid_of_mac;

/// An address of a network interface that is up. Orders by interface, then IPv4 before IPv6.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct InterfaceAddress {
    /// The kernel's number of the interface; `u32::MAX` if it cannot be read.
    pub(super) if_index: u32,
    /// The name of the interface.
    pub(super) if_name: String,
    /// The address.
    pub(super) ip: IpAddr,
}

impl InterfaceAddress {
    /// Returns the kernel's number of the interface; 0 if it cannot be read.
    pub(super) fn kernel_if_index(&self) -> u32 {
        if self.if_index == u32::MAX {
            0
        } else {
            self.if_index
        }
    }
}

/// Returns true if an address names this host to others. Such an address is neither loopback nor unspecified nor
/// multicast. An IPv6 address is also neither link-local (GID 0 is that) nor a mapped IPv4 address.
pub(super) fn is_global(ip: &IpAddr) -> bool {
    let special = ip.is_loopback() || ip.is_unspecified() || ip.is_multicast();
    !special
        && match ip {
            IpAddr::V4(_) => true,
            IpAddr::V6(ip) => !ip.is_unicast_link_local() && ip.to_ipv4_mapped().is_none(),
        }
}

/// The environment variable that chooses the addresses of the port.
pub(super) const ADDRESS_VAR: &str = "VERBATIM_ADDRESS";

/// Returns the addresses that the port was given; `None` if it has those of the host.
pub(crate) fn configured_address_list() -> Option<String> {
    std::env::var_os(ADDRESS_VAR).map(|list| list.to_string_lossy().into_owned())
}

/// Returns the addresses in `list`, the value of [`ADDRESS_VAR`]. `None` if this host does not have one of them. All of
/// 127.0.0.0/8 belong to the interface that has 127.0.0.1.
pub(super) fn addresses_in_list(
    addresses: &[InterfaceAddress],
    list: &str,
) -> Option<Vec<InterfaceAddress>> {
    let find = |text: &str| {
        let ip: IpAddr = text.trim().parse().ok()?;
        let is_loopback = ip.is_ipv4() && ip.is_loopback();
        let of_interface = addresses
            .iter()
            .find(|a| a.ip == ip || is_loopback && a.ip == Ipv4Addr::LOCALHOST)?;
        Some(InterfaceAddress {
            ip,
            ..of_interface.clone()
        })
    };
    list.split(',').map(find).collect()
}

/// Returns true for a link-local IPv6 address.
pub(super) fn is_link_local(ip: &IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Returns those of `addresses` by which others know this host, by interface and IPv4 first, and the link-local ones.
/// Returns 127.0.0.1 if there is no other.
pub(super) fn filter_port_addresses(mut addresses: Vec<InterfaceAddress>) -> Vec<InterfaceAddress> {
    // By kernel index, so that the host's first interface stays in front of bridges made later.
    addresses.sort();
    let known = addresses.iter().any(|a| is_global(&a.ip));
    addresses.retain(|a| {
        if known {
            is_global(&a.ip) || is_link_local(&a.ip)
        } else {
            a.ip == Ipv4Addr::LOCALHOST
        }
    });
    addresses
}

/// Returns name and number of the network interface beside the port: the first one whose addresses the connection
/// manager takes for the port's. On InfiniBand the kernel would have IP over InfiniBand there.
pub(crate) fn first_port_interface() -> Option<(String, u32)> {
    let usable = filter_port_addresses(interface_addresses().ok()?);
    let first = usable.into_iter().find(|a| !is_link_local(&a.ip))?;
    let number = first.kernel_if_index();
    Some((first.if_name, number))
}

/// Returns the addresses of all network interfaces that are up, in the kernel's order.
///
/// Uses `getifaddrs(3)`: /proc/net/fib_trie does not show the interface of an address, and is missing in some
/// containers.
#[allow(unsafe_code)]
pub(super) fn interface_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: `list` is a place for one pointer.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut addresses = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: getifaddrs succeeded, so `next` is an entry of its list, which nobody changes and
        // which is freed only below this loop; the reference does not leave the loop.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        // IFF_UP is bit 0; an interface without an address has NULL: getifaddrs(3).
        if entry.ifa_flags & libc::IFF_UP.cast_unsigned() == 0 || entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: not null (above), so it points to a `sockaddr` of the list; every kind starts with its
        // family, and a `sockaddr_in` or `sockaddr_in6` stands where the family says so. Read
        // unaligned, because only a `sockaddr`'s alignment is promised.
        let ip = unsafe {
            match c_int::from((*entry.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let address = entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                    IpAddr::from(address.sin_addr.s_addr.to_ne_bytes())
                }
                libc::AF_INET6 => {
                    let address = entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                    IpAddr::from(address.sin6_addr.s6_addr)
                }
                _ => continue,
            }
        };
        // SAFETY: the name of an entry is a string that lives as long as the list.
        let if_name = unsafe { CStr::from_ptr(entry.ifa_name.cast::<c_char>()) };
        let if_name = if_name.to_string_lossy().into_owned();
        addresses.push(InterfaceAddress {
            if_index: interface_index(&if_name),
            if_name,
            ip,
        });
    }
    // SAFETY: `list` came from getifaddrs and is freed once; everything kept of it was copied.
    unsafe { libc::freeifaddrs(list) };
    Ok(addresses)
}

/// Returns the GUID that the first interface gives its port, if it has a MAC address.
///
/// Containers of one host, and hosts that are copies of each other, have one machine id. Without IPv6 nothing else in
/// GID 0 would tell them apart.
pub(super) fn guid_of_interface(addresses: &[InterfaceAddress]) -> Option<[u8; 8]> {
    let first = addresses.iter().find(|a| !is_link_local(&a.ip))?;
    let text = read_interface_file(&first.if_name, "address").ok()?;
    guid_of_mac(parse_mac(&text)?)
}

/// Returns the MAC address in the text of an interface's `address`; `None` for addresses of other kinds.
fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let bytes = text
        .trim()
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).ok());
    bytes.collect::<Option<Vec<u8>>>()?.try_into().ok()
}

/// Reads a file of sysfs about an interface.
fn read_interface_file(name: &str, file: &str) -> io::Result<String> {
    // A label (`eth0:1`) belongs to the interface before the colon: ip-address(8).
    let device = name.split(':').next().unwrap_or(name);
    fs::read_to_string(format!("/sys/class/net/{device}/{file}"))
}

/// Returns the kernel's number of an interface; `u32::MAX` if it cannot be read.
fn interface_index(name: &str) -> u32 {
    read_interface_file(name, "ifindex")
        .ok()
        .and_then(|index| index.trim().parse().ok())
        .unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_addresses_are_read() {
        let mac = parse_mac("52:54:00:12:34:56\n");
        assert_eq!(mac, Some([0x52, 0x54, 0, 0x12, 0x34, 0x56]));
        let guid = Some([0x50, 0x54, 0, 0xff, 0xfe, 0x12, 0x34, 0x56]);
        assert_eq!(mac.and_then(guid_of_mac), guid);
        // A loopback interface; a tunnel, IP over InfiniBand, nothing.
        assert_eq!(parse_mac("00:00:00:00:00:00").and_then(guid_of_mac), None);
        for text in [
            "",
            "10.0.0.1",
            "80:00:00:48:fe:80:00:01",
            "52:54:00:12:34:zz",
        ] {
            assert_eq!(parse_mac(text), None, "{text}");
        }
    }
}
