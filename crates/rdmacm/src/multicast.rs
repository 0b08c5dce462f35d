//! Multicast groups, and the GIDs of their addresses.

use std::net::{IpAddr, Ipv4Addr};

use verbs_abi::IBV_LINK_LAYER_ETHERNET;

use crate::addr::IdAddress;
use crate::errno::{INVALID, Result};

/// The membership of an id in a multicast group.
#[derive(Debug)]
pub(crate) struct GroupMembership {
    /// Address of the group, as given by the program.
    pub(crate) addr: IdAddress,
    /// Context that the program gets back with the event.
    pub(crate) context: usize,
    /// True if the queue pair only sends to the group.
    pub(crate) send_only: bool,
    pub(crate) mgid: [u8; 16],
    pub(crate) mlid: u16,
}

/// LID of every group on an InfiniBand port: the first multicast LID (IBTA vol. 1, 4.1.3). GIDs distinguish the groups;
/// without switches, no packet is routed by this LID.
const FIRST_MULTICAST_LID: u16 = 0xc000;

impl GroupMembership {
    /// Makes the membership in the group at `addr`, addressed as `link_layer` requires.
    ///
    /// # Errors
    /// `EINVAL` for an `AF_IB` address on Ethernet, whose groups have IP addresses.
    pub(crate) fn new(
        addr: IdAddress,
        context: usize,
        send_only: bool,
        link_layer: u8,
    ) -> Result<Self> {
        let ethernet = link_layer == IBV_LINK_LAYER_ETHERNET;
        let mgid = match addr {
            IdAddress::Ib(_) if ethernet => return Err(INVALID),
            IdAddress::Ib(addr) => addr.gid,
            IdAddress::Ip(addr) => match addr.ip() {
                IpAddr::V6(ip) => ip.octets(),
                // RoCEv2 uses the group's IP address (IBTA annex A17).
                IpAddr::V4(ip) if ethernet => ip.to_ipv6_mapped().octets(),
                IpAddr::V4(ip) => ipoib_mgid(ip),
            },
        };
        Ok(Self {
            addr,
            context,
            send_only,
            mgid,
            mlid: if ethernet { 0 } else { FIRST_MULTICAST_LID },
        })
    }
}

/// Returns the GID of an IPv4 multicast address on InfiniBand: RFC 4391, section 4, with the RDMA CM's signature
/// instead of IP's (`cma_set_mgid` of `linux:drivers/infiniband/core/cma.c`).
fn ipoib_mgid(ip: Ipv4Addr) -> [u8; 16] {
    let mut gid = [0; 16];
    // ff12: transient, link-local scope; 4001: IPv4 by the RDMA CM; ffff: the default P_Key.
    gid[..6].copy_from_slice(&[0xff, 0x12, 0x40, 0x01, 0xff, 0xff]);
    gid[12..].copy_from_slice(&ip.octets());
    // Only 28 bits of the address are used.
    gid[12] &= 0x0f;
    gid
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ib_addr::IbAddr;
    use std::net::Ipv6Addr;
    use verbs_abi::IBV_LINK_LAYER_INFINIBAND;

    #[test]
    fn groups_have_the_gids_that_linux_gives_them() {
        let mgid = |addr: &str, link_layer| {
            let addr = IdAddress::Ip(addr.parse().unwrap());
            let m = GroupMembership::new(addr, 0, false, link_layer).unwrap();
            Ipv6Addr::from(m.mgid).to_string()
        };
        let roce = IBV_LINK_LAYER_ETHERNET;
        let ib = IBV_LINK_LAYER_INFINIBAND;
        assert_eq!(mgid("239.1.2.3:0", roce), "::ffff:239.1.2.3");
        assert_eq!(mgid("239.1.2.3:0", ib), "ff12:4001:ffff::f01:203");
        assert_eq!(mgid("[ff0e::5]:0", roce), "ff0e::5");
        assert_eq!(mgid("[ff0e::5]:0", ib), "ff0e::5");
        let group = IdAddress::Ib(IbAddr::new([0xff; 16], 0xffff));
        let joined = |link_layer| GroupMembership::new(group, 0, false, link_layer).map(|m| m.mgid);
        assert_eq!(joined(ib), Ok([0xff; 16]));
        assert_eq!(joined(roce), Err(INVALID));
    }
}
