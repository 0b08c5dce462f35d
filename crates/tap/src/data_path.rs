//! The operations that `verbs.h` calls through the context, with counting.
//!
//! Each function calls the provider's operation and then counts the work requests that the provider accepted.
//! The provider therefore gets a work request before the tap reads it, and a refused work request is not
//! counted.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use verbs_abi::*;

use crate::count;
use crate::count_posted_recvs;
use crate::mapped_counter_file::add_as_only_writer;
use crate::objects::{CQS, QPS, QPS_BY_HANDLE, Qp, Srq, context_of_handle, key_of_handle, qp_key};
use crate::postlist::{PostedList, bad_wr_slot, sge_length};
use crate::send_work_request::{RequestPattern, SendWorkRequest};
use crate::trace;

/// Replaces the operations of a context by counting operations. The provider's own operations are in the
/// [`Context`](crate::objects::Context).
pub(crate) fn install_counting_ops(ops: &mut ibv_context_ops) {
    if trace::is_tracing_on() {
        ops.post_send = Some(post_send_slow);
        ops.post_recv = Some(count_posted_recvs::post_traced::<Qp>);
        ops.post_srq_recv = Some(count_posted_recvs::post_traced::<Srq>);
    } else {
        ops.post_send = Some(post_send);
        ops.post_recv = Some(count_posted_recvs::post::<Qp>);
        ops.post_srq_recv = Some(count_posted_recvs::post::<Srq>);
    }
    ops.poll_cq = Some(poll_cq);
}

/// Returns true if these are operations that count.
pub(crate) fn is_counting(ops: &ibv_context_ops) -> bool {
    ops.poll_cq
        .is_some_and(|installed| installed as usize == poll_cq as *const () as usize)
}

/// Returns the key of a queue pair in the table [`QPS`].
///
/// # Safety
/// `qp` is a live queue pair.
#[inline(always)]
pub(crate) unsafe fn key_of_qp(qp: *mut ibv_qp) -> u64 {
    // SAFETY: contract of this function.
    unsafe { qp_key((*qp).context, (*qp).qp_num) }
}

/// Posts and counts work requests.
///
/// Most posts are of one work request that equals the previous one. This function compares the two before the
/// provider's call, so that only the address of the counter must be kept across the call.
unsafe extern "C" fn post_send(
    handle: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller promises a live queue pair and what `ibv_post_send(3)` requires; the provider's
    // operation gets the same arguments.
    unsafe {
        if let Some(one) = wr.as_ref()
            && one.next.is_null()
            && one.num_sge == 1
            && !one.sg_list.is_null()
            && !bad_wr.is_null()
        {
            let pattern =
                RequestPattern::new(one.opcode, one.send_flags, 1, sge_length(one.sg_list));
            if let Some(qp) = QPS_BY_HANDLE.find_in_first_slot(key_of_handle(handle))
                && let Some(post_send) = qp.provider_post_send
                && let Some(entry) = qp.existing_entry()
                && entry.is_repetition(qp, pattern, || one.ud_destination())
            {
                let cell = entry.cell;
                let result = post_send(handle, wr, bad_wr);
                let word = if result == 0 {
                    &cell.packed_repeated_posts
                } else {
                    &cell.refused_wrs
                };
                add_as_only_writer(word, 1);
                return result;
            }
        }
        post_send_counted(handle, wr, bad_wr)
    }
}

/// Posts and counts as [`post_send`] does, for lists and for work requests that differ from the previous
/// post.
///
/// # Safety
/// The contract of [`post_send`] applies.
#[inline(never)]
unsafe extern "C" fn post_send_counted(
    handle: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let mut own = ptr::null_mut();
    let bad_wr = bad_wr_slot(bad_wr, &mut own);
    // SAFETY: contract of this function; the provider's operation gets the same arguments.
    unsafe {
        if let Some(qp) = QPS_BY_HANDLE.find_in_first_slot(key_of_handle(handle))
            && let Some(post_send) = qp.provider_post_send
        {
            let result = post_send(handle, wr, bad_wr);
            return count_accepted_and_return_result(qp, wr, bad_wr, result);
        }
        post_send_slow(handle, wr, bad_wr)
    }
}

