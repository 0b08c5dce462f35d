//! Shared receive queues: `ibv_create_srq(3)`, `ibv_create_srq_ex(3)`.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use verbs_abi::*;

use super::context::context_of;
use super::edge::{In, InOut};
use super::require_unused::require_unused;
use super::xrc::XrcdHandle;
use crate::capabilities::OptionalFeature;
use crate::cq::Cq;
use crate::device;
use crate::live_handles;
use crate::pd::Pd;
use crate::recv::RecvQueue;
use crate::srq::Srq;
use crate::why;
use crate::xrc::XrcSrq;

pub(super) fn create_srq(
    pd: *mut ibv_pd,
    init: InOut<'_, ibv_srq_init_attr>,
) -> Result<*mut ibv_srq, c_int> {
    let pd = Pd::find_usable(pd).ok_or(libc::EINVAL)?;
    let init = init.get()?;
    new_srq(pd, init.srq_context, init.attr, SrqPurpose::Basic)
}

/// The purpose of a shared receive queue.
enum SrqPurpose {
    Basic,
    Xrc(XrcSrq),
    /// Tag matching, with the CQ in which operations complete, and the largest number of entries.
    TagMatching(Arc<Cq>, u32),
}

fn new_srq(
    pd: Arc<Pd>,
    srq_context: *mut c_void,
    attr: ibv_srq_attr,
    kind: SrqPurpose,
) -> Result<*mut ibv_srq, c_int> {
    let can = &pd.context.nic.capabilities;
    can.require_feature(match kind {
        SrqPurpose::TagMatching(..) => OptionalFeature::TagMatching,
        SrqPurpose::Basic | SrqPurpose::Xrc(_) => OptionalFeature::Srq,
    })?;
    let (max_wr, max_sge) = (can.limits.max_srq_wr, can.limits.max_srq_sge);
    if attr.max_wr == 0 || attr.max_wr > max_wr || attr.max_sge > max_sge {
        return Err(why::einval_because(|| {
            format!(
                "attr.max_wr is {}, of 1 to {max_wr}, and attr.max_sge {}, of 0 to {max_sge}",
                attr.max_wr, attr.max_sge
            )
        }));
    }
    let mut abi = ibv_srq::zeroed();
    abi.context = pd.context.handle();
    abi.srq_context = srq_context;
    abi.pd = pd.handle();
    let queue = RecvQueue::new(attr.max_wr, attr.max_sge, pd.local_number);
    let mut queue = queue.ok_or(libc::ENOMEM)?;
    let (xrc, tags_cq) = match kind {
        SrqPurpose::Basic => (None, None),
        SrqPurpose::Xrc(xrc) => (Some(xrc), None),
        SrqPurpose::TagMatching(cq, max_entries) => {
            queue.enable_tag_matching(max_entries);
            cq.add_users(1);
            (None, Some(cq))
        }
    };
    pd.add_user();
    let srq = Arc::new(Srq::new(pd, abi, queue, xrc, tags_cq));
    if let Some(xrc) = &srq.xrc_srq {
        xrc.cq.add_users(1);
        xrc.domain_handle_use_count.fetch_add(1, Ordering::Relaxed);
        xrc.domain.add_srq(&srq);
    }
    if let Some((cq, wrs)) = srq.own_cq_and_max_completions() {
        cq.add_expected_wrs(wrs);
    }
    Ok(live_handles::make_handle(srq))
}

