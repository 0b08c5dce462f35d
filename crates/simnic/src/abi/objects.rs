//! Memory regions, completion queues, queue pairs and address handles.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl};
use verbs_abi::*;

use super::device::{MAX_CQE_PER_CQ, MAX_QP, MAX_WR_PER_QUEUE};
use super::handle::{ObjectHandle, pointer_or_set_errno, set_errno, with_object, zero_or_errno};
use crate::completion_channel::Arming;
use crate::cq::Cq;
use crate::event_queue::Ps;
use crate::fifo_queue::FifoQueue;
use crate::memory::SimulatedRegion;
use crate::mr::Mr;
use crate::outstanding_reads::OutstandingReads;
use crate::port::QpPortIndex;
use crate::post_and_poll::{MAX_SGE, transport_of_qp_type};
use crate::posted_recvs::PostedRecvs;
use crate::qp::Qp;
use crate::retransmission::{RetryAttributes, SequenceNumber};
use crate::simulation::Simulation;
use crate::srq::Srq;
use crate::threads::wait_for_event;

pub(super) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let mut mr = ibv_mr::zeroed();
    // SAFETY: a protection domain of this provider. The caller guarantees that the memory stays valid until the region
    // is deregistered.
    let registered = unsafe {
        with_object(pd, |world, machine| {
            let region = SimulatedRegion::new(addr.expose_provenance() as u64, length as u64);
            let key = insert_object(&mut world.mrs, |_| Mr {
                machine,
                region,
                access_flags: access,
                pending_writes: std::collections::VecDeque::new(),
                waiting_thread: None,
            })?;
            mr.context = (*pd).context;
            (mr.pd, mr.addr, mr.length) = (pd, addr, length);
            (mr.handle, mr.lkey, mr.rkey) = (key, key, key);
            Ok(ObjectHandle::into_pointer(mr, world, key))
        })
    };
    pointer_or_set_errno(registered)
}

/// Adds an object to a table; keys are never reused.
fn insert_object<T>(table: &mut Vec<Option<T>>, make: impl FnOnce(u32) -> T) -> Result<u32, c_int> {
    let index = u32::try_from(table.len()).map_err(|_| libc::ENOMEM)?;
    table.push(Some(make(index)));
    Ok(index)
}

pub(super) unsafe extern "C" fn ibv_rereg_mr(
    _: *mut ibv_mr,
    _: c_int,
    _: *mut ibv_pd,
    _: *mut c_void,
    _: usize,
    _: c_int,
) -> c_int {
    set_errno(libc::EOPNOTSUPP);
    IBV_REREG_MR_ERR_INPUT
}

pub(super) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    if mr.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: a region of this provider, released once. Without its simulation, nothing accesses it any more.
    unsafe {
        let _ = with_object(mr, |world, key| {
            world.mrs[key as usize] = None;
            Ok(())
        });
        drop(ObjectHandle::take_back_from_c(mr));
    }
    0
}

pub(super) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    // SAFETY: a context of this provider.
    let created = unsafe {
        with_object(context, |world, _| {
            use rustix::event::{EventfdFlags, eventfd};
            let fd = eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| e.raw_os_error())?;
            let fd = fd.into_raw_fd();
            let index = world.completion_channels.add(fd);
            let channel = ibv_comp_channel {
                context,
                fd,
                refcnt: 0,
            };
            Ok(ObjectHandle::into_pointer(channel, world, index))
        })
    };
    pointer_or_set_errno(created)
}

pub(super) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    if channel.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: a channel of this provider with its original descriptor, released once.
    unsafe {
        let _ = with_object(channel, |world, index| {
            world.completion_channels.remove(index);
            Ok(())
        });
        let channel = ObjectHandle::take_back_from_c(channel);
        drop(OwnedFd::from_raw_fd(channel.c_struct.fd));
    }
    0
}

