//! SEND on RC and UC, and the handling of a peer that does not answer.

use nic_core::qp_state::ack_timeout_ns;
use nic_core::retry_timeouts::{live_peer_timeout_ns, total_response_wait_ns};

use super::*;
use roce::psn::Psn;
use shm::fabric::layout::QP_CONNECTED_BY_PACKETS;

/// Largest payload, in bytes, that connected transports copy into the record. The receiver copies a longer payload
/// once, from the sender's memory. Two short copies cost less than two lookups of another process's memory region.
pub(super) const MAX_COPIED_PAYLOAD_BYTES: usize = 1024;

/// The same limit for memory that peers can reach only by system call, which takes 1.5 µs.
pub(super) const MAX_COPIED_UNMAPPED_BYTES: usize = 8192;

/// Returns true if the receiver has yet to take a SEND, or execute a WRITE, of this queue. Reads the receiver's
/// position first.
#[inline]
pub(super) fn has_pending_ring_work(sq: &mut SendQueue) -> bool {
    if !sq.pending_wqes.has_wrs_pending_at_receiver() {
        return false;
    }
    let Some(Ok(consumed)) = sq
        .peer_ring
        .as_mut()
        .map(|out| out.ring_producer.refresh_consumer_head())
    else {
        return true;
    };
    move_consumed_to_finished(sq, consumed);
    sq.pending_wqes.has_wrs_pending_at_receiver()
}

/// Returns true if the peer's queue pair is still the one that `out` was made for, can receive from `qpn`, and expects
/// its PSNs.
#[inline]
pub(super) fn is_same_ready_qp(dest: &QpShared, out: &OutboundShmRing, qpn: u32) -> bool {
    !out.is_psn_check_due && is_connected_to(dest, out, qpn)
}

/// As [`is_same_ready_qp`], whatever PSNs the peer's queue pair expects.
#[inline]
pub(super) fn is_connected_to(dest: &QpShared, out: &OutboundShmRing, qpn: u32) -> bool {
    is_ready_to_receive_from(dest, qpn) && dest.epoch.load(Ordering::Relaxed) == out.dest_epoch
}

#[inline]
fn is_ready_to_receive_from(dest: &QpShared, qpn: u32) -> bool {
    is_ready_on_path(dest, qpn, 0)
}

/// Returns true if `dest` is ready to receive from `qpn` on a path: by shared memory (0), or by packets
/// ([`QP_CONNECTED_BY_PACKETS`]).
#[inline]
fn is_ready_on_path(dest: &QpShared, qpn: u32, path: u32) -> bool {
    // The numbers of RTR, RTS, SQD and SQE are consecutive.
    (1 + IBV_QPS_RTR..=1 + IBV_QPS_SQE)
        .contains(&(dest.state_plus_1.load(Ordering::Acquire) ^ path))
        && dest.dest_qpn.load(Ordering::Relaxed) == qpn
}

/// Sets the port, the headers and the MTU of packets when the queue pair begins to send.
#[cold]
pub(crate) fn start_counting_traffic(qp: &Qp, sq: &mut SendQueue, attr: &ibv_qp_attr) {
    let device = &qp.context.device;
    let port = device.port(attr.port_num);
    let is_v4 = |gid: [u8; 16]| gid[..10] == [0; 10] && gid[10..12] == [0xff; 2];
    let has_grh = attr.ah_attr.is_global != 0;
    let packets = PacketFormat {
        is_roce: port.is_ok_and(|port| port.link_layer == LinkLayer::Ethernet),
        // Without a GRH the peer's address is not known. Most datagrams go to IPv4 addresses.
        is_ipv4: !has_grh || is_v4(attr.ah_attr.grh.dgid.bytes()),
        has_grh,
        service_header_octets: match qp.qp_type {
            QpType::Ud => PacketFormat::UD_HEADER_OCTETS,
            _ if matches!(qp.xrc_role, XrcRole::Send) => PacketFormat::XRC_HEADER_OCTETS,
            _ => 0,
        },
        mtu_bytes: match (qp.qp_type, attr.path_mtu) {
            (QpType::Rc | QpType::Uc, code @ IBV_MTU_256..=IBV_MTU_4096) => 128 << code,
            _ => 4096,
        },
    };
    let own = HostPortId {
        process_ports_key: qp.nic.port_counters_key(),
        host_wide_number: port.map_or(0, |port| port.place.host_wide_number().into()),
    };
    sq.unpublished_traffic
        .start_counting(sq.posted_wr_count, own, &packets);
}

