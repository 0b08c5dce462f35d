//! Attributes of devices and ports.

use serde::Serialize;
use verbs_abi as abi;

use crate::types::{AtomicCap, Lid, LinkLayer, Mtu, PortState, c_enum};

c_enum! {
    /// The kind of a node.
    NodeType {
        /// A channel adapter: InfiniBand or RoCE.
        Ca = abi::IBV_NODE_CA, "InfiniBand channel adapter";
        /// A switch.
        Switch = abi::IBV_NODE_SWITCH, "InfiniBand switch";
        /// A router.
        Router = abi::IBV_NODE_ROUTER, "InfiniBand router";
        /// An iWARP NIC.
        Rnic = abi::IBV_NODE_RNIC, "iWARP NIC";
        /// A device with a vendor-specific protocol, such as EFA.
        Unspecified = abi::IBV_NODE_UNSPECIFIED, "unspecified node";
    }
}

c_enum! {
    /// The protocol family of a device.
    TransportType {
        /// InfiniBand or RoCE.
        Ib = abi::IBV_TRANSPORT_IB, "InfiniBand";
        /// iWARP: RDMA over TCP.
        Iwarp = abi::IBV_TRANSPORT_IWARP, "iWARP";
        /// usNIC.
        Usnic = abi::IBV_TRANSPORT_USNIC, "usNIC";
        /// usNIC over UDP.
        UsnicUdp = abi::IBV_TRANSPORT_USNIC_UDP, "usNIC UDP";
        /// A vendor-specific protocol, such as EFA.
        Unspecified = abi::IBV_TRANSPORT_UNSPECIFIED, "unspecified";
    }
}

/// Limits of a device (`ibv_query_device(3)`).
#[derive(Debug, Clone)]
#[expect(
    missing_docs,
    reason = "the names are those of struct ibv_device_attr, which the man page explains"
)]
pub struct DeviceAttr {
    pub fw_ver: String,
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub device_cap_flags: u32,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub max_sge: u32,
    pub max_sge_rd: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_mw: u32,
    pub max_pd: u32,
    pub max_ah: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    pub max_qp_rd_atom: u32,
    pub max_qp_init_rd_atom: u32,
    pub max_res_rd_atom: u32,
    pub atomic_cap: AtomicCap,
    pub max_mcast_grp: u32,
    pub max_mcast_qp_attach: u32,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// The state of a port (`ibv_query_port(3)`).
#[derive(Debug, Clone)]
#[expect(
    missing_docs,
    reason = "the names are those of struct ibv_port_attr, which the man page explains"
)]
pub struct PortAttr {
    pub state: PortState,
    pub max_mtu: Mtu,
    pub active_mtu: Mtu,
    pub gid_tbl_len: u32,
    pub pkey_tbl_len: u16,
    pub max_msg_sz: u32,
    pub lid: Lid,
    pub lmc: u8,
    pub sm_lid: Lid,
    pub link_layer: LinkLayer,
    /// Coded number of lanes of the link: [`lanes`](PortAttr::lanes).
    pub active_width: u8,
    /// Coded speed of a lane: [`lane_gbps`](PortAttr::lane_gbps).
    pub active_speed: u8,
}

impl PortAttr {
    /// Returns the number of lanes of the link; `None` for a code that `ibv_query_port(3)` does not
    /// list.
    pub fn lanes(&self) -> Option<u8> {
        Some(match self.active_width {
            1 => 1,
            2 => 4,
            4 => 8,
            8 => 12,
            16 => 2,
            _ => return None,
        })
    }

    /// Returns the signalling rate of a lane in Gbit/s (SDR is 2.5); `None` for a code that
    /// `ibv_query_port(3)` does not list.
    pub fn lane_gbps(&self) -> Option<f32> {
        Some(match self.active_speed {
            1 => 2.5,
            2 => 5.0,
            4 | 8 => 10.0,
            16 => 14.0,
            32 => 25.0,
            64 => 50.0,
            128 => 100.0,
            _ => return None,
        })
    }
}

/// A port and an entry of its GID table, through which a queue pair or address handle reaches its
/// peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PortAndGidIndex {
    /// The port, from 1.
    pub port_num: u8,
    /// The entry of the port's GID table.
    pub gid_index: u8,
}

#[cfg(all(test, feature = "softnic"))]
mod tests {
    use crate::Provider;

    #[test]
    fn links_have_lanes_and_a_speed() {
        let context = Provider::softnic()
            .device(None)
            .expect("a device")
            .open()
            .expect("opens");
        let mut port = context.query_port(1).expect("port 1");
        (port.active_width, port.active_speed) = (2, 64);
        assert_eq!((port.lanes(), port.lane_gbps()), (Some(4), Some(50.0)));
        (port.active_width, port.active_speed) = (3, 3);
        assert_eq!((port.lanes(), port.lane_gbps()), (None, None));
    }
}
