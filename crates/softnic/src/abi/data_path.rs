//! The data path: the operations that `verbs.h` calls through the context.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use verbs_abi::*;

use crate::cq::Cq;
use crate::live_handles::VerbsObject;
use crate::qp::Qp;
use crate::qp_attributes::QpState;
use crate::recv::RecvQueue;
use crate::send;
use crate::sge::AlignedSges;
use crate::srq::Srq;
use crate::why;
use crate::xrc::XrcRole;

/// Borrows the object behind a handle without looking it up.
///
/// # Safety
/// `handle` is NULL or live, and the object is not destroyed while the result is used. (The handle of an object is its
/// address: `live_handles::make_handle`.)
#[inline(always)]
pub(super) unsafe fn deref_handle<'a, T: VerbsObject>(handle: *mut T::C) -> Option<&'a T> {
    // SAFETY: NULL or the address of a `T` (contract of this function).
    unsafe { handle.cast::<T>().as_ref() }
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: `ibv_post_send(3)`: the program posts to a queue pair that it has, and a list that ends with NULL.
    unsafe {
        let Some(to) = deref_handle::<Qp>(qp) else {
            return libc::EINVAL;
        };
        if send::is_single_write(wr) && send::post_single_write(to, wr) {
            return 0;
        }
        if send::is_single_send(wr) && send::post_single_send(to, wr) {
            return 0;
        }
        post_send_chain(to, wr, bad_wr)
    }
}

/// Posts a list. The function is out of line, so that a single work request does not pay for its frame.
///
/// # Safety
/// As for [`post_send`].
#[inline(never)]
unsafe fn post_send_chain(qp: &Qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: `wr` and `bad_wr` are those of `post_send` (contract of this function).
    unsafe {
        if matches!(qp.xrc_role, XrcRole::Send) {
            send::post_send_xrc(qp, wr, bad_wr)
        } else {
            send::post_send(qp, wr, bad_wr)
        }
    }
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, n: c_int, wc: *mut ibv_wc) -> c_int {
    let Ok(len) = usize::try_from(n) else {
        return -libc::EINVAL;
    };
    // SAFETY: the program polls a queue that it has; `wc` is not NULL (below) and has `n` places (`ibv_poll_cq(3)`).
    unsafe {
        let Some(cq) = deref_handle::<Cq>(cq) else {
            return -libc::EINVAL;
        };
        if len == 0 || wc.is_null() {
            return 0;
        }
        let out = std::slice::from_raw_parts_mut(wc.cast::<MaybeUninit<ibv_wc>>(), len);
        // At most `n`.
        c_int::try_from(cq.poll(out)).unwrap_or(n)
    }
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the program arms a queue that it has (`ibv_req_notify_cq(3)`).
    match unsafe { deref_handle::<Cq>(cq) } {
        Some(cq) => {
            cq.arm(solicited_only != 0);
            0
        }
        None => libc::EINVAL,
    }
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: `ibv_post_recv(3)`: the program posts to a queue pair that it has, and a list that ends with NULL.
    unsafe {
        match deref_handle::<Qp>(qp) {
            Some(qp) => post_recv_to_qp(qp, wr, bad_wr),
            None => libc::EINVAL,
        }
    }
}

/// Posts to the receive queue of a queue pair.
///
/// # Safety
/// `wr` and `bad_wr` are as for [`post_send`].
#[inline(always)]
pub(super) unsafe fn post_recv_to_qp(
    qp: &Qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: `post_sends` and `refuse` need of `wr` and `bad_wr` what the caller promises (contract of this function).
    unsafe {
        let state = qp.state();
        let report = |wr_id| {
            let queue = format_args!("queue pair {:#x}", qp.qpn);
            why::report_refused_post("ibv_post_recv", &queue, wr_id);
        };
        if state == QpState::Reset || qp.srq.is_some() {
            why::record_refusal_reason(|| match state {
                QpState::Reset => "the queue pair is in RESET: modify it to INIT first",
                _ => "the queue pair has a shared receive queue: use ibv_post_srq_recv",
            });
            return refuse_recv_wr(wr, bad_wr, libc::EINVAL, report);
        }
        let (result, wanted) = {
            let mut queue = qp.rq.lock();
            (
                post_recv_list(&mut queue, wr, bad_wr, report),
                queue.take_message_waiting_flag(),
            )
        };
        if wanted {
            // A message waits for a receive WR, and the program may not poll: wake the engine.
            qp.nic.this_process().wake_engine();
        } else if state == QpState::Err {
            qp.recv_cq.call_engine_if_armed();
        }
        result
    }
}

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: `ibv_post_srq_recv(3)`: the program posts to a queue that it has, and a list that ends with NULL.
    unsafe {
        match deref_handle::<Srq>(srq) {
            Some(srq) => {
                let (result, wanted) = {
                    let report = |wr_id| {
                        let queue = "a shared receive queue";
                        why::report_refused_post("ibv_post_srq_recv", &queue, wr_id);
                    };
                    let mut queue = srq.recv_queue.lock();
                    (
                        post_recv_list(&mut queue, wr, bad_wr, report),
                        queue.take_message_waiting_flag(),
                    )
                };
                if wanted {
                    srq.context.nic.this_process().wake_engine();
                }
                result
            }
            None => libc::EINVAL,
        }
    }
}

/// Posts a list of receive WRs. `report` is called with the `wr_id` of one that is refused with `EINVAL`.
///
/// # Safety
/// `wr` is NULL or the first of a list as `ibv_post_recv(3)` describes it; `bad_wr` NULL or a place.
#[inline(always)]
unsafe fn post_recv_list(
    queue: &mut RecvQueue,
    mut wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    report: impl Fn(u64) + Copy,
) -> c_int {
    let mut copies = AlignedSges::none();
    // SAFETY: `wr` is NULL or the next of the list (contract of this function; `next` below); an `sg_list` that is not
    // NULL has `num_sge` entries (`ibv_post_recv(3)`), at most `max_sge` (checked before `copies.of`).
    unsafe {
        while let Some(this) = wr.as_ref() {
            let sges = match usize::try_from(this.num_sge) {
                Ok(0) => &[][..],
                Ok(n) if !this.sg_list.is_null() && n <= queue.max_sge() => {
                    copies.align_sges(this.sg_list, n)
                }
                _ => {
                    why::record_refusal_reason(|| {
                        let (count, max) = (this.num_sge, queue.max_sge());
                        format!("num_sge is {count}, and max_recv_sge or max_sge {max}")
                    });
                    return refuse_recv_wr(wr, bad_wr, libc::EINVAL, report);
                }
            };
            if let Err(errno) = queue.post(this.wr_id, sges) {
                return refuse_recv_wr(wr, bad_wr, errno, report);
            }
            wr = this.next;
        }
    }
    0
}

/// Stores the refused WR in `bad_wr`, reports it if `errno` is `EINVAL`, and returns `errno`.
///
/// # Safety
/// `wr` is NULL or a WR; `bad_wr` is NULL or a place.
#[cold]
unsafe fn refuse_recv_wr(
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    errno: c_int,
    report: impl Fn(u64),
) -> c_int {
    if errno == libc::EINVAL {
        // SAFETY: contract of this function.
        report(unsafe { wr.as_ref() }.map_or(0, |wr| wr.wr_id));
    }
    if !bad_wr.is_null() {
        // SAFETY: not NULL (above), so a place (contract of this function).
        unsafe { *bad_wr = wr };
    }
    errno
}
