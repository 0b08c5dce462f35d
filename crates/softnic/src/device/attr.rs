//! Properties of the device: `ibv_query_device(3)`, `ibv_query_device_ex(3)`.

use verbs_abi::*;

use super::guid::node_guid;
use super::limits::*;
use super::link_layer::LinkLayer;
use crate::identity::Identity;
use nic_core::flows::hash_field;

/// Properties and limits of the device: what `ibv_query_device` fills in.
///
/// - `hw_ver` is 0.
/// - `max_ee`, `max_rdd` and the raw datagram queue pairs of IBTA vol. 1 (which raw packets are not) are 0: not supported.
pub(crate) fn device_attr(identity: &Identity, link_layer: LinkLayer) -> ibv_device_attr {
    let mut attr = ibv_device_attr::zeroed();
    for (to, from) in attr.fw_ver.iter_mut().zip(identity.firmware.bytes()) {
        *to = from.cast_signed();
    }
    attr.node_guid = u64::from_ne_bytes(node_guid());
    // One device in the "system": both GUIDs are the same.
    attr.sys_image_guid = attr.node_guid;
    attr.vendor_id = identity.vendor_id;
    attr.vendor_part_id = identity.part_id;
    attr.max_mr_size = MAX_MR_SIZE;
    // One bit per supported page size: every power of two from 4 KiB, as mlx5.
    attr.page_size_cap = !0xfff;
    attr.max_qp = int(MAX_QP);
    attr.max_qp_wr = int(MAX_QP_WR);
    attr.device_cap_flags = IBV_DEVICE_UD_AV_PORT_ENFORCE
        | IBV_DEVICE_CURR_QP_STATE_MOD
        | IBV_DEVICE_SYS_IMAGE_GUID
        | IBV_DEVICE_RC_RNR_NAK_GEN
        | IBV_DEVICE_XRC
        | IBV_DEVICE_MEM_WINDOW
        | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    if link_layer == LinkLayer::Ethernet {
        attr.device_cap_flags |= IBV_DEVICE_RAW_IP_CSUM | IBV_DEVICE_MANAGED_FLOW_STEERING;
    }
    attr.max_mw = int(MAX_MR);
    attr.max_mcast_grp = int(MAX_MCASTS);
    attr.max_mcast_qp_attach = int(MAX_MCASTS);
    attr.max_total_mcast_qp_attach = int(MAX_MCASTS);
    attr.max_sge = int(MAX_SGE);
    attr.max_sge_rd = int(MAX_SGE);
    attr.max_cq = int(MAX_CQ);
    attr.max_cqe = int(MAX_CQE);
    attr.max_mr = int(MAX_MR);
    attr.max_pd = int(MAX_PD);
    attr.max_qp_rd_atom = int(MAX_QP_RD_ATOM);
    attr.max_qp_init_rd_atom = int(MAX_QP_INIT_RD_ATOM);
    // Every queue pair may use its full share.
    attr.max_res_rd_atom = int(MAX_QP * MAX_QP_RD_ATOM);
    // Atomics on private memory are atomic only among the device's own.
    attr.atomic_cap = IBV_ATOMIC_HCA;
    attr.max_ah = int(MAX_AH);
    attr.max_srq = int(MAX_SRQ);
    attr.max_srq_wr = int(MAX_SRQ_WR);
    attr.max_srq_sge = int(MAX_SRQ_SGE);
    attr.max_pkeys = PKEY_TBL_LEN;
    // Coded, 4.096 µs × 2^15 = 134 ms: as Soft-RoCE (`RXE_LOCAL_CA_ACK_DELAY`), whose responder waits
    // for a scheduler as well.
    attr.local_ca_ack_delay = 15;
    attr.phys_port_cnt = PORT_NUM;
    attr
}

/// The device's clock in kHz: completions are stamped with nanoseconds.
const CORE_CLOCK_KHZ: u64 = 1_000_000;

/// Properties of the extensions: what `ibv_query_device_ex` fills in. What is zero is not supported.
pub(crate) fn device_attr_ex(identity: &Identity, link_layer: LinkLayer) -> ibv_device_attr_ex {
    let mut attr = ibv_device_attr_ex::zeroed();
    attr.orig_attr = device_attr(identity, link_layer);
    // Memory is not pinned: every page may be on demand.
    const TWO_SIDED: u32 = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
    const WRITE: u32 = TWO_SIDED | IBV_ODP_SUPPORT_WRITE;
    attr.odp_caps.general_caps = u64::from(IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT);
    attr.cq_mod_caps.max_cq_count = u16::MAX;
    attr.cq_mod_caps.max_cq_period = u16::MAX;
    attr.odp_caps.per_transport_caps.rc_odp_caps =
        WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
    attr.odp_caps.per_transport_caps.uc_odp_caps = WRITE;
    attr.odp_caps.per_transport_caps.ud_odp_caps = TWO_SIDED;
    attr.xrc_odp_caps = attr.odp_caps.per_transport_caps.rc_odp_caps;
    attr.completion_timestamp_mask = u64::MAX;
    attr.hca_core_clock = CORE_CLOCK_KHZ;
    attr.device_cap_flags_ex = u64::from(attr.orig_attr.device_cap_flags)
        | IBV_DEVICE_ATOMIC_WRITE
        | IBV_DEVICE_FLUSH_GLOBAL;
    attr.max_dm_size = MAX_DM_SIZE;
    attr.tm_caps = ibv_tm_caps {
        max_rndv_hdr_size: MAX_RNDV_HEADER,
        max_num_tags: MAX_TAGS,
        flags: IBV_TM_CAP_RC,
        max_ops: MAX_TAG_OPS,
        max_sge: MAX_SRQ_SGE,
    };
    if link_layer == LinkLayer::Ethernet {
        attr.raw_packet_caps = IBV_RAW_PACKET_CAP_IP_CSUM;
        attr.max_wq_type_rq = MAX_QP;
        attr.rss_caps = ibv_rss_caps {
            supported_qpts: 1 << IBV_QPT_RAW_PACKET,
            max_rwq_indirection_tables: MAX_QP,
            max_rwq_indirection_table_size: MAX_IND_TBL_SIZE,
            rx_hash_fields_mask: hash_field::ALL,
            rx_hash_function: IBV_RX_HASH_FUNC_TOEPLITZ,
        };
    }
    attr.phys_port_cnt_ex = PORT_NUM.into();
    attr
}
