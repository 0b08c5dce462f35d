//! Creation, change and destruction of objects.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use verbs_abi::*;

use super::device::context_of;
use super::domain::{Pd, borrow_pd};
use super::xrc::XrcdHandle;
use super::*;
use crate::ah::Ah;
use crate::context::Context;
use crate::cq::{Channel, Cq};
use crate::device::{self, LinkLayer};
use crate::event::EventQueue;
use crate::multicast::Group;
use crate::qp::{NewQp, Qp};
use crate::qp_state::QpType;
use crate::recv::RecvQueue;
use crate::srq::Srq;
use crate::xrc::{Xrc, XrcSrq};
use nic_core::rights::Owner;

/// A completion channel; the program's handle points to its first field.
#[repr(C)]
struct ChannelHandle {
    abi: UnsafeCell<ibv_comp_channel>,
    channel: Arc<Channel>,
}

/// Is the object still used by others?
pub(super) fn busy(uses: &AtomicUsize) -> Result<(), c_int> {
    if uses.load(Ordering::Relaxed) == 0 {
        Ok(())
    } else {
        Err(libc::EBUSY)
    }
}

pub(super) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    // SAFETY: a handle of ours.
    let Some(_) = (unsafe { context_of(context) }) else {
        return or_null(Err(libc::EINVAL));
    };
    let made = EventQueue::new().map_err(|e| errno_of(&e)).map(|events| {
        let mut abi = ibv_comp_channel::zeroed();
        abi.context = context;
        abi.fd = events.raw_fd();
        let channel = Arc::new(Channel {
            events,
            uses: AtomicUsize::new(0),
        });
        live::hand_out_box(Box::new(ChannelHandle {
            abi: UnsafeCell::new(abi),
            channel,
        }))
    });
    or_null(made)
}

pub(super) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: a handle of ours, given back once, when no CQ uses it.
    unsafe {
        let Some(c) = borrow::<ChannelHandle, _>(channel) else {
            return libc::EINVAL;
        };
        or_errno(
            busy(&c.channel.uses).map(|()| drop(live::take_back_box::<ChannelHandle, _>(channel))),
        )
    }
}

pub(super) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let shape = match (u32::try_from(cqe), u32::try_from(comp_vector)) {
        (Ok(cqe), Ok(vector)) => (cqe, vector),
        _ => return or_null(Err(libc::EINVAL)),
    };
    // SAFETY: handles of ours.
    or_null(unsafe { create_cq(context, shape, cq_context, channel, None) })
}

/// Makes a completion queue of so many entries on a completion vector.
///
/// # Safety
/// The handles are ours, or NULL.
pub(super) unsafe fn create_cq(
    context: *mut ibv_context,
    (cqe, comp_vector): (u32, u32),
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    polling: Option<Polling>,
) -> Result<*mut ibv_cq, c_int> {
    // SAFETY: contract of this function.
    let (c, ch) = unsafe { (context_of(context), borrow::<ChannelHandle, _>(channel)) };
    let c = c.ok_or(libc::EINVAL)?;
    if !(1..=device::MAX_CQE).contains(&cqe) || comp_vector != 0 {
        return Err(libc::EINVAL);
    }
    let cq = c.nic.add_cq(|index| {
        let mut abi = ibv_cq_ex::zeroed();
        abi.context = context;
        abi.channel = channel;
        abi.cq_context = cq_context;
        abi.cqe = c_int::try_from(cqe).map_err(|_| libc::EINVAL)?;
        abi.handle = u32::try_from(index).map_err(|_| libc::ENOMEM)?;
        let channel = ch.map(|ch| Arc::clone(&ch.channel));
        let depth = cqe as usize;
        Ok(Arc::new(Cq::new(c, index, depth, abi, channel, polling)))
    })?;
    if let Some(ch) = ch {
        ch.channel.uses.fetch_add(1, Ordering::Relaxed);
    }
    Ok(live::hand_out(cq))
}

pub(super) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: a handle of ours.
    let Some(cq) = (unsafe { borrow::<Cq, _>(cq) }) else {
        return libc::EINVAL;
    };
    match u32::try_from(cqe) {
        Ok(n @ 1..=device::MAX_CQE) => or_errno(cq.resize(n)),
        _ => libc::EINVAL,
    }
}

