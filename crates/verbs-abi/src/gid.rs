//! Addressing: GIDs, routes, address handles.

use crate::context::ibv_context;
use crate::pd::ibv_pd;

c_consts! {
    /// Kind of a GID: [`ibv_gid_entry::gid_type`].
    enum ibv_gid_type: u32 {
        IBV_GID_TYPE_IB = 0,
        IBV_GID_TYPE_ROCE_V1 = 1,
        IBV_GID_TYPE_ROCE_V2 = 2,
    }
}

c_types! {
    /// A GID as its two halves: subnet prefix and interface id.
    #[derive(Clone, Copy, Debug)]
    struct ibv_gid_global as "typeof(((union ibv_gid *)0)->global)" {
        /// Subnet prefix, big-endian.
        subnet_prefix: u64,
        /// Interface id, big-endian.
        interface_id: u64,
    }

    /// A global identifier: 16 bytes in network order. For RoCEv2, an IPv6 address or an
    /// IPv4-mapped IPv6 address.
    #[derive(Clone, Copy)]
    union ibv_gid {
        raw: [u8; 16],
        global: ibv_gid_global,
    }

    /// An entry of the GID table: `ibv_query_gid_ex(3)`.
    #[derive(Clone, Copy)]
    struct ibv_gid_entry {
        gid: ibv_gid,
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        ndev_ifindex: u32,
    }

    /// Fields of the global route header of sent packets; for RoCEv2, fields of the IP header.
    #[derive(Clone, Copy)]
    struct ibv_global_route {
        dgid: ibv_gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }

    /// The 40 bytes before the payload of a UD receive: a global route header in network order, or
    /// an IP header.
    #[derive(Clone, Copy)]
    struct ibv_grh {
        /// IP version, traffic class and flow label, big-endian.
        version_tclass_flow: u32,
        /// Payload length in bytes, big-endian.
        paylen: u16,
        next_hdr: u8,
        hop_limit: u8,
        sgid: ibv_gid,
        dgid: ibv_gid,
    }

    /// An address vector: `ibv_create_ah(3)`.
    #[derive(Clone, Copy)]
    struct ibv_ah_attr {
        grh: ibv_global_route,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }

    /// An address handle.
    #[derive(Clone, Copy, Debug)]
    struct ibv_ah {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        handle: u32,
    }
}

impl ibv_gid {
    /// Returns the 16 bytes of the GID in network order.
    #[must_use]
    pub const fn bytes(&self) -> [u8; 16] {
        // SAFETY: both members are 16 bytes of integers without padding, so either can be read whichever was written.
        unsafe { self.raw }
    }
}