/// Checks the PSNs of a new connection, and makes a new ring to a peer that has connected again. Returns true if the
/// peer's queue pair is ready.
#[cold]
pub(super) fn check_psns_or_reconnect(qp: &Qp, sq: &mut SendQueue) -> bool {
    if let Some(out) = &mut sq.peer_ring
        && let Some(dest) = out.peer.segment.qp(out.dest_qp_index)
        && is_connected_to(dest, out, qp.qpn)
    {
        out.is_psn_check_due = differing_psns(qp, dest).is_some();
        return !out.is_psn_check_due;
    }
    try_reconnect_ring(qp, sq)
}

/// Returns the `sq_psn` of this queue pair and the `rq_psn` of its peer if they differ.
///
/// Shared memory needs no PSNs. But adapters deliver nothing to a queue pair that expects other ones.
fn differing_psns(qp: &Qp, dest: &QpShared) -> Option<(u32, u32)> {
    let sq_psn = qp.shared_state().sq_psn.load(Ordering::Relaxed);
    let rq_psn = dest.rq_psn.load(Ordering::Relaxed);
    (sq_psn != rq_psn).then_some((sq_psn, rq_psn))
}

/// Makes a new ring to a peer whose queue pair was reset and connected to ours again, since the peer has released the
/// old ring. Returns false if that queue pair is not ready. Also returns false if WRs are pending: the peer will never
/// take them, so they run into their timeout.
#[cold]
fn try_reconnect_ring(qp: &Qp, sq: &mut SendQueue) -> bool {
    let Some(old) = &sq.peer_ring else {
        return false;
    };
    let again = sq.pending_wqes.is_empty()
        && old
            .peer
            .segment
            .qp(old.dest_qp_index)
            .is_some_and(|dest| is_ready_to_receive_from(dest, qp.qpn));
    if !again {
        return false;
    }
    let ring = NewRingParameters {
        slot_count: old.ring_producer.ring_slot_count(),
        dest_qp_index: old.dest_qp_index,
        rnr_retry: old
            .header(qp.nic)
            .map_or(0, |h| h.rnr_retry.load(Ordering::Relaxed)),
        grh: None,
        completion_path_word: 0,
    };
    let Some(mut new) = new_ring(qp, Arc::clone(&old.peer), &ring) else {
        return false;
    };
    new.current_srqn = old.current_srqn;
    sq.last_ordered_write_end = 0;
    new.send_ring_notice(qp.nic);
    if let Some(old) = sq.peer_ring.replace(new) {
        old.close(qp.nic);
    }
    true
}

/// Returns the outcome of a WR whose peer's process has ended.
#[cold]
pub(super) fn dead_peer_result(qp: &Qp, peer: &Peer) -> ExecutionResult {
    if qp.qp_type == QpType::Rc {
        why::note_cause(FailureCause::PeerEnded { pid: peer.pid });
        ExecutionResult::Failed(IBV_WC_RETRY_EXC_ERR)
    } else {
        ExecutionResult::Done(0)
    }
}

/// Returns the outcome of `view` after the peer's process has ended. A WR that needs no peer is executed.
#[cold]
pub(super) fn dead_peer_result_for(qp: &Qp, peer: &Peer, view: &WrView<'_>) -> ExecutionResult {
    if needs_no_peer(view.wr.opcode) {
        bind_or_invalidate_window(qp, view)
    } else {
        dead_peer_result(qp, peer)
    }
}

