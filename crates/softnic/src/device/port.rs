//! A port: its GID table, and what it can send with.

use std::net::{Ipv4Addr, Ipv6Addr};

use libc::{EINVAL, ETIMEDOUT};
use verbs_abi::*;

use super::device_and_port_counts::PortPlace;
use super::grh::{
    FLOW_LABEL_MASK, IpHeaderVersion, ParsedGrh, datagram_grh, gid_of_ip, header_version,
    mapped_ipv4,
};
use super::guid::{LINK_LOCAL_PREFIX, link_local_gid};
use super::interfaces::{InterfaceAddress, is_link_local};
use super::limits::*;
use super::link_layer::LinkLayer;
use crate::why;

/// A port of a device.
///
/// A snapshot: an address that the host gets later is not in `gids`. GID 0 does not depend on addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    /// Its device, and its number there.
    pub(crate) place: PortPlace,
    /// The link layer that the port reports.
    pub(crate) link_layer: LinkLayer,
    /// The GID table from index 0: 1..=[`MAX_GIDS`] entries in network order, none of them empty. Programs that read the
    /// files of all entries (`/sys/class/infiniband/*/ports/*/gids`) find each.
    pub(crate) gids: Vec<[u8; 16]>,
    /// The kernel's number of the interface that each of them belongs to; 0 for none.
    pub(crate) gid_if_indices: Vec<u32>,
    /// True if GID 0 is an address of an interface.
    pub(crate) gid_0_is_interface_address: bool,
    /// The LID on InfiniBand; 0, which is no port's LID, on Ethernet.
    pub(crate) lid: u16,
    /// The other ports of this host, to which it is connected by a switch.
    pub(super) other_ports_of_this_host: Vec<OtherPort>,
}

/// A port of this host as another one sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtherPort {
    pub(super) place: PortPlace,
    pub(super) gids: Vec<[u8; 16]>,
    pub(super) gid_if_indices: Vec<u32>,
    gid_0_is_interface_address: bool,
    lid: u16,
    /// This process has it, too. Else another process of this host may have it.
    pub(super) is_of_this_process: bool,
}

impl OtherPort {
    pub(super) fn new(port: &Port, is_here: bool) -> Self {
        Self {
            place: port.place,
            gids: port.gids.clone(),
            gid_if_indices: port.gid_if_indices.clone(),
            gid_0_is_interface_address: port.gid_0_is_interface_address,
            lid: port.lid,
            is_of_this_process: is_here,
        }
    }

    /// The first address, where `gid` is GID 0 and no interface has it.
    pub(super) fn address_standing_in_for_gid_0(&self, gid: [u8; 16]) -> Option<[u8; 16]> {
        let is_made = !self.gid_0_is_interface_address && self.gids.first() == Some(&gid);
        self.gids.get(1).copied().filter(|_| is_made)
    }

    /// The addresses in its GID table, each with its interface.
    pub(super) fn addresses(&self) -> impl Iterator<Item = ([u8; 16], u32)> {
        let entries = self
            .gids
            .iter()
            .copied()
            .zip(self.gid_if_indices.iter().copied());
        entries.skip(usize::from(!self.gid_0_is_interface_address))
    }
}

impl Port {
    /// A port with this GUID on a host with these [usable](super::interfaces::filter_port_addresses) addresses.
    ///
    /// GID 0 is link-local: on Ethernet the address of the first interface, if that has one, else made of `guid`. The
    /// addresses follow, those of IPv4 mapped into IPv6.
    pub(super) fn new(
        link_layer: LinkLayer,
        place: PortPlace,
        guid: [u8; 8],
        mut addresses: Vec<InterfaceAddress>,
    ) -> Self {
        let mut gids = vec![link_local_gid(guid)];
        let mut gid_interfaces = vec![0];
        let mut gid_0_is_interface_address = false;
        if link_layer == LinkLayer::Ethernet {
            let link_local = addresses
                .extract_if(.., |a| is_link_local(&a.ip))
                .collect::<Vec<_>>();
            // A RoCE port belongs to an interface; GID 0 belongs to the first one.
            gid_interfaces[0] = addresses
                .first()
                .map_or(0, InterfaceAddress::kernel_if_index);
            let own = link_local
                .iter()
                .find(|a| a.kernel_if_index() == gid_interfaces[0]);
            if let Some(own) = own {
                gids[0] = gid_of_ip(own.ip);
                gid_0_is_interface_address = true;
            }
            for address in addresses {
                let gid = gid_of_ip(address.ip);
                if !gids.contains(&gid) && gids.len() < MAX_GIDS as usize {
                    gids.push(gid);
                    gid_interfaces.push(address.kernel_if_index());
                }
            }
        }
        let lid = match link_layer {
            LinkLayer::Ethernet => 0,
            LinkLayer::InfiniBand => place.host_wide_number(),
        };
        Self {
            place,
            link_layer,
            gids,
            gid_if_indices: gid_interfaces,
            gid_0_is_interface_address,
            lid,
            other_ports_of_this_host: Vec::new(),
        }
    }