/// Counts the accepted part of a list according to the provider's `result`, and returns `result`. A caller
/// whose last action is this call keeps no values across it.
///
/// # Safety
/// The list is as `ibv_post_send(3)` describes it. If `result` is an error, `bad_wr` points to the refused
/// work request.
#[inline(never)]
unsafe fn count_accepted_and_return_result(
    qp: &Qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
    result: c_int,
) -> c_int {
    let end = if result == 0 {
        ptr::null_mut()
    } else {
        // SAFETY: contract of this function.
        count_refused(qp, unsafe { *bad_wr })
    };
    count::count_posted(qp, PostedList::new(wr, end));
    result
}

/// Posts as [`post_send`] does, with trace lines if tracing is on. The function also handles queue pairs that
/// are not counted or not in their first table slot. These rare cases are separate to keep the common path
/// short and fast.
///
/// # Safety
/// The contract of [`post_send`] applies.
#[cold]
#[inline(never)]
unsafe extern "C" fn post_send_slow(
    handle: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let mut own = ptr::null_mut();
    let bad_wr = bad_wr_slot(bad_wr, &mut own);
    // SAFETY: contract of this function.
    unsafe {
        let qp = QPS.find(key_of_qp(handle));
        let context = qp.map(|qp| qp.context);
        let context = context.or_else(|| context_of_handle((*handle).context));
        let Some(post_send) = context.and_then(|context| context.ops.post_send) else {
            *bad_wr = wr;
            return libc::EINVAL;
        };
        let traced = trace::start_time_if_tracing();
        let result = post_send(handle, wr, bad_wr);
        if let Some(at_ns) = traced {
            let all = PostedList::new(wr, ptr::null_mut());
            let bad = if result == 0 {
                ptr::null_mut()
            } else {
                *bad_wr
            };
            trace::trace_posted_sends(at_ns, handle, (*handle).qp_type, all, bad, result);
        }
        match qp {
            Some(qp) => count_accepted_and_return_result(qp, wr, bad_wr, result),
            None => result,
        }
    }
}

/// Counts the work requests of a list from the refused one on as refused; returns the refused work request.
#[cold]
fn count_refused(qp: &Qp, bad_wr: *mut ibv_send_wr) -> *mut ibv_send_wr {
    let rest = PostedList::new(bad_wr, ptr::null_mut());
    add_as_only_writer(
        &qp.thread_entry_or_create().cell.refused_wrs,
        rest.count() as u64,
    );
    bad_wr
}

unsafe extern "C" fn poll_cq(handle: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller promises a live queue with room for the completions (`ibv_poll_cq(3)`).
    unsafe {
        let cq = CQS.find_in_first_slot(key_of_handle(handle));
        let cq = cq.or_else(|| CQS.find(key_of_handle(handle)));
        let Some(poll_cq) = (match cq {
            Some(cq) => cq.context.ops.poll_cq,
            None => context_of_handle((*handle).context).and_then(|context| context.ops.poll_cq),
        }) else {
            return -libc::EINVAL;
        };
        let result = poll_cq(handle, num_entries, wc);
        if let Some(cq) = cq {
            match usize::try_from(result) {
                Ok(found) if found > 0 => {
                    count::count_successful_poll(cq, found as u64);
                    let completions = std::slice::from_raw_parts(wc, found);
                    if trace::is_tracing_on() {
                        trace::trace_found_completions(handle, cq, completions);
                    }
                    count::count_completions(cq, completions);
                }
                _ => {
                    count::count_empty_poll(cq);
                    if trace::is_tracing_on() {
                        trace::count_and_trace_empty_poll(handle.addr(), cq);
                    }
                }
            }
        }
        result
    }
}

/// Removes the outstanding operations of a queue pair from its counts, after a reset of the queue pair.
pub(crate) fn forget_outstanding_wrs(qp: &Qp) {
    qp.thread_entry_or_create().merge_repeated_posts(qp);
    qp.count_all_as_completed();
    qp.thread_entry_or_create()
        .last_read_end_addr
        .store(u64::MAX, Relaxed);
}
