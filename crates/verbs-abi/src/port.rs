//! Ports.

use std::ffi::c_int;

c_consts! {
    /// Code of a path MTU; `IBV_MTU_1024` stands for 1024 bytes.
    enum ibv_mtu: u32 {
        IBV_MTU_256 = 1,
        IBV_MTU_512 = 2,
        IBV_MTU_1024 = 3,
        IBV_MTU_2048 = 4,
        IBV_MTU_4096 = 5,
    }

    /// Logical state of a port: [`ibv_port_attr::state`].
    enum ibv_port_state: u32 {
        IBV_PORT_NOP = 0,
        IBV_PORT_DOWN = 1,
        IBV_PORT_INIT = 2,
        IBV_PORT_ARMED = 3,
        IBV_PORT_ACTIVE = 4,
        IBV_PORT_ACTIVE_DEFER = 5,
    }

    /// Link layer of a port: [`ibv_port_attr::link_layer`].
    enum ibv_link_layer: u8 {
        IBV_LINK_LAYER_UNSPECIFIED = 0,
        IBV_LINK_LAYER_INFINIBAND = 1,
        IBV_LINK_LAYER_ETHERNET = 2,
    }

    /// Bits of [`ibv_port_attr::port_cap_flags`].
    enum ibv_port_cap_flags: u32 {
        IBV_PORT_SM = 1 << 1,
        IBV_PORT_NOTICE_SUP = 1 << 2,
        IBV_PORT_TRAP_SUP = 1 << 3,
        IBV_PORT_OPT_IPD_SUP = 1 << 4,
        IBV_PORT_AUTO_MIGR_SUP = 1 << 5,
        IBV_PORT_SL_MAP_SUP = 1 << 6,
        IBV_PORT_MKEY_NVRAM = 1 << 7,
        IBV_PORT_PKEY_NVRAM = 1 << 8,
        IBV_PORT_LED_INFO_SUP = 1 << 9,
        IBV_PORT_SYS_IMAGE_GUID_SUP = 1 << 11,
        IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP = 1 << 12,
        IBV_PORT_EXTENDED_SPEEDS_SUP = 1 << 14,
        IBV_PORT_CAP_MASK2_SUP = 1 << 15,
        IBV_PORT_CM_SUP = 1 << 16,
        IBV_PORT_SNMP_TUNNEL_SUP = 1 << 17,
        IBV_PORT_REINIT_SUP = 1 << 18,
        IBV_PORT_DEVICE_MGMT_SUP = 1 << 19,
        IBV_PORT_VENDOR_CLASS_SUP = 1 << 20,
        IBV_PORT_DR_NOTICE_SUP = 1 << 21,
        IBV_PORT_CAP_MASK_NOTICE_SUP = 1 << 22,
        IBV_PORT_BOOT_MGMT_SUP = 1 << 23,
        IBV_PORT_LINK_LATENCY_SUP = 1 << 24,
        IBV_PORT_CLIENT_REG_SUP = 1 << 25,
        IBV_PORT_IP_BASED_GIDS = 1 << 26,
    }

    /// Bits of [`ibv_port_attr::port_cap_flags2`].
    enum ibv_port_cap_flags2: u32 {
        IBV_PORT_SET_NODE_DESC_SUP = 1 << 0,
        IBV_PORT_INFO_EXT_SUP = 1 << 1,
        IBV_PORT_VIRT_SUP = 1 << 2,
        IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP = 1 << 3,
        IBV_PORT_LINK_WIDTH_2X_SUP = 1 << 4,
        IBV_PORT_LINK_SPEED_HDR_SUP = 1 << 5,
        IBV_PORT_LINK_SPEED_NDR_SUP = 1 << 10,
    }

    /// Code of a static rate: [`ibv_ah_attr::static_rate`](crate::ibv_ah_attr::static_rate).
    enum ibv_rate: u32 {
        IBV_RATE_MAX = 0,
        IBV_RATE_2_5_GBPS = 2,
        IBV_RATE_5_GBPS = 5,
        IBV_RATE_10_GBPS = 3,
        IBV_RATE_20_GBPS = 6,
        IBV_RATE_30_GBPS = 4,
        IBV_RATE_40_GBPS = 7,
        IBV_RATE_60_GBPS = 8,
        IBV_RATE_80_GBPS = 9,
        IBV_RATE_120_GBPS = 10,
        IBV_RATE_14_GBPS = 11,
        IBV_RATE_56_GBPS = 12,
        IBV_RATE_112_GBPS = 13,
        IBV_RATE_168_GBPS = 14,
        IBV_RATE_25_GBPS = 15,
        IBV_RATE_100_GBPS = 16,
        IBV_RATE_200_GBPS = 17,
        IBV_RATE_300_GBPS = 18,
        IBV_RATE_28_GBPS = 19,
        IBV_RATE_50_GBPS = 20,
        IBV_RATE_400_GBPS = 21,
        IBV_RATE_600_GBPS = 22,
        IBV_RATE_800_GBPS = 23,
        IBV_RATE_1200_GBPS = 24,
    }

    /// Bits of [`ibv_port_attr::flags`].
    consts port_attr_flags: u8 {
        IBV_QPF_GRH_REQUIRED = 1 << 0,
    }
}

c_types! {
    /// Properties of a port: `ibv_query_port(3)`. The exported symbol writes only the first 48
    /// bytes of this structure, see [`Symbols::ibv_query_port`](crate::Symbols::ibv_query_port).
    #[derive(Clone, Copy, Debug)]
    struct ibv_port_attr {
        state: ibv_port_state,
        max_mtu: ibv_mtu,
        active_mtu: ibv_mtu,
        gid_tbl_len: c_int,
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        port_cap_flags2: u16,
    }
}