    /// The same port on a host with these other ports.
    pub(super) fn with_other_ports(&self, others: impl Iterator<Item = OtherPort>) -> Self {
        Self {
            other_ports_of_this_host: others.collect(),
            ..self.clone()
        }
    }

    /// Returns the properties of the port, as `ibv_query_port` fills them in.
    ///
    /// Width and speed are those of EDR 4X, 100 Gbit/s: there is no link to measure, and programs derive
    /// buffer sizes and protocol thresholds from them.
    pub(crate) fn attr(&self) -> ibv_port_attr {
        let mut attr = ibv_port_attr::zeroed();
        attr.state = IBV_PORT_ACTIVE;
        attr.max_mtu = IBV_MTU_4096;
        attr.active_mtu = IBV_MTU_4096;
        attr.gid_tbl_len = limit_as_c_int(self.gid_tbl_len());
        attr.max_msg_sz = MAX_MSG_SZ;
        attr.pkey_tbl_len = PKEY_TBL_LEN;
        attr.lid = self.lid;
        // The first port is the subnet manager's of all; 0 on Ethernet, which has none.
        attr.sm_lid = match self.link_layer {
            LinkLayer::Ethernet => 0,
            LinkLayer::InfiniBand => PortPlace::FIRST.host_wide_number(),
        };
        // VL0 only (IBTA vol. 1, 14.2.5.6, VLCap).
        attr.max_vl_num = 1;
        // Codes of IBTA vol. 1, 14.2.5.6, as `ibv_devinfo` prints them: 4X, 25 Gbit/s a lane, LinkUp.
        attr.active_width = 2;
        attr.active_speed = 32;
        attr.phys_state = 5;
        match self.link_layer {
            LinkLayer::Ethernet => {
                attr.link_layer = IBV_LINK_LAYER_ETHERNET;
                attr.port_cap_flags = IBV_PORT_IP_BASED_GIDS;
                // Every RoCE address vector needs a global route: ibv_query_port(3).
                attr.flags = IBV_QPF_GRH_REQUIRED;
            }
            LinkLayer::InfiniBand => {
                attr.link_layer = IBV_LINK_LAYER_INFINIBAND;
                attr.port_cap_flags = IBV_PORT_SYS_IMAGE_GUID_SUP;
                // Coded, 4.096 µs × 2^18 = 1.1 s: the default of OpenSM (`subnet_timeout`).
                attr.subnet_timeout = 18;
            }
        }
        attr
    }

    /// Returns the number of entries of the GID table.
    pub(crate) fn gid_tbl_len(&self) -> u32 {
        u32::try_from(self.gids.len()).unwrap_or(MAX_GIDS)
    }

    /// Returns the GID at `index` in network order; `None` past the table's end.
    pub(crate) fn gid(&self, index: u32) -> Option<[u8; 16]> {
        self.gids.get(usize::try_from(index).ok()?).copied()
    }

    /// Returns the entry of the GID table at `index`, as `ibv_query_gid_ex` gives it; `None` past the table's end.
    ///
    /// The types are those of `ibv_query_gid_ex(3)`: RoCEv2 on Ethernet, IB on InfiniBand.
    pub(crate) fn gid_entry(&self, index: u32) -> Option<ibv_gid_entry> {
        let at = usize::try_from(index).ok()?;
        Some(ibv_gid_entry {
            gid: ibv_gid {
                raw: *self.gids.get(at)?,
            },
            gid_index: index,
            port_num: self.place.port_num.into(),
            gid_type: match self.link_layer {
                LinkLayer::Ethernet => IBV_GID_TYPE_ROCE_V2,
                LinkLayer::InfiniBand => IBV_GID_TYPE_IB,
            },
            ndev_ifindex: self.gid_if_indices.get(at).copied().unwrap_or(0),
        })
    }

    /// Returns the `sl` of the completion at the receiver of a datagram.
    ///
    /// A RoCE packet has no service level. "The CQE includes […] a flag that indicates if the received frame is an
    /// IPv4, IPv6 or RoCE packet" (annex A17, 4.5.1). `ibv_wc` has no field for that flag, and mlx5 devices report it
    /// here: 8 for RoCEv2, 1 for IPv6, 2 for IPv4. UCX reads the destination's address accordingly.
    pub(crate) fn receiver_completion_sl(&self, ah: &ibv_ah_attr, grh: Option<&[u8; 40]>) -> u8 {
        match (self.link_layer, grh.and_then(header_version)) {
            (LinkLayer::InfiniBand, _) => ah.sl,
            (LinkLayer::Ethernet, Some(IpHeaderVersion::V4)) => 8 | 2,
            (LinkLayer::Ethernet, _) => 8 | 1,
        }
    }

