//! Work queues and the tables by which a queue pair spreads raw packets over them: `ibv_create_wq(3)`,
//! `ibv_create_rwq_ind_table(3)`, and receive side scaling in `ibv_create_qp_ex(3)`.
//!
//! A work queue is a raw packet queue pair that only receives, and that the program does not see.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use verbs_abi::*;

use super::device::context_of;
use super::domain::{self, borrow_pd};
use super::objects::busy;
use super::*;
use crate::cq::Cq;
use crate::device::{self, LinkLayer};
use crate::event::Unacknowledged;
use crate::qp::{NewQp, Qp, SpreadUse};
use crate::qp_state::QpType;
use crate::steering::spread::{HASH_FIELDS, KEY_BYTES, Spread};
use crate::xrc::Xrc;

/// A work queue; the program's handle points to its first field.
#[repr(C)]
struct Wq {
    abi: UnsafeCell<ibv_wq>,
    qp: Arc<Qp>,
    /// Entries of tables that name it.
    uses: AtomicUsize,
}

/// A table of work queues; the program's handle points to its first field.
#[repr(C)]
struct IndTable {
    abi: UnsafeCell<ibv_rwq_ind_table>,
    wqs: Vec<Arc<Wq>>,
    /// Queue pairs that spread packets by it.
    uses: Arc<AtomicUsize>,
}

// SAFETY: `abi` is written before the handle is given out, later only its state by `ibv_modify_wq`, as in the C library.
unsafe impl Sync for Wq {}
// SAFETY: as above; its raw pointers are only handed back.
unsafe impl Send for Wq {}

pub(super) unsafe extern "C" fn create_wq(
    context: *mut ibv_context,
    init: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    let _hold_off = cancellation::HoldOff::new();
    // SAFETY: a handle of ours; NULL or the program's attributes.
    or_null(unsafe { new_wq(context, init) })
}

/// # Safety
/// As for `ibv_create_wq`.
unsafe fn new_wq(
    context: *mut ibv_context,
    init: *const ibv_wq_init_attr,
) -> Result<*mut ibv_wq, c_int> {
    // SAFETY: contract of this function.
    let (c, init) = unsafe { (context_of(context), init.as_ref()) };
    let (c, init) = c.zip(init).ok_or(libc::EINVAL)?;
    // SAFETY: handles of ours, which are not being destroyed.
    let (pd, cq) = unsafe { (borrow_pd(init.pd), share::<Cq, _>(init.cq)) };
    let (pd, cq) = pd.zip(cq).ok_or(libc::EINVAL)?;
    let flags = init.comp_mask & IBV_WQ_INIT_ATTR_FLAGS != 0 && init.create_flags != 0;
    if c.nic.port.link_layer != LinkLayer::Ethernet
        || init.comp_mask & !IBV_WQ_INIT_ATTR_FLAGS != 0
        || flags
    {
        return Err(libc::EOPNOTSUPP);
    }
    if init.wq_type != IBV_WQT_RQ
        || init.max_wr > device::MAX_QP_WR
        || init.max_sge > device::MAX_SGE
    {
        return Err(libc::EINVAL);
    }
    let mut init_attr = ibv_qp_init_attr::zeroed();
    init_attr.qp_type = IBV_QPT_RAW_PACKET;
    init_attr.cap.max_recv_wr = init.max_wr;
    init_attr.cap.max_recv_sge = init.max_sge;
    let qp = c.nic.add_qp(|index| {
        let new = NewQp {
            context: c,
            abi: ibv_qp::zeroed(),
            qp_type: QpType::RawPacket,
            pd: pd.number,
            send_cq: Arc::clone(&cq),
            recv_cq: Arc::clone(&cq),
            srq: None,
            init_attr,
            builder: None,
            xrc: Xrc::No,
            spread: None,
        };
        Qp::new(index, new).map(Arc::new).ok_or(libc::ENOMEM)
    })?;
    cq.uses.fetch_add(2, Ordering::Relaxed);
    pd.enter();
    cq.add_sender(&qp);
    cq.add_receiver(&qp);
    let mut abi = ibv_wq::zeroed();
    abi.context = context;
    abi.wq_context = init.wq_context;
    abi.pd = init.pd;
    abi.cq = init.cq;
    abi.wq_num = qp.qpn;
    abi.handle = qp.qpn;
    abi.state = IBV_WQS_RESET;
    abi.wq_type = init.wq_type;
    abi.post_recv = Some(post_recv);
    let wq = Arc::new(Wq {
        abi: UnsafeCell::new(abi),
        uses: AtomicUsize::new(0),
        qp,
    });
    wq.qp.stand_for(wq.abi.get());
    Ok(live::hand_out(wq))
}

