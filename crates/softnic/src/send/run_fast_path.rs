//! The fast path for small messages and WRITEs: runs of similar work requests.
//!
//! Postlists of small messages to one destination, or of small WRITEs to one memory region, decide message rates. The
//! facts that the first work request needs (the ring, the regions, that the peer is ready) also hold for the next ones.
//! The loops here therefore do only what differs between the requests: 4 ns each instead of 15. Everything unusual is
//! left to the general path, which also reports its causes.

use std::sync::atomic::Ordering;

use nic_core::rights::{Access, authorize_region};
use shm::fabric::ring::{RecordWriter, WriteInPlace, WriteTogether};
use verbs_abi::*;

use super::traffic::{DestinationPort, ShortMessageKind};
use super::{
    FLAG_SOLICITED, MAX_COPIED_PAYLOAD_BYTES, OutboundShmRing, RecordKind, SUCCESS_BYTE, SendQueue,
    SendWqe, UdRings, code_as_byte, is_same_ready_qp, make_record_header, recent_ud_ring_index,
    responder_memory_rights,
};
use crate::ah::Ah;
use crate::qp::Qp;
use crate::qp_attributes::QpType;
use crate::region_cache::RegionCache;
use crate::sge::LastRegion;

/// Executes work requests from `wr` on as long as this path covers them. Returns the first one that is left, or null.
///
/// # Safety
/// `wr` is the first of a list as `ibv_post_send(3)` describes it, not null.
#[inline(always)]
pub(super) unsafe fn execute_run(
    qp: &Qp,
    sq: &mut SendQueue,
    wr: *mut ibv_send_wr,
) -> *mut ibv_send_wr {
    // SAFETY: contract of this function.
    unsafe {
        let first = &*wr;
        if qp.qp_type == QpType::Ud {
            if first.opcode > IBV_WR_SEND_WITH_IMM || !open_ud_ring(qp, sq, first) {
                return wr;
            }
            return execute_sends_to_near_or_far_core::<true>(qp, sq, wr);
        }
        match first.opcode {
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM if can_peer_receive(qp, sq.peer_ring.as_ref()) => {
                execute_sends_to_near_or_far_core::<false>(qp, sq, wr)
            }
            IBV_WR_RDMA_WRITE
                if !sq.pending_wqes.has_wrs_pending_at_receiver()
                    && can_peer_receive(qp, sq.peer_ring.as_ref()) =>
            {
                if first.send_flags & IBV_SEND_INLINE != 0 {
                    execute_writes::<true>(qp, sq, wr)
                } else {
                    execute_writes_from_regions(qp, sq, wr)
                }
            }
            _ => wr,
        }
    }
}

/// Returns true if the peer's process is alive and its queue pair is ready to receive from `qp`.
#[inline]
pub(super) fn can_peer_receive(qp: &Qp, out: Option<&OutboundShmRing>) -> bool {
    out.is_some_and(|out| {
        !out.peer.is_dead()
            && out
                .peer
                .segment
                .qp(out.dest_qp_index)
                .is_some_and(|dest| is_same_ready_qp(dest, out, qp.qpn))
    })
}

/// Makes the ring to the destination of `first` the open one. Returns false if it is not among the recent rings, or if
/// the address handle cannot be used.
///
/// # Safety
/// `first` is a work request for a UD queue pair as `ibv_post_send(3)` describes it.
#[inline]
unsafe fn open_ud_ring(qp: &Qp, sq: &mut SendQueue, first: &ibv_send_wr) -> bool {
    // SAFETY: contract of this function.
    let (ah, qpn) = unsafe { (Ah::from_handle(first.wr.ud.ah), first.wr.ud.remote_qpn) };
    let Some(ah) = ah else { return false };
    if ah.pd_number != qp.pd_number {
        return false;
    }
    let Some(i) = recent_ud_ring_index(sq, ah, qpn) else {
        return false;
    };
    if let Some(open) = sq.ud_rings.open_postlist_ring_index
        && open != i
        && let Some(Some(ring)) = sq.ud_rings.rings.get_mut(open)
    {
        ring.publish_postlist(qp.nic);
    }
    sq.ud_rings.open_postlist_ring_index = Some(i);
    true
}