    /// Returns the path of a datagram that came in a packet, as its completion reports it and `RingHeader::path`
    /// encodes it.
    pub(crate) fn completion_path_word_of_received(&self, grh: &[u8; 40]) -> u64 {
        let sl = self.receiver_completion_sl(&ibv_ah_attr::zeroed(), Some(grh));
        u64::from(sl) << 16 | 1 << 32
    }

    /// Returns the P_Key at `index`, in host order; `None` past the table's end.
    pub(crate) fn pkey(&self, index: u32) -> Option<u16> {
        (index < u32::from(PKEY_TBL_LEN)).then_some(DEFAULT_PKEY)
    }

    /// Checks that this port can send with an address vector.
    ///
    /// # Errors
    /// `EINVAL`: `port_num` is another port's, or `sgid_index` of a global route names no GID. On Ethernet also without a
    /// global route, because every RoCEv2 packet has an IP header (annex A17).
    ///
    /// Source: `rdma_check_ah_attr` in `linux:drivers/infiniband/core/verbs.c`.
    pub(crate) fn check_ah(&self, ah: &ibv_ah_attr) -> Result<(), i32> {
        let routed = match (ah.is_global != 0, self.link_layer) {
            (true, _) => self.gid(ah.grh.sgid_index.into()).is_some(),
            (false, LinkLayer::InfiniBand) => true,
            (false, LinkLayer::Ethernet) => false,
        };
        if ah.port_num == self.place.port_num && routed {
            return Ok(());
        }
        Err(why::einval_because(|| {
            match (ah.port_num, self.link_layer) {
            (port, _) if port != self.place.port_num => format!(
                "ah_attr.port_num is {port}, and the queue pair belongs to port {}",
                self.place.port_num
            ),
            (_, LinkLayer::Ethernet) if ah.is_global == 0 => {
                "ah_attr.is_global is 0: a RoCE port is addressed by a GID in ah_attr.grh.dgid; `verbatim run --link-layer \
                 ib` has a port with LIDs"
                    .to_owned()
            }
            _ => format!(
                "ah_attr.grh.sgid_index is {}, and no GID has that index (`verbatim devices` prints them)",
                ah.grh.sgid_index
            ),
        }
        }))
    }

    /// Checks the destination of an address vector as `ibv_modify_qp` does when it resolves the GID to a MAC address.
    /// The address vector has passed [`check_ah`](Self::check_ah). On InfiniBand the routes of the subnet manager
    /// decide, and nothing is checked here.
    ///
    /// # Errors
    /// - `EINVAL`: source and destination are of different address families.
    /// - `ETIMEDOUT`: a link-local GID that neither this host has nor, after the time of neighbour discovery, another
    ///   one on the link of the source.
    ///
    /// Source: `ib_resolve_eth_dmac` in `linux:drivers/infiniband/core/verbs.c`, `addr_resolve` in
    /// `linux:drivers/infiniband/core/addr.c`.
    pub(crate) fn check_destination(&self, ah: &ibv_ah_attr) -> Result<(), i32> {
        let source = self.gid(ah.grh.sgid_index.into());
        let (LinkLayer::Ethernet, Some(source)) = (self.link_layer, source) else {
            return Ok(());
        };
        let gid = ah.grh.dgid.bytes();
        let (ipv4, ipv6) = (mapped_ipv4(gid), Ipv6Addr::from(gid));
        if ipv6.is_multicast() || ipv4.is_some_and(|ip| Ipv4Addr::from(ip).is_multicast()) {
            return Ok(());
        }
        if ipv4.is_some() != mapped_ipv4(source).is_some() {
            return Err(why::einval_because(|| {
                format!(
                    "ah_attr.grh.dgid and the GID at sgid_index {} are of different address families: one is an \
                     IPv4-mapped GID and the other is not",
                    ah.grh.sgid_index
                )
            }));
        }
        let is_link_local = gid[..8] == LINK_LOCAL_PREFIX;
        if is_link_local && !self.is_gid_of_host(gid) && !self.has_neighbour(source, ipv6) {
            why::record_refusal_reason(|| {
                "ah_attr.grh.dgid is a link-local GID, and no host on the link of the GID at sgid_index has it: take the GID of \
                 a routable address at both ends (`verbatim devices` prints them)"
            });
            return Err(ETIMEDOUT);
        }
        Ok(())
    }

    /// Whether a GID is one of this host's ports.
    pub(crate) fn is_gid_of_host(&self, gid: [u8; 16]) -> bool {
        self.gids.contains(&gid)
            || self
                .other_ports_of_this_host
                .iter()
                .any(|other| other.gids.contains(&gid))
    }