pub(super) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: a handle of ours; NULL or the program's attributes.
    let (cq, attr) = unsafe { (borrow::<Cq, _>(cq), attr.as_ref()) };
    match (cq, attr) {
        (Some(_), Some(attr)) if attr.attr_mask & !IBV_CQ_ATTR_MODERATE != 0 => libc::EOPNOTSUPP,
        (Some(cq), Some(attr)) => {
            if attr.attr_mask & IBV_CQ_ATTR_MODERATE != 0 {
                cq.moderate(attr.moderate.cq_count, attr.moderate.cq_period);
            }
            0
        }
        _ => libc::EINVAL,
    }
}

pub(super) unsafe extern "C" fn ibv_destroy_cq(handle: *mut ibv_cq) -> c_int {
    // SAFETY: a handle of ours, given back once, when no QP uses it.
    unsafe {
        let Some(cq) = borrow::<Cq, _>(handle) else {
            return libc::EINVAL;
        };
        if let Err(errno) = busy(&cq.uses) {
            return errno;
        }
        if !live::is_ending::<Cq, _>(handle) {
            return libc::EINVAL;
        }
        cq.nic.remove_cq(cq.index);
        if let Some(channel) = &cq.channel {
            let this = cq.handle();
            channel.events.discard(|h| *h == this);
        }
        cq.end();
        if let Some(channel) = &cq.channel {
            channel.uses.fetch_sub(1, Ordering::Relaxed);
        }
        drop(live::take_back::<Cq, _>(handle));
    }
    0
}

pub(super) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: a handle of ours.
    let channel = unsafe { borrow::<ChannelHandle, _>(channel) };
    let Some(c) = channel.filter(|_| !cq.is_null() && !cq_context.is_null()) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    match c.channel.events.next() {
        Ok(handle) => {
            // SAFETY: places for both results; a CQ takes its events along when it is destroyed.
            unsafe {
                *cq = handle.0;
                *cq_context = (*handle.0).cq_context;
                if let Some(cq) = borrow::<Cq, _>(handle.0) {
                    cq.unacknowledged.got_one();
                }
            }
            0
        }
        Err(e) => {
            set_errno(errno_of(&e));
            -1
        }
    }
}

pub(super) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, n: c_uint) {
    // SAFETY: a handle of ours.
    if let Some(cq) = unsafe { borrow::<Cq, _>(cq) } {
        cq.unacknowledged.acknowledge(u64::from(n));
    }
}

pub(super) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: a handle of ours; the program's attributes.
    let (pd, init) = unsafe { (borrow_pd(pd), init.as_mut()) };
    let (Some(pd), Some(init)) = (pd, init) else {
        return or_null(Err(libc::EINVAL));
    };
    or_null(new_srq(pd, init.srq_context, init.attr, None, None))
}

/// Makes a shared receive queue: for XRC, for tag matching (where operations complete, and entries at most), or neither.
pub(super) fn new_srq(
    pd: &Pd,
    srq_context: *mut c_void,
    attr: ibv_srq_attr,
    xrc: Option<XrcSrq>,
    tags: Option<(Arc<Cq>, u32)>,
) -> Result<*mut ibv_srq, c_int> {
    if attr.max_wr == 0 || attr.max_wr > device::MAX_SRQ_WR || attr.max_sge > device::MAX_SRQ_SGE {
        return Err(libc::EINVAL);
    }
    let mut abi = ibv_srq::zeroed();
    // SAFETY: the fields of our own object.
    abi.context = unsafe { (*pd.abi.get()).context };
    abi.srq_context = srq_context;
    abi.pd = pd.abi.get();
    let queue = RecvQueue::new(attr.max_wr, attr.max_sge, pd.number);
    let mut queue = queue.ok_or(libc::ENOMEM)?;
    let tags_cq = tags.map(|(cq, max_entries)| {
        queue.match_tags(max_entries);
        cq.uses.fetch_add(1, Ordering::Relaxed);
        cq
    });
    pd.enter();
    let srq = Arc::new(Srq::new(pd.context, abi, queue, xrc, tags_cq));
    if let Some(xrc) = &srq.xrc {
        xrc.cq.uses.fetch_add(1, Ordering::Relaxed);
        xrc.uses.fetch_add(1, Ordering::Relaxed);
        xrc.domain.add_srq(&srq);
    }
    if let Some((cq, wrs)) = srq.own_completions() {
        cq.expect_more(wrs);
    }
    Ok(live::hand_out(srq))
}

