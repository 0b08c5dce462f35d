//! The fast path for one WRITE of inline data, posted alone, with few stores.
//!
//! A WRITE to a cache line that its peer polls waits for that line in the store buffer, and so does every later store.
//! The program goes on until the store buffer is full. The rate of such WRITEs is that of the line's transfers, times
//! the WRITEs whose stores fit into the buffer. Half as many stores double the rate, whatever the number of
//! instructions. The frame of this path has few registers: its one call comes first, and everything unusual is left to
//! the general path.

use std::sync::atomic::Ordering;

use verbs_abi::*;

use nic_core::rights::{Access, authorize};

use super::traffic::{DestinationPort, ShortMessageKind};
use super::{
    SUCCESS_BYTE, SendWork, SendWqe, code_as_byte, is_same_ready_qp, publish_before_sleep,
    responder_memory_rights,
};
use crate::qp::Qp;
use crate::qp_attributes::{QpState, QpType};
use crate::xrc::XrcRole;

/// Returns true if [`post_unless_general_path_needed`] may be called for `wr`.
///
/// # Safety
/// `wr` is NULL or the first of a list as `ibv_post_send(3)` describes it.
#[inline(always)]
pub(crate) unsafe fn is_single_write(wr: *const ibv_send_wr) -> bool {
    // SAFETY: contract of this function.
    unsafe { wr.as_ref() }.is_some_and(|wr| {
        wr.opcode == IBV_WR_RDMA_WRITE
            && wr.send_flags & IBV_SEND_INLINE != 0
            && wr.num_sge == 1
            && wr.sg_list.is_aligned()
            && wr.next.is_null()
    })
}

/// Executes a WRITE to the memory region that was written to last, if no earlier WR is pending. Returns false, with
/// nothing done, in all other cases.
///
/// # Safety
/// [`is_single_write`] is true of `wr`, and `wr` is as `ibv_post_send(3)` describes it.
#[inline(never)]
pub(crate) unsafe fn post_unless_general_path_needed(qp: &Qp, wr: *const ibv_send_wr) -> bool {
    // SAFETY: contract of this function.
    unsafe { try_post_single_write(qp, &*wr) }.is_some()
}

/// [`post_unless_general_path_needed`]; `None` leaves the WRITE to the general path.
///
/// # Safety
/// As for [`post_unless_general_path_needed`].
#[inline(always)]
unsafe fn try_post_single_write(qp: &Qp, wr: &ibv_send_wr) -> Option<()> {
    let [hazard, _] = &qp
        .nic
        .key_table
        .hazard_slot_of_this_thread()?
        .pinned_regions;
    // SAFETY: `sg_list` points to one SGE (contract), or is NULL.
    let sge = unsafe { wr.sg_list.as_ref() }?;
    let len = sge.length as usize;
    if qp.qp_type == QpType::Ud || matches!(qp.xrc_role, XrcRole::Send) {
        return None;
    }
    let mut sq = qp.sq.lock_if_biased_to_this_thread()?;
    let sq = &mut *sq;
    if qp.state() != QpState::Rts
        || sq.is_stopped_by_failure
        || !sq.deferred_wrs.is_empty()
        || !sq.pending_wqes.is_empty()
        || len > sq.max_inline_bytes
        || sq.posted_wr_count - sq.freed_wr_count >= sq.max_wr
    {
        return None;
    }
    if !sq.unpublished_traffic.try_count_short_message(
        sq.posted_wr_count,
        ShortMessageKind::Write,
        len,
        DestinationPort::PEER,
    ) {
        return None;
    }
    let out = sq.peer_ring.as_ref()?;
    let dest = out.peer.segment.qp(out.dest_qp_index)?;
    if out.peer.is_dead() || !is_same_ready_qp(dest, out, qp.qpn) {
        return None;
    }
    // SAFETY: the member of the union for WRITE, plain integers.
    let to = unsafe { wr.wr.rdma };
    let region = sq.peer_regions.cached_region(to.rkey)?;
    let responder =
        responder_memory_rights(&out.target_qp(), dest, dest.pd.load(Ordering::Relaxed));
    let range = (to.remote_addr, len as u64);
    let at = authorize(&region.rights, range, Access::RemoteWrite, &responder).ok()?;
    if at.is_in_whole_address_space_region() {
        return None;
    }
    // The cached address is valid, because the entry that it belongs to is pinned below.
    let dst = region.mapped_address(at)?;
    if hazard.load(Ordering::Relaxed) != 0 {
        return None;
    }
    let keys = &qp.nic.key_table;
    let pin = keys.pin_in_hazard_word(
        hazard,
        &out.peer,
        region.key_table_index,
        region.generation_and_key,
    )?;
    let src = std::ptr::with_exposed_provenance(sge.addr as usize);
    // SAFETY: the range lies in the region, which is pinned; `src` is the program's (contract).
    unsafe { shm::mem::copy(dst, src, len) }.ok()?;
    drop(pin);
    let seq = sq.posted_wr_count;
    sq.posted_wr_count += 1;
    if sq.sq_sig_all || wr.send_flags & IBV_SEND_SIGNALED != 0 {
        sq.finished_wrs.push(SendWqe {
            wr_id: wr.wr_id,
            ring_end_position: 0,
            seq,
            byte_len_or_vendor_err: sge.length,
            opcode: code_as_byte(IBV_WC_RDMA_WRITE),
            status: SUCCESS_BYTE,
            signaled: true,
            ordered_write_count: 0,
        });
        let work = SendWork::Completions as u8;
        if qp.send_poll_work.load(Ordering::Relaxed) != work {
            qp.send_poll_work.store(work, Ordering::Relaxed);
        }
        if qp.send_cq.is_armed() {
            publish_before_sleep(qp, sq);
        }
    }
    Some(())
}