pub(super) fn create_srq_ex(
    context: *mut ibv_context,
    init: InOut<'_, ibv_srq_init_attr_ex>,
) -> Result<*mut ibv_srq, c_int> {
    let _hold_off = cancellation::HoldOff::new();
    const BASIC_INIT_FLAGS: u32 = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    const KNOWN_INIT_FLAGS: u32 = BASIC_INIT_FLAGS | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    const TAG_SRQ_FLAGS: u32 = BASIC_INIT_FLAGS | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM;
    context_of(context)?;
    let attr = init.get()?;
    let has_type = attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE != 0;
    if attr.comp_mask & !KNOWN_INIT_FLAGS == 0 && has_type && attr.srq_type == IBV_SRQT_XRC {
        return create_xrc_srq(attr);
    }
    if attr.comp_mask & !TAG_SRQ_FLAGS == 0 && has_type && attr.srq_type == IBV_SRQT_TM {
        return create_tag_srq(attr);
    }
    let basic = !has_type || attr.srq_type == IBV_SRQT_BASIC;
    if attr.comp_mask & !BASIC_INIT_FLAGS != 0 || !basic {
        return Err(libc::EOPNOTSUPP);
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 {
        return Err(libc::EINVAL);
    }
    let pd = Pd::find_usable(attr.pd).ok_or(libc::EINVAL)?;
    new_srq(pd, attr.srq_context, attr.attr, SrqPurpose::Basic)
}

/// Makes a shared receive queue for XRC.
fn create_xrc_srq(attr: &ibv_srq_init_attr_ex) -> Result<*mut ibv_srq, c_int> {
    const NEEDED_XRC_FLAGS: u32 =
        IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    if attr.comp_mask & NEEDED_XRC_FLAGS != NEEDED_XRC_FLAGS {
        return Err(libc::EINVAL);
    }
    let handle = live_handles::find_object::<XrcdHandle>(attr.xrcd).ok_or(libc::EINVAL)?;
    let cq = live_handles::find_object::<Cq>(attr.cq).ok_or(libc::EINVAL)?;
    let pd = Pd::find_usable(attr.pd).ok_or(libc::EINVAL)?;
    pd.context.require_same_device(cq.context)?;
    pd.context
        .require_same_device(handle.domain.cq_seen_by_peers.context)?;
    let number = handle
        .domain
        .allocate_and_publish_srq_number(pd.local_number)?;
    let xrc = XrcSrq {
        domain: Arc::clone(&handle.domain),
        domain_handle_use_count: Arc::clone(&handle.qp_and_srq_count),
        cq,
        srqn: number,
    };
    new_srq(pd, attr.srq_context, attr.attr, SrqPurpose::Xrc(xrc))
        .inspect_err(|_| handle.domain.remove_srq(number))
}

/// Makes a shared receive queue for tag matching.
fn create_tag_srq(attr: &ibv_srq_init_attr_ex) -> Result<*mut ibv_srq, c_int> {
    const NEEDED_TAG_FLAGS: u32 =
        IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM;
    let caps = attr.tm_cap;
    if attr.comp_mask & NEEDED_TAG_FLAGS != NEEDED_TAG_FLAGS
        || caps.max_num_tags == 0
        || caps.max_num_tags > device::MAX_TAGS
        || caps.max_ops > device::MAX_TAG_OPS
    {
        return Err(libc::EINVAL);
    }
    let pd = Pd::find_usable(attr.pd).ok_or(libc::EINVAL)?;
    let cq = live_handles::find_object::<Cq>(attr.cq).ok_or(libc::EINVAL)?;
    pd.context.require_same_device(cq.context)?;
    let kind = SrqPurpose::TagMatching(cq, caps.max_num_tags);
    new_srq(pd, attr.srq_context, attr.attr, kind)
}

pub(super) fn modify_srq(
    srq: *mut ibv_srq,
    attr: In<'_, ibv_srq_attr>,
    mask: c_int,
) -> Result<(), c_int> {
    let srq = live_handles::find_object::<Srq>(srq).ok_or(libc::EINVAL)?;
    let attr = attr.get()?;
    let mut queue = srq.recv_queue.lock();
    if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
        return Err(libc::EINVAL);
    }
    if mask & IBV_SRQ_MAX_WR != 0 {
        // The device does not report IBV_DEVICE_SRQ_RESIZE.
        return Err(libc::EOPNOTSUPP);
    }
    if mask & IBV_SRQ_LIMIT != 0 {
        if u64::from(attr.srq_limit) >= queue.max_wr() {
            return Err(libc::EINVAL);
        }
        queue.srq_limit = attr.srq_limit;
        srq.raise_limit_event_if_due(&mut queue);
    }
    Ok(())
}

pub(super) fn query_srq(srq: *mut ibv_srq, attr: InOut<'_, ibv_srq_attr>) -> Result<(), c_int> {
    let srq = live_handles::find_object::<Srq>(srq).ok_or(libc::EINVAL)?;
    let attr = attr.get()?;
    let queue = srq.recv_queue.lock();
    attr.max_wr = u32::try_from(queue.max_wr()).unwrap_or(u32::MAX);
    attr.max_sge = u32::try_from(queue.max_sge()).unwrap_or(u32::MAX);
    attr.srq_limit = queue.srq_limit;
    Ok(())
}

pub(super) fn get_srq_num(srq: *mut ibv_srq, number: InOut<'_, u32>) -> Result<(), c_int> {
    let place = number.get()?;
    if srq.is_null() {
        return Err(libc::EINVAL);
    }
    // Every other SRQ gets "EOPNOTSUPP: the SRQ has no number", as in rdma-core's providers.
    let found = live_handles::find_object::<Srq>(srq).and_then(|srq| srq.xrc_srqn());
    *place = found.ok_or(libc::EOPNOTSUPP)?;
    Ok(())
}

pub(super) fn destroy_srq(handle: *mut ibv_srq) -> Result<(), c_int> {
    let srq = live_handles::find_object::<Srq>(handle).ok_or(libc::EINVAL)?;
    require_unused(&srq.qp_count)?;
    if !live_handles::mark_being_destroyed::<Srq>(handle) {
        return Err(libc::EINVAL);
    }
    if let Some(xrc) = &srq.xrc_srq {
        xrc.domain.remove_srq(xrc.srqn);
        xrc.cq.remove_user();
        xrc.domain_handle_use_count.fetch_sub(1, Ordering::Relaxed);
    }
    if let Some((cq, wrs)) = srq.own_cq_and_max_completions() {
        cq.remove_expected_wrs(wrs);
    }
    if let Some(cq) = &srq.tag_ops_cq {
        cq.remove_user();
    }
    srq.context.discard_events_of_object(handle.cast());
    srq.unacknowledged_events
        .wait_until_all_acknowledged("ibv_destroy_srq", "ibv_ack_async_event");
    srq.pd.remove_user();
    srq.listed_object.remove();
    live_handles::take_back_handle::<Srq>(handle);
    Ok(())
}