/// The regions and limits with which the payloads of a run are located.
struct PayloadSource<'a> {
    qp: &'a Qp,
    local_regions: &'a mut RegionCache,
    last_region: LastRegion<false>,
    max_inline_bytes: usize,
}

/// Returns the payload of a work request without SGEs, or of one whose data is inline in one piece. `None` for all
/// others.
///
/// # Safety
/// `wr` is as `ibv_post_send(3)` describes it.
#[inline(always)]
unsafe fn inline_payload(wr: &ibv_send_wr, max_inline: usize) -> Option<(*const u8, usize)> {
    match wr.num_sge {
        0 => Some((std::ptr::null(), 0)),
        1 if wr.send_flags & IBV_SEND_INLINE != 0 => {
            // SAFETY: contract of this function.
            let sge = unsafe { first_sge_if_aligned(wr) }?;
            let len = sge.length as usize;
            let src = std::ptr::with_exposed_provenance(sge.addr as usize);
            (len <= max_inline).then_some((src, len))
        }
        _ => None,
    }
}

/// Returns the first SGE of a work request that has one. `None` if the SGE is not aligned, as in a packed structure.
///
/// # Safety
/// `wr` is as `ibv_post_send(3)` describes it.
#[inline(always)]
pub(super) unsafe fn first_sge_if_aligned(wr: &ibv_send_wr) -> Option<&ibv_sge> {
    let sge = wr.sg_list.cast_const();
    if !sge.is_aligned() {
        return None;
    }
    // SAFETY: `sg_list` points to an SGE (contract), or is null.
    unsafe { sge.as_ref() }
}

impl PayloadSource<'_> {
    /// Returns the payload of a work request that has none, or a short one in one piece. The pointer is valid until the
    /// next call.
    ///
    /// # Safety
    /// `wr` is as `ibv_post_send(3)` describes it.
    #[inline(always)]
    unsafe fn short_payload(&mut self, wr: &ibv_send_wr) -> Option<(*const u8, usize)> {
        if wr.num_sge != 1 || wr.send_flags & IBV_SEND_INLINE != 0 {
            // SAFETY: contract of this function.
            return unsafe { inline_payload(wr, self.max_inline_bytes) };
        }
        // SAFETY: contract of this function.
        let sge = unsafe { first_sge_if_aligned(wr) }?;
        let len = sge.length as usize;
        if len == 0 || len > MAX_COPIED_PAYLOAD_BYTES {
            return None;
        }
        let (nic, pd) = (self.qp.nic, self.qp.pd_number);
        let src = self
            .last_region
            .buffer_address(nic, pd, self.local_regions, sge)
            .ok()?;
        Some((src.cast_const(), len))
    }
}

/// Returns the ring to the destination of a run of SENDs.
#[inline(always)]
fn destination_ring<'a, const UD: bool>(
    ud_rings: &'a mut UdRings,
    peer_ring: &'a mut Option<OutboundShmRing>,
) -> Option<&'a mut OutboundShmRing> {
    if UD {
        let open = ud_rings.open_postlist_ring_index;
        open.and_then(|i| ud_rings.rings.get_mut(i))
            .and_then(Option::as_mut)
    } else {
        peer_ring.as_mut()
    }
}

/// Executes SENDs to one destination, from `wr` on, in the way that suits the distance of the receiver's core.
///
/// # Safety
/// As for [`execute_run`].
#[inline(always)]
unsafe fn execute_sends_to_near_or_far_core<const UD: bool>(
    qp: &Qp,
    sq: &mut SendQueue,
    wr: *mut ibv_send_wr,
) -> *mut ibv_send_wr {
    let ring = destination_ring::<UD>(&mut sq.ud_rings, &mut sq.peer_ring);
    let is_far = ring.is_some_and(|ring| ring.ring_producer.is_consumer_far());
    // SAFETY: contract of this function.
    unsafe {
        if is_far {
            execute_sends::<UD, WriteTogether>(qp, sq, wr)
        } else {
            execute_sends::<UD, WriteInPlace>(qp, sq, wr)
        }
    }
}