pub(super) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    if !(1..=MAX_CQE_PER_CQ).contains(&cqe) {
        return pointer_or_set_errno(Err(libc::EINVAL));
    }
    let mut cq = ibv_cq::zeroed();
    (cq.context, cq.channel, cq.cq_context, cq.cqe) = (context, channel, cq_context, cqe);
    // SAFETY: a channel of this provider, or NULL.
    let channel = unsafe { index_of_handle(channel) };
    // SAFETY: a context of this provider.
    let created = unsafe {
        with_object(context, |world, _| {
            let index = insert_object(&mut world.cqs, |_| Cq {
                capacity: cqe.cast_unsigned(),
                handle: std::ptr::null(),
                cqes: FifoQueue::default(),
                is_overrun: false,
                armed_for: Arming::Disarmed,
                last_polling_thread: None,
                wait_period_number_at_last_poll: 0,
            })?;
            cq.handle = index;
            let given = ObjectHandle::into_pointer(cq, world, index);
            if let Some(Some(queue)) = world.cqs.get_mut(index as usize) {
                queue.handle = given;
            }
            if let Some(channel) = channel {
                world.completion_channels.attach(index, channel);
            }
            Ok(given)
        })
    };
    pointer_or_set_errno(created)
}

pub(super) unsafe extern "C" fn ibv_resize_cq(_: *mut ibv_cq, _: c_int) -> c_int {
    libc::EOPNOTSUPP
}

pub(super) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    if cq.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: a CQ of this provider, released once.
    unsafe {
        let _ = with_object(cq, |world, index| {
            world.completion_channels.detach(index, cq);
            world.cqs[index as usize] = None;
            Ok(())
        });
        drop(ObjectHandle::take_back_from_c(cq));
    }
    0
}

/// Waits in virtual time. Outside of simulated threads no time passes, so the function does not wait there.
pub(super) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: a channel of this provider with its descriptor, and places for the results.
    let taken = unsafe {
        let waited =
            with_object(channel, |_, index| Ok((index, (*channel).fd))).map(|(index, fd)| {
                let fd = BorrowedFd::borrow_raw(fd);
                let blocks = fcntl_getfl(fd).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK));
                wait_for_event(index, if blocks { Ps::MAX } else { 0 })
            });
        waited.and_then(|_| {
            with_object(channel, |world, index| {
                let clock = world.clock();
                let taken = world
                    .completion_channels
                    .take_event(index, clock)
                    .ok_or(libc::EAGAIN)?;
                if let Some((cq, cq_context)) = cq.as_mut().zip(cq_context.as_mut()) {
                    (*cq, *cq_context) = (taken.cast_mut(), (*taken).cq_context);
                }
                Ok(())
            })
        })
    };
    match taken {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// Does nothing: a completion queue can be destroyed while events of it are not acknowledged.
pub(super) unsafe extern "C" fn ibv_ack_cq_events(_: *mut ibv_cq, _: c_uint) {}

pub(super) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: a protection domain of this provider, and the program's attributes.
    let created = unsafe {
        let init = init.as_mut().ok_or(libc::EINVAL);
        with_object(pd, |world, _| {
            let init = init?;
            let ibv_srq_attr {
                max_wr, max_sge, ..
            } = init.attr;
            let most_sge = u32::try_from(MAX_SGE).unwrap_or(1);
            if !(1..=MAX_WR_PER_QUEUE).contains(&max_wr) || max_sge > most_sge {
                return Err(libc::EINVAL);
            }
            let index = insert_object(&mut world.srqs, |_| Srq {
                posted_recvs: PostedRecvs::default(),
                max_wr,
                max_sge,
                attached_qp_count: 0,
            })?;
            let mut srq = ibv_srq::zeroed();
            (srq.context, srq.pd, srq.srq_context) = ((*pd).context, pd, init.srq_context);
            srq.handle = index;
            Ok(ObjectHandle::into_pointer(srq, world, index))
        })
    };
    pointer_or_set_errno(created)
}

