//! The operations of the context that `verbs.h` calls.

use std::ffi::c_int;

use verbs_abi::*;

use super::handle::{with_object_of_context, zero_or_errno};
use crate::completion_channel::Arming;
use crate::cq::Cqe;
use crate::memory::Payload;
use crate::post_and_poll::{EmptyDatagram, MAX_SGE, SendRequest};
use crate::posted_recvs::{PostedRecv, RecvList};
use crate::threads::run_due_events_if_far_ahead;

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    run_due_events_if_far_ahead();
    // SAFETY: a queue pair of this provider; the list is valid as `ibv_post_send(3)` requires.
    let posted = unsafe {
        with_object_of_context((*qp).context, (*qp).handle, |world, index| {
            let refuse = |wr: *mut ibv_send_wr| {
                if let Some(place) = bad_wr.as_mut() {
                    *place = wr;
                }
            };
            let mut list = world.begin_postlist(index).inspect_err(|_| refuse(wr))?;
            let mut result = Ok(());
            while let Some(this) = wr.as_ref() {
                if list.free_send_queue_slots > 0
                    && let Some(datagram) = as_empty_datagram(this)
                    && world.append_repeated_datagram(index, &mut list, &datagram)
                {
                    wr = this.next;
                    continue;
                }
                let built = match parse_send_work_request(this) {
                    _ if list.free_send_queue_slots == 0 => Err(libc::ENOMEM),
                    Some(request) => {
                        let inlined = |length| copy_inline_payload(request.sges, length);
                        world.append_work_request(index, &mut list, &request, inlined)
                    }
                    None => Err(libc::EINVAL),
                };
                if let Err(errno) = built {
                    refuse(wr);
                    result = Err(errno);
                    break;
                }
                wr = this.next;
            }
            world.post_postlist(index, list);
            result
        })
    };
    zero_or_errno(posted)
}

/// Reads a work request without SGEs as a datagram; `None` if it has SGEs. Only the queue pair knows if it is a
/// datagram.
#[inline(always)]
fn as_empty_datagram(wr: &ibv_send_wr) -> Option<EmptyDatagram> {
    if wr.num_sge != 0 {
        return None;
    }
    // SAFETY: all members of the unions are integers and pointers.
    let (imm, ud) = unsafe { (wr.imm.imm_data, wr.wr.ud) };
    Some(EmptyDatagram {
        opcode: wr.opcode,
        flags: wr.send_flags,
        wr_id: wr.wr_id,
        imm,
        dest_qpn: ud.remote_qpn,
        qkey: ud.remote_qkey,
    })
}

/// Reads a work request as plain values; `None` if its SGE list is invalid.
///
/// # Safety
/// The work request is valid as `ibv_post_send(3)` requires.
#[inline(always)]
unsafe fn parse_send_work_request(wr: &ibv_send_wr) -> Option<SendRequest<'_>> {
    let mut request = SendRequest {
        wr_id: wr.wr_id,
        opcode: wr.opcode,
        flags: wr.send_flags,
        // SAFETY: both members are `u32`.
        imm: unsafe { wr.imm.imm_data },
        dest_qpn: 0,
        qkey_or_rkey: 0,
        remote_addr: 0,
        compare_add: 0,
        swap: 0,
        // SAFETY: contract of this function.
        sges: unsafe { read_sges(wr.sg_list, wr.num_sge) }?,
    };
    // SAFETY: the member belongs to the opcode, and all members are integers and pointers. For a SEND, only the queue
    // pair knows if the member is valid, but its bytes are initialized in each case.
    unsafe {
        match wr.opcode {
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => {
                request.dest_qpn = wr.wr.ud.remote_qpn;
                request.qkey_or_rkey = wr.wr.ud.remote_qkey;
            }
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let atomic = wr.wr.atomic;
                (request.remote_addr, request.qkey_or_rkey) = (atomic.remote_addr, atomic.rkey);
                (request.compare_add, request.swap) = (atomic.compare_add, atomic.swap);
            }
            _ => {
                (request.remote_addr, request.qkey_or_rkey) =
                    (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey)
            }
        }
    }
    Some(request)
}

/// # Safety
/// `list` holds `count` elements, which do not change during the lifetime of the result.
#[inline(always)]
unsafe fn read_sges<'a>(list: *const ibv_sge, count: c_int) -> Option<&'a [ibv_sge]> {
    let count = usize::try_from(count)
        .ok()
        .filter(|&count| count <= MAX_SGE)?;
    if count == 0 {
        return Some(&[]);
    }
    // SAFETY: contract of this function.
    (!list.is_null()).then(|| unsafe { std::slice::from_raw_parts(list, count) })
}

/// # Safety
/// The elements are in readable memory, and their lengths have the sum `length`.
#[inline(always)]
unsafe fn copy_inline_payload(sges: &[ibv_sge], length: usize) -> Option<Payload> {
    if let ([sge], 8) = (sges, length) {
        let from = usize::try_from(sge.addr).ok()?;
        let from = std::ptr::with_exposed_provenance::<[u8; 8]>(from);
        // SAFETY: contract of this function, as below. An array of bytes needs no alignment.
        return Some(Payload::from_word(unsafe { from.read() }));
    }
    Payload::filled_by(length, |into| {
        let mut rest = into;
        for sge in sges {
            let (part, after) = rest.split_at_mut(sge.length as usize);
            let Ok(addr) = usize::try_from(sge.addr) else {
                return false;
            };
            let from = std::ptr::with_exposed_provenance::<u8>(addr);
            // SAFETY: contract of this function. Inline data may be anywhere in the program's memory.
            unsafe { std::ptr::copy_nonoverlapping(from, part.as_mut_ptr(), part.len()) };
            rest = after;
        }
        true
    })
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a queue pair of this provider; the list is valid as `ibv_post_recv(3)` requires.
    let posted = unsafe {
        with_object_of_context((*qp).context, (*qp).handle, |world, index| {
            post_recv_list(wr, bad_wr, |recvs| world.post_recvs(index, recvs))
        })
    };
    zero_or_errno(posted)
}

