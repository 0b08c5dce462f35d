//! The verbs under a fault plan: each asks the plan before it acts.
//!
//! A context that a process with a plan opens gets these functions for the data path. Without a plan, the data path
//! does not change. The other verbs ask in [`control_verbs!`](super::edge::control_verbs).

use std::ffi::c_int;
use std::mem::MaybeUninit;

use ::faults::{QueuePairIds, VerbCallFacts, WorkRequestFacts, WorkRequestFault};
use verbs_abi::*;

use super::data_path::{self, deref_handle};
use crate::cq::Cq;
use crate::faults;
use crate::incidents;
use crate::live_handles;
use crate::process_nic;
use crate::qp::Qp;
use crate::send;
use crate::sge::make_failing_sge;
use crate::srq::Srq;

/// Installs the operations of a context under a plan.
pub(super) fn install_faulty_ops(ops: &mut ibv_context_ops) {
    ops.poll_cq = Some(poll_cq);
    ops.req_notify_cq = Some(req_notify_cq);
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops.post_srq_recv = Some(post_srq_recv);
}

/// Returns the name of a verb, given `"ibv_"` and the name of its function here, which may begin with `ibv_` already.
pub(super) const fn strip_doubled_ibv_prefix(name: &'static str) -> &'static str {
    match name.as_bytes() {
        [_, _, _, _, b'i', b'b', b'v', b'_', ..] => name.split_at(4).1,
        [_, _, _, _, b'_', b'i', b'b', b'v', b'_', ..] => name.split_at(5).1,
        _ => name,
    }
}

/// Returns true for verbs that still work when the device is gone: those that free objects and those that get events.
fn works_after_device_removal(name: &str) -> bool {
    [
        "destroy",
        "dealloc",
        "dereg",
        "close",
        "free",
        "get_async",
        "get_cq",
        "ack",
        "unimport",
        "detach",
    ]
    .iter()
    .any(|prefix| {
        name.strip_prefix("ibv_")
            .is_some_and(|name| name.starts_with(prefix))
    })
}

/// Returns the errno with which a verb is refused, if it is. `first` is the address of its first argument, perhaps a
/// queue pair's.
#[cold]
pub(super) fn decide_injected_errno(name: &'static str, first: usize) -> Option<c_int> {
    if !faults::has_plan() {
        return None;
    }
    let qp = live_handles::find_object::<Qp>(std::ptr::without_provenance_mut(first));
    let queue_pair = qp.map(|qp| qp.fault_plan_identity()).unwrap_or_default();
    decide_injected_errno_for_qp(name, queue_pair)
}

pub(super) fn decide_injected_errno_for_qp(
    name: &'static str,
    queue_pair: QueuePairIds,
) -> Option<c_int> {
    let (errno, happenings) = faults::decide_verb_fault_and_incidents(&VerbCallFacts {
        verb_name: name,
        queue_pair,
    });
    if !happenings.is_empty()
        && let Ok(nic) = process_nic::process_nic()
    {
        incidents::carry_out_incidents(nic, happenings);
    }
    let gone = incidents::device_is_gone() && !works_after_device_removal(name);
    errno.or(gone.then_some(libc::EIO))
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: `ibv_post_send(3)`: the program posts to a queue pair that it has, a list that ends with NULL; `bad_wr` is a
    // place for the refused one.
    unsafe {
        let Some(to) = deref_handle::<Qp>(qp) else {
            return libc::EINVAL;
        };
        if let Some(errno) = decide_injected_errno_for_qp("ibv_post_send", to.fault_plan_identity())
        {
            if !bad_wr.is_null() {
                *bad_wr = wr;
            }
            return errno;
        }
        let result = send::post_send_under_faults(to, wr, bad_wr);
        incidents::carry_out_deferred_incidents(to.nic);
        result
    }
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, n: c_int, wc: *mut ibv_wc) -> c_int {
    let Ok(len) = usize::try_from(n) else {
        return -libc::EINVAL;
    };
    if let Some(errno) = decide_injected_errno_for_qp("ibv_poll_cq", QueuePairIds::default()) {
        return -errno;
    }
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
        c_int::try_from(cq.poll_under_faults(out)).unwrap_or(n)
    }
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    match decide_injected_errno_for_qp("ibv_req_notify_cq", QueuePairIds::default()) {
        Some(errno) => errno,
        // SAFETY: the caller's promise (`ibv_req_notify_cq(3)`).
        None => unsafe { data_path::req_notify_cq(cq, solicited_only) },
    }
}

/// A function that posts to a receive queue.
type PostRecv<T> = unsafe extern "C" fn(*mut T, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: `ibv_post_recv(3)`, the caller's promise.
    unsafe {
        let Some(to) = deref_handle::<Qp>(qp) else {
            return libc::EINVAL;
        };
        let result = post_recvs_with_faults(
            "ibv_post_recv",
            to.fault_plan_identity(),
            (qp, wr, bad_wr),
            data_path::post_recv,
        );
        incidents::carry_out_deferred_incidents(to.nic);
        result
    }
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: `ibv_post_srq_recv(3)`, the caller's promise.
    unsafe {
        let Some(to) = deref_handle::<Srq>(srq) else {
            return libc::EINVAL;
        };
        let nobody = QueuePairIds::default();
        let result = post_recvs_with_faults(
            "ibv_post_srq_recv",
            nobody,
            (srq, wr, bad_wr),
            data_path::post_srq_recv,
        );
        incidents::carry_out_deferred_incidents(to.context.nic);
        result
    }
}

/// Posts receive WRs one by one. A WR that is to fail gets a scatter list that fails.
///
/// # Safety
/// The arguments are what `post` asks for.
unsafe fn post_recvs_with_faults<T>(
    name: &'static str,
    queue_pair: QueuePairIds,
    (to, mut wr, bad_wr): (*mut T, *mut ibv_recv_wr, *mut *mut ibv_recv_wr),
    post: PostRecv<T>,
) -> c_int {
    let mut result = decide_injected_errno_for_qp(name, queue_pair).unwrap_or(0);
    // SAFETY: `wr` is NULL or the next of a list that ends with NULL (contract of this function); what is posted is a list
    // of one, with the program's scatter list or one that lives until `post` returns.
    unsafe {
        while let (0, Some(this)) = (result, wr.as_ref()) {
            let facts = WorkRequestFacts {
                operation: "RECV",
                queue_pair,
                peer: ::faults::PeerIds::default(),
            };
            let mut one = ibv_recv_wr {
                next: std::ptr::null_mut(),
                ..*this
            };
            let room = match faults::decide_work_request_fault(&facts, this.wr_id) {
                Some(WorkRequestFault::Status(IBV_WC_LOC_LEN_ERR)) => Some(0),
                Some(WorkRequestFault::Status(_)) => Some(u32::MAX),
                _ => None,
            };
            let mut failing = make_failing_sge(room.unwrap_or(0));
            if room.is_some() && one.num_sge > 0 {
                (one.sg_list, one.num_sge) = (&raw mut failing, 1);
            }
            let mut bad = std::ptr::null_mut();
            result = post(to, &raw mut one, &raw mut bad);
            if result == 0 {
                wr = this.next;
            }
        }
        if result != 0 && !bad_wr.is_null() {
            *bad_wr = wr;
        }
    }
    result
}
