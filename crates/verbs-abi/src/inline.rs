//! The functions that are inline in `<infiniband/verbs.h>`: they call an operation of the object's
//! context.

use std::ffi::c_int;
use std::mem::offset_of;

use crate::{
    __VERBS_ABI_IS_EXTENDED, ibv_context, ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq,
    ibv_wc, verbs_context,
};

/// Panics because a context lacks an operation that the ABI requires.
#[cold]
#[inline(never)]
fn panic_missing_op(op: &str) -> ! {
    panic!("the provider's ibv_context.ops.{op} is NULL, which the libibverbs ABI forbids");
}

/// Returns the extended operations around a context; NULL if the context has none.
///
/// # Safety
/// `ctx` points at a context that a provider returned from `ibv_open_device` and that is still open.
#[inline]
#[must_use]
pub unsafe fn verbs_get_ctx(ctx: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: the caller guarantees a live context.
    if unsafe { (*ctx).abi_compat } != __VERBS_ABI_IS_EXTENDED {
        return std::ptr::null_mut();
    }
    // SAFETY: by `abi_compat`, the provider guarantees that the context is the last field of a
    // `verbs_context`, so the result stays inside that allocation.
    unsafe { ctx.byte_sub(offset_of!(verbs_context, context)).cast() }
}

/// Posts a postlist of send WRs: `ibv_post_send(3)`.
///
/// Returns 0 or an errno, with the first WR that was not posted in `bad_wr`.
///
/// # Safety
/// `qp` is a live QP; `wr` heads a list of valid WRs whose `sg_list`s are valid; `bad_wr` is writable.
/// Buffers that are not inline belong to the NIC until their WRs complete.
#[inline]
pub unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a live QP has a live context, and the provider that made both has filled the context's
    // `ops`. The caller guarantees all other requirements of the operation.
    unsafe {
        match (*(*qp).context).ops.post_send {
            Some(post_send) => post_send(qp, wr, bad_wr),
            None => panic_missing_op("post_send"),
        }
    }
}

/// Posts a postlist of receive WRs: `ibv_post_recv(3)`.
///
/// Returns 0 or an errno, with the first WR that was not posted in `bad_wr`.
///
/// # Safety
/// `qp` is a live QP; `wr` heads a list of valid WRs whose `sg_list`s are valid; `bad_wr` is writable.
/// The buffers belong to the NIC until their WRs complete.
#[inline]
pub unsafe fn ibv_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as in `ibv_post_send`.
    unsafe {
        match (*(*qp).context).ops.post_recv {
            Some(post_recv) => post_recv(qp, wr, bad_wr),
            None => panic_missing_op("post_recv"),
        }
    }
}

/// Posts a postlist of receive WRs to a shared receive queue: `ibv_post_srq_recv(3)`.
///
/// Returns 0 or an errno, with the first WR that was not posted in `bad_recv_wr`.
///
/// # Safety
/// `srq` is a live SRQ; `recv_wr` heads a list of valid WRs whose `sg_list`s are valid; `bad_recv_wr` is
/// writable. The buffers belong to the NIC until their WRs complete.
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    recv_wr: *mut ibv_recv_wr,
    bad_recv_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as in `ibv_post_send`.
    unsafe {
        match (*(*srq).context).ops.post_srq_recv {
            Some(post_srq_recv) => post_srq_recv(srq, recv_wr, bad_recv_wr),
            None => panic_missing_op("post_srq_recv"),
        }
    }
}

/// Takes up to `num_entries` completions from a CQ: `ibv_poll_cq(3)`.
///
/// Returns the number of completions that were written to `wc`, or a negative number.
///
/// # Safety
/// `cq` is a live CQ; `wc` is writable for `num_entries` completions.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: as in `ibv_post_send`.
    unsafe {
        match (*(*cq).context).ops.poll_cq {
            Some(poll_cq) => poll_cq(cq, num_entries, wc),
            None => panic_missing_op("poll_cq"),
        }
    }
}

/// Arms a CQ, so that the next (solicited) completion causes an event on its channel:
/// `ibv_req_notify_cq(3)`.
///
/// Returns 0 or an errno.
///
/// # Safety
/// `cq` is a live CQ.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: as in `ibv_post_send`.
    unsafe {
        match (*(*cq).context).ops.req_notify_cq {
            Some(req_notify_cq) => req_notify_cq(cq, solicited_only),
            None => panic_missing_op("req_notify_cq"),
        }
    }
}
