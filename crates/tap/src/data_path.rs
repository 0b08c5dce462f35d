//! The operations that `verbs.h` calls through the context, with the counting behind them.
//!
//! Each calls the provider's own and then counts what that accepted, so a work request is never looked at before
//! the NIC has it, and a refused one is not counted.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use verbs_abi::*;

use crate::count::{self, Completion, Request};
use crate::objects::{CONTEXTS, CQS, Context, QPS, Qp, SRQS, key_of, qp_key};
use crate::session::add;
use crate::trace;

/// Puts the counting operations into a context whose own are in `context`.
pub(crate) fn install(ops: &mut ibv_context_ops) {
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops.post_srq_recv = Some(post_srq_recv);
    ops.poll_cq = Some(poll_cq);
}

/// The queue pair behind a handle.
///
/// # Safety
/// `qp` is a live queue pair.
#[inline(always)]
unsafe fn qp_of(qp: *mut ibv_qp) -> Option<&'static Qp> {
    // SAFETY: contract of this function.
    let key = unsafe { qp_key((*qp).context, (*qp).qp_num) };
    QPS.find(key)
}

/// The device behind a handle, for objects that are not counted.
#[cold]
fn context_of(context: *mut ibv_context) -> Option<&'static Context> {
    CONTEXTS.find(key_of(context))
}

/// A postlist, up to the first work request that was refused.
#[derive(Clone)]
pub(crate) struct List {
    next: *mut ibv_send_wr,
    end: *mut ibv_send_wr,
}

impl Iterator for List {
    type Item = &'static ibv_send_wr;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.next == self.end {
            return None;
        }
        // SAFETY: NULL, or a work request of the list that the program hands to this call.
        let this = unsafe { self.next.as_ref() }?;
        self.next = this.next;
        Some(this)
    }
}

impl Request for &ibv_send_wr {
    #[inline(always)]
    fn opcode(&self) -> ibv_wr_opcode {
        self.opcode
    }

    #[inline(always)]
    fn flags(&self) -> u32 {
        self.send_flags
    }

    #[inline(always)]
    fn payload(&self) -> (u32, u32) {
        // SAFETY: the provider has accepted it with this list of elements.
        unsafe { room(self.sg_list, self.num_sge) }
    }

    #[inline(always)]
    fn remote(&self) -> u64 {
        // SAFETY: plain numbers at the same place for RDMA and atomics.
        unsafe { self.wr.rdma.remote_addr }
    }

    #[inline(always)]
    fn destination(&self) -> (*mut ibv_ah, u32) {
        // SAFETY: any bits are values of this member.
        unsafe { (self.wr.ud.ah, self.wr.ud.remote_qpn) }
    }
}

/// Elements of a list, and the bytes in them.
///
/// # Safety
/// The list has `num_sge` elements.
#[inline(always)]
pub(crate) unsafe fn room(sges: *const ibv_sge, num_sge: c_int) -> (u32, u32) {
    if num_sge == 1 && !sges.is_null() {
        // SAFETY: contract of this function.
        return (1, unsafe { (*sges).length });
    }
    // SAFETY: as above.
    unsafe { room_of_many(sges, num_sge) }
}

/// As [`room`].
///
/// # Safety
/// As that.
#[inline(never)]
unsafe fn room_of_many(sges: *const ibv_sge, num_sge: c_int) -> (u32, u32) {
    match usize::try_from(num_sge) {
        Ok(many @ 1..) if !sges.is_null() => {
            // SAFETY: contract of this function.
            let sges = unsafe { std::slice::from_raw_parts(sges, many) };
            let sum = |sum: u32, sge: &ibv_sge| sum.saturating_add(sge.length);
            (many as u32, sges.iter().fold(0, sum))
        }
        _ => (0, 0),
    }
}

unsafe extern "C" fn post_send(
    handle: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a live queue pair and what `ibv_post_send(3)` asks for, which is the caller's promise; the provider's
    // operation gets the same.
    unsafe {
        let qp = qp_of(handle);
        let Some(post_send) = (match qp {
            Some(qp) => qp.context.ops.post_send,
            None => context_of((*handle).context).and_then(|context| context.ops.post_send),
        }) else {
            return libc::EINVAL;
        };
        let mut bad = ptr::null_mut();
        let bad_wr = if bad_wr.is_null() {
            &raw mut bad
        } else {
            bad_wr
        };
        let traced = trace::started();
        let result = post_send(handle, wr, bad_wr);
        if let Some(at_ns) = traced {
            let all = List {
                next: wr,
                end: ptr::null_mut(),
            };
            let bad = if result == 0 {
                ptr::null_mut()
            } else {
                *bad_wr
            };
            trace::posted(at_ns, handle, (*handle).qp_type, all, bad, result);
        }
        if let Some(qp) = qp {
            let end = if result == 0 {
                ptr::null_mut()
            } else {
                count_refused(qp, *bad_wr)
            };
            count::posted(qp, List { next: wr, end });
        }
        result
    }
}

