//! Work queues and the tables by which a queue pair spreads raw packets over them: `ibv_create_wq(3)`,
//! `ibv_create_rwq_ind_table(3)`, and receive side scaling in `ibv_create_qp_ex(3)`.
//!
//! A work queue is a raw packet queue pair that only receives and that the program does not see.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use verbs_abi::*;

use super::context::context_of;
use super::data_path::{deref_handle, post_recv_to_qp};
use super::edge::In;
use super::require_unused::require_unused;
use crate::abi_cell::AbiCell;
use crate::context::Context;
use crate::cq::Cq;
use crate::device::{self, LinkLayer, PortPlace};
use crate::live_handles;
use crate::pd::Pd;
use crate::qp::{NewQp, Qp, RssTableUse};
use crate::qp_attributes::QpType;
use crate::registry;
use crate::xrc::XrcRole;
use nic_core::flows::{RssConfig, TOEPLITZ_KEY_BYTES, hash_field};

/// A work queue; the program's handle points to its first field.
#[repr(C)]
pub(super) struct Wq {
    abi: AbiCell<ibv_wq>,
    pub(super) qp: Arc<Qp>,
    /// Number of table entries that name the queue.
    referring_table_entries: AtomicUsize,
}

live_handles::object!(Wq, ibv_wq);

/// A table of work queues; the program's handle points to its first field.
#[repr(C)]
struct IndTable {
    abi: AbiCell<ibv_rwq_ind_table>,
    wqs: Vec<Arc<Wq>>,
    /// Number of queue pairs that spread packets by the table.
    rss_qp_count: Arc<AtomicUsize>,
}

live_handles::object!(IndTable, ibv_rwq_ind_table);

pub(super) fn create_wq(
    context: *mut ibv_context,
    init: In<'_, ibv_wq_init_attr>,
) -> Result<*mut ibv_wq, c_int> {
    let _hold_off = cancellation::HoldOff::new();
    let c = context_of(context)?;
    let init = init.get()?;
    let pd = Pd::find_usable(init.pd).ok_or(libc::EINVAL)?;
    let cq = live_handles::find_object::<Cq>(init.cq).ok_or(libc::EINVAL)?;
    c.require_same_device(pd.context)?;
    c.require_same_device(cq.context)?;
    let flags = init.comp_mask & IBV_WQ_INIT_ATTR_FLAGS != 0 && init.create_flags != 0;
    let can = &c.nic.capabilities;
    if c.device.link_layer() != LinkLayer::Ethernet
        || !can.supports_qp_type(QpType::RawPacket)
        || init.comp_mask & !IBV_WQ_INIT_ATTR_FLAGS != 0
        || flags
    {
        return Err(libc::EOPNOTSUPP);
    }
    if init.wq_type != IBV_WQT_RQ
        || init.max_wr > can.limits.max_qp_wr
        || init.max_sge > can.limits.max_sge
    {
        return Err(libc::EINVAL);
    }
    let mut init_attr = ibv_qp_init_attr::zeroed();
    init_attr.qp_type = IBV_QPT_RAW_PACKET;
    init_attr.cap.max_recv_wr = init.max_wr;
    init_attr.cap.max_recv_sge = init.max_sge;
    let qp = create_raw_packet_qp((c, &pd), &cq, ibv_qp::zeroed(), init_attr, None)?;
    let mut abi = ibv_wq::zeroed();
    abi.context = context;
    abi.wq_context = init.wq_context;
    abi.pd = init.pd;
    abi.cq = init.cq;
    abi.wq_num = qp.qpn;
    abi.handle = qp.qpn;
    abi.state = IBV_WQS_RESET;
    abi.wq_type = init.wq_type;
    abi.post_recv = Some(post_wq_recv);
    let wq = Arc::new(Wq {
        abi: AbiCell::new(abi),
        referring_table_entries: AtomicUsize::new(0),
        qp,
    });
    wq.qp.show_as_wq(wq.abi.handle());
    Ok(live_handles::make_handle(wq))
}

/// Posts to the receive queue of a work queue.
#[allow(unsafe_code)]
unsafe extern "C" fn post_wq_recv(
    wq: *mut ibv_wq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: `ibv_post_wq_recv(3)`: as in `post_recv`, of a work queue.
    unsafe {
        match deref_handle::<Wq>(wq) {
            Some(wq) => post_recv_to_qp(&wq.qp, wr, bad_wr),
            None => libc::EINVAL,
        }
    }
}

