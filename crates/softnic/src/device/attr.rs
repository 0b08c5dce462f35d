//! Properties of the device: `ibv_query_device(3)`, `ibv_query_device_ex(3)`.

use verbs_abi::*;

use super::limits::*;
use super::link_layer::LinkLayer;
use super::ports::Device;
use crate::capabilities::{DeviceCapabilities, OptionalFeature};
use crate::identity::Identity;
use nic_core::flows::hash_field;
use nic_core::qp_state::QpType;

/// Returns the properties and limits of the device, as `ibv_query_device` fills them in.
///
/// - `hw_ver` is 0.
/// - `max_ee`, `max_rdd` and the raw datagram queue pairs of IBTA vol. 1 (which raw packets are not) are 0: not
///   supported.
pub(crate) fn device_attr(
    identity: &Identity,
    can: &DeviceCapabilities,
    device: &Device,
) -> ibv_device_attr {
    let own = &can.limits;
    let if_has = |feature, value: u32| if can.has_feature(feature) { value } else { 0 };
    let with =
        |feature, flag: ibv_device_cap_flags| if can.has_feature(feature) { flag } else { 0 };
    let mut attr = ibv_device_attr::zeroed();
    for (to, from) in attr.fw_ver.iter_mut().zip(identity.firmware.bytes()) {
        *to = std::ffi::c_char::from_ne_bytes([from]);
    }
    attr.node_guid = u64::from_ne_bytes(device.node_guid);
    // Every device is a system of its own: both GUIDs are the same.
    attr.sys_image_guid = attr.node_guid;
    attr.vendor_id = identity.vendor_id;
    attr.vendor_part_id = identity.vendor_part_id;
    attr.max_mr_size = MAX_MR_SIZE;
    // One bit per supported page size: every power of two from 4 KiB, as mlx5.
    attr.page_size_cap = !0xfff;
    attr.max_qp = limit_as_c_int(own.max_qp);
    attr.max_qp_wr = limit_as_c_int(own.max_qp_wr);
    // Which port a datagram leaves by is not checked: with one port, it needs no check.
    let one_port = match device.port_count() {
        1 => IBV_DEVICE_UD_AV_PORT_ENFORCE,
        _ => 0,
    };
    attr.device_cap_flags = one_port
        | IBV_DEVICE_CURR_QP_STATE_MOD
        | IBV_DEVICE_SYS_IMAGE_GUID
        | IBV_DEVICE_RC_RNR_NAK_GEN
        | with(
            OptionalFeature::MemoryWindows,
            IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B,
        );
    if can.supports_qp_type(QpType::XrcRecv) {
        attr.device_cap_flags |= IBV_DEVICE_XRC;
    }
    if supports_raw_packet_qps(can, device.link_layer()) {
        attr.device_cap_flags |= IBV_DEVICE_RAW_IP_CSUM | IBV_DEVICE_MANAGED_FLOW_STEERING;
    }
    attr.max_mw = limit_as_c_int(if_has(OptionalFeature::MemoryWindows, own.max_mr));
    let mcasts = limit_as_c_int(if_has(OptionalFeature::Multicast, MAX_MCAST_ATTACHMENTS));
    attr.max_mcast_grp = mcasts;
    attr.max_mcast_qp_attach = mcasts;
    attr.max_total_mcast_qp_attach = mcasts;
    attr.max_sge = limit_as_c_int(own.max_sge);
    attr.max_sge_rd = limit_as_c_int(own.max_sge_rd);
    attr.max_cq = limit_as_c_int(MAX_CQ);
    attr.max_cqe = limit_as_c_int(own.max_cqe);
    attr.max_mr = limit_as_c_int(own.max_mr);
    attr.max_pd = limit_as_c_int(MAX_PD);
    attr.max_qp_rd_atom = limit_as_c_int(own.max_qp_rd_atom);
    attr.max_qp_init_rd_atom = limit_as_c_int(own.max_qp_init_rd_atom);
    // Every queue pair may use its full share.
    attr.max_res_rd_atom = limit_as_c_int(own.max_qp.saturating_mul(own.max_qp_rd_atom));
    // On private memory, atomics are atomic only with respect to the device's own.
    attr.atomic_cap = match can.has_feature(OptionalFeature::Atomics) {
        true => IBV_ATOMIC_HCA,
        false => IBV_ATOMIC_NONE,
    };
    attr.max_ah = limit_as_c_int(MAX_AH);
    attr.max_srq = limit_as_c_int(if_has(OptionalFeature::Srq, MAX_SRQ));
    attr.max_srq_wr = limit_as_c_int(if_has(OptionalFeature::Srq, own.max_srq_wr));
    attr.max_srq_sge = limit_as_c_int(if_has(OptionalFeature::Srq, own.max_srq_sge));
    attr.max_pkeys = PKEY_TBL_LEN;
    // Coded, 4.096 µs × 2^15 = 134 ms: as Soft-RoCE (`RXE_LOCAL_CA_ACK_DELAY`), whose responder waits
    // for a scheduler as well.
    attr.local_ca_ack_delay = 15;
    attr.phys_port_cnt = device.port_count();
    attr
}