/// Fails: sizes do not change, and the limit would raise an asynchronous event, which is not simulated.
pub(super) unsafe extern "C" fn ibv_modify_srq(
    _: *mut ibv_srq,
    _: *mut ibv_srq_attr,
    _: c_int,
) -> c_int {
    libc::EOPNOTSUPP
}

pub(super) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: a shared receive queue of this provider, and a place for the attributes.
    zero_or_errno(unsafe {
        with_object(srq, |world, index| {
            let srq = world.srqs.get(index as usize).and_then(Option::as_ref);
            let (srq, attr) = srq.zip(attr.as_mut()).ok_or(libc::EINVAL)?;
            *attr = ibv_srq_attr {
                max_wr: srq.max_wr,
                max_sge: srq.max_sge,
                srq_limit: 0,
            };
            Ok(())
        })
    })
}

pub(super) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    if srq.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: a shared receive queue of this provider, released once. Without its simulation, nothing accesses it any
    // more.
    unsafe {
        let busy = with_object(srq, |world, index| {
            let slot = &mut world.srqs[index as usize];
            if slot.as_ref().is_some_and(|srq| srq.attached_qp_count > 0) {
                return Ok(true);
            }
            *slot = None;
            Ok(false)
        });
        if busy == Ok(true) {
            return libc::EBUSY;
        }
        drop(ObjectHandle::take_back_from_c(srq));
    }
    0
}

pub(super) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: handles of this provider, and the program's attributes.
    unsafe {
        let Some(init) = init.as_mut() else {
            return pointer_or_set_errno(Err(libc::EINVAL));
        };
        pointer_or_set_errno(with_object(pd, |world, machine| {
            create_qp(world, machine, pd, init)
        }))
    }
}

/// Returns the index of an object; `None` for NULL.
///
/// # Safety
/// The handle is of this provider, or NULL.
unsafe fn index_of_handle<T>(handle: *mut T) -> Option<u32> {
    // SAFETY: contract of this function.
    let handle = unsafe { handle.cast::<ObjectHandle<T>>().as_ref() };
    handle.map(|handle| handle.index)
}

/// # Safety
/// The handles are of this provider, or NULL.
unsafe fn create_qp(
    world: &mut Simulation,
    machine: u32,
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
) -> Result<*mut ibv_qp, c_int> {
    let transport = transport_of_qp_type(init.qp_type).ok_or(libc::EOPNOTSUPP)?;
    // SAFETY: contract of this function.
    let (cqs, srq) = unsafe {
        let cqs = index_of_handle(init.send_cq).zip(index_of_handle(init.recv_cq));
        (cqs, index_of_handle(init.srq))
    };
    let (send_cq, recv_cq) = cqs.ok_or(libc::EINVAL)?;
    if srq.is_some() {
        (init.cap.max_recv_wr, init.cap.max_recv_sge) = (0, 0);
    }
    let cap = init.cap;
    let sges = u32::try_from(MAX_SGE).unwrap_or(1);
    if cap.max_send_wr > MAX_WR_PER_QUEUE
        || cap.max_recv_wr > MAX_WR_PER_QUEUE
        || cap.max_send_sge > sges
        || cap.max_recv_sge > sges
        || cap.max_inline_data > world.nic_parameters.max_inline_bytes
        || world.qps.len() > MAX_QP
    {
        return Err(libc::EINVAL);
    }
    let signal_all = init.sq_sig_all != 0;
    let index = insert_object(&mut world.qps, |_| {
        Box::new(Qp {
            machine,
            transport,
            state: IBV_QPS_RESET,
            send_cq,
            recv_cq,
            cap,
            signal_all,
            qkey: 0,
            access_flags: 0,
            qkey_or_access_flags: 0,
            can_receive: false,
            port: QpPortIndex::UNASSIGNED,
            remote_qpn: 0,
            posted_recvs: PostedRecvs::default(),
            used_send_queue_slots: 0,
            wrs_completed_without_cqe: 0,
            unsent_messages: FifoQueue::default(),
            posted_lists: FifoQueue::default(),
            lists_at_nic: 0,
            has_or_awaits_unit: false,
            last_response_at: 0,
            last_response_arrived_at: 0,
            last_processed_at: 0,
            wqe_refetches_until: 0,
            wqe_refetch_delay: 0,
            outstanding_reads: OutstandingReads::default(),
            last_delivery_visible_at: 0,
            last_empty_datagram: None,
            last_posted_kind_and_cost: None,
            last_send_completion_at: 0,
            expected_sequence: SequenceNumber::default(),
            next_posted_sequence: SequenceNumber::default(),
            next_completed_sequence: SequenceNumber::default(),
            retransmission: None,
            retry_attributes: RetryAttributes::default(),
            srq,
        })
    })?;
    if let Some(srq) = srq
        && let Some(Some(srq)) = world.srqs.get_mut(srq as usize)
    {
        srq.attached_qp_count += 1;
    }
    let mut qp = ibv_qp::zeroed();
    // SAFETY: a protection domain of this provider.
    qp.context = unsafe { (*pd).context };
    (qp.qp_context, qp.pd) = (init.qp_context, pd);
    (qp.send_cq, qp.recv_cq, qp.srq) = (init.send_cq, init.recv_cq, init.srq);
    (qp.handle, qp.qp_num, qp.qp_type) = (index, index, init.qp_type);
    Ok(ObjectHandle::into_pointer(qp, world, index))
}