/// Returns the outcome of a WR whose peer's queue pair does not answer. A reliable WR is retried until the timeout has
/// passed `retry_cnt + 1` times (IBTA vol. 1, 9.7.6.1.3). An unreliable one is lost.
#[cold]
pub(super) fn silent_peer_result(
    qp: &Qp,
    sq: &mut SendQueue,
    view: &WrView<'_>,
) -> ExecutionResult {
    if needs_no_peer(view.wr.opcode) {
        return bind_or_invalidate_window(qp, view);
    }
    if qp.qp_type != QpType::Rc {
        if let FailureCause::NoPeer { qpn } = why_peer_is_silent(qp, sq) {
            // The WR completes with success, so only this message reports the loss.
            why::report_peer_not_in_fabric(qp.nic.fabric.dir(), (qp.qpn, qpn));
        }
        return ExecutionResult::Done(
            view.sges
                .iter()
                .map(|s| s.length)
                .fold(0, u32::wrapping_add),
        );
    }
    if has_retry_time_passed(qp, sq) {
        why::note_cause(why_peer_is_silent(qp, sq));
        return ExecutionResult::Failed(IBV_WC_RETRY_EXC_ERR);
    }
    ExecutionResult::NotPossibleYet
}

/// Returns the reason why the peer's queue pair does not answer.
#[cold]
pub(super) fn why_peer_is_silent(qp: &Qp, sq: &SendQueue) -> FailureCause {
    let qpn = qp.shared_state().dest_qpn.load(Ordering::Relaxed);
    match &sq.peer_ring {
        None => FailureCause::NoPeer { qpn },
        Some(out) if out.peer.kernel_says_ended() => FailureCause::PeerEnded { pid: out.peer.pid },
        Some(out) => {
            let pid = out.peer.pid;
            let dest = out.peer.segment.qp(out.dest_qp_index);
            let psns = dest
                .filter(|dest| out.is_psn_check_due && is_connected_to(dest, out, qp.qpn))
                .and_then(|dest| differing_psns(qp, dest));
            if let Some((sq_psn, rq_psn)) = psns {
                FailureCause::OtherPsn {
                    qpn,
                    sq_psn,
                    rq_psn,
                }
            } else if dest
                .is_some_and(|dest| is_ready_on_path(dest, qp.qpn, QP_CONNECTED_BY_PACKETS))
            {
                FailureCause::OtherPath {
                    qpn,
                    pid,
                    peer_sends_packets: true,
                }
            } else {
                FailureCause::PeerNotConnected { qpn, pid }
            }
        }
    }
}

/// Returns the reason why no packet of the peer has acknowledged a request. `asked_for`: the PSN that the peer asked for,
/// if that was never sent.
#[cold]
pub(super) fn why_no_packet_answers(qp: &Qp, asked_for: Option<Psn>) -> FailureCause {
    let qpn = qp.shared_state().dest_qpn.load(Ordering::Relaxed);
    if let Some(psn) = asked_for {
        return FailureCause::OtherPsn {
            qpn,
            sq_psn: qp.shared_state().sq_psn.load(Ordering::Relaxed),
            rq_psn: psn.get(),
        };
    }
    let of_fabric = qp.nic.fabric.peer(qpn as usize >> QP_INDEX_BITS);
    match of_fabric {
        Some(peer)
            if peer
                .segment
                .find_qp(qpn as usize % MAX_QPS)
                .is_some_and(|dest| is_ready_on_path(dest, qp.qpn, 0)) =>
        {
            FailureCause::OtherPath {
                qpn,
                pid: peer.pid,
                peer_sends_packets: false,
            }
        }
        _ => FailureCause::NoAcknowledgement,
    }
}

/// Fails a WR whose message is longer than `max`.
#[cold]
pub(super) fn fail_too_long(len: u64, max: u32) -> ExecutionResult {
    why::note_cause(FailureCause::TooLong {
        len,
        max: max.into(),
    });
    ExecutionResult::Failed(IBV_WC_LOC_LEN_ERR)
}