#[allow(unsafe_code)]
pub(super) fn modify_wq(wq: *mut ibv_wq, attr: In<'_, ibv_wq_attr>) -> Result<(), c_int> {
    let _hold_off = cancellation::HoldOff::new();
    const KNOWN_WQ_ATTR_FLAGS: u32 = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE;
    let wq = live_handles::find_object::<Wq>(wq).ok_or(libc::EINVAL)?;
    let attr = attr.get()?;
    if attr.attr_mask & !KNOWN_WQ_ATTR_FLAGS != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let state = wq.qp.wq_state();
    if attr.attr_mask & IBV_WQ_ATTR_CURR_STATE != 0 && attr.curr_wq_state != state {
        return Err(libc::EINVAL);
    }
    if attr.attr_mask & IBV_WQ_ATTR_STATE == 0 {
        return Ok(());
    }
    let through: &[ibv_qp_state] = match (state, attr.wq_state) {
        (IBV_WQS_RESET, IBV_WQS_RDY) => &[IBV_QPS_INIT, IBV_QPS_RTR],
        (IBV_WQS_RDY, IBV_WQS_RDY) | (IBV_WQS_ERR, IBV_WQS_ERR) => &[],
        (_, IBV_WQS_RESET) => &[IBV_QPS_RESET],
        (IBV_WQS_RDY, IBV_WQS_ERR) => &[IBV_QPS_ERR],
        // As in the kernel's `ib_uverbs_ex_modify_wq`, and in mlx5_ib: a failed queue is reset first.
        _ => return Err(libc::EINVAL),
    };
    for &to in through {
        let mut change = ibv_qp_attr::zeroed();
        change.qp_state = to;
        change.port_num = PortPlace::FIRST.port_num;
        let port = if to == IBV_QPS_INIT { IBV_QP_PORT } else { 0 };
        wq.qp.modify(&change, IBV_QP_STATE | port)?;
    }
    // SAFETY: `wq` keeps the structure; an aligned `u32` that the program reads without synchronisation, as with the C
    // library.
    unsafe { (&raw mut (*wq.abi.handle()).state).write_volatile(attr.wq_state) };
    Ok(())
}

pub(super) fn destroy_wq(handle: *mut ibv_wq) -> Result<(), c_int> {
    let _hold_off = cancellation::HoldOff::new();
    let wq = live_handles::find_object::<Wq>(handle).ok_or(libc::EINVAL)?;
    require_unused(&wq.referring_table_entries)?;
    if !live_handles::mark_being_destroyed::<Wq>(handle) {
        return Err(libc::EINVAL);
    }
    wq.qp.destroy();
    if let Some(pd) = &wq.qp.held_pd {
        pd.remove_user();
    }
    live_handles::take_back_handle::<Wq>(handle);
    Ok(())
}

#[allow(unsafe_code)]
pub(super) fn create_rwq_ind_table(
    context: *mut ibv_context,
    init: In<'_, ibv_rwq_ind_table_init_attr>,
) -> Result<*mut ibv_rwq_ind_table, c_int> {
    let _hold_off = cancellation::HoldOff::new();
    context_of(context)?;
    let init = init.get()?;
    if init.comp_mask != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let size = 1usize
        .checked_shl(init.log_ind_tbl_size)
        .filter(|&size| size <= device::MAX_IND_TBL_SIZE as usize);
    let size = size.ok_or(libc::EINVAL)?;
    if init.ind_tbl.is_null() {
        return Err(libc::EINVAL);
    }
    let mut wqs = Vec::with_capacity(size);
    for i in 0..size {
        // SAFETY: not NULL (above), and `i` is below the 2^`log_ind_tbl_size` entries that the table has
        // (`ibv_create_rwq_ind_table(3)`).
        let wq = unsafe { init.ind_tbl.add(i).read_unaligned() };
        wqs.push(live_handles::find_object::<Wq>(wq).ok_or(libc::EINVAL)?);
    }
    for wq in &wqs {
        wq.referring_table_entries.fetch_add(1, Ordering::Relaxed);
    }
    let mut abi = ibv_rwq_ind_table::zeroed();
    abi.context = context;
    Ok(live_handles::make_handle(Arc::new(IndTable {
        abi: AbiCell::new(abi),
        wqs,
        rss_qp_count: Arc::default(),
    })))
}

