//! Conversions of the structures that the kernel's RDMA connection manager writes: `struct ib_user_path_rec`
//! of `linux:include/uapi/rdma/ib_user_sa.h`, `struct ib_uverbs_ah_attr` and `struct ib_uverbs_qp_attr` of
//! `ib_user_verbs.h`.

use verbs_abi::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_qp_cap, ibv_sa_path_rec};

/// `struct ib_user_path_rec`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelPathRec {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    raw_traffic: u32,
    flow_label: u32,
    reversible: u32,
    mtu: u32,
    pkey: u16,
    hop_limit: u8,
    traffic_class: u8,
    numb_path: u8,
    sl: u8,
    mtu_selector: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

/// `struct ib_uverbs_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelAhAttr {
    dgid: [u8; 16],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    reserved_in_grh: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
    reserved: u8,
}

/// `struct ib_uverbs_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelQpAttr {
    qp_attr_mask: u32,
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    ah_attr: KernelAhAttr,
    alt_ah_attr: KernelAhAttr,
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    reserved: [u8; 5],
}

const _: () = assert!(size_of::<KernelPathRec>() == 64 && size_of::<ibv_sa_path_rec>() == 64);
const _: () = assert!(size_of::<KernelAhAttr>() == 32 && size_of::<KernelQpAttr>() == 144);

fn ah_attr_from_kernel(k: &KernelAhAttr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: k.dgid },
            flow_label: k.flow_label,
            sgid_index: k.sgid_index,
            hop_limit: k.hop_limit,
            traffic_class: k.traffic_class,
        },
        dlid: k.dlid,
        sl: k.sl,
        src_path_bits: k.src_path_bits,
        static_rate: k.static_rate,
        is_global: k.is_global,
        port_num: k.port_num,
    }
}

/// Converts an address vector.
///
/// # Safety
/// `dst` is writable, `src` readable.
pub(crate) unsafe extern "C" fn ibv_copy_ah_attr_from_kern(
    dst: *mut ibv_ah_attr,
    src: *const KernelAhAttr,
) {
    // SAFETY: contract of this function.
    unsafe { dst.write(ah_attr_from_kernel(&*src)) };
}

/// Converts a queue pair's attributes from the kernel's structure to `ibv_qp_attr`.
///
/// # Safety
/// `dst` is writable, `src` readable.
pub(crate) unsafe extern "C" fn ibv_copy_qp_attr_from_kern(
    dst: *mut ibv_qp_attr,
    src: *const KernelQpAttr,
) {
    // SAFETY: contract of this function.
    let k = unsafe { &*src };
    // SAFETY: as above; `rate_limit`, which the kernel does not provide, keeps its value.
    let rate_limit = unsafe { (&raw const (*dst).rate_limit).read() };
    let attr = ibv_qp_attr {
        qp_state: k.qp_state,
        cur_qp_state: k.cur_qp_state,
        path_mtu: k.path_mtu,
        path_mig_state: k.path_mig_state,
        qkey: k.qkey,
        rq_psn: k.rq_psn,
        sq_psn: k.sq_psn,
        dest_qp_num: k.dest_qp_num,
        qp_access_flags: k.qp_access_flags,
        cap: ibv_qp_cap {
            max_send_wr: k.max_send_wr,
            max_recv_wr: k.max_recv_wr,
            max_send_sge: k.max_send_sge,
            max_recv_sge: k.max_recv_sge,
            max_inline_data: k.max_inline_data,
        },
        ah_attr: ah_attr_from_kernel(&k.ah_attr),
        alt_ah_attr: ah_attr_from_kernel(&k.alt_ah_attr),
        pkey_index: k.pkey_index,
        alt_pkey_index: k.alt_pkey_index,
        en_sqd_async_notify: k.en_sqd_async_notify,
        sq_draining: k.sq_draining,
        max_rd_atomic: k.max_rd_atomic,
        max_dest_rd_atomic: k.max_dest_rd_atomic,
        min_rnr_timer: k.min_rnr_timer,
        port_num: k.port_num,
        timeout: k.timeout,
        retry_cnt: k.retry_cnt,
        rnr_retry: k.rnr_retry,
        alt_port_num: k.alt_port_num,
        alt_timeout: k.alt_timeout,
        rate_limit,
    };
    // SAFETY: contract of this function.
    unsafe { dst.write(attr) };
}

/// Converts a path record.
///
/// # Safety
/// `dst` is writable, `src` readable.
#[allow(clippy::cast_possible_truncation)] // the kernel's fields are wider than their 6 bits
pub(crate) unsafe extern "C" fn ibv_copy_path_rec_from_kern(
    dst: *mut ibv_sa_path_rec,
    src: *const KernelPathRec,
) {
    // SAFETY: contract of this function.
    let k = unsafe { &*src };
    let path = ibv_sa_path_rec {
        dgid: ibv_gid { raw: k.dgid },
        sgid: ibv_gid { raw: k.sgid },
        dlid: k.dlid,
        slid: k.slid,
        raw_traffic: k.raw_traffic.cast_signed(),
        flow_label: k.flow_label,
        hop_limit: k.hop_limit,
        traffic_class: k.traffic_class,
        reversible: k.reversible.cast_signed(),
        numb_path: k.numb_path,
        pkey: k.pkey,
        sl: k.sl,
        mtu_selector: k.mtu_selector,
        mtu: k.mtu as u8,
        rate_selector: k.rate_selector,
        rate: k.rate,
        packet_life_time_selector: k.packet_life_time_selector,
        packet_life_time: k.packet_life_time,
        preference: k.preference,
    };
    // SAFETY: contract of this function.
    unsafe { dst.write(path) };
}

/// Converts a path record into the kernel's structure.
///
/// # Safety
/// `dst` is writable, `src` readable.
pub(crate) unsafe extern "C" fn ibv_copy_path_rec_to_kern(
    dst: *mut KernelPathRec,
    src: *const ibv_sa_path_rec,
) {
    // SAFETY: contract of this function.
    let p = unsafe { &*src };
    // SAFETY: the two unions are GIDs, of which any 16 bytes are valid.
    let (dgid, sgid) = unsafe { (p.dgid.raw, p.sgid.raw) };
    let k = KernelPathRec {
        dgid,
        sgid,
        dlid: p.dlid,
        slid: p.slid,
        raw_traffic: p.raw_traffic.cast_unsigned(),
        flow_label: p.flow_label,
        reversible: p.reversible.cast_unsigned(),
        mtu: p.mtu.into(),
        pkey: p.pkey,
        hop_limit: p.hop_limit,
        traffic_class: p.traffic_class,
        numb_path: p.numb_path,
        sl: p.sl,
        mtu_selector: p.mtu_selector,
        rate_selector: p.rate_selector,
        rate: p.rate,
        packet_life_time_selector: p.packet_life_time_selector,
        packet_life_time: p.packet_life_time,
        preference: p.preference,
    };
    // SAFETY: contract of this function.
    unsafe { dst.write(k) };
}
