//! The fast path for one SEND with an inline payload of at most two SGEs, or none, posted alone. UCX posts its
//! header and the program's data this way.
//!
//! A program that posts one message a doorbell pays the fixed costs of every post: the lock, the checks, the ring, and
//! the check whether the receiver sleeps. [`super::run_fast_path`] spreads these costs over a list. The code here does
//! each of these steps once. Everything unusual is left to the general path.

use std::sync::atomic::Ordering;

use verbs_abi::*;

use super::run_fast_path::{can_peer_receive, first_sge_if_aligned};
use super::traffic::{DestinationPort, ShortMessageKind};
use super::{
    FLAG_SOLICITED, OutboundShmRing, RecordKind, SUCCESS_BYTE, SendQueue, SendWork, SendWqe,
    code_as_byte, make_record_header, publish_before_sleep, recent_ud_ring_index,
};
use crate::ah::Ah;
use crate::path;
use crate::qp::Qp;
use crate::qp_attributes::{QpState, QpType};
use crate::xrc::XrcRole;
use shm::fabric::ring::slots_for_payload;

/// Returns true if [`post_unless_general_path_needed`] may be called for `wr`.
///
/// # Safety
/// `wr` is NULL or the first of a list as `ibv_post_send(3)` describes it.
#[inline(always)]
pub(crate) unsafe fn is_single_send(wr: *const ibv_send_wr) -> bool {
    // SAFETY: contract of this function.
    unsafe { wr.as_ref() }.is_some_and(|wr| {
        matches!(wr.opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM) && wr.next.is_null()
    })
}

/// Executes a SEND. Returns false, with nothing done, if the general path has to execute it.
///
/// # Safety
/// [`is_single_send`] is true of `wr`, and `wr` is as `ibv_post_send(3)` describes it.
#[inline(never)]
pub(crate) unsafe fn post_unless_general_path_needed(qp: &Qp, wr: *const ibv_send_wr) -> bool {
    // SAFETY: contract of this function.
    unsafe {
        let wr = &*wr;
        if wr.num_sge == 2 {
            return post_two_sges_unless_general_path_needed(qp, wr);
        }
        match qp.qp_type {
            QpType::Ud => try_post_single_send::<true, false>(qp, wr),
            _ => try_post_single_send::<false, false>(qp, wr),
        }
    }
    .is_some()
}

/// [`post_unless_general_path_needed`] for a SEND with two SGEs. A function for one and two SGEs makes a
/// post with one SGE a tenth slower.
///
/// # Safety
/// As for [`post_unless_general_path_needed`].
#[inline(never)]
unsafe fn post_two_sges_unless_general_path_needed(qp: &Qp, wr: &ibv_send_wr) -> bool {
    // SAFETY: contract of this function.
    unsafe {
        match qp.qp_type {
            QpType::Ud => try_post_single_send::<true, true>(qp, wr),
            _ => try_post_single_send::<false, true>(qp, wr),
        }
    }
    .is_some()
}