pub(super) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    let _hold_off = cancellation::HoldOff::new();
    const BASIC: u32 = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    const KNOWN: u32 = BASIC | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    const TAGS: u32 = BASIC | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM;
    // SAFETY: a handle of ours; NULL or the program's attributes.
    let (c, attr) = unsafe { (context_of(context), init.as_mut()) };
    let Some((_, attr)) = c.zip(attr) else {
        return or_null(Err(libc::EINVAL));
    };
    let has_type = attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE != 0;
    if attr.comp_mask & !KNOWN == 0 && has_type && attr.srq_type == IBV_SRQT_XRC {
        // SAFETY: handles of ours.
        return or_null(unsafe { xrc::create_srq(attr) });
    }
    if attr.comp_mask & !TAGS == 0 && has_type && attr.srq_type == IBV_SRQT_TM {
        // SAFETY: handles of ours.
        return or_null(unsafe { srq_ops::create_srq(attr) });
    }
    let basic = !has_type || attr.srq_type == IBV_SRQT_BASIC;
    if attr.comp_mask & !BASIC != 0 || !basic {
        return or_null(Err(libc::EOPNOTSUPP));
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 {
        return or_null(Err(libc::EINVAL));
    }
    // SAFETY: the extended attributes start with the plain ones (verbs.h).
    unsafe { ibv_create_srq(attr.pd, init.cast()) }
}

pub(super) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: a handle of ours; the program's attributes.
    let (srq, attr) = unsafe { (borrow::<Srq, _>(srq), attr.as_ref()) };
    let (Some(srq), Some(attr)) = (srq, attr) else {
        return libc::EINVAL;
    };
    let mut queue = srq.queue.lock();
    if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
        return libc::EINVAL;
    }
    if mask & IBV_SRQ_MAX_WR != 0 {
        // The device does not report IBV_DEVICE_SRQ_RESIZE.
        return libc::EOPNOTSUPP;
    }
    if mask & IBV_SRQ_LIMIT != 0 {
        if u64::from(attr.srq_limit) >= queue.max_wr() {
            return libc::EINVAL;
        }
        queue.limit = attr.srq_limit;
        srq.check_limit(&mut queue);
    }
    0
}

pub(super) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: a handle of ours; a place for the attributes.
    let (srq, attr) = unsafe { (borrow::<Srq, _>(srq), attr.as_mut()) };
    let (Some(srq), Some(attr)) = (srq, attr) else {
        return libc::EINVAL;
    };
    let queue = srq.queue.lock();
    attr.max_wr = u32::try_from(queue.max_wr()).unwrap_or(u32::MAX);
    attr.max_sge = u32::try_from(queue.max_sge()).unwrap_or(u32::MAX);
    attr.srq_limit = queue.limit;
    0
}

pub(super) unsafe extern "C" fn ibv_destroy_srq(handle: *mut ibv_srq) -> c_int {
    // SAFETY: a handle of ours, given back once, when no QP uses it; its PD is still there, since it counts
    // this use.
    unsafe {
        let Some(srq) = borrow::<Srq, _>(handle) else {
            return libc::EINVAL;
        };
        if let Err(errno) = busy(&srq.uses) {
            return errno;
        }
        if !live::is_ending::<Srq, _>(handle) {
            return libc::EINVAL;
        }
        if let Some(xrc) = &srq.xrc {
            xrc.domain.remove_srq(xrc.number);
            xrc.cq.uses.fetch_sub(1, Ordering::Relaxed);
            xrc.uses.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some((cq, wrs)) = srq.own_completions() {
            cq.expect_less(wrs);
        }
        if let Some(cq) = &srq.tags_cq {
            cq.uses.fetch_sub(1, Ordering::Relaxed);
        }
        srq.context.discard_events(handle.cast());
        srq.unacknowledged.wait();
        domain::leave((*handle).pd);
        drop(live::take_back::<Srq, _>(handle));
    }
    0
}

pub(super) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: handles of ours; the program's attributes.
    or_null(unsafe { create_qp(pd, init, None) })
}

