//! One WRITE of inline data, posted alone, with few stores.
//!
//! What a program WRITEs to a line that its peer looks at waits for that line, and every later store behind it, in the
//! store buffer. Until that is full the program goes on. So the rate of such WRITEs is that of the line's travels times
//! the WRITEs whose stores fit: half as many stores are twice the rate, whatever the instructions. This way has a frame
//! of few registers, because the one call in it comes first and whatever is unusual goes the general way.

use std::sync::atomic::Ordering;

use verbs_abi::*;

use nic_core::rights::{Access, authorize};

use super::{SUCCESS, SendWork, SendWqe, answers, asleep, byte, responder};
use crate::qp::Qp;
use crate::qp_state::{QpState, QpType};
use crate::xrc::Xrc;

/// Whether [`post`] may be asked.
///
/// # Safety
/// `wr` is NULL or the first of a list as `ibv_post_send(3)` describes it.
#[inline(always)]
pub(crate) unsafe fn is_one(wr: *const ibv_send_wr) -> bool {
    // SAFETY: contract of this function.
    unsafe { wr.as_ref() }.is_some_and(|wr| {
        wr.opcode == IBV_WR_RDMA_WRITE
            && wr.send_flags & IBV_SEND_INLINE != 0
            && wr.num_sge == 1
            && wr.sg_list.is_aligned()
            && wr.next.is_null()
    })
}

/// Executes a WRITE to the memory region that was written to last, with nothing before it that is not done. False,
/// with nothing done, if it is not such a one.
///
/// # Safety
/// `wr` is [one](is_one), and as `ibv_post_send(3)` describes it.
#[inline(never)]
pub(crate) unsafe fn post(qp: &Qp, wr: *const ibv_send_wr) -> bool {
    // SAFETY: contract of this function.
    unsafe { try_post(qp, &*wr) }.is_some()
}

/// # Safety
/// As for [`post`].
#[inline(always)]
unsafe fn try_post(qp: &Qp, wr: &ibv_send_wr) -> Option<()> {
    let [hazard, _] = &qp.nic.keys.known_hazard()?.mrs;
    // SAFETY: one SGE (contract), or NULL.
    let sge = unsafe { wr.sg_list.as_ref() }?;
    let len = sge.length as usize;
    if qp.qp_type == QpType::Ud || matches!(qp.xrc, Xrc::Send) {
        return None;
    }
    let mut sq = qp.sq.lock_if_favoured()?;
    let sq = &mut *sq;
    if qp.state() != QpState::Rts
        || sq.stopped
        || !sq.deferred.is_empty()
        || !sq.pending.is_empty()
        || len > sq.max_inline
        || sq.posted - sq.freed >= sq.max_wr
    {
        return None;
    }
    let out = sq.out.as_ref()?;
    let dest = out.peer.segment.qp(out.dest_index)?;
    if out.peer.is_dead() || !answers(dest, out.dest_epoch, qp.qpn) {
        return None;
    }
    // SAFETY: the member of the union for WRITE, plain integers.
    let to = unsafe { wr.wr.rdma };
    let region = sq.remote.known(to.rkey)?;
    let responder = responder(&out.target(), dest, dest.pd.load(Ordering::Relaxed));
    let range = (to.remote_addr, len as u64);
    let at = authorize(&region.rights, range, Access::RemoteWrite, &responder).ok()?;
    if at.is_on_demand() {
        return None;
    }
    // What is known of a region is true of the entry that is pinned now.
    let dst = region.direct(at)?;
    if hazard.load(Ordering::Relaxed) != 0 {
        return None;
    }
    let keys = &qp.nic.keys;
    let pin = keys.pin_at(hazard, &out.peer, region.index, region.entry)?;
    let src = std::ptr::with_exposed_provenance(sge.addr as usize);
    // SAFETY: the range lies in the region, which is pinned; `src` is the program's (contract).
    unsafe { shm::mem::copy(dst, src, len) }.ok()?;
    drop(pin);
    let seq = sq.posted;
    sq.posted += 1;
    if sq.sq_sig_all || wr.send_flags & IBV_SEND_SIGNALED != 0 {
        sq.ready.push(SendWqe {
            wr_id: wr.wr_id,
            end: 0,
            seq,
            byte_len: sge.length,
            opcode: byte(IBV_WC_RDMA_WRITE),
            status: SUCCESS,
            signaled: true,
            ordered: 0,
        });
        let work = SendWork::Completions as u8;
        if qp.send_work.load(Ordering::Relaxed) != work {
            qp.send_work.store(work, Ordering::Relaxed);
        }
        if qp.send_cq.is_armed() {
            asleep(qp, sq);
        }
    }
    Some(())
}
