//! The operations that `verbs.h` calls through the context, with the counting behind them.
//!
//! Each calls the provider's own and then counts what that accepted, so a work request is never looked at before
//! the NIC has it, and a refused one is not counted.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use verbs_abi::*;

use crate::count;
use crate::objects::{CQS, QP_HANDLES, QPS, Qp, Srq, context_of, key_of, qp_key};
use crate::postlist::{List, length_at, place_for_bad};
use crate::recvs;
use crate::request::{Pattern, Request};
use crate::session::add;
use crate::trace;

/// Puts the counting operations into a context whose own are in `context`.
pub(crate) fn install(ops: &mut ibv_context_ops) {
    if trace::is_on() {
        ops.post_send = Some(post_send_traced);
        ops.post_recv = Some(recvs::post_traced::<Qp>);
        ops.post_srq_recv = Some(recvs::post_traced::<Srq>);
    } else {
        ops.post_send = Some(post_send);
        ops.post_recv = Some(recvs::post::<Qp>);
        ops.post_srq_recv = Some(recvs::post::<Srq>);
    }
    ops.poll_cq = Some(poll_cq);
}

/// What the queue pair behind a handle is found by.
///
/// # Safety
/// `qp` is a live queue pair.
#[inline(always)]
pub(crate) unsafe fn key_of_qp(qp: *mut ibv_qp) -> u64 {
    // SAFETY: contract of this function.
    unsafe { qp_key((*qp).context, (*qp).qp_num) }
}

/// Most posts are of one work request that is like the one before. Whether this is one is found out before the
/// provider's call, so that nothing but the place of the count has to be kept over it.
unsafe extern "C" fn post_send(
    handle: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a live queue pair and what `ibv_post_send(3)` asks for, which is the caller's promise; the provider's
    // operation gets the same.
    unsafe {
        if let Some(one) = wr.as_ref()
            && one.next.is_null()
            && one.num_sge == 1
            && !one.sg_list.is_null()
            && !bad_wr.is_null()
        {
            let pattern = Pattern::new(one.opcode, one.send_flags, 1, length_at(one.sg_list));
            if let Some(qp) = QP_HANDLES.find_first(key_of(handle))
                && let Some(post_send) = qp.post_send
                && let Some(mine) = qp.known_use()
                && mine.repeats(qp, pattern, || one.destination())
            {
                let cell = mine.cell;
                let result = post_send(handle, wr, bad_wr);
                let word = if result == 0 {
                    &cell.repeated
                } else {
                    &cell.refused
                };
                add(word, 1);
                return result;
            }
        }
        post_send_counted(handle, wr, bad_wr)
    }
}

/// As [`post_send`], for lists and for what is not like the post before.
///
/// # Safety
/// As that.
#[inline(never)]
unsafe extern "C" fn post_send_counted(
    handle: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let mut own = ptr::null_mut();
    let bad_wr = place_for_bad(bad_wr, &mut own);
    // SAFETY: contract of this function; the provider's operation gets the same.
    unsafe {
        if let Some(qp) = QP_HANDLES.find_first(key_of(handle))
            && let Some(post_send) = qp.post_send
        {
            let result = post_send(handle, wr, bad_wr);
            return count_sent(qp, wr, bad_wr, result);
        }
        post_send_traced(handle, wr, bad_wr)
    }
}

/// Counts what a provider took of a list, as its `result` says, which is returned: so a caller that ends with this
/// keeps nothing for itself.
///
/// # Safety
/// It is a list as `ibv_post_send(3)` describes it, and `bad_wr` has what was refused, if something was.
#[inline(never)]
unsafe fn count_sent(
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
    count::posted(qp, List::new(wr, end));
    result
}

/// As [`post_send`], with lines of the trace if there is one, and for queue pairs that are hard to find or not counted:
/// whatever would only take room and time on the way of all others.
///
/// # Safety
/// As that.
#[cold]
#[inline(never)]
unsafe extern "C" fn post_send_traced(
    handle: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let mut own = ptr::null_mut();
    let bad_wr = place_for_bad(bad_wr, &mut own);
    // SAFETY: contract of this function.
    unsafe {
        let qp = QPS.find(key_of_qp(handle));
        let context = qp.map(|qp| qp.context);
        let context = context.or_else(|| context_of((*handle).context));
        let Some(post_send) = context.and_then(|context| context.ops.post_send) else {
            *bad_wr = wr;
            return libc::EINVAL;
        };
        let traced = trace::started();
        let result = post_send(handle, wr, bad_wr);
        if let Some(at_ns) = traced {
            let all = List::new(wr, ptr::null_mut());
            let bad = if result == 0 {
                ptr::null_mut()
            } else {
                *bad_wr
            };
            trace::posted(at_ns, handle, (*handle).qp_type, all, bad, result);
        }
        match qp {
            Some(qp) => count_sent(qp, wr, bad_wr, result),
            None => result,
        }
    }
}

/// Counts the rest of a list from the work request that was refused, which it returns.
#[cold]
fn count_refused(qp: &Qp, bad_wr: *mut ibv_send_wr) -> *mut ibv_send_wr {
    let rest = List::new(bad_wr, ptr::null_mut());
    add(&qp.mine().cell.refused, rest.count() as u64);
    bad_wr
}

unsafe extern "C" fn poll_cq(handle: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: a live queue with room for the completions (`ibv_poll_cq(3)`), the caller's promise.
    unsafe {
        let cq = CQS.find_first(key_of(handle));
        let cq = cq.or_else(|| CQS.find(key_of(handle)));
        let Some(poll_cq) = (match cq {
            Some(cq) => cq.context.ops.poll_cq,
            None => context_of((*handle).context).and_then(|context| context.ops.poll_cq),
        }) else {
            return -libc::EINVAL;
        };
        let result = poll_cq(handle, num_entries, wc);
        if let Some(cq) = cq {
            match usize::try_from(result) {
                Ok(found) if found > 0 => {
                    count::polled(cq, found as u64);
                    let completions = std::slice::from_raw_parts(wc, found);
                    if trace::is_on() {
                        trace::found(handle, cq, completions);
                    }
                    count::completed(cq, completions);
                }
                _ => {
                    count::polled_empty(cq);
                    if trace::is_on() {
                        trace::empty_poll(handle.addr(), cq);
                    }
                }
            }
        }
        result
    }
}

/// Forgets what is outstanding on a queue pair.
pub(crate) fn reset(qp: &Qp) {
    qp.mine().settle(qp);
    qp.reset();
    qp.mine().read_end.store(u64::MAX, Relaxed);
}