/// [`post_unless_general_path_needed`] for UD, or for the other types of queue pair. `None` leaves the SEND to the
/// general path.
///
/// # Safety
/// As for [`post_unless_general_path_needed`].
#[inline(always)]
unsafe fn try_post_single_send<const UD: bool, const TWO_SGES: bool>(
    qp: &Qp,
    wr: &ibv_send_wr,
) -> Option<()> {
    if qp.state() != QpState::Rts
        || matches!(qp.xrc_role, XrcRole::Send)
        || path::are_packets_in_use()
    {
        return None;
    }
    let mut sq = qp.sq.lock_if_biased_to_this_thread()?;
    let sq = &mut *sq;
    if sq.is_stopped_by_failure
        || !sq.deferred_wrs.is_empty()
        || sq.posted_wr_count - sq.freed_wr_count >= sq.max_wr
    {
        return None;
    }
    // SAFETY: contract of this function.
    let (first, second) = unsafe { inline_pieces::<TWO_SGES>(wr, sq.max_sge) }?;
    let len = first.1 + second.map_or(0, |sge| sge.length as usize);
    if len > sq.max_inline_bytes {
        return None;
    }
    let (place, qkey) = if UD {
        // SAFETY: the member of the union for UD, plain values.
        let to = unsafe { wr.wr.ud };
        // SAFETY: contract of this function.
        let ah = unsafe { Ah::from_handle(to.ah) }.filter(|ah| ah.pd_number == qp.pd_number)?;
        let own = to.remote_qkey >> 31 != 0;
        let qkey = if own {
            qp.qkey.load(Ordering::Relaxed)
        } else {
            to.remote_qkey
        };
        (recent_ud_ring_index(sq, ah, to.remote_qpn)?, qkey)
    } else {
        (can_peer_receive(qp, sq.peer_ring.as_ref()).then_some(0)?, 0)
    };
    let to = if UD {
        outbound_ring_at::<UD>(sq, place)?.dest_port
    } else {
        DestinationPort::PEER
    };
    if !sq.unpublished_traffic.try_count_short_message(
        sq.posted_wr_count,
        ShortMessageKind::Send,
        len,
        to,
    ) {
        return None;
    }
    let ring = outbound_ring_at::<UD>(sq, place)?;
    if ring.ring_producer.has_room(len) != Ok(true) {
        return None;
    }
    let payload = ring.ring_producer.place_for_payload(len);
    let (src, len_of_first) = first;
    let dst = payload.as_mut_ptr();
    // SAFETY: the payload is the program's (contract); the place has the bytes of both pieces.
    if len_of_first != 0 && unsafe { shm::mem::copy(dst, src, len_of_first) }.is_err() {
        return None;
    }
    if let Some(second) = second {
        // SAFETY: as for the first piece.
        unsafe { copy_sge(dst.wrapping_add(len_of_first), second) }?;
    }
    // SAFETY: reads the immediate of the union, which is plain bytes.
    let imm = unsafe { wr.imm.imm_data };
    let (kind, imm) = match wr.opcode {
        IBV_WR_SEND => (RecordKind::Send, 0),
        _ => (RecordKind::SendWithImm, imm),
    };
    let solicited = wr.send_flags & IBV_SEND_SOLICITED != 0;
    let flags = if solicited { FLAG_SOLICITED } else { 0 };
    #[allow(clippy::cast_possible_truncation)] // the length of an SGE
    let byte_len = len as u32;
    let record = make_record_header(kind, flags, imm, byte_len, qkey);
    let wqe = SendWqe {
        wr_id: wr.wr_id,
        ring_end_position: ring.ring_producer.write_position() + slots_for_payload(len),
        seq: sq.posted_wr_count,
        byte_len_or_vendor_err: byte_len,
        opcode: code_as_byte(IBV_WC_SEND),
        status: SUCCESS_BYTE,
        signaled: sq.sq_sig_all || wr.send_flags & IBV_SEND_SIGNALED != 0,
        ordered_write_count: 0,
    };
    sq.posted_wr_count += 1;
    if kind == RecordKind::SendWithImm {
        sq.unpublished_traffic.count_immediates(1);
    }
    if !UD {
        sq.pending_wqes.push(wqe);
    } else if wqe.signaled {
        sq.finished_wrs.push(wqe);
    }
    // The work is stored before the receiver can see the message, as in `post_sends`.
    let work = sq.work_for_next_poll();
    if qp.send_poll_work.load(Ordering::Relaxed) != work as u8 {
        qp.send_poll_work.store(work as u8, Ordering::Relaxed);
    }
    let ring = outbound_ring_at::<UD>(sq, place)?;
    ring.ring_producer.add_and_publish(record, len);
    ring.announce_and_wake(qp.nic, solicited);
    if work != SendWork::None && qp.send_cq.is_armed() {
        publish_before_sleep(qp, sq);
    }
    Some(())
}

/// Returns the inline payload of a work request that has two SGEs (`TWO_SGES`), or one or none. The first piece is an
/// address and a length, the second one an SGE. `None` for all other work requests.
///
/// # Safety
/// `wr` is as `ibv_post_send(3)` describes it.
#[inline(always)]
#[allow(clippy::type_complexity)]
unsafe fn inline_pieces<const TWO_SGES: bool>(
    wr: &ibv_send_wr,
    max_sge: usize,
) -> Option<((*const u8, usize), Option<&ibv_sge>)> {
    match wr.num_sge {
        0 if !TWO_SGES => return Some(((std::ptr::null(), 0), None)),
        1 if !TWO_SGES && wr.send_flags & IBV_SEND_INLINE != 0 => {}
        2 if TWO_SGES && wr.send_flags & IBV_SEND_INLINE != 0 && max_sge >= 2 => {}
        _ => return None,
    }
    // SAFETY: contract of this function.
    let sge = unsafe { first_sge_if_aligned(wr) }?;
    let src = std::ptr::with_exposed_provenance(sge.addr as usize);
    let second = TWO_SGES.then(|| {
        // SAFETY: `sg_list` points to two SGEs (contract), and is aligned.
        unsafe { &*wr.sg_list.cast_const().wrapping_add(1) }
    });
    Some(((src, sge.length as usize), second))
}

/// Copies the data of an SGE.
///
/// # Safety
/// The SGE's memory is the program's to send, and `dst` has room for it.
#[inline(never)]
unsafe fn copy_sge(dst: *mut u8, sge: &ibv_sge) -> Option<()> {
    let src = std::ptr::with_exposed_provenance(sge.addr as usize);
    // SAFETY: contract of this function.
    unsafe { shm::mem::copy(dst, src, sge.length as usize) }.ok()
}

/// Returns the ring to the peer, or the ring at `place` of the UD rings.
#[inline(always)]
fn outbound_ring_at<const UD: bool>(
    sq: &mut SendQueue,
    place: usize,
) -> Option<&mut OutboundShmRing> {
    if UD {
        sq.ud_rings.rings.get_mut(place)?.as_mut()
    } else {
        sq.peer_ring.as_mut()
    }
}
