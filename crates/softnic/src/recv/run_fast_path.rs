//! The fast path of receiving: a run of short SENDs for receive WRs with at most one SGE.
//!
//! Such a run decides message rates. The positions in the ring and in the receive queue, which each message reads and
//! writes, stay in registers until the run ends. Any other record or receive WR ends the run and is left to
//! [`deliver_record`], which also reports its causes.

use super::queue::RecvWqe;
use super::*;
use crate::sge::LastRegionValues;

/// The values that the messages of a run have in common.
struct RunCommonValues<'a> {
    qp_num: u32,
    src_qp: u32,
    qkey: u32,
    /// The region of the receive WRs.
    recv_region: LastRegionValues,
    path_in_completion: &'a mut MessagePathInCompletion,
}

/// Completes SENDs from the front of a ring, as long as they are plain ones and receive WRs are posted.
#[inline(always)]
pub(super) fn complete_plain_sends<const UD: bool>(
    qp: &Qp,
    ring: &mut InboundShmRing,
    rq: &mut RecvQueue,
    window: &LastRegion<true>,
    sink: &mut WcSink<'_>,
) {
    if rq.tag_list.is_some() {
        return;
    }
    let mut common = RunCommonValues {
        qp_num: qp.qpn,
        src_qp: ring.src_qpn,
        qkey: qp.qkey.load(Ordering::Relaxed),
        recv_region: window.current_values(),
        path_in_completion: &mut ring.path_in_completion,
    };
    let mut records = ring.consumer.begin_run();
    let (wqes, begin) = (&rq.wqes[..], rq.taken_wr_count);
    let end = begin + (rq.posted_wr_count - begin).min(sink.free_entries() as u64);
    let mut head = begin;
    let mut solicited = 0;
    while head != end
        && let Some(record) = records.peek_if_len_matches_slots()
        && let Some(wqe) = wqes.get(head as usize & (wqes.len() - 1))
        && try_complete_plain_send::<UD>(&mut common, &record, wqe, sink)
    {
        solicited |= record.header.flags & FLAG_SOLICITED;
        let slots = record.slot_count();
        records.advance(slots);
        head += 1;
    }
    if head != begin {
        let pos = records.read_position();
        rq.taken_wr_count = head;
        ring.consumer.advance_to(pos);
        ring.rnr_wait.end_wait();
        sink.has_solicited_or_error |= solicited != 0;
    }
}

/// Places a SEND and makes its completion. Returns false, with nothing done, if the record is not a plain SEND or
/// cannot be placed here.
#[inline(always)]
fn try_complete_plain_send<const UD: bool>(
    common: &mut RunCommonValues<'_>,
    record: &RingRecord<'_>,
    wqe: &RecvWqe,
    sink: &mut WcSink<'_>,
) -> bool {
    const SEND: u8 = RecordKind::Send as u8;
    const SEND_WITH_IMM: u8 = RecordKind::SendWithImm as u8;
    let header = record.header;
    if !matches!(header.kind, SEND | SEND_WITH_IMM)
        || header.flags & !FLAG_SOLICITED != 0
        || (UD && header.extra_value != common.qkey)
    {
        return false;
    }
    let with_imm = header.kind == SEND_WITH_IMM;
    let grh = if UD {
        common
            .path_in_completion
            .grh_with_lengths(header.len_or_value, with_imm)
    } else {
        None
    };
    if !try_place_in_held_region(common.recv_region, record, grh, UD, wqe) {
        return false;
    }
    let wc = ReceivedSend {
        wr_id: wqe.wr_id,
        #[allow(clippy::cast_possible_truncation)] // 40
        byte_len: header.len_or_value + if UD { GRH_BYTES as u32 } else { 0 },
        imm: header.imm,
        qp_num: common.qp_num,
        src_qp: common.src_qp,
        wc_flags: if with_imm { IBV_WC_WITH_IMM } else { 0 }
            | if UD { common.path_in_completion.wc_flags } else { 0 },
        last_wc_word: if UD { common.path_in_completion.last_wc_word() } else { 0 },
    };
    sink.push_received(&wc);
    true
}

/// Copies a payload to the SGE of a receive WR. A datagram's payload goes behind the place of the GRH. Returns false if
/// the SGE is too short or not in the region that is held.
#[inline(always)]
fn try_place_in_held_region(
    held: LastRegionValues,
    record: &RingRecord<'_>,
    grh: Option<&[u8; GRH_BYTES]>,
    ud: bool,
    wqe: &RecvWqe,
) -> bool {
    let len = record.payload.len();
    let grh_bytes = if ud { GRH_BYTES } else { 0 };
    match wqe.num_sge {
        0 => return len == 0,
        1 if len == 0 && !ud => return true,
        1 if len + grh_bytes <= wqe.sge.length as usize => {}
        _ => return false,
    }
    let Some(dst) = held.buffer_address(&wqe.sge, len + grh_bytes) else {
        return false;
    };
    let payload = record.payload.as_mut_ptr();
    // SAFETY: at `dst` there are `len + grh_bytes` bytes of a region that the window pins (just checked); the ring has
    // `len` bytes behind the header (`ConsumerRun::peek_if_len_matches_slots`).
    let placed = unsafe {
        grh.map_or(Ok(()), |grh| copy(dst, grh.as_ptr(), GRH_BYTES))
            .and_then(|()| copy(dst.wrapping_add(grh_bytes), payload, len))
    };
    placed.is_ok()
}