/// Counts the events of a work queue that the program has got and not acknowledged.
///
/// # Safety
/// The work queue is not destroyed while the result is used.
pub(super) unsafe fn unacknowledged<'a>(handle: *mut ibv_wq) -> Option<&'a Unacknowledged> {
    // SAFETY: contract of this function.
    unsafe { borrow::<Wq, _>(handle) }.map(|wq| &wq.qp.unacknowledged)
}

unsafe extern "C" fn post_recv(
    wq: *mut ibv_wq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a handle of ours that is not being destroyed; the list is as `ibv_post_recv(3)` says.
    unsafe {
        match follow::<Wq, _>(wq) {
            Some(wq) => fast::post_recv_to(&wq.qp, wr, bad_wr),
            None => libc::EINVAL,
        }
    }
}

pub(super) unsafe extern "C" fn modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    let _hold_off = cancellation::HoldOff::new();
    const STATES: u32 = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE;
    // SAFETY: a handle of ours; NULL or the program's attributes.
    let (wq, attr) = unsafe { (borrow::<Wq, _>(wq), attr.as_ref()) };
    let Some((wq, attr)) = wq.zip(attr) else {
        return libc::EINVAL;
    };
    if attr.attr_mask & !STATES != 0 {
        return libc::EOPNOTSUPP;
    }
    let state = wq.qp.wq_state();
    if attr.attr_mask & IBV_WQ_ATTR_CURR_STATE != 0 && attr.curr_wq_state != state {
        return libc::EINVAL;
    }
    if attr.attr_mask & IBV_WQ_ATTR_STATE == 0 {
        return 0;
    }
    let through: &[ibv_qp_state] = match (state, attr.wq_state) {
        (IBV_WQS_RESET, IBV_WQS_RDY) => &[IBV_QPS_INIT, IBV_QPS_RTR],
        (IBV_WQS_RDY, IBV_WQS_RDY) | (IBV_WQS_ERR, IBV_WQS_ERR) => &[],
        (_, IBV_WQS_RESET) => &[IBV_QPS_RESET],
        (IBV_WQS_RDY, IBV_WQS_ERR) => &[IBV_QPS_ERR],
        // As in the kernel's `ib_uverbs_ex_modify_wq`, and in mlx5_ib: a failed queue is reset first.
        _ => return libc::EINVAL,
    };
    for &to in through {
        let mut change = ibv_qp_attr::zeroed();
        change.qp_state = to;
        change.port_num = device::PORT_NUM;
        let port = if to == IBV_QPS_INIT { IBV_QP_PORT } else { 0 };
        if let Err(errno) = wq.qp.modify(&change, IBV_QP_STATE | port) {
            return errno;
        }
    }
    // SAFETY: an aligned `u32` that the program reads without synchronisation, as with the C library.
    unsafe { (&raw mut (*wq.abi.get()).state).write_volatile(attr.wq_state) };
    0
}

pub(super) unsafe extern "C" fn destroy_wq(handle: *mut ibv_wq) -> c_int {
    let _hold_off = cancellation::HoldOff::new();
    // SAFETY: a handle of ours, given back once; its PD is still there, since it counts this use.
    unsafe {
        let Some(wq) = borrow::<Wq, _>(handle) else {
            return libc::EINVAL;
        };
        if let Err(errno) = busy(&wq.uses) {
            return errno;
        }
        if !live::is_ending::<Wq, _>(handle) {
            return libc::EINVAL;
        }
        wq.qp.destroy();
        domain::leave((*handle).pd);
        drop(live::take_back::<Wq, _>(handle));
    }
    0
}

pub(super) unsafe extern "C" fn create_rwq_ind_table(
    context: *mut ibv_context,
    init: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    let _hold_off = cancellation::HoldOff::new();
    // SAFETY: a handle of ours; NULL or the program's attributes.
    or_null(unsafe { new_ind_table(context, init) })
}