/// Calls `post` on a list of receive work requests; sets `bad_wr` if one is refused.
///
/// # Safety
/// The list and `bad_wr` are valid as `ibv_post_recv(3)` requires.
#[inline(always)]
unsafe fn post_recv_list(
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    post: impl FnOnce(&mut RecvListBeingPosted) -> Result<(), c_int>,
) -> Result<(), c_int> {
    let mut recvs = RecvListBeingPosted {
        next: wr,
        last_taken_wr: wr,
    };
    post(&mut recvs).inspect_err(|_| {
        // SAFETY: contract of this function.
        if let Some(place) = unsafe { bad_wr.as_mut() } {
            *place = recvs.last_taken_wr;
        }
    })
}

/// A list of receive work requests (`ibv_post_recv(3)`) while it is posted.
struct RecvListBeingPosted {
    next: *mut ibv_recv_wr,
    /// The work request that was taken last.
    last_taken_wr: *mut ibv_recv_wr,
}

impl RecvList<c_int> for &mut RecvListBeingPosted {
    #[inline(always)]
    fn next(&mut self) -> Option<Result<PostedRecv, c_int>> {
        self.last_taken_wr = self.next;
        // SAFETY: the caller of `post_recv` guarantees a valid list.
        unsafe {
            let this = self.next.as_ref()?;
            self.next = this.next;
            Some(parse_recv_work_request(this).ok_or(libc::EINVAL))
        }
    }

    #[inline(always)]
    fn take_if_equal(&mut self, recv: &PostedRecv) -> bool {
        // SAFETY: the caller of `post_recv` guarantees a valid list. A work request with one SGE has an SGE if its
        // address is not NULL.
        unsafe {
            let Some(this) = self.next.as_ref().filter(|this| this.num_sge == 1) else {
                return false;
            };
            let is_next = this.sg_list.as_ref().is_some_and(|sge| {
                this.wr_id == recv.wr_id
                    && sge.addr == recv.addr
                    && sge.length == recv.len
                    && sge.lkey == recv.lkey
            });
            if is_next {
                self.next = this.next;
            }
            is_next
        }
    }
}

/// Reads a RECV as plain values; `None` if it has more than one buffer, which is not simulated.
///
/// # Safety
/// The work request is valid as `ibv_post_recv(3)` requires.
#[inline(always)]
unsafe fn parse_recv_work_request(wr: &ibv_recv_wr) -> Option<PostedRecv> {
    // SAFETY: contract of this function.
    let sges = unsafe { read_sges(wr.sg_list, wr.num_sge) }?;
    let (addr, len, lkey) = match sges {
        [] => (0, 0, 0),
        [sge] => (sge.addr, sge.length, sge.lkey),
        _ => return None,
    };
    Some(PostedRecv {
        wr_id: wr.wr_id,
        addr,
        len,
        lkey,
    })
}

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a queue of this provider; the list is valid as `ibv_post_srq_recv(3)` requires.
    let posted = unsafe {
        with_object_of_context((*srq).context, (*srq).handle, |world, index| {
            post_recv_list(wr, bad_wr, |recvs| world.post_shared_recvs(index, recvs))
        })
    };
    zero_or_errno(posted)
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, n: c_int, wc: *mut ibv_wc) -> c_int {
    let Ok(most) = usize::try_from(n) else {
        return -libc::EINVAL;
    };
    run_due_events_if_far_ahead();
    // SAFETY: a CQ of this provider; `wc` has `n` places (`ibv_poll_cq(3)`).
    let taken = unsafe {
        with_object_of_context((*cq).context, (*cq).handle, |world, index| {
            let mut place = wc;
            let each = |cqe: &Cqe| {
                place.write(to_ibv_wc(cqe));
                place = place.add(1);
            };
            world.poll_cq(index, most, each).ok_or(libc::EIO)
        })
    };
    match taken {
        Ok(taken) => c_int::try_from(taken).unwrap_or(n),
        Err(errno) => -errno,
    }
}

#[inline]
fn to_ibv_wc(cqe: &Cqe) -> ibv_wc {
    ibv_wc {
        wr_id: cqe.wr_id,
        status: cqe.status.into(),
        opcode: cqe.opcode.into(),
        vendor_err: 0,
        byte_len: cqe.byte_len,
        imm: ibv_wc_imm { imm_data: cqe.imm },
        qp_num: cqe.qpn,
        src_qp: cqe.src_qp,
        wc_flags: if cqe.has_imm { IBV_WC_WITH_IMM } else { 0 },
        pkey_index: 0,
        slid: cqe.slid,
        sl: 0,
        dlid_path_bits: 0,
    }
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    run_due_events_if_far_ahead();
    let armed_for = match solicited_only {
        0 => Arming::AnyCompletion,
        _ => Arming::SolicitedOrFailed,
    };
    // SAFETY: a CQ of this provider.
    zero_or_errno(unsafe {
        with_object_of_context((*cq).context, (*cq).handle, |world, index| {
            world.arm_cq(index, armed_for)
        })
    })
}