pub(super) fn destroy_rwq_ind_table(handle: *mut ibv_rwq_ind_table) -> Result<(), c_int> {
    let _hold_off = cancellation::HoldOff::new();
    let table = live_handles::find_object::<IndTable>(handle).ok_or(libc::EINVAL)?;
    require_unused(&table.rss_qp_count)?;
    let table = live_handles::take_back_handle::<IndTable>(handle).ok_or(libc::EINVAL)?;
    for wq in &table.wqs {
        wq.referring_table_entries.fetch_sub(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Makes a raw packet queue pair whose sends and receives, if any, complete in one CQ.
fn create_raw_packet_qp(
    (context, pd): (&'static Context, &Arc<Pd>),
    cq: &Arc<Cq>,
    mut abi: ibv_qp,
    init_attr: ibv_qp_init_attr,
    spread: Option<RssTableUse>,
) -> Result<Arc<Qp>, c_int> {
    let qp = registry::objects_of_nic(context.nic).add_qp(context.nic, |index| {
        abi.handle = u32::try_from(index).map_err(|_| libc::ENOMEM)?;
        let new = NewQp {
            context,
            abi,
            qp_type: QpType::RawPacket,
            pd_number: pd.local_number,
            held_pd: Some(Arc::clone(pd)),
            send_cq: Arc::clone(cq),
            recv_cq: Arc::clone(cq),
            srq: None,
            init_attr,
            builder: None,
            xrc_role: XrcRole::NotXrc,
            rss_table: spread,
        };
        Qp::new(index, new).map(Arc::new).ok_or(libc::ENOMEM)
    })?;
    cq.add_users(2);
    pd.add_user();
    cq.add_sending_qp(&qp);
    cq.add_receiving_qp(&qp);
    Ok(qp)
}

/// Returns how a queue pair spreads received packets over the work queues of a table.
#[allow(unsafe_code)]
fn rss_config_of(init: &ibv_qp_init_attr_ex, table: &IndTable) -> Result<RssConfig, c_int> {
    let has_queues = !init.send_cq.is_null() || !init.recv_cq.is_null() || !init.srq.is_null();
    let hash = &init.rx_hash_conf;
    if has_queues
        || init.qp_type != IBV_QPT_RAW_PACKET
        || hash.rx_hash_function != IBV_RX_HASH_FUNC_TOEPLITZ
        || hash.rx_hash_fields_mask & !hash_field::ALL != 0
    {
        return Err(libc::EOPNOTSUPP);
    }
    if usize::from(hash.rx_hash_key_len) != TOEPLITZ_KEY_BYTES || hash.rx_hash_key.is_null() {
        return Err(libc::EINVAL);
    }
    Ok(RssConfig {
        hashed_fields: hash.rx_hash_fields_mask,
        // SAFETY: not NULL, and as long as `rx_hash_key_len` says (both above; `ibv_create_qp_ex(3)`).
        toeplitz_key: unsafe {
            hash.rx_hash_key
                .cast::<[u8; TOEPLITZ_KEY_BYTES]>()
                .read_unaligned()
        },
        indirection_table: table.wqs.iter().map(|wq| wq.qp.index).collect(),
    })
}

/// Makes a raw packet queue pair that spreads received packets over the work queues of a table.
pub(super) fn create_rss_qp(
    context: *mut ibv_context,
    init: &ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, c_int> {
    let c = context_of(context)?;
    let pd = Pd::find_usable(init.pd).ok_or(libc::EINVAL)?;
    let table = live_handles::find_object::<IndTable>(init.rwq_ind_tbl).ok_or(libc::EINVAL)?;
    c.require_same_device(pd.context)?;
    let spread = rss_config_of(init, &table)?;
    let first = table.wqs.first().ok_or(libc::EINVAL)?;
    let cq = Arc::clone(&first.qp.recv_cq);
    c.require_same_device(cq.context)?;
    let place = c.nic.rss_configs.add_rss_config(&c.nic.fabric, &spread)?;
    let mut init_attr = ibv_qp_init_attr::zeroed();
    init_attr.qp_context = init.qp_context;
    init_attr.qp_type = init.qp_type;
    let mut abi = ibv_qp::zeroed();
    abi.context = context;
    abi.qp_context = init.qp_context;
    abi.pd = init.pd;
    abi.qp_type = init.qp_type;
    let spread = RssTableUse {
        segment_slot: place,
        table_qp_count: Arc::clone(&table.rss_qp_count),
    };
    let qp = create_raw_packet_qp((c, &pd), &cq, abi, init_attr, Some(spread));
    let qp = qp.inspect_err(|_| c.nic.rss_configs.remove_rss_config(&c.nic.fabric, place))?;
    table.rss_qp_count.fetch_add(1, Ordering::Relaxed);
    Ok(live_handles::make_handle(qp))
}
