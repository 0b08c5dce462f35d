//! Neighbour discovery for link-local addresses of other hosts.
//!
//! A link-local address is on a link or it is not: no router leads to it. So the kernel's table of neighbours (`ip neigh`) says
//! whether a host has it.

use std::net::{IpAddr, Ipv6Addr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, sendto, socket_with,
};

use crate::LocalAddress;

/// Time between two looks at the table of neighbours.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A port that nobody needs to have: `discard` (RFC 863). The datagram only makes the kernel ask for the neighbour.
const DISCARD_PORT: u16 = 9;

/// States of a neighbour whose link-layer address is known, or that needs none: `NUD_*` of `linux/neighbour.h`.
const KNOWN_STATES: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
/// `NUD_FAILED`: nobody has answered.
const FAILED_STATE: u16 = 0x20;

/// Returns false if no host on the link of `local` has the link-local address `neighbour`, as far as `patience` shows.
///
/// Waits for the kernel's neighbour discovery. Where the table of neighbours cannot be read (Linux before 5.0, some
/// sandboxes), every address is taken for reachable.
#[must_use]
pub fn is_neighbour_reachable(
    local: LocalAddress,
    neighbour: Ipv6Addr,
    patience: Duration,
) -> bool {
    if start_discovery(local, neighbour).is_err() {
        return false;
    }
    let deadline = Instant::now() + patience;
    loop {
        match neighbour_state(local.if_index, neighbour) {
            Ok(state) if state & KNOWN_STATES != 0 => return true,
            Ok(FAILED_STATE) => return false,
            // The entry is not there yet, or discovery goes on.
            Ok(_) | Err(Errno::NOENT) => {}
            Err(_) => return true,
        }
        if Instant::now() >= deadline {
            return false;
        }
        sleep(POLL_INTERVAL);
    }
}

/// Sends an empty datagram, which makes the kernel look for the neighbour.
fn start_discovery(local: LocalAddress, neighbour: Ipv6Addr) -> Result<(), Errno> {
    let probe = socket_with(
        AddressFamily::INET6,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let to = local.socket_address_on_same_link(IpAddr::V6(neighbour), DISCARD_PORT);
    sendto(&probe, &[], SendFlags::DONTWAIT, &to).map(drop)
}

/// Returns the state of an entry of the table of neighbours.
///
/// # Errors
/// `ENOENT` without such an entry; others where the table cannot be read.
fn neighbour_state(if_index: u32, neighbour: Ipv6Addr) -> Result<u16, Errno> {
    // Protocol 0 is NETLINK_ROUTE.
    let netlink = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )?;
    send(&netlink, &request(if_index, neighbour), SendFlags::empty())?;
    let mut answer = [0; 512];
    let (len, _) = recv(&netlink, &mut answer, RecvFlags::empty())?;
    state_in_answer(answer.get(..len).unwrap_or_default())
}

/// Bytes of `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// Bytes of `struct ndmsg`.
const NDMSG_BYTES: usize = 12;
/// Bytes of the attribute `NDA_DST` with an IPv6 address.
const ADDRESS_ATTRIBUTE_BYTES: usize = 4 + 16;
/// Bytes of a request.
const REQUEST_BYTES: usize = HEADER_BYTES + NDMSG_BYTES + ADDRESS_ATTRIBUTE_BYTES;

/// Makes a request for one entry: `RTM_GETNEIGH` (`rtnetlink(7)`).
fn request(if_index: u32, neighbour: Ipv6Addr) -> [u8; REQUEST_BYTES] {
    const NDA_DST: u16 = 1;
    let mut bytes = [0; REQUEST_BYTES];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, &(REQUEST_BYTES as u32).to_ne_bytes());
    put(4, &libc::RTM_GETNEIGH.to_ne_bytes());
    put(6, &(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    put(HEADER_BYTES, &[libc::AF_INET6 as u8]);
    put(HEADER_BYTES + 4, &if_index.to_ne_bytes());
    let attribute = HEADER_BYTES + NDMSG_BYTES;
    put(attribute, &(ADDRESS_ATTRIBUTE_BYTES as u16).to_ne_bytes());
    put(attribute + 2, &NDA_DST.to_ne_bytes());
    put(attribute + 4, &neighbour.octets());
    bytes
}

/// Reads the kernel's answer to a request.
fn state_in_answer(answer: &[u8]) -> Result<u16, Errno> {
    let field = |at: usize| answer.get(at..at + 2).and_then(|two| two.try_into().ok());
    let u16_at = |at: usize| field(at).map(u16::from_ne_bytes).ok_or(Errno::PROTO);
    let kind = u16_at(4)?;
    if kind == libc::RTM_NEWNEIGH {
        return u16_at(HEADER_BYTES + 8);
    }
    let code = answer
        .get(HEADER_BYTES..HEADER_BYTES + 4)
        .and_then(|four| four.try_into().ok())
        .map(i32::from_ne_bytes);
    match code {
        Some(negative) if kind == libc::NLMSG_ERROR as u16 && negative < 0 => {
            Err(Errno::from_raw_os_error(negative.saturating_neg()))
        }
        _ => Err(Errno::PROTO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_understands_the_request() {
        // No interface has this number, so there is no entry either. Kernels before 5.0 have no such request.
        let state = neighbour_state(0x7fff_0000, "fe80::1".parse().unwrap());
        assert!(
            matches!(state, Err(Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP)),
            "{state:?}"
        );
    }

    #[test]
    fn a_link_that_is_not_there_has_no_neighbours() {
        let local = LocalAddress {
            ip: "fe80::2".parse().unwrap(),
            if_index: 0x7fff_0000,
        };
        let neighbour = "fe80::1".parse().unwrap();
        assert!(!is_neighbour_reachable(local, neighbour, Duration::ZERO));
    }

    #[test]
    fn answers_are_untrusted_input() {
        for len in 0..64 {
            assert!(state_in_answer(&vec![0xff; len]).is_err());
            let mut error = vec![0; len];
            if let Some(kind) = error.get_mut(4) {
                *kind = 2;
            }
            assert!(state_in_answer(&error).is_err());
        }
    }
}