#[cold]
pub(super) fn has_retry_time_passed(qp: &Qp, sq: &mut SendQueue) -> bool {
    let (timeout, retry_cnt) = qp.timeout_and_retry_cnt();
    let waited = sq.peer_silence_wait.start_or_elapsed_ns(now_ns());
    let passed = |timeout_ns: Option<u64>| {
        total_response_wait_ns(timeout_ns, retry_cnt).is_some_and(|patience| waited >= patience)
    };
    let has_ended = || {
        let out = sq.peer_ring.as_ref();
        out.is_some_and(|out| out.peer.kernel_says_ended())
    };
    passed(live_peer_timeout_ns(timeout)) || (passed(ack_timeout_ns(timeout)) && has_ended())
}

/// Executes a SEND on RC or UC.
#[inline]
pub(super) fn connected_send(
    qp: &Qp,
    sq: &mut SendQueue,
    view: &WrView<'_>,
    kind: RecordKind,
) -> ExecutionResult {
    let Some(out) = &mut sq.peer_ring else {
        return ExecutionResult::NotPossibleYet;
    };
    let total: u64 = view.sges.iter().map(|s| u64::from(s.length)).sum();
    if total > u64::from(crate::device::MAX_MSG_SZ) {
        return fail_too_long(total, crate::device::MAX_MSG_SZ);
    }
    #[allow(clippy::cast_possible_truncation)] // at most 2^30
    let (len, total) = (total as u32, total as usize);
    let inline = view.wr.send_flags & IBV_SEND_INLINE != 0;
    let mut flags = 0;
    if view.wr.send_flags & IBV_SEND_SOLICITED != 0 {
        flags |= FLAG_SOLICITED;
        out.open_list_has_solicited = true;
    }
    // SAFETY: reads the immediate of the union, which is plain bytes.
    let imm = unsafe { view.wr.imm.imm_data };
    let by_value = inline
        || total <= MAX_COPIED_PAYLOAD_BYTES
        || (total <= MAX_COPIED_UNMAPPED_BYTES
            && total <= out.ring_producer.max_payload_bytes()
            && is_in_unmapped_memory(qp, &mut sq.local_regions, view.sges));
    if by_value && total <= out.ring_producer.max_payload_bytes() {
        match out.ring_producer.has_room(total) {
            Ok(true) => {
                if let Err(status) = gather_into_record(
                    qp,
                    &mut sq.local_regions,
                    view,
                    &mut out.ring_producer,
                    total,
                ) {
                    return ExecutionResult::Failed(status);
                }
                out.ring_producer.add_to_postlist(
                    make_record_header(kind, flags, imm, len, out.current_srqn),
                    total,
                );
                return ExecutionResult::InRing(out.ring_producer.write_position());
            }
            // Inline data cannot be sent by reference: the program may reuse its memory after the post.
            Ok(false) if inline => return ExecutionResult::NotPossibleYet,
            Ok(false) => {}
            Err(_) => return ExecutionResult::Failed(IBV_WC_REM_OP_ERR),
        }
    }
    let bytes = size_of_val(view.sges);
    match out.ring_producer.has_room(bytes) {
        Ok(true) => {}
        Ok(false) => return ExecutionResult::NotPossibleYet,
        Err(_) => return ExecutionResult::Failed(IBV_WC_REM_OP_ERR),
    }
    for sge in view.sges.iter().filter(|s| s.length != 0) {
        if check_and_pin_sge(qp.nic, &mut sq.local_regions, qp.pd_number, sge, false).is_err() {
            return ExecutionResult::Failed(IBV_WC_LOC_PROT_ERR);
        }
    }
    let place = out.ring_producer.place_for_payload(bytes);
    let sges: *const u8 = view.sges.as_ptr().cast();
    // SAFETY: the place has `bytes` bytes, the size of the list; no other process sees them yet.
    unsafe { std::ptr::copy_nonoverlapping(sges, place.as_mut_ptr(), bytes) };
    out.ring_producer.add_to_postlist(
        make_record_header(kind, flags | FLAG_BY_REFERENCE, imm, len, out.current_srqn),
        bytes,
    );
    ExecutionResult::InRing(out.ring_producer.write_position())
}

