//! Devices, their properties and limits.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::context::_ibv_device_ops;

c_consts! {
    /// Kind of device: [`ibv_device::node_type`].
    enum ibv_node_type: i32 {
        IBV_NODE_UNKNOWN = -1,
        IBV_NODE_CA = 1,
        IBV_NODE_SWITCH = 2,
        IBV_NODE_ROUTER = 3,
        IBV_NODE_RNIC = 4,
        IBV_NODE_USNIC = 5,
        IBV_NODE_USNIC_UDP = 6,
        IBV_NODE_UNSPECIFIED = 7,
    }

    /// Transport of a device: [`ibv_device::transport_type`]. RoCE devices report
    /// `IBV_TRANSPORT_IB`.
    enum ibv_transport_type: i32 {
        IBV_TRANSPORT_UNKNOWN = -1,
        IBV_TRANSPORT_IB = 0,
        IBV_TRANSPORT_IWARP = 1,
        IBV_TRANSPORT_USNIC = 2,
        IBV_TRANSPORT_USNIC_UDP = 3,
        IBV_TRANSPORT_UNSPECIFIED = 4,
    }

    /// Bits of [`ibv_device_attr::device_cap_flags`].
    enum ibv_device_cap_flags: u32 {
        IBV_DEVICE_RESIZE_MAX_WR = 1,
        IBV_DEVICE_BAD_PKEY_CNTR = 1 << 1,
        IBV_DEVICE_BAD_QKEY_CNTR = 1 << 2,
        IBV_DEVICE_RAW_MULTI = 1 << 3,
        IBV_DEVICE_AUTO_PATH_MIG = 1 << 4,
        IBV_DEVICE_CHANGE_PHY_PORT = 1 << 5,
        IBV_DEVICE_UD_AV_PORT_ENFORCE = 1 << 6,
        IBV_DEVICE_CURR_QP_STATE_MOD = 1 << 7,
        IBV_DEVICE_SHUTDOWN_PORT = 1 << 8,
        IBV_DEVICE_INIT_TYPE = 1 << 9,
        IBV_DEVICE_PORT_ACTIVE_EVENT = 1 << 10,
        IBV_DEVICE_SYS_IMAGE_GUID = 1 << 11,
        IBV_DEVICE_RC_RNR_NAK_GEN = 1 << 12,
        IBV_DEVICE_SRQ_RESIZE = 1 << 13,
        IBV_DEVICE_N_NOTIFY_CQ = 1 << 14,
        IBV_DEVICE_MEM_WINDOW = 1 << 17,
        IBV_DEVICE_UD_IP_CSUM = 1 << 18,
        IBV_DEVICE_XRC = 1 << 20,
        IBV_DEVICE_MEM_MGT_EXTENSIONS = 1 << 21,
        IBV_DEVICE_MEM_WINDOW_TYPE_2A = 1 << 23,
        IBV_DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24,
        IBV_DEVICE_RC_IP_CSUM = 1 << 25,
        IBV_DEVICE_RAW_IP_CSUM = 1 << 26,
        IBV_DEVICE_MANAGED_FLOW_STEERING = 1 << 29,
    }

    /// The scope of atomicity of atomics: among the QPs of the device (`HCA`), or including the CPU
    /// (`GLOB`).
    enum ibv_atomic_cap: u32 {
        IBV_ATOMIC_NONE = 0,
        IBV_ATOMIC_HCA = 1,
        IBV_ATOMIC_GLOB = 2,
    }

    /// Bits of [`ibv_odp_caps_per_transport_caps`].
    enum ibv_odp_transport_cap_bits: u32 {
        IBV_ODP_SUPPORT_SEND = 1 << 0,
        IBV_ODP_SUPPORT_RECV = 1 << 1,
        IBV_ODP_SUPPORT_WRITE = 1 << 2,
        IBV_ODP_SUPPORT_READ = 1 << 3,
        IBV_ODP_SUPPORT_ATOMIC = 1 << 4,
        IBV_ODP_SUPPORT_SRQ_RECV = 1 << 5,
    }

    /// Bits of [`ibv_odp_caps::general_caps`].
    enum ibv_odp_general_caps: u32 {
        IBV_ODP_SUPPORT = 1 << 0,
        IBV_ODP_SUPPORT_IMPLICIT = 1 << 1,
    }

    /// Bits of [`ibv_rss_caps::rx_hash_function`].
    enum ibv_rx_hash_function_flags: u8 {
        IBV_RX_HASH_FUNC_TOEPLITZ = 1 << 0,
    }

    /// Bits of [`ibv_rss_caps::rx_hash_fields_mask`].
    enum ibv_rx_hash_fields: u64 {
        IBV_RX_HASH_SRC_IPV4 = 1 << 0,
        IBV_RX_HASH_DST_IPV4 = 1 << 1,
        IBV_RX_HASH_SRC_IPV6 = 1 << 2,
        IBV_RX_HASH_DST_IPV6 = 1 << 3,
        IBV_RX_HASH_SRC_PORT_TCP = 1 << 4,
        IBV_RX_HASH_DST_PORT_TCP = 1 << 5,
        IBV_RX_HASH_SRC_PORT_UDP = 1 << 6,
        IBV_RX_HASH_DST_PORT_UDP = 1 << 7,
        IBV_RX_HASH_IPSEC_SPI = 1 << 8,
        IBV_RX_HASH_INNER = 1 << 31,
    }

    /// Bits of [`ibv_device_attr_ex::raw_packet_caps`].
    enum ibv_raw_packet_caps: u32 {
        IBV_RAW_PACKET_CAP_CVLAN_STRIPPING = 1 << 0,
        IBV_RAW_PACKET_CAP_SCATTER_FCS = 1 << 1,
        IBV_RAW_PACKET_CAP_IP_CSUM = 1 << 2,
        IBV_RAW_PACKET_CAP_DELAY_DROP = 1 << 3,
    }

    /// Bits of [`ibv_tm_caps::flags`].
    enum ibv_tm_cap_flags: u32 {
        IBV_TM_CAP_RC = 1 << 0,
    }

    /// Bits of the fields of [`ibv_pci_atomic_caps`].
    enum ibv_pci_atomic_op_size: u32 {
        IBV_PCI_ATOMIC_OPERATION_4_BYTE_SIZE_SUP = 1 << 0,
        IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP = 1 << 1,
        IBV_PCI_ATOMIC_OPERATION_16_BYTE_SIZE_SUP = 1 << 2,
    }

    /// Array sizes of [`ibv_device`], in bytes including the final NUL.
    consts ibv_sysfs_name_max: usize {
        IBV_SYSFS_NAME_MAX = 64,
        IBV_SYSFS_PATH_MAX = 256,
    }

    /// Bits of [`ibv_device_attr_ex::device_cap_flags_ex`] above the low 32, which repeat
    /// [`ibv_device_cap_flags`].
    consts device_cap_flags_ex: u64 {
        IBV_DEVICE_RAW_SCATTER_FCS = 1 << 34,
        IBV_DEVICE_PCI_WRITE_END_PADDING = 1 << 36,
    }
}

