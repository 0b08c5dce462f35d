//! The rest of a postlist that is all alike: what was looked up for its first work request holds for the
//! others.
//!
//! A postlist of small inline messages to one destination, or of small inline WRITEs to one memory region, is
//! the case that decides message rates. Its first work request takes the general way, which finds the ring
//! (or the region) and checks that the peer answers; the ones behind it pass through a loop that only does
//! what is theirs: 4 ns each instead of 15. The first one that is different in any way ends the burst.

use std::sync::atomic::Ordering;

use verbs_abi::*;

use super::{FLAG_SOLICITED, Kind, SendQueue, SendWqe, header, remote_region, wc_opcode};
use crate::qp::Qp;
use crate::qp_state::QpType;

/// Executes the work requests from `wr` on that are like `first`, which has just been executed; the first
/// one that is not.
///
/// # Safety
/// `wr` is null or the rest of a list as `ibv_post_send(3)` describes it.
#[inline]
pub(super) unsafe fn run(
    qp: &Qp,
    sq: &mut SendQueue,
    first: &ibv_send_wr,
    wr: *mut ibv_send_wr,
) -> *mut ibv_send_wr {
    // SAFETY: contract of this function.
    unsafe {
        match first.opcode {
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM if qp.qp_type == QpType::Ud => {
                sends::<true>(qp, sq, first, wr)
            }
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => sends::<false>(qp, sq, first, wr),
            IBV_WR_RDMA_WRITE if first.send_flags & IBV_SEND_INLINE != 0 => {
                writes(qp, sq, first, wr)
            }
            _ => wr,
        }
    }
}

/// The payload of a work request whose data is inline in one piece, or that has none.
///
/// # Safety
/// `wr` is as `ibv_post_send(3)` describes it.
#[inline(always)]
unsafe fn inline_piece(wr: &ibv_send_wr, max_inline: usize) -> Option<(*const u8, usize)> {
    match wr.num_sge {
        0 => Some((std::ptr::null(), 0)),
        1 if wr.send_flags & IBV_SEND_INLINE != 0 && !wr.sg_list.is_null() => {
            // SAFETY: one SGE (contract).
            let sge = unsafe { *wr.sg_list };
            let len = sge.length as usize;
            (len <= max_inline).then(|| (std::ptr::with_exposed_provenance(sge.addr as usize), len))
        }
        _ => None,
    }
}

/// # Safety
/// As for [`run`].
#[inline]
unsafe fn sends<const UD: bool>(
    qp: &Qp,
    sq: &mut SendQueue,
    first: &ibv_send_wr,
    mut wr: *mut ibv_send_wr,
) -> *mut ibv_send_wr {
    let ring = if UD {
        let open = sq.ud.open;
        open.and_then(|i| sq.ud.rings.get_mut(i))
            .and_then(Option::as_mut)
    } else {
        sq.out.as_mut()
    };
    let Some(ring) = ring else { return wr };
    // SAFETY: the member of the union for UD, plain values.
    let to = unsafe { first.wr.ud };
    let own_qkey = qp.qkey.load(Ordering::Relaxed);
    // SAFETY: contract of this function.
    while let Some(this) = unsafe { wr.as_ref() } {
        let kind = match this.opcode {
            IBV_WR_SEND => Kind::Send,
            IBV_WR_SEND_WITH_IMM => Kind::SendWithImm,
            _ => break,
        };
        let mut qkey = 0;
        if UD {
            // SAFETY: as above.
            let ud = unsafe { this.wr.ud };
            if ud.ah != to.ah || ud.remote_qpn != to.remote_qpn {
                break;
            }
            qkey = ud.remote_qkey;
            if qkey >> 31 != 0 {
                qkey = own_qkey;
            }
        }
        // SAFETY: contract of this function.
        let Some((src, len)) = (unsafe { inline_piece(this, sq.max_inline) }) else {
            break;
        };
        if sq.posted - sq.freed >= sq.max_wr || ring.producer.has_room(len) != Ok(true) {
            break;
        }
        let place = ring.producer.place(len);
        if len != 0 {
            // SAFETY: inline data is readable while it is posted; the place has `len` bytes.
            unsafe { crate::mem::copy(place.as_mut_ptr(), src, len) };
        }
        let mut flags = 0;
        if this.send_flags & IBV_SEND_SOLICITED != 0 {
            flags = FLAG_SOLICITED;
            ring.solicited = true;
        }
        let imm = if kind == Kind::SendWithImm {
            // SAFETY: reads the immediate of the union, which is plain bytes.
            unsafe { this.imm.imm_data }
        } else {
            0
        };
        #[allow(clippy::cast_possible_truncation)] // inline: at most 1024
        let byte_len = len as u32;
        ring.producer
            .commit(header(kind, flags, imm, byte_len, qkey), len);
        let seq = sq.posted;
        sq.posted += 1;
        let signaled = sq.sq_sig_all || this.send_flags & IBV_SEND_SIGNALED != 0;
        if !UD || signaled {
            let wqe = SendWqe {
                wr_id: this.wr_id,
                end: ring.producer.pos(),
                seq,
                byte_len,
                opcode: IBV_WC_SEND,
                status: IBV_WC_SUCCESS,
                signaled,
            };
            if UD {
                sq.ready.push(wqe);
            } else {
                sq.pending.push(wqe);
            }
        }
        wr = this.next;
    }
    wr
}

/// # Safety
/// As for [`run`].
#[inline]
unsafe fn writes(
    qp: &Qp,
    sq: &mut SendQueue,
    first: &ibv_send_wr,
    mut wr: *mut ibv_send_wr,
) -> *mut ibv_send_wr {
    let Some(out) = &sq.out else { return wr };
    // SAFETY: the member of the union for WRITE, plain integers.
    let to = unsafe { first.wr.rdma };
    let Ok((region, _pin)) = remote_region(
        qp,
        out,
        &mut sq.remote,
        (to.remote_addr, to.rkey),
        0,
        IBV_ACCESS_REMOTE_WRITE,
    ) else {
        return wr;
    };
    // SAFETY: contract of this function.
    while let Some(this) = unsafe { wr.as_ref() } {
        // SAFETY: as above.
        let rdma = unsafe { this.wr.rdma };
        if this.opcode != IBV_WR_RDMA_WRITE || rdma.rkey != to.rkey {
            break;
        }
        // SAFETY: contract of this function.
        let Some((src, len)) = (unsafe { inline_piece(this, sq.max_inline) }) else {
            break;
        };
        if !region.contains(rdma.remote_addr, len as u64) || sq.posted - sq.freed >= sq.max_wr {
            break;
        }
        let Some(dst) = region.direct(rdma.remote_addr) else {
            break;
        };
        // SAFETY: the range lies in the region, pinned for the whole burst; `src` is readable while it is
        // posted.
        unsafe { crate::mem::copy(dst, src, len) };
        let seq = sq.posted;
        sq.posted += 1;
        let signaled = sq.sq_sig_all || this.send_flags & IBV_SEND_SIGNALED != 0;
        let behind = !sq.pending.is_empty();
        if signaled || behind {
            #[allow(clippy::cast_possible_truncation)] // inline: at most 1024
            let wqe = SendWqe {
                wr_id: this.wr_id,
                end: 0,
                seq,
                byte_len: len as u32,
                opcode: wc_opcode(this.opcode),
                status: IBV_WC_SUCCESS,
                signaled,
            };
            if behind {
                sq.pending.push(wqe);
            } else {
                sq.ready.push(wqe);
            }
        }
        wr = this.next;
    }
    wr
}