/// Returns true if peers can reach the memory of the first non-empty SGE only by system call.
#[cold]
pub(super) fn is_in_unmapped_memory(qp: &Qp, local: &mut RegionCache, sges: &[ibv_sge]) -> bool {
    let Some(sge) = sges.iter().find(|s| s.length != 0) else {
        return false;
    };
    local
        .get_pinned(qp.nic, qp.nic.this_process(), sge.lkey, || qp.pd_number)
        .is_ok_and(|(region, _pin)| region.peers_copy_by_syscall)
}

// RDMA WRITEs behind SENDs that the receiver has not taken.
//
// A responder executes requests in order (IBTA vol. 1, 9.5). The requester therefore may not execute a WRITE while an
// earlier SEND is pending. If it waited, a target that answers each request by a WRITE and a SEND would need one round
// trip for each request. If a SEND of the same queue follows the WRITE, the receiver has to read the ring anyway. The
// WRITE then becomes a record in front of the SEND's record, and the receiver executes it.

/// Bytes in front of the payload, or of the list of SGEs, in a WRITE's record: the remote address and 8 zero bytes.
pub(crate) const WRITE_RECORD_PREFIX_BYTES: usize = 16;

/// Number of WRs behind a WRITE that are searched for a SEND.
pub(super) const LOOK_AHEAD_WRS: usize = 8;

/// Returns true if one of the next [`LOOK_AHEAD_WRS`] WRs behind `wr` is a message that the receiver has to take.
///
/// # Safety
/// `wr` is of a list as `ibv_post_send(3)` describes it.
pub(super) unsafe fn does_message_follow_soon(wr: &ibv_send_wr) -> bool {
    let mut next = wr.next;
    for _ in 0..LOOK_AHEAD_WRS {
        // SAFETY: null or the next WR of the list (contract).
        let Some(wr) = (unsafe { next.as_ref() }) else {
            return false;
        };
        if needs_receiver_to_take_record(wr.opcode) {
            return true;
        }
        next = wr.next;
    }
    false
}

/// Returns true if the receiver has to take a record from the ring for a WR with this opcode.
pub(super) fn needs_receiver_to_take_record(opcode: ibv_wr_opcode) -> bool {
    matches!(
        opcode,
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV | IBV_WR_RDMA_WRITE_WITH_IMM
    )
}