/// # Safety
/// As for `ibv_create_rwq_ind_table`.
unsafe fn new_ind_table(
    context: *mut ibv_context,
    init: *const ibv_rwq_ind_table_init_attr,
) -> Result<*mut ibv_rwq_ind_table, c_int> {
    // SAFETY: contract of this function.
    let (c, init) = unsafe { (context_of(context), init.as_ref()) };
    let (_, init) = c.zip(init).ok_or(libc::EINVAL)?;
    let size = 1usize
        .checked_shl(init.log_ind_tbl_size)
        .filter(|&size| size <= device::MAX_IND_TBL_SIZE as usize);
    let size = size.ok_or(libc::EINVAL)?;
    if init.comp_mask != 0 || init.ind_tbl.is_null() {
        return Err(libc::EINVAL);
    }
    let mut wqs = Vec::with_capacity(size);
    for i in 0..size {
        // SAFETY: the table has so many entries, handles of ours.
        let wq = unsafe { share::<Wq, _>(init.ind_tbl.add(i).read_unaligned()) };
        wqs.push(wq.ok_or(libc::EINVAL)?);
    }
    for wq in &wqs {
        wq.uses.fetch_add(1, Ordering::Relaxed);
    }
    let mut abi = ibv_rwq_ind_table::zeroed();
    abi.context = context;
    Ok(live::hand_out_box(Box::new(IndTable {
        abi: UnsafeCell::new(abi),
        wqs,
        uses: Arc::default(),
    })))
}

pub(super) unsafe extern "C" fn destroy_rwq_ind_table(handle: *mut ibv_rwq_ind_table) -> c_int {
    let _hold_off = cancellation::HoldOff::new();
    // SAFETY: a handle of ours.
    let Some(table) = (unsafe { borrow::<IndTable, _>(handle) }) else {
        return libc::EINVAL;
    };
    if let Err(errno) = busy(&table.uses) {
        return errno;
    }
    let Some(table) = live::take_back_box::<IndTable, _>(handle) else {
        return libc::EINVAL;
    };
    for wq in &table.wqs {
        wq.uses.fetch_sub(1, Ordering::Relaxed);
    }
    0
}

/// Makes a raw packet queue pair that spreads what it receives over the work queues of a table.
///
/// # Safety
/// The handles in `init` are ours, or NULL; its key has as many bytes as it says.
pub(super) unsafe fn create_spreading_qp(
    context: *mut ibv_context,
    init: &ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, c_int> {
    // SAFETY: contract of this function.
    let (c, pd, table) = unsafe {
        let table = borrow::<IndTable, _>(init.rwq_ind_tbl);
        (context_of(context), borrow_pd(init.pd), table)
    };
    let ((c, pd), table) = c.zip(pd).zip(table).ok_or(libc::EINVAL)?;
    let has_queues = !init.send_cq.is_null() || !init.recv_cq.is_null() || !init.srq.is_null();
    let hash = &init.rx_hash_conf;
    if has_queues
        || init.qp_type != IBV_QPT_RAW_PACKET
        || hash.rx_hash_function != IBV_RX_HASH_FUNC_TOEPLITZ
        || hash.rx_hash_fields_mask & !HASH_FIELDS != 0
    {
        return Err(libc::EOPNOTSUPP);
    }
    if usize::from(hash.rx_hash_key_len) != KEY_BYTES || hash.rx_hash_key.is_null() {
        return Err(libc::EINVAL);
    }
    let first = table.wqs.first().ok_or(libc::EINVAL)?;
    let spread = Spread {
        fields: hash.rx_hash_fields_mask,
        // SAFETY: so many bytes (contract).
        key: unsafe { hash.rx_hash_key.cast::<[u8; KEY_BYTES]>().read_unaligned() },
        table: table.wqs.iter().map(|wq| wq.qp.index).collect(),
    };
    let cq = Arc::clone(&first.qp.recv_cq);
    let place = c.nic.spreads.add(&c.nic.fabric, &spread)?;
    let mut init_attr = ibv_qp_init_attr::zeroed();
    init_attr.qp_context = init.qp_context;
    init_attr.qp_type = init.qp_type;
    let mut abi = ibv_qp::zeroed();
    abi.context = context;
    abi.qp_context = init.qp_context;
    abi.pd = init.pd;
    abi.qp_type = init.qp_type;
    let qp = c.nic.add_qp(|index| {
        abi.handle = u32::try_from(index).map_err(|_| libc::ENOMEM)?;
        let new = NewQp {
            context: c,
            abi,
            qp_type: QpType::RawPacket,
            pd: pd.number,
            send_cq: Arc::clone(&cq),
            recv_cq: Arc::clone(&cq),
            srq: None,
            init_attr,
            builder: None,
            xrc: Xrc::No,
            spread: Some(SpreadUse {
                place,
                table: Arc::clone(&table.uses),
            }),
        };
        Qp::new(index, new).map(Arc::new).ok_or(libc::ENOMEM)
    });
    let qp = qp.inspect_err(|_| c.nic.spreads.remove(&c.nic.fabric, place))?;
    table.uses.fetch_add(1, Ordering::Relaxed);
    cq.uses.fetch_add(2, Ordering::Relaxed);
    pd.enter();
    cq.add_sender(&qp);
    cq.add_receiver(&qp);
    Ok(live::hand_out(qp))
}
