//! Flow steering of raw packets.

use std::ffi::c_void;

use crate::context::ibv_context;
use crate::counters::ibv_counters;

c_consts! {
    /// Bits of [`ibv_flow_attr::flags`].
    enum ibv_flow_flags: u32 {
        IBV_FLOW_ATTR_FLAGS_DONT_TRAP = 1 << 1,
        IBV_FLOW_ATTR_FLAGS_EGRESS = 1 << 2,
    }

    /// Kind of a flow: [`ibv_flow_attr::type`](ibv_flow_attr).
    enum ibv_flow_attr_type: u32 {
        IBV_FLOW_ATTR_NORMAL = 0x0,
        IBV_FLOW_ATTR_ALL_DEFAULT = 0x1,
        IBV_FLOW_ATTR_MC_DEFAULT = 0x2,
        IBV_FLOW_ATTR_SNIFFER = 0x3,
    }

    /// Kind of a flow specification: the first field of each `ibv_flow_spec_*`.
    enum ibv_flow_spec_type: u32 {
        IBV_FLOW_SPEC_ETH = 0x20,
        IBV_FLOW_SPEC_IPV4 = 0x30,
        IBV_FLOW_SPEC_IPV6 = 0x31,
        IBV_FLOW_SPEC_IPV4_EXT = 0x32,
        IBV_FLOW_SPEC_ESP = 0x34,
        IBV_FLOW_SPEC_TCP = 0x40,
        IBV_FLOW_SPEC_UDP = 0x41,
        IBV_FLOW_SPEC_VXLAN_TUNNEL = 0x50,
        IBV_FLOW_SPEC_GRE = 0x51,
        IBV_FLOW_SPEC_MPLS = 0x60,
        IBV_FLOW_SPEC_INNER = 0x100,
        IBV_FLOW_SPEC_ACTION_TAG = 0x1000,
        IBV_FLOW_SPEC_ACTION_DROP = 0x1001,
        IBV_FLOW_SPEC_ACTION_HANDLE = 0x1002,
        IBV_FLOW_SPEC_ACTION_COUNT = 0x1003,
    }

    /// Bits of [`ibv_flow_action_esp_attr::comp_mask`].
    enum ibv_flow_action_esp_mask: u32 {
        IBV_FLOW_ACTION_ESP_MASK_ESN = 1 << 0,
    }
}