/// Leaves an RDMA WRITE to the receiver while SENDs are pending, provided that a message follows the WRITE.
#[cold]
pub(super) fn leave_write_to_receiver(
    qp: &Qp,
    sq: &mut SendQueue,
    view: &WrView<'_>,
) -> ExecutionResult {
    if !view.is_followed_by_message || matches!(qp.xrc_role, XrcRole::Send) {
        return ExecutionResult::NotPossibleYet;
    }
    let total: u64 = view.sges.iter().map(|s| u64::from(s.length)).sum();
    if total > u64::from(crate::device::MAX_MSG_SZ) {
        return fail_too_long(total, crate::device::MAX_MSG_SZ);
    }
    if total == 0 {
        return ExecutionResult::Done(0);
    }
    let Some(out) = &mut sq.peer_ring else {
        return ExecutionResult::NotPossibleYet;
    };
    #[allow(clippy::cast_possible_truncation)] // at most 2^30
    let (len, total) = (total as u32, total as usize);
    // SAFETY: the union's member for this opcode; plain integers.
    let (addr, rkey) = unsafe { (view.wr.wr.rdma.remote_addr, view.wr.wr.rdma.rkey) };
    let is_copy_only = view.gathered_payload.is_some() || view.wr.send_flags & IBV_SEND_INLINE != 0;
    // A system call of the receiver takes longer than waiting for room in the ring.
    let must_copy = is_copy_only
        || (total > MAX_COPIED_PAYLOAD_BYTES
            && total <= MAX_COPIED_UNMAPPED_BYTES
            && is_in_unmapped_memory(qp, &mut sq.local_regions, view.sges));
    let by_value = must_copy || total <= MAX_COPIED_PAYLOAD_BYTES;
    if by_value && WRITE_RECORD_PREFIX_BYTES + total <= out.ring_producer.max_payload_bytes() {
        match out
            .ring_producer
            .has_room(WRITE_RECORD_PREFIX_BYTES + total)
        {
            Ok(true) => {
                let mut dst = begin_write_record(&mut out.ring_producer, addr, total);
                let copied = for_each_payload_part(qp, &mut sq.local_regions, view, |src, len| {
                    // SAFETY: the parts add up to `total` bytes, which the place has behind the prefix.
                    unsafe { shm::mem::copy(dst, src, len) }
                        .map_err(|MemoryFault| IBV_WC_LOC_PROT_ERR)?;
                    dst = dst.wrapping_add(len);
                    Ok(())
                });
                if let Err(status) = copied {
                    return ExecutionResult::Failed(status);
                }
                let header = make_record_header(RecordKind::OrderedWrite, 0, rkey, len, 0);
                out.ring_producer
                    .add_to_postlist(header, WRITE_RECORD_PREFIX_BYTES + total);
                return ExecutionResult::OrderedWriteInRing(
                    out.ring_producer.write_position(),
                    len,
                );
            }
            Ok(false) if must_copy => return ExecutionResult::NotPossibleYet,
            Ok(false) => {}
            Err(_) => return ExecutionResult::Failed(IBV_WC_REM_OP_ERR),
        }
    }
    if is_copy_only {
        return ExecutionResult::NotPossibleYet;
    }
    leave_write_by_reference(qp, sq, view, (addr, rkey, len))
}

/// Leaves an RDMA WRITE to the receiver with the list of SGEs in place of the payload.
fn leave_write_by_reference(
    qp: &Qp,
    sq: &mut SendQueue,
    view: &WrView<'_>,
    (addr, rkey, len): (u64, u32, u32),
) -> ExecutionResult {
    let Some(out) = &mut sq.peer_ring else {
        return ExecutionResult::NotPossibleYet;
    };
    let bytes = size_of_val(view.sges);
    match out
        .ring_producer
        .has_room(WRITE_RECORD_PREFIX_BYTES + bytes)
    {
        Ok(true) => {}
        Ok(false) => return ExecutionResult::NotPossibleYet,
        Err(_) => return ExecutionResult::Failed(IBV_WC_REM_OP_ERR),
    }
    for sge in view.sges.iter().filter(|s| s.length != 0) {
        if check_and_pin_sge(qp.nic, &mut sq.local_regions, qp.pd_number, sge, false).is_err() {
            return ExecutionResult::Failed(IBV_WC_LOC_PROT_ERR);
        }
    }
    let place = begin_write_record(&mut out.ring_producer, addr, bytes);
    // SAFETY: the place has `bytes` bytes behind the prefix, the size of the list; no other process sees them yet.
    unsafe { std::ptr::copy_nonoverlapping(view.sges.as_ptr().cast(), place, bytes) };
    let header = make_record_header(RecordKind::OrderedWrite, FLAG_BY_REFERENCE, rkey, len, 0);
    out.ring_producer
        .add_to_postlist(header, WRITE_RECORD_PREFIX_BYTES + bytes);
    ExecutionResult::OrderedWriteInRing(out.ring_producer.write_position(), len)
}

/// Begins a record for `bytes` bytes behind the prefix, and fills in the prefix. Returns the address behind the prefix.
fn begin_write_record(producer: &mut Producer, addr: u64, bytes: usize) -> *mut u8 {
    let place = producer
        .place_for_payload(WRITE_RECORD_PREFIX_BYTES + bytes)
        .as_mut_ptr();
    // SAFETY: the place has `WRITE_RECORD_PREFIX_BYTES + bytes` bytes; no other process sees them yet.
    unsafe {
        place.cast::<[u64; 2]>().write_unaligned([addr, 0]);
        place.add(WRITE_RECORD_PREFIX_BYTES)
    }
}