/// Returns true if there are raw packet queue pairs.
fn supports_raw_packet_qps(can: &DeviceCapabilities, link_layer: LinkLayer) -> bool {
    link_layer == LinkLayer::Ethernet && can.supports_qp_type(QpType::RawPacket)
}

/// The device's clock in kHz: completions are stamped with nanoseconds.
const CORE_CLOCK_KHZ: u64 = 1_000_000;

/// Returns the properties of the extensions, as `ibv_query_device_ex` fills them in. Zero means not supported.
pub(crate) fn device_attr_ex(
    identity: &Identity,
    can: &DeviceCapabilities,
    device: &Device,
) -> ibv_device_attr_ex {
    let mut attr = ibv_device_attr_ex::zeroed();
    attr.orig_attr = device_attr(identity, can, device);
    attr.cq_mod_caps.max_cq_count = u16::MAX;
    attr.cq_mod_caps.max_cq_period = u16::MAX;
    if can.has_feature(OptionalFeature::OnDemandPaging) {
        set_on_demand_paging_caps(&mut attr);
    }
    attr.completion_timestamp_mask = u64::MAX;
    attr.hca_core_clock = CORE_CLOCK_KHZ;
    attr.device_cap_flags_ex = u64::from(attr.orig_attr.device_cap_flags);
    if can.has_feature(OptionalFeature::FlushAndAtomicWrite) {
        attr.device_cap_flags_ex |= IBV_DEVICE_ATOMIC_WRITE | IBV_DEVICE_FLUSH_GLOBAL;
    }
    if can.has_feature(OptionalFeature::DeviceMemory) {
        attr.max_dm_size = MAX_DM_SIZE;
    }
    if can.has_feature(OptionalFeature::TagMatching) {
        attr.tm_caps = ibv_tm_caps {
            max_rndv_hdr_size: MAX_RNDV_HEADER,
            max_num_tags: MAX_TAGS,
            flags: IBV_TM_CAP_RC,
            max_ops: MAX_TAG_OPS,
            max_sge: can.limits.max_srq_sge,
        };
    }
    if supports_raw_packet_qps(can, device.link_layer()) {
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
    attr.phys_port_cnt_ex = device.port_count().into();
    attr
}

/// Reports on-demand paging. Memory is not pinned, so every page may be on demand.
fn set_on_demand_paging_caps(attr: &mut ibv_device_attr_ex) {
    const TWO_SIDED_ODP: u32 =
        IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
    const WRITE_ODP: u32 = TWO_SIDED_ODP | IBV_ODP_SUPPORT_WRITE;
    let caps = &mut attr.odp_caps;
    caps.general_caps = u64::from(IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT);
    caps.per_transport_caps.rc_odp_caps = WRITE_ODP | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
    caps.per_transport_caps.uc_odp_caps = WRITE_ODP;
    caps.per_transport_caps.ud_odp_caps = TWO_SIDED_ODP;
    attr.xrc_odp_caps = caps.per_transport_caps.rc_odp_caps;
}
