//! The IP addresses of packets: source and destination.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use link::{LocalAddress, PacketFlow};
use roce::icrc::IpAddressPair;
use verbs_abi::{ibv_ah_attr, ibv_global_route};

use super::grh::{datagram_grh, gid_of_ip, mapped_ipv4};
use super::interfaces::{ADDRESS_VAR, is_link_local};
use super::port::{OtherPort, Port};

/// Time of neighbour discovery: three solicitations, one a second (`MAX_MULTICAST_SOLICIT` and `RETRANS_TIMER` of RFC
/// 4861, 10). A neighbour whose address is new answers the third at the latest.
const DISCOVERY_TIME: Duration = Duration::from_secs(3);

/// Returns the IP address that a GID stands for.
fn ip_of_gid(gid: [u8; 16]) -> IpAddr {
    match mapped_ipv4(gid) {
        Some(ip) => Ipv4Addr::from(ip).into(),
        None => Ipv6Addr::from(gid).into(),
    }
}

/// Returns the GIDs of the source and the destination of a packet.
pub(crate) fn gids_of(addresses: &IpAddressPair) -> ([u8; 16], [u8; 16]) {
    (gid_of_ip(addresses.src()), gid_of_ip(addresses.dst()))
}

impl Port {
    /// The addresses that packets can be sent to: those of the GID tables of this process's ports that an interface has,
    /// its own first.
    pub(crate) fn process_addresses(&self) -> Vec<LocalAddress> {
        let own = OtherPort::new(self, true);
        let others = self
            .other_ports_of_this_host
            .iter()
            .filter(|other| other.is_of_this_process);
        std::iter::once(&own)
            .chain(others)
            .flat_map(OtherPort::addresses)
            .map(|(gid, interface)| LocalAddress {
                ip: ip_of_gid(gid),
                if_index: interface,
            })
            .collect()
    }

    /// The addresses of this port alone.
    pub(crate) fn own_addresses(&self) -> Vec<LocalAddress> {
        Self {
            other_ports_of_this_host: Vec::new(),
            ..self.clone()
        }
        .process_addresses()
    }

    /// Whether a host on the link of `source`, a GID of this port, has a link-local address. A GID that no interface has is
    /// on no link.
    pub(super) fn has_neighbour(&self, source: [u8; 16], neighbour: Ipv6Addr) -> bool {
        let own = OtherPort::new(self, true);
        let local = own.addresses().find(|(gid, _)| *gid == source);
        local.is_some_and(|(gid, if_index)| {
            let ip = ip_of_gid(gid);
            let local = LocalAddress { ip, if_index };
            is_link_local(&ip) && link::is_neighbour_reachable(local, neighbour, DISCOVERY_TIME)
        })
    }

    /// Whether a GID is one of a port of this process.
    fn is_gid_of_process(&self, gid: [u8; 16]) -> bool {
        let mut others = self
            .other_ports_of_this_host
            .iter()
            .filter(|other| other.is_of_this_process);
        self.gids.contains(&gid) || others.any(|other| other.gids.contains(&gid))
    }

    /// The GID that a loopback address stands for: the port's own, unless the port has been given addresses, which may be
    /// some of the loopback network (`cma_bind_loopback` of `linux:drivers/infiniband/core/cma.c`).
    pub(crate) fn replace_loopback_gid(&self, gid: [u8; 16]) -> [u8; 16] {
        if self.is_gid_of_host(gid)
            || !ip_of_gid(gid).is_loopback()
            || std::env::var_os(ADDRESS_VAR).is_some()
        {
            return gid;
        }
        self.gids
            .get(1)
            .or(self.gids.first())
            .copied()
            .unwrap_or(gid)
    }

    /// Returns true if packets can go from here: the port has an address. A port with the link layer InfiniBand has
    /// none.
    pub(crate) fn has_ip_address(&self) -> bool {
        self.gids.len() > 1
    }

    /// The addresses of a packet between two ports, the first of them of this process; `None` where no packet can go.
    pub(crate) fn frame_addresses(&self, sgid: [u8; 16], dgid: [u8; 16]) -> Option<IpAddressPair> {
        self.is_gid_of_process(sgid).then_some(())?;
        IpAddressPair::new(ip_of_gid(sgid), ip_of_gid(dgid))
    }

    /// Returns the flow of packets by an address vector that passes [`check_ah`](Self::check_ah). `None` if no packet
    /// can go.
    ///
    /// LIDs of this port stand for its first address, and so does GID 0 of any port if no interface has it.
    pub(crate) fn packet_flow_to(&self, ah: &ibv_ah_attr) -> Option<PacketFlow> {
        let first = *self.gids.get(1)?;
        let own = OtherPort::new(self, true);
        let address = |gid| {
            let mut ports = std::iter::once(&own).chain(&self.other_ports_of_this_host);
            ports.find_map(|port| port.address_standing_in_for_gid_0(gid))
        };
        let to_ip = |gid: [u8; 16]| ip_of_gid(address(gid).unwrap_or(gid));
        if ah.is_global == 0 {
            let addresses = IpAddressPair::new(ip_of_gid(first), ip_of_gid(first))?;
            return self.reaches_local_port(ah).then_some(PacketFlow {
                addresses,
                traffic_class: 0,
                hop_limit: 0,
            });
        }
        let source = to_ip(*self.gids.get(usize::from(ah.grh.sgid_index))?);
        let destination = to_ip(ah.grh.dgid.bytes());
        Some(PacketFlow {
            addresses: IpAddressPair::new(source, destination)?,
            traffic_class: ah.grh.traffic_class,
            hop_limit: ah.grh.hop_limit,
        })
    }

    /// Returns the 40 bytes in front of a datagram that came in a packet, as [`grh_at_receiver`](Self::grh_at_receiver)
    /// makes them at the sender.
    pub(crate) fn received_grh(&self, flow: &PacketFlow) -> [u8; 40] {
        let mut global = ibv_global_route::zeroed();
        global.dgid.raw = gid_of_ip(flow.addresses.dst());
        global.traffic_class = flow.traffic_class;
        global.hop_limit = flow.hop_limit;
        datagram_grh(self.link_layer, gid_of_ip(flow.addresses.src()), &global)
    }
}