c_types! {
    /// Ethernet header fields to match.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_eth_filter {
        dst_mac: [u8; 6],
        src_mac: [u8; 6],
        ether_type: u16,
        vlan_tag: u16,
    }

    /// Match on Ethernet headers.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_spec_eth {
        r#type: ibv_flow_spec_type,
        size: u16,
        val: ibv_flow_eth_filter,
        mask: ibv_flow_eth_filter,
    }

    /// IPv4 addresses to match.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_ipv4_filter {
        src_ip: u32,
        dst_ip: u32,
    }

    /// Match on IPv4 addresses.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_spec_ipv4 {
        r#type: ibv_flow_spec_type,
        size: u16,
        val: ibv_flow_ipv4_filter,
        mask: ibv_flow_ipv4_filter,
    }

    /// IPv4 header fields to match.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_ipv4_ext_filter {
        src_ip: u32,
        dst_ip: u32,
        proto: u8,
        tos: u8,
        ttl: u8,
        flags: u8,
    }

    /// Match on IPv4 headers.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_spec_ipv4_ext {
        r#type: ibv_flow_spec_type,
        size: u16,
        val: ibv_flow_ipv4_ext_filter,
        mask: ibv_flow_ipv4_ext_filter,
    }

    /// IPv6 header fields to match.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_ipv6_filter {
        src_ip: [u8; 16],
        dst_ip: [u8; 16],
        flow_label: u32,
        next_hdr: u8,
        traffic_class: u8,
        hop_limit: u8,
    }

    /// Match on IPv6 headers.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_spec_ipv6 {
        r#type: ibv_flow_spec_type,
        size: u16,
        val: ibv_flow_ipv6_filter,
        mask: ibv_flow_ipv6_filter,
    }

    /// IPsec ESP header fields to match.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_esp_filter {
        spi: u32,
        seq: u32,
    }

    /// Match on IPsec ESP headers.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_spec_esp {
        r#type: ibv_flow_spec_type,
        size: u16,
        val: ibv_flow_esp_filter,
        mask: ibv_flow_esp_filter,
    }

    /// TCP or UDP ports to match.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_tcp_udp_filter {
        dst_port: u16,
        src_port: u16,
    }

    /// Match on TCP or UDP ports.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_spec_tcp_udp {
        r#type: ibv_flow_spec_type,
        size: u16,
        val: ibv_flow_tcp_udp_filter,
        mask: ibv_flow_tcp_udp_filter,
    }

    /// GRE header fields to match.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_gre_filter {
        c_ks_res0_ver: u16,
        protocol: u16,
        key: u32,
    }

    /// Match on GRE headers.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_spec_gre {
        r#type: ibv_flow_spec_type,
        size: u16,
        val: ibv_flow_gre_filter,
        mask: ibv_flow_gre_filter,
    }

    /// MPLS label to match.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_mpls_filter {
        label: u32,
    }

    /// Match on MPLS labels.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_spec_mpls {
        r#type: ibv_flow_spec_type,
        size: u16,
        val: ibv_flow_mpls_filter,
        mask: ibv_flow_mpls_filter,
    }

    /// Tunnel id to match.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_tunnel_filter {
        tunnel_id: u32,
    }

    /// Match on VXLAN tunnels.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_spec_tunnel {
        r#type: ibv_flow_spec_type,
        size: u16,
        val: ibv_flow_tunnel_filter,
        mask: ibv_flow_tunnel_filter,
    }

    /// Tag the completions of the flow.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_spec_action_tag {
        r#type: ibv_flow_spec_type,
        size: u16,
        tag_id: u32,
    }

    /// Drop the packets of the flow.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_spec_action_drop {
        r#type: ibv_flow_spec_type,
        size: u16,
    }

    /// Apply a flow action, such as ESP decryption.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_spec_action_handle {
        r#type: ibv_flow_spec_type,
        size: u16,
        action: *const ibv_flow_action,
    }

    /// Count the packets of the flow.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_spec_counter_action {
        r#type: ibv_flow_spec_type,
        size: u16,
        counters: *mut ibv_counters,
    }

    /// The common beginning of all flow specifications.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_spec_spec_hdr as "typeof(((struct ibv_flow_spec *)0)->hdr)" {
        r#type: ibv_flow_spec_type,
        size: u16,
    }

    /// The anonymous union in [`ibv_flow_spec`].
    #[derive(Clone, Copy)]
    union ibv_flow_spec_spec as "struct ibv_flow_spec", anonymous "hdr" {
        hdr: ibv_flow_spec_spec_hdr,
        eth: ibv_flow_spec_eth,
        ipv4: ibv_flow_spec_ipv4,
        tcp_udp: ibv_flow_spec_tcp_udp,
        ipv4_ext: ibv_flow_spec_ipv4_ext,
        ipv6: ibv_flow_spec_ipv6,
        esp: ibv_flow_spec_esp,
        tunnel: ibv_flow_spec_tunnel,
        gre: ibv_flow_spec_gre,
        mpls: ibv_flow_spec_mpls,
        flow_tag: ibv_flow_spec_action_tag,
        drop: ibv_flow_spec_action_drop,
        handle: ibv_flow_spec_action_handle,
        flow_count: ibv_flow_spec_counter_action,
    }

    /// Any flow specification.
    #[derive(Clone, Copy)]
    struct ibv_flow_spec {
        spec as "hdr": ibv_flow_spec_spec,
    }

    /// A steering rule; `num_of_specs` flow specifications follow it in memory:
    /// `ibv_create_flow(3)`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_attr {
        comp_mask: u32,
        r#type: ibv_flow_attr_type,
        size: u16,
        priority: u16,
        num_of_specs: u8,
        port: u8,
        flags: u32,
    }

    /// An installed steering rule.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow {
        comp_mask: u32,
        context: *mut ibv_context,
        handle: u32,
    }

    /// An action that flows can refer to.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_action {
        context: *mut ibv_context,
    }

    /// Attributes of an ESP action: `ibv_flow_action_esp(3)`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_flow_action_esp_attr {
        esp_attr: *mut c_void,
        keymat_proto: u32,
        keymat_len: u16,
        keymat_ptr: *mut c_void,
        replay_proto: u32,
        replay_len: u16,
        replay_ptr: *mut c_void,
        esp_encap: *mut c_void,
        comp_mask: u32,
        esn: u32,
    }
}