/// # Safety
/// As for `ibv_create_qp`.
pub(super) unsafe fn create_qp(
    pd_handle: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
    builder: Option<Builder>,
) -> Result<*mut ibv_qp, c_int> {
    // SAFETY: contract of this function.
    let (pd, init) = unsafe { (borrow_pd(pd_handle), init.as_mut()) };
    let (Some(pd), Some(init)) = (pd, init) else {
        return Err(libc::EINVAL);
    };
    let qp_type = match QpType::try_from(init.qp_type) {
        Ok(t) => t,
        // Types that verbs.h knows and this NIC does not have.
        Err(_) if init.qp_type <= IBV_QPT_DRIVER => return Err(libc::EOPNOTSUPP),
        Err(_) => return Err(libc::EINVAL),
    };
    if qp_type == QpType::RawPacket && pd.context.nic.port.link_layer != LinkLayer::Ethernet {
        return Err(libc::EOPNOTSUPP);
    }
    // SAFETY: contract of this function: handles of ours that are not being destroyed.
    let (send_cq, recv_cq, srq) = unsafe {
        let send_cq = share::<Cq, _>(init.send_cq).ok_or(libc::EINVAL)?;
        match qp_type {
            // It is made from a domain: `create_xrc_recv`.
            QpType::XrcRecv => return Err(libc::EINVAL),
            // It receives nothing.
            QpType::XrcSend => {
                init.cap.max_recv_wr = 0;
                init.cap.max_recv_sge = 0;
                (Arc::clone(&send_cq), send_cq, None)
            }
            _ => (
                send_cq,
                share::<Cq, _>(init.recv_cq).ok_or(libc::EINVAL)?,
                share::<Srq, _>(init.srq),
            ),
        }
    };
    if let Some(cq) = srq.as_ref().and_then(|srq| srq.tags_cq.as_ref())
        && (qp_type != QpType::Rc || !Arc::ptr_eq(cq, &recv_cq))
    {
        // `ibv_tm_caps` of the device: RC alone. Receives of the queue complete where its operations do.
        return Err(libc::EINVAL);
    }
    let xrc = if qp_type == QpType::XrcSend {
        Xrc::Send
    } else {
        Xrc::No
    };
    let cap = &mut init.cap;
    if cap.max_send_wr > device::MAX_QP_WR
        || cap.max_recv_wr > device::MAX_QP_WR
        || cap.max_send_sge > device::MAX_SGE
        || cap.max_recv_sge > device::MAX_SGE
        || cap.max_inline_data > device::MAX_INLINE_DATA
    {
        return Err(libc::EINVAL);
    }
    // A WQE has room for inline payload where its SGEs would lie, as on other devices (rxe_qp_init_req of
    // linux:drivers/infiniband/sw/rxe/rxe_qp.c): programs send a few bytes inline and ask for none.
    let sges = cap.max_send_sge * SGE_BYTES;
    cap.max_inline_data = cap.max_inline_data.max(sges.min(device::MAX_INLINE_DATA));
    if srq.is_some() {
        cap.max_recv_wr = 0;
        cap.max_recv_sge = 0;
    }
    let mut abi = ibv_qp::zeroed();
    // SAFETY: the field of our own object.
    abi.context = unsafe { (*pd_handle).context };
    abi.qp_context = init.qp_context;
    abi.pd = pd_handle;
    abi.send_cq = init.send_cq;
    abi.recv_cq = init.recv_cq;
    abi.srq = init.srq;
    abi.qp_type = init.qp_type;
    let (scq, rcq, s) = (Arc::clone(&send_cq), Arc::clone(&recv_cq), srq.clone());
    let qp = pd.context.nic.add_qp(|index| {
        abi.handle = u32::try_from(index).map_err(|_| libc::ENOMEM)?;
        Qp::new(
            index,
            NewQp {
                context: pd.context,
                abi,
                qp_type,
                pd: pd.number,
                send_cq,
                recv_cq,
                srq,
                init_attr: *init,
                builder,
                xrc,
                spread: None,
            },
        )
        .map(Arc::new)
        .ok_or(libc::ENOMEM)
    })?;
    scq.uses.fetch_add(1, Ordering::Relaxed);
    rcq.uses.fetch_add(1, Ordering::Relaxed);
    if let Some(srq) = &s {
        srq.uses.fetch_add(1, Ordering::Relaxed);
    }
    pd.enter();
    scq.add_sender(&qp);
    if qp_type != QpType::XrcSend {
        rcq.add_receiver(&qp);
    }
    Ok(live::hand_out(qp))
}