pub(super) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: a queue pair of this provider, and places for the results.
    let queried = unsafe {
        with_object(qp, |world, index| {
            let qp = world.qp(index).ok_or(libc::EINVAL)?;
            let mut found = ibv_qp_attr::zeroed();
            found.qp_state = qp.state;
            found.cur_qp_state = qp.state;
            found.path_mtu = IBV_MTU_4096;
            found.qkey = qp.qkey;
            found.dest_qp_num = qp.remote_qpn;
            found.qp_access_flags = qp.access_flags.cast_unsigned();
            found.cap = qp.cap;
            found.port_num = 1;
            let retry = &qp.retry_attributes;
            (found.timeout, found.retry_cnt) = (retry.timeout, retry.retry_cnt);
            (found.rnr_retry, found.min_rnr_timer) = (retry.rnr_retry, retry.min_rnr_timer);
            if let Some(attr) = attr.as_mut() {
                *attr = found;
            }
            if let Some(init) = init.as_mut() {
                init.cap = qp.cap;
                init.sq_sig_all = qp.signal_all.into();
            }
            Ok(())
        })
    };
    zero_or_errno(queried)
}

pub(super) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: a queue pair of this provider, and the program's attributes.
    let modified = unsafe {
        let Some(attr) = attr.as_ref() else {
            return libc::EINVAL;
        };
        with_object(qp, |world, index| modify_qp(world, index, attr, mask))
    };
    zero_or_errno(modified)
}

