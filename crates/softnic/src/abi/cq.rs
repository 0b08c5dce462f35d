//! Completion channels and completion queues: `ibv_create_comp_channel(3)`, `ibv_create_cq(3)`.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use verbs_abi::*;

use super::context::context_of;
use super::edge::{In, OrMinusOne, Out};
use super::require_unused::require_unused;
use crate::abi_cell::AbiCell;
use crate::context::Context;
use crate::cq::{CompletionChannel, Cq, ExtendedPollState};
use crate::live_handles;
use crate::registry;
use crate::why;
use shm::errno::errno_of;

/// A completion channel; the program's handle points to its first field.
#[repr(C)]
struct ChannelHandle {
    abi: AbiCell<ibv_comp_channel>,
    context: &'static Context,
    channel: Arc<CompletionChannel>,
}

live_handles::object!(ChannelHandle, ibv_comp_channel);

pub(super) fn create_comp_channel(
    context: *mut ibv_context,
) -> Result<*mut ibv_comp_channel, c_int> {
    let of = context_of(context)?;
    let channel = CompletionChannel::new(of.nic).map_err(|e| errno_of(&e))?;
    let mut abi = ibv_comp_channel::zeroed();
    abi.context = context;
    abi.fd = channel.raw_fd();
    let channel = Arc::new(channel);
    let abi = AbiCell::new(abi);
    Ok(live_handles::make_handle(Arc::new(ChannelHandle {
        abi,
        context: of,
        channel,
    })))
}

pub(super) fn destroy_comp_channel(handle: *mut ibv_comp_channel) -> Result<(), c_int> {
    let channel = live_handles::find_object::<ChannelHandle>(handle).ok_or(libc::EINVAL)?;
    require_unused(&channel.channel.cq_count)?;
    live_handles::take_back_handle::<ChannelHandle>(handle);
    Ok(())
}

pub(super) fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> Result<*mut ibv_cq, c_int> {
    let shape = match (u32::try_from(cqe), u32::try_from(comp_vector)) {
        (Ok(cqe), Ok(vector)) => (cqe, vector),
        _ => return Err(libc::EINVAL),
    };
    let mut abi = ibv_cq_ex::zeroed();
    abi.context = context;
    abi.channel = channel;
    abi.cq_context = cq_context;
    new_cq(shape, abi, None).map(live_handles::make_handle)
}

/// Makes a completion queue with `cqe` entries on a completion vector; `abi` has the handles that the program named.
pub(super) fn new_cq(
    (cqe, comp_vector): (u32, u32),
    mut abi: ibv_cq_ex,
    polling: Option<ExtendedPollState>,
) -> Result<Arc<Cq>, c_int> {
    let context = context_of(abi.context)?;
    let channel = live_handles::find_object::<ChannelHandle>(abi.channel);
    let max = context.nic.capabilities.limits.max_cqe;
    if !(1..=max).contains(&cqe) || comp_vector != 0 {
        return Err(why::einval_because(|| {
            format!("cqe is {cqe}, of 1 to {max}, and comp_vector {comp_vector}, of 0 to 0")
        }));
    }
    if let Some(handle) = &channel {
        context.require_same_device(handle.context)?;
    }
    let channel = channel.map(|handle| Arc::clone(&handle.channel));
    let uses = channel.clone();
    let cq = registry::objects_of_nic(context.nic).add_cq(context.nic, |index| {
        abi.cqe = c_int::try_from(cqe).map_err(|_| libc::EINVAL)?;
        abi.handle = u32::try_from(index).map_err(|_| libc::ENOMEM)?;
        let depth = cqe as usize;
        let cq = Cq::new(context, index, depth, abi, channel, polling);
        Ok(Arc::new(cq))
    })?;
    if let Some(channel) = uses {
        let signaled: Weak<Cq> = Arc::downgrade(&cq);
        channel.add_cq(cq.index, signaled);
        channel.cq_count.fetch_add(1, Ordering::Relaxed);
    }
    Ok(cq)
}

/// Makes the CQ of an XRC domain, which peers see and the program does not.
pub(super) fn new_xrc_domain_cq(context: &'static Context) -> Result<Arc<Cq>, c_int> {
    registry::objects_of_nic(context.nic).add_cq(context.nic, |index| {
        let mut abi = ibv_cq_ex::zeroed();
        abi.context = context.handle();
        Ok(Arc::new(Cq::new(context, index, 1, abi, None, None)))
    })
}

pub(super) fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> Result<(), c_int> {
    let cq = live_handles::find_object::<Cq>(cq).ok_or(libc::EINVAL)?;
    let max = cq.nic.capabilities.limits.max_cqe;
    match u32::try_from(cqe) {
        Ok(n) if (1..=max).contains(&n) => cq.resize(n),
        _ => Err(libc::EINVAL),
    }
}

pub(super) fn modify_cq(cq: *mut ibv_cq, attr: In<'_, ibv_modify_cq_attr>) -> Result<(), c_int> {
    let cq = live_handles::find_object::<Cq>(cq).ok_or(libc::EINVAL)?;
    let attr = attr.get()?;
    if attr.attr_mask & !IBV_CQ_ATTR_MODERATE != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if attr.attr_mask & IBV_CQ_ATTR_MODERATE != 0 {
        cq.set_moderation(attr.moderate.cq_count, attr.moderate.cq_period);
    }
    Ok(())
}

pub(super) fn destroy_cq(handle: *mut ibv_cq) -> Result<(), c_int> {
    let cq = live_handles::find_object::<Cq>(handle).ok_or(libc::EINVAL)?;
    require_unused(&cq.qp_use_count)?;
    if !live_handles::mark_being_destroyed::<Cq>(handle) {
        return Err(libc::EINVAL);
    }
    cq.hide_from_listing();
    // A new queue that takes over the index must not find events, or an armed word, of this one.
    cq.discard_events();
    cq.stop_and_await_event_acknowledgements();
    cq.nic.objects.remove_cq(cq.index);
    if let Some(channel) = &cq.channel {
        channel.cq_count.fetch_sub(1, Ordering::Relaxed);
    }
    live_handles::take_back_handle::<Cq>(handle);
    Ok(())
}

pub(super) fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: Out<'_, *mut ibv_cq>,
    cq_context: Out<'_, *mut c_void>,
) -> OrMinusOne {
    OrMinusOne(take_next_cq_event(channel, cq, cq_context))
}

fn take_next_cq_event(
    channel: *mut ibv_comp_channel,
    cq: Out<'_, *mut ibv_cq>,
    cq_context: Out<'_, *mut c_void>,
) -> Result<c_int, c_int> {
    let channel = live_handles::find_object::<ChannelHandle>(channel).ok_or(libc::EINVAL)?;
    let (cq, cq_context) = (cq.get()?, cq_context.get()?);
    let note_delivered = |cq| {
        if let Some(cq) = live_handles::find_object::<Cq>(cq) {
            cq.unacknowledged_comp_events.note_delivered();
        }
    };
    let handle = channel.channel.next(&note_delivered);
    let handle = handle.map_err(|e| errno_of(&e))?.0;
    // The CQ is live: a thread that destroys it waits until the event is acknowledged.
    let of = live_handles::find_object::<Cq>(handle);
    cq.write(handle);
    cq_context.write(of.map_or(std::ptr::null_mut(), |of| of.cq_context()));
    Ok(0)
}

pub(super) fn ack_cq_events(cq: *mut ibv_cq, n: c_uint) {
    if let Some(cq) = live_handles::find_object::<Cq>(cq) {
        cq.unacknowledged_comp_events.acknowledge(u64::from(n));
    }
}