/// The CQ of an XRC domain: peers arm and call it, the program never sees it.
pub(super) fn domain_cq(c: &'static Context, context: *mut ibv_context) -> Result<Arc<Cq>, c_int> {
    c.nic.add_cq(|index| {
        let mut abi = ibv_cq_ex::zeroed();
        abi.context = context;
        Ok(Arc::new(Cq::new(c, index, 1, abi, None, None)))
    })
}

/// Makes a queue pair that receives for an XRC domain: it has no CQs, and needs no protection domain. One that the
/// program names is only handed back: rdma_cm takes it from the queue pair.
///
/// # Safety
/// The handles in `init` are ours, or NULL.
pub(super) unsafe fn create_xrc_recv(
    context: *mut ibv_context,
    init: &ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, c_int> {
    // SAFETY: contract of this function.
    let (c, handle) = unsafe { (context_of(context), borrow::<XrcdHandle, _>(init.xrcd)) };
    let (c, handle) = c.zip(handle).ok_or(libc::EINVAL)?;
    let domain = &handle.domain;
    let mut abi = ibv_qp::zeroed();
    abi.context = context;
    let mut named = None;
    if init.comp_mask & IBV_QP_INIT_ATTR_PD != 0 {
        // SAFETY: contract of this function.
        named = unsafe { borrow_pd(init.pd) };
        abi.pd = init.pd;
    }
    abi.qp_context = init.qp_context;
    abi.qp_type = init.qp_type;
    let mut init_attr = ibv_qp_init_attr::zeroed();
    init_attr.qp_context = init.qp_context;
    init_attr.qp_type = init.qp_type;
    let qp = c.nic.add_qp(|index| {
        abi.handle = u32::try_from(index).map_err(|_| libc::ENOMEM)?;
        let new = NewQp {
            context: c,
            abi,
            qp_type: QpType::XrcRecv,
            pd: Owner::NO_DOMAIN,
            send_cq: Arc::clone(&domain.gatherer),
            recv_cq: Arc::clone(&domain.gatherer),
            srq: None,
            init_attr,
            builder: None,
            xrc: Xrc::Recv(Arc::clone(domain), Arc::clone(&handle.uses)),
            spread: None,
        };
        Qp::new(index, new).map(Arc::new).ok_or(libc::ENOMEM)
    })?;
    if let Some(pd) = named {
        pd.enter();
    }
    domain.gatherer.uses.fetch_add(2, Ordering::Relaxed);
    handle.uses.fetch_add(1, Ordering::Relaxed);
    domain.add_receiver(&qp);
    Ok(live::hand_out(qp))
}

/// Bytes of a scatter/gather element in a WQE: `struct ibv_sge`.
const SGE_BYTES: u32 = 16;

pub(super) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: a handle of ours; places for the results.
    unsafe {
        let Some(qp) = borrow::<Qp, _>(qp) else {
            return libc::EINVAL;
        };
        let (a, i) = qp.query();
        if !attr.is_null() {
            *attr = a;
        }
        if !init.is_null() {
            *init = i;
        }
    }
    0
}

pub(super) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: a handle of ours; the program's attributes.
    let (qp, attr) = unsafe { (borrow::<Qp, _>(qp), attr.as_ref()) };
    match (qp, attr) {
        (Some(qp), Some(attr)) => or_errno(qp.modify(attr, mask)),
        _ => libc::EINVAL,
    }
}

pub(super) unsafe extern "C" fn ibv_destroy_qp(handle: *mut ibv_qp) -> c_int {
    // SAFETY: a handle of ours, given back once; its PD is still there, since it counts this use.
    unsafe {
        let Some(qp) = borrow::<Qp, _>(handle) else {
            return libc::EINVAL;
        };
        // "ibv_destroy_qp() fails if the QP is attached to a multicast group": the man page. So do flows
        // (`ib_destroy_qp_user` of linux:drivers/infiniband/core/verbs.c counts both).
        if let Err(errno) = busy(&qp.attached) {
            return errno;
        }
        if qp.opened.fetch_sub(1, Ordering::AcqRel) > 1 {
            drop(live::take_back::<Qp, _>(handle));
            return 0;
        }
        if !live::is_ending::<Qp, _>(handle) {
            return libc::EINVAL;
        }
        qp.destroy();
        domain::leave((*handle).pd);
        drop(live::take_back::<Qp, _>(handle));
    }
    0
}

