//! The IP addresses of packets: source and destination.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use link::{Flow, LocalAddress};
use roce::icrc::Addresses;
use verbs_abi::{ibv_ah_attr, ibv_global_route};

use super::grh::{gid_of_ip, header_of, mapped_ipv4};
use super::interfaces::ADDRESS_VAR;
use super::port::Port;

/// Returns the IP address that a GID stands for.
fn ip_of_gid(gid: [u8; 16]) -> IpAddr {
    match mapped_ipv4(gid) {
        Some(ip) => Ipv4Addr::from(ip).into(),
        None => Ipv6Addr::from(gid).into(),
    }
}

/// Returns the GIDs of the source and the destination of a packet.
pub(crate) fn gids_of(addresses: &Addresses) -> ([u8; 16], [u8; 16]) {
    (gid_of_ip(addresses.src()), gid_of_ip(addresses.dst()))
}

impl Port {
    /// Returns the addresses to which packets can be sent: those of the GID table that belong to an interface.
    pub(crate) fn addresses(&self) -> Vec<LocalAddress> {
        let interfaces = self.gids.iter().zip(&self.gid_interfaces);
        interfaces
            .skip(usize::from(!self.gid_0_is_address))
            .map(|(&gid, &interface)| LocalAddress {
                ip: ip_of_gid(gid),
                interface,
            })
            .collect()
    }

    /// Returns the GID that a loopback address stands for: the port's own. If the port has been given addresses, a
    /// loopback address stands for itself, since some may be of the loopback network (`cma_bind_loopback` of
    /// `linux:drivers/infiniband/core/cma.c`).
    pub(crate) fn without_loopback(&self, gid: [u8; 16]) -> [u8; 16] {
        if self.gids.contains(&gid)
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
    pub(crate) fn has_routes(&self) -> bool {
        self.gids.len() > 1
    }

    /// Returns the addresses of a packet from this port to another one. `None` if no packet can go.
    pub(crate) fn addresses_between(&self, sgid: [u8; 16], dgid: [u8; 16]) -> Option<Addresses> {
        self.gids.contains(&sgid).then_some(())?;
        Addresses::new(ip_of_gid(sgid), ip_of_gid(dgid))
    }

    /// Returns the flow of packets by an address vector that passes [`check_ah`](Self::check_ah). `None` if no packet
    /// can go.
    ///
    /// LIDs of this port stand for its first address, and so does GID 0 if no interface has it.
    pub(crate) fn flow(&self, ah: &ibv_ah_attr) -> Option<Flow> {
        let first = *self.gids.get(1)?;
        let own = self
            .gids
            .first()
            .copied()
            .filter(|_| !self.gid_0_is_address);
        let to_ip = |gid: [u8; 16]| ip_of_gid(if own == Some(gid) { first } else { gid });
        if ah.is_global == 0 {
            let addresses = Addresses::new(ip_of_gid(first), ip_of_gid(first))?;
            return self.reaches(ah).then_some(Flow {
                addresses,
                traffic_class: 0,
                hop_limit: 0,
            });
        }
        let source = to_ip(*self.gids.get(usize::from(ah.grh.sgid_index))?);
        let destination = to_ip(ah.grh.dgid.bytes());
        Some(Flow {
            addresses: Addresses::new(source, destination)?,
            traffic_class: ah.grh.traffic_class,
            hop_limit: ah.grh.hop_limit,
        })
    }

    /// Returns the 40 bytes in front of a datagram that came in a packet, as [`grh`](Self::grh) makes them at the
    /// sender.
    pub(crate) fn received_grh(&self, flow: &Flow) -> [u8; 40] {
        let mut global = ibv_global_route::zeroed();
        global.dgid.raw = gid_of_ip(flow.addresses.dst());
        global.traffic_class = flow.traffic_class;
        global.hop_limit = flow.hop_limit;
        header_of(self.link_layer, gid_of_ip(flow.addresses.src()), &global)
    }
}