    /// Returns the place of the port of this host that an address vector leads to, or `None` for ports of other hosts.
    ///
    /// The destination GID of a global route decides, also on InfiniBand, because ports of different hosts may have the
    /// same LID here. A port drops packets that are routed to another GID (IBTA vol. 1, 9.6.1.2). Without a global
    /// route, the destination LID decides.
    pub(crate) fn local_destination_port(&self, ah: &ibv_ah_attr) -> Option<PortPlace> {
        let (is_own, other) = if ah.is_global != 0 {
            let gid = ah.grh.dgid.bytes();
            let other = self
                .other_ports_of_this_host
                .iter()
                .find(|other| other.gids.contains(&gid));
            (self.gids.contains(&gid), other)
        } else if self.link_layer == LinkLayer::InfiniBand {
            let other = self
                .other_ports_of_this_host
                .iter()
                .find(|other| other.lid == ah.dlid);
            (self.lid == ah.dlid, other)
        } else {
            return None;
        };
        match is_own {
            true => Some(self.place),
            false => other.map(|other| other.place),
        }
    }

    /// Whether the destination of an address vector is a port of this host.
    pub(crate) fn reaches_local_port(&self, ah: &ibv_ah_attr) -> bool {
        self.local_destination_port(ah).is_some()
    }

    /// The 40 bytes that a UD receive has in front of the payload when this port sends with `ah`; the
    /// length is 0 until [`set_grh_length`](super::set_grh_length). `None` without a global route, or if `sgid_index`
    /// names no GID: then the receiver's 40 bytes are undefined and its completion has no `IBV_WC_GRH`.
    ///
    /// - InfiniBand: a GRH (IBTA vol. 1, 8.3).
    /// - RoCEv2 between IPv4-mapped GIDs: an IPv4 header in the last 20 bytes (annex A17), the first 20 undefined. They
    ///   are zeroes here, so that no reader finds the version 6 in them.
    /// - RoCEv2 otherwise: an IPv6 header (annex A17), which differs from a GRH in the next header.
    pub(crate) fn grh_at_receiver(&self, ah: &ibv_ah_attr) -> Option<[u8; 40]> {
        if ah.is_global == 0 {
            return None;
        }
        let sgid = self.gid(ah.grh.sgid_index.into())?;
        Some(datagram_grh(self.link_layer, sgid, &ah.grh))
    }

    /// Returns the index of one of the port's GIDs in the table.
    pub(super) fn gid_index(&self, gid: [u8; 16]) -> Option<u8> {
        self.gids
            .iter()
            .position(|&ours| ours == gid)?
            .try_into()
            .ok()
    }
}

/// Returns the address vector for an answer to a UD receive, as `ibv_init_ah_from_wc` fills it in.
///
/// `dlid`, `sl` and `src_path_bits` come from the completion. With `IBV_WC_GRH` the vector has a global route from the
/// 40 bytes in front of the payload. It leads back to the source, from the GID that the message was sent to.
///
/// # Errors
/// - `EINVAL`: the header's destination is a multicast address, or none of the port's GIDs.
/// - `EPROTONOSUPPORT`: the 40 bytes are neither an IPv4 header, an IPv6 header with UDP, nor a GRH.
///
/// Source: `ibv_create_ah_from_wc(3)`, and `ibv_init_ah_from_wc` in rdma-core's `libibverbs/verbs.c`.
pub(crate) fn init_ah_from_wc(
    port: &Port,
    wc: &ibv_wc,
    grh: &[u8; 40],
) -> Result<ibv_ah_attr, i32> {
    let mut ah = ibv_ah_attr::zeroed();
    ah.dlid = wc.slid;
    ah.sl = wc.sl;
    ah.src_path_bits = wc.dlid_path_bits;
    ah.port_num = port.place.port_num;
    if wc.wc_flags & IBV_WC_GRH == 0 {
        return Ok(ah);
    }

    let word = u32::from_be_bytes([grh[0], grh[1], grh[2], grh[3]]);
    let travelled = ParsedGrh::parse(grh)?;
    // The type of the GID has to match the header, too; all GIDs of a port have the same type.
    if travelled.link_layer != port.link_layer {
        return Err(EINVAL);
    }
    ah.is_global = 1;
    ah.grh.flow_label = word & FLOW_LABEL_MASK;
    ah.grh.traffic_class = travelled.traffic_class;
    ah.grh.hop_limit = travelled.hop_limit;
    ah.grh.dgid = ibv_gid {
        raw: travelled.source,
    };
    ah.grh.sgid_index = port.gid_index(travelled.destination).ok_or(EINVAL)?;
    Ok(ah)
}