pub(super) unsafe extern "C" fn ibv_create_ah(
    handle: *mut ibv_pd,
    attr: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    // SAFETY: a handle of ours; the program's attributes.
    let (pd, attr) = unsafe { (borrow_pd(handle), attr.as_ref()) };
    let (Some(pd), Some(attr)) = (pd, attr) else {
        return or_null(Err(libc::EINVAL));
    };
    let nic = pd.context.nic;
    or_null(nic.port.check_ah(attr).map(|()| {
        let mut abi = ibv_ah::zeroed();
        // SAFETY: the field of our own object.
        abi.context = unsafe { (*handle).context };
        abi.pd = handle;
        pd.enter();
        let ah = Arc::new(Ah::new(nic, abi, pd.number, attr));
        debug_assert_eq!(ah.handle().cast_const().cast(), Arc::as_ptr(&ah));
        live::hand_out(ah)
    }))
}

pub(super) unsafe extern "C" fn ibv_destroy_ah(handle: *mut ibv_ah) -> c_int {
    let Some(_ah) = live::take_back::<Ah, _>(handle) else {
        return libc::EINVAL;
    };
    // SAFETY: the address handle lives until the end of this function; its PD is still there, since it counts this use.
    unsafe {
        domain::leave((*handle).pd);
    }
    0
}

pub(super) unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: contract of this function.
    or_errno(unsafe { membership(qp, gid) }.and_then(|(qp, group)| {
        let nic = qp.nic;
        if nic.attachments.attach(&nic.fabric, qp.index, group)? {
            qp.attached.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }))
}

pub(super) unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: contract of this function.
    or_errno(unsafe { membership(qp, gid) }.and_then(|(qp, group)| {
        let nic = qp.nic;
        if !nic.attachments.detach(&nic.fabric, qp.index, group) {
            return Err(libc::EINVAL);
        }
        qp.attached.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }))
}

/// The queue pair and the group that `ibv_attach_mcast(3)` speaks of: "only QPs of transport service type
/// IBV_QPT_UD may be attached to multicast groups". Groups are told apart by their GIDs alone.
///
/// # Safety
/// `qp` is NULL or a handle of ours; `gid` NULL or a GID.
unsafe fn membership<'a>(qp: *mut ibv_qp, gid: *const ibv_gid) -> Result<(&'a Qp, Group), c_int> {
    // SAFETY: contract of this function; any bytes are a GID.
    let (qp, gid) = unsafe { (borrow::<Qp, _>(qp), gid.as_ref().map(|g| g.raw)) };
    qp.filter(|qp| qp.qp_type == QpType::Ud)
        .zip(gid.and_then(Group::of))
        .ok_or(libc::EINVAL)
}

/// Counts an event that the program got (`+1`) or acknowledged (`-1`) at the object that it speaks of.
///
/// # Safety
/// The event came from this NIC and its object is not destroyed.
pub(super) unsafe fn count_async_event(event: &ibv_async_event, change: i32) {
    // SAFETY: the member that belongs to the type; contract of this function.
    let counter = unsafe {
        match event.event_type {
            IBV_EVENT_CQ_ERR => {
                borrow::<Cq, _>(event.element.cq).map(|cq| &cq.unacknowledged_errors)
            }
            IBV_EVENT_SRQ_LIMIT_REACHED | IBV_EVENT_SRQ_ERR => {
                borrow::<Srq, _>(event.element.srq).map(|s| &s.unacknowledged)
            }
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_QP_LAST_WQE_REACHED
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_COMM_EST => borrow::<Qp, _>(event.element.qp).map(|q| &q.unacknowledged),
            IBV_EVENT_WQ_FATAL => wq::unacknowledged(event.element.wq),
            _ => None,
        }
    };
    match (counter, change) {
        (Some(c), 1) => c.got_one(),
        (Some(c), _) => c.acknowledge(1),
        (None, _) => {}
    }
}