/// Counts the rest of a list from the work request that was refused, which it returns.
#[cold]
fn count_refused(qp: &Qp, bad_wr: *mut ibv_send_wr) -> *mut ibv_send_wr {
    let rest = List {
        next: bad_wr,
        end: ptr::null_mut(),
    };
    add(&qp.mine().cell.refused, rest.count() as u64);
    bad_wr
}

/// RECVs of a list up to the first that was refused.
struct Recvs {
    next: *mut ibv_recv_wr,
    end: *mut ibv_recv_wr,
}

impl Recvs {
    /// How many, and the room in them.
    ///
    /// # Safety
    /// They are of a list as `ibv_post_recv(3)` describes it.
    #[inline(always)]
    unsafe fn sums(mut self) -> (u64, u64) {
        let (mut count, mut bytes) = (0, 0);
        while self.next != self.end {
            // SAFETY: contract of this function.
            let Some(this) = (unsafe { self.next.as_ref() }) else {
                break;
            };
            count += 1;
            // SAFETY: as above.
            bytes += u64::from(unsafe { room(this.sg_list, this.num_sge) }.1);
            self.next = this.next;
        }
        (count, bytes)
    }
}

/// Posts a list of RECVs by `post`, which gets the place for the first that is refused, and traces it as a call on
/// `queue`; its result, and what the provider took.
///
/// # Safety
/// `wr` is NULL or the first of a list, `bad_wr` NULL or writable, as `ibv_post_recv(3)` describes them.
#[inline(always)]
unsafe fn tapped_recvs(
    queue: (&'static str, trace::Kind, usize),
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    post: impl FnOnce(*mut *mut ibv_recv_wr) -> c_int,
) -> (c_int, Recvs) {
    let mut bad = ptr::null_mut();
    let bad_wr = if bad_wr.is_null() {
        &raw mut bad
    } else {
        bad_wr
    };
    let traced = trace::started();
    let result = post(bad_wr);
    let end = if result == 0 {
        ptr::null_mut()
    } else {
        // SAFETY: contract of this function; a provider that refuses says what.
        unsafe { *bad_wr }
    };
    if let Some(at_ns) = traced {
        // SAFETY: contract of this function.
        unsafe { trace::recvs_posted(at_ns, queue, wr, end, result) };
    }
    (result, Recvs { next: wr, end })
}

unsafe extern "C" fn post_recv(
    handle: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as in `post_send`.
    unsafe {
        let qp = qp_of(handle);
        let Some(post_recv) = (match qp {
            Some(qp) => qp.context.ops.post_recv,
            None => context_of((*handle).context).and_then(|context| context.ops.post_recv),
        }) else {
            return libc::EINVAL;
        };
        let queue = ("post_recv", trace::Kind("qp"), handle.addr());
        let (result, taken) = tapped_recvs(queue, wr, bad_wr, |bad| post_recv(handle, wr, bad));
        if let Some(qp) = qp {
            let ((count, bytes), cell) = (taken.sums(), qp.mine().cell);
            add(&cell.recv_posts, 1);
            add(&cell.recv_wrs, count);
            add(&cell.recv_bytes, bytes);
        }
        result
    }
}

unsafe extern "C" fn post_srq_recv(
    handle: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as in `post_send`.
    unsafe {
        let srq = SRQS.find(key_of(handle));
        let Some(post_srq_recv) = (match srq {
            Some(srq) => srq.context.ops.post_srq_recv,
            None => context_of((*handle).context).and_then(|context| context.ops.post_srq_recv),
        }) else {
            return libc::EINVAL;
        };
        let queue = ("post_srq_recv", trace::Kind("srq"), handle.addr());
        let (result, taken) = tapped_recvs(queue, wr, bad_wr, |bad| post_srq_recv(handle, wr, bad));
        if let Some(srq) = srq {
            let ((count, bytes), cell) = (taken.sums(), srq.mine().cell);
            add(&cell.recv_posts, 1);
            add(&cell.recv_wrs, count);
            add(&cell.recv_bytes, bytes);
        }
        result
    }
}

unsafe extern "C" fn poll_cq(handle: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: a live queue with room for the completions (`ibv_poll_cq(3)`), the caller's promise.
    unsafe {
        let cq = CQS.find(key_of(handle));
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
                    count::completed(cq, completions.iter().map(Completion::of));
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