fn modify_qp(
    world: &mut Simulation,
    index: u32,
    attr: &ibv_qp_attr,
    mask: c_int,
) -> Result<(), c_int> {
    let qp = world.qp(index).ok_or(libc::EINVAL)?;
    let has = |bit| mask & bit != 0;
    if has(IBV_QP_QKEY) {
        qp.qkey = attr.qkey;
    }
    if has(IBV_QP_ACCESS_FLAGS) {
        qp.access_flags = attr.qp_access_flags.cast_signed();
    }
    if has(IBV_QP_DEST_QPN) {
        qp.remote_qpn = attr.dest_qp_num;
    }
    if has(IBV_QP_SQ_PSN) {
        qp.set_first_sequence_number(SequenceNumber::of_psn(attr.sq_psn));
    }
    if has(IBV_QP_RQ_PSN) {
        qp.expected_sequence = SequenceNumber::of_psn(attr.rq_psn);
    }
    let retry = &mut qp.retry_attributes;
    for (bit, place, value) in [
        (IBV_QP_TIMEOUT, &mut retry.timeout, attr.timeout),
        (IBV_QP_RETRY_CNT, &mut retry.retry_cnt, attr.retry_cnt),
        (IBV_QP_RNR_RETRY, &mut retry.rnr_retry, attr.rnr_retry),
        (
            IBV_QP_MIN_RNR_TIMER,
            &mut retry.min_rnr_timer,
            attr.min_rnr_timer,
        ),
    ] {
        if has(bit) {
            *place = value;
        }
    }
    qp.update_receive_checks();
    if !has(IBV_QP_STATE) {
        return Ok(());
    }
    let legal = match attr.qp_state {
        IBV_QPS_RESET | IBV_QPS_ERR => true,
        IBV_QPS_INIT => matches!(qp.state, IBV_QPS_RESET | IBV_QPS_INIT),
        IBV_QPS_RTR => qp.state == IBV_QPS_INIT,
        IBV_QPS_RTS => matches!(qp.state, IBV_QPS_RTR | IBV_QPS_RTS),
        _ => false,
    };
    if !legal {
        return Err(libc::EINVAL);
    }
    qp.state = attr.qp_state;
    qp.update_receive_checks();
    match attr.qp_state {
        IBV_QPS_ERR => world.flush_work_requests(index),
        IBV_QPS_RESET => world.forget_work_requests(index),
        _ => {}
    }
    Ok(())
}

pub(super) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    if qp.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: a queue pair of this provider, released once.
    unsafe {
        let _ = with_object(qp, |world, index| {
            world.remove_qp(index);
            Ok(())
        });
        drop(ObjectHandle::take_back_from_c(qp));
    }
    0
}

pub(super) unsafe extern "C" fn ibv_create_ah(
    pd: *mut ibv_pd,
    attr: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    // SAFETY: a protection domain of this provider, and the program's attributes.
    let created = unsafe {
        let attr = attr.as_ref().ok_or(libc::EINVAL);
        with_object(pd, |world, machine| {
            let attr = attr?;
            let there = usize::from(attr.dlid);
            if attr.port_num != 1 || !(1..=world.machines.len()).contains(&there) {
                return Err(libc::EINVAL);
            }
            let ah = ibv_ah {
                context: (*pd).context,
                pd,
                handle: u32::from(attr.dlid),
            };
            Ok(ObjectHandle::into_pointer(ah, world, machine))
        })
    };
    pointer_or_set_errno(created)
}

pub(super) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    if ah.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: an address handle of this provider, released once.
    drop(unsafe { ObjectHandle::take_back_from_c(ah) });
    0
}

pub(super) unsafe extern "C" fn ibv_attach_mcast(
    _: *mut ibv_qp,
    _: *const ibv_gid,
    _: u16,
) -> c_int {
    libc::EOPNOTSUPP
}

pub(super) unsafe extern "C" fn ibv_detach_mcast(
    _: *mut ibv_qp,
    _: *const ibv_gid,
    _: u16,
) -> c_int {
    libc::EOPNOTSUPP
}

pub(super) unsafe extern "C" fn ibv_init_ah_from_wc(
    _: *mut ibv_context,
    _: u8,
    _: *mut ibv_wc,
    _: *mut ibv_grh,
    _: *mut ibv_ah_attr,
) -> c_int {
    libc::EOPNOTSUPP
}

pub(super) unsafe extern "C" fn ibv_create_ah_from_wc(
    _: *mut ibv_pd,
    _: *mut ibv_wc,
    _: *mut ibv_grh,
    _: u8,
) -> *mut ibv_ah {
    pointer_or_set_errno(Err(libc::EOPNOTSUPP))
}