c_types! {
    /// Properties and limits of a device: `ibv_query_device(3)`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_device_attr {
        fw_ver: [c_char; 64],
        /// GUID of the node, big-endian.
        node_guid: u64,
        /// GUID of the system image, big-endian.
        sys_image_guid: u64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        device_cap_flags: c_uint,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        atomic_cap: ibv_atomic_cap,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
    }

    /// Input of `ibv_query_device_ex(3)`; `comp_mask` must be 0.
    #[derive(Clone, Copy, Debug)]
    struct ibv_query_device_ex_input {
        comp_mask: u32,
    }

    /// The operations that support on-demand paging, per transport: [`ibv_odp_transport_cap_bits`].
    #[derive(Clone, Copy, Debug)]
    struct ibv_odp_caps_per_transport_caps as "typeof(((struct ibv_odp_caps *)0)->per_transport_caps)" {
        rc_odp_caps: u32,
        uc_odp_caps: u32,
        ud_odp_caps: u32,
    }

    /// On-demand paging capabilities.
    #[derive(Clone, Copy, Debug)]
    struct ibv_odp_caps {
        general_caps: u64,
        per_transport_caps: ibv_odp_caps_per_transport_caps,
    }

    /// TCP segmentation offload capabilities; `supported_qpts` has bit `1 << IBV_QPT_*` set.
    #[derive(Clone, Copy, Debug)]
    struct ibv_tso_caps {
        max_tso: u32,
        supported_qpts: u32,
    }

    /// Receive-side scaling capabilities.
    #[derive(Clone, Copy, Debug)]
    struct ibv_rss_caps {
        supported_qpts: u32,
        max_rwq_indirection_tables: u32,
        max_rwq_indirection_table_size: u32,
        rx_hash_fields_mask: u64,
        rx_hash_function: u8,
    }

    /// Packet pacing capabilities; rates are in kbit/s.
    #[derive(Clone, Copy, Debug)]
    struct ibv_packet_pacing_caps {
        qp_rate_limit_min: u32,
        qp_rate_limit_max: u32,
        supported_qpts: u32,
    }

    /// Tag matching capabilities.
    #[derive(Clone, Copy, Debug)]
    struct ibv_tm_caps {
        max_rndv_hdr_size: u32,
        max_num_tags: u32,
        flags: u32,
        max_ops: u32,
        max_sge: u32,
    }

    /// Limits of [`ibv_moderate_cq`](crate::ibv_moderate_cq).
    #[derive(Clone, Copy, Debug)]
    struct ibv_cq_moderation_caps {
        max_cq_count: u16,
        max_cq_period: u16,
    }

    /// Sizes of PCIe atomics that the device issues: [`ibv_pci_atomic_op_size`].
    #[derive(Clone, Copy, Debug)]
    struct ibv_pci_atomic_caps {
        fetch_add: u16,
        swap: u16,
        compare_swap: u16,
    }

    /// Extended properties of a device: `ibv_query_device_ex(3)`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_device_attr_ex {
        orig_attr: ibv_device_attr,
        comp_mask: u32,
        odp_caps: ibv_odp_caps,
        completion_timestamp_mask: u64,
        hca_core_clock: u64,
        device_cap_flags_ex: u64,
        tso_caps: ibv_tso_caps,
        rss_caps: ibv_rss_caps,
        max_wq_type_rq: u32,
        packet_pacing_caps: ibv_packet_pacing_caps,
        raw_packet_caps: u32,
        tm_caps: ibv_tm_caps,
        cq_mod_caps: ibv_cq_moderation_caps,
        max_dm_size: u64,
        pci_atomic_caps: ibv_pci_atomic_caps,
        xrc_odp_caps: u32,
        phys_port_cnt_ex: u32,
    }

    /// A device in the list of `ibv_get_device_list`. Provider libraries read fields directly behind
    /// this structure: see [`verbs_device`].
    struct ibv_device {
        _ops: _ibv_device_ops,
        node_type: ibv_node_type,
        transport_type: ibv_transport_type,
        name: [c_char; IBV_SYSFS_NAME_MAX],
        dev_name: [c_char; IBV_SYSFS_NAME_MAX],
        dev_path: [c_char; IBV_SYSFS_PATH_MAX],
        ibdev_path: [c_char; IBV_SYSFS_PATH_MAX],
    }
}


/// An [`ibv_device`] followed by the memory that libibverbs and its provider libraries read behind it.
///
/// rdma-core stores private fields there: `struct verbs_device` of its `libibverbs/driver.h` has the
/// provider's operations, a reference count, a list link and sysfs data. Libraries such as libmlx5 read
/// `ops` of any device passed to them, to recognise their own devices. A device of another provider must
/// therefore have readable zeroes there.
#[repr(C)]
pub struct verbs_device {
    /// The part of the device that programs see.
    pub device: ibv_device,
    /// `struct verbs_device_ops` of the provider library; NULL for devices that are not libibverbs' own.
    pub ops: *const c_void,
    /// Memory for the other private fields: 40 bytes in rdma-core 44; this array is larger.
    pub reserved: [u64; 31],
}

impl verbs_device {
    /// Returns a device whose bytes are all zero.
    #[must_use]
    pub const fn zeroed() -> Self {
        Self { device: ibv_device::zeroed(), ops: std::ptr::null(), reserved: [0; 31] }
    }
}