/// Executes SENDs to one destination, from `wr` on.
///
/// # Safety
/// As for [`execute_run`].
#[inline(never)]
unsafe fn execute_sends<const UD: bool, W: RecordWriter>(
    qp: &Qp,
    sq: &mut SendQueue,
    mut wr: *mut ibv_send_wr,
) -> *mut ibv_send_wr {
    let ring = destination_ring::<UD>(&mut sq.ud_rings, &mut sq.peer_ring);
    let Some(ring) = ring else { return wr };
    let mut source = PayloadSource {
        qp,
        local_regions: &mut sq.local_regions,
        last_region: LastRegion::none(),
        max_inline_bytes: sq.max_inline_bytes,
    };
    // SAFETY: the member of the union for UD, plain values.
    let to = unsafe { (*wr).wr.ud };
    let own_qkey = qp.qkey.load(Ordering::Relaxed);
    let mut run = ring.ring_producer.begin_run::<W>();
    let mut solicited = false;
    let mut immediates = 0;
    // Local variables stay in registers; fields would be loaded again after each store to the ring.
    let (sq_sig_all, last) = (sq.sq_sig_all, sq.freed_wr_count + sq.max_wr);
    let mut seq = sq.posted_wr_count;
    let port = if UD {
        ring.dest_port
    } else {
        DestinationPort::PEER
    };
    let mut run_len = sq
        .unpublished_traffic
        .run_message_bytes_or_max(ShortMessageKind::Send, port);
    // SAFETY: contract of this function.
    while let Some(this) = unsafe { wr.as_ref() } {
        let kind = match this.opcode {
            IBV_WR_SEND => RecordKind::Send,
            IBV_WR_SEND_WITH_IMM => RecordKind::SendWithImm,
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
        let Some((src, len)) = (unsafe { source.short_payload(this) }) else {
            break;
        };
        if seq >= last {
            break;
        }
        if len != run_len {
            if !sq.unpublished_traffic.try_count_short_message_of_other_len(
                seq,
                ShortMessageKind::Send,
                len,
                port,
            ) {
                break;
            }
            run_len = len;
        }
        let Some(place) = run.place_for_payload_if_room(len) else {
            break;
        };
        // SAFETY: the payload is the program's; the place has `len` bytes.
        if len != 0 && unsafe { shm::mem::copy(place.as_mut_ptr(), src, len) }.is_err() {
            break;
        }
        let mut flags = 0;
        if this.send_flags & IBV_SEND_SOLICITED != 0 {
            flags = FLAG_SOLICITED;
            solicited = true;
        }
        let imm = if kind == RecordKind::SendWithImm {
            immediates += 1;
            // SAFETY: reads the immediate of the union, which is plain bytes.
            unsafe { this.imm.imm_data }
        } else {
            0
        };
        #[allow(clippy::cast_possible_truncation)] // at most 1024
        let byte_len = len as u32;
        run.add_to_postlist(make_record_header(kind, flags, imm, byte_len, qkey), len);
        let signaled = sq_sig_all || this.send_flags & IBV_SEND_SIGNALED != 0;
        if !UD || signaled {
            let wqe = SendWqe {
                wr_id: this.wr_id,
                ring_end_position: run.write_position(),
                seq,
                byte_len_or_vendor_err: byte_len,
                opcode: code_as_byte(IBV_WC_SEND),
                status: SUCCESS_BYTE,
                signaled,
                ordered_write_count: 0,
            };
            if UD {
                sq.finished_wrs.push(wqe);
            } else {
                sq.pending_wqes.push(wqe);
            }
        }
        seq += 1;
        wr = this.next;
    }
    run.store_back();
    ring.open_list_has_solicited |= solicited;
    if UD && seq != sq.posted_wr_count {
        ring.datagram_waited_in_vain = false;
    }
    sq.posted_wr_count = seq;
    if immediates != 0 {
        sq.unpublished_traffic.count_immediates(immediates);
    }
    wr
}

/// [`execute_writes`] whose payloads may lie in memory regions.
///
/// # Safety
/// As for [`execute_run`].
#[inline(never)]
unsafe fn execute_writes_from_regions(
    qp: &Qp,
    sq: &mut SendQueue,
    wr: *mut ibv_send_wr,
) -> *mut ibv_send_wr {
    // SAFETY: contract of this function.
    unsafe { execute_writes::<false>(qp, sq, wr) }
}

/// Executes WRITEs to one memory region, from `wr` on.
///
/// The `INLINE` variant is inlined into the function that posts. A program may WRITE to a cache line that its peer
/// reads. It is faster if fewer of its stores wait for that line, and a function frame costs a dozen stores.
///
/// # Safety
/// As for [`execute_run`].
#[inline(always)]
unsafe fn execute_writes<const INLINE: bool>(
    qp: &Qp,
    sq: &mut SendQueue,
    mut wr: *mut ibv_send_wr,
) -> *mut ibv_send_wr {
    let Some(out) = &sq.peer_ring else { return wr };
    // SAFETY: the member of the union for WRITE, plain integers.
    let to = unsafe { (*wr).wr.rdma };
    let Some(dest) = out.peer.segment.qp(out.dest_qp_index) else {
        return wr;
    };
    let domain = || dest.pd.load(Ordering::Relaxed);
    let Ok((region, _pin)) = sq
        .peer_regions
        .get_pinned(qp.nic, &out.peer, to.rkey, domain)
    else {
        return wr;
    };
    let mut source = PayloadSource {
        qp,
        local_regions: &mut sq.local_regions,
        last_region: LastRegion::none(),
        max_inline_bytes: sq.max_inline_bytes,
    };
    let responder = responder_memory_rights(&out.target_qp(), dest, domain());
    let Ok(grant) = authorize_region(&region.rights, Access::RemoteWrite, &responder) else {
        return wr;
    };
    if grant.is_whole_address_space() {
        return wr;
    }
    let port = DestinationPort::PEER;
    let mut run_len = sq
        .unpublished_traffic
        .run_message_bytes_or_max(ShortMessageKind::Write, port);
    // SAFETY: contract of this function.
    while let Some(this) = unsafe { wr.as_ref() } {
        // SAFETY: as above.
        let rdma = unsafe { this.wr.rdma };
        if this.opcode != IBV_WR_RDMA_WRITE || rdma.rkey != to.rkey {
            break;
        }
        // SAFETY: contract of this function.
        let piece = unsafe {
            if INLINE {
                inline_payload(this, sq.max_inline_bytes)
            } else {
                source.short_payload(this)
            }
        };
        let Some((src, len)) = piece else { break };
        if sq.posted_wr_count - sq.freed_wr_count >= sq.max_wr {
            break;
        }
        if len != run_len {
            if !sq.unpublished_traffic.try_count_short_message_of_other_len(
                sq.posted_wr_count,
                ShortMessageKind::Write,
                len,
                port,
            ) {
                break;
            }
            run_len = len;
        }
        let permitted = grant.permit_range(rdma.remote_addr, len as u64).ok();
        let Some(dst) = permitted.and_then(|at| region.mapped_address(at)) else {
            break;
        };
        // SAFETY: the range lies in the region, pinned for the whole burst; `src` is the program's.
        if unsafe { shm::mem::copy(dst, src, len) }.is_err() {
            break;
        }
        let seq = sq.posted_wr_count;
        sq.posted_wr_count += 1;
        let signaled = sq.sq_sig_all || this.send_flags & IBV_SEND_SIGNALED != 0;
        let behind = !sq.pending_wqes.is_empty();
        if signaled || behind {
            #[allow(clippy::cast_possible_truncation)] // at most 1024
            let wqe = SendWqe {
                wr_id: this.wr_id,
                ring_end_position: 0,
                seq,
                byte_len_or_vendor_err: len as u32,
                opcode: code_as_byte(IBV_WC_RDMA_WRITE),
                status: SUCCESS_BYTE,
                signaled,
                ordered_write_count: 0,
            };
            if behind {
                sq.pending_wqes.push(wqe);
            } else {
                sq.finished_wrs.push(wqe);
            }
        }
        wr = this.next;
    }
    wr
}
