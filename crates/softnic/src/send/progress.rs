//! The processing of posted work requests: completions, retries, and failures of the peer.

use std::time::Duration;

use ::faults::{PeerIds, WorkRequestFacts, operation_of_opcode};
use nic_core::peer_wakeup::AwaitedPeer;

use super::*;
use crate::biased_lock::BiasedGuard;
use crate::faults;
use crate::multicast;

/// Time in nanoseconds that an unreliable message waits for room at a live receiver before it is dropped.
pub(super) const UNRELIABLE_DROP_AFTER_NS: u64 = 1_000_000_000;

/// Time in nanoseconds after which a waiting message first wakes the receiver's engine. A receiver that polls has made
/// room long before. A wake-up costs a system call here, and at the receiver a second thread that takes from its
/// completion queue.
pub(super) const UNRELIABLE_WAKE_AFTER_NS: u64 = 100_000;

/// Makes completions of the WRs that are done. Returns true if a WR waits for a deadline.
#[inline(never)]
pub(crate) fn complete_finished_sends(qp: &Qp, sink: &mut WcSink<'_>) -> bool {
    let mut sq = qp.sq.lock();
    let sq = &mut *sq;
    let mut waiting = false;
    if !sq.pending_wqes.is_empty() {
        waiting |= complete_consumed_wrs(qp, sq, sink);
    }
    if !sq.deferred_wrs.is_empty() {
        waiting |= retry_deferred_wrs(qp, sq);
    }
    if !sq.finished_wrs.is_empty() {
        let mut freed = sq.freed_wr_count;
        let after_buffered = &mut sq.freed_wrs_after_buffered_completions;
        sq.finished_wrs.pop_while(|wqe| {
            let wanted = !sink.is_full();
            if wanted {
                push_completion(qp, (&mut freed, after_buffered), wqe, sink);
            }
            wanted
        });
        sq.freed_wr_count = freed;
    }
    if sq.wants_drained_event {
        if sq.take_due_drained_event() {
            qp.raise_event(IBV_EVENT_SQ_DRAINED);
        } else {
            waiting = true;
        }
    }
    qp.send_poll_work
        .store(sq.work_for_next_poll() as u8, Ordering::Relaxed);
    if sq
        .unpublished_traffic
        .is_publication_due(sq.posted_wr_count)
    {
        publish_traffic(qp, sq);
    }
    waiting
}

/// Adds the counts of messages to those of the ports.
#[cold]
#[inline(never)]
pub(crate) fn publish_traffic(qp: &Qp, sq: &mut SendQueue) {
    let peer = sq
        .peer_ring
        .as_ref()
        .and_then(OutboundShmRing::dest_port_id);
    let open = |name| {
        qp.nic
            .traffic_counters
            .open_traffic_counters_of_port(qp.nic.fabric.dir(), name)
    };
    sq.unpublished_traffic
        .publish_to_port_counters(sq.posted_wr_count, peer, open);
}

/// [`publish_traffic`] for a thread that does not have the lock of the send queue, and only if no other thread has it.
#[cold]
pub(crate) fn publish_traffic_if_send_queue_free(qp: &Qp) {
    if let Some(mut sq) = qp.sq.lock_if_biased_to_this_thread()
        && sq
            .unpublished_traffic
            .is_publication_due_before_sleep(sq.posted_wr_count)
    {
        publish_traffic(qp, &mut sq);
    }
}

/// Counts a work request that the general path has executed by shared memory.
pub(super) fn count_request_traffic(
    qp: &Qp,
    sq: &mut SendQueue,
    view: &WrView<'_>,
    to: DestinationPort,
) {
    let len = view.sges.iter().map(|sge| u64::from(sge.length)).sum();
    if sq
        .unpublished_traffic
        .count_request(view.wr.opcode, len, to)
    {
        publish_traffic(qp, sq);
    }
}

/// Makes the completion of a WR. Its place is free when the program has polled the completion: at once, or when the
/// program takes it from the buffer of the completion queue.
#[inline]
fn push_completion(
    qp: &Qp,
    (freed, freed_after_buffered): (&mut u64, &mut VecDeque<u64>),
    wqe: &SendWqe,
    sink: &mut WcSink<'_>,
) {
    if sink.is_for_buffer {
        freed_after_buffered.push_back(wqe.seq + 1);
    } else {
        *freed = wqe.seq + 1;
    }
    if wqe.status == SUCCESS_BYTE {
        sink.push_sent(
            wqe.wr_id,
            wqe.opcode.into(),
            wqe.byte_len_or_vendor_err,
            qp.qpn,
        );
    } else {
        sink.push(ibv_wc {
            opcode: wqe.opcode.into(),
            ..failed_recv_wc(qp, wqe.wr_id, wqe.status.into(), wqe.byte_len_or_vendor_err)
        });
    }
}

/// Makes completions of the WRs that the receiver has consumed. Those for which `sink` has no room move from pending to
/// ready.
#[inline]
fn complete_consumed_wrs(qp: &Qp, sq: &mut SendQueue, sink: &mut WcSink<'_>) -> bool {
    let Some(out) = &mut sq.peer_ring else {
        if sq.packet_requester.is_some() {
            return packets::retransmit_and_complete(qp, sq);
        }
        // UD: pending holds only a failed WR and the WRs behind it.
        return move_consumed_to_finished_or_fail(qp, sq, u64::MAX);
    };
    let Ok(consumed) = out.ring_producer.refresh_consumer_head() else {
        fail_qp_for_oldest_wr(qp, sq, IBV_WC_REM_OP_ERR, None);
        return false;
    };
    while let Some(front) = sq.pending_wqes.front() {
        if front.status != SUCCESS_BYTE {
            let status = front.status.into();
            let cause = sq.failure_cause.take();
            fail_qp_for_oldest_wr(qp, sq, status, cause);
            return false;
        }
        if front.ring_end_position > consumed {
            // A receiver that only polls its memory executes no WRITE; its engine has to.
            return handle_unfinished_front(qp, sq) | (sq.last_ordered_write_end > consumed);
        }
        let wqe = *front;
        sq.pending_wqes.drop_front(&wqe);
        sq.peer_silence_wait.end_wait();
        if wqe.signaled {
            if sq.finished_wrs.is_empty() && !sink.is_full() {
                let freed = (
                    &mut sq.freed_wr_count,
                    &mut sq.freed_wrs_after_buffered_completions,
                );
                push_completion(qp, freed, &wqe, sink);
            } else {
                sq.finished_wrs.push(wqe);
            }
        }
    }
    false
}

/// Frees the place of a WR whose completion the program has taken from the buffer of its completion queue.
#[cold]
pub(crate) fn free_place_of_polled_completion(qp: &Qp) {
    let mut sq = qp.sq.lock();
    if let Some(freed) = sq.freed_wrs_after_buffered_completions.pop_front() {
        sq.freed_wr_count = sq.freed_wr_count.max(freed);
    }
}

/// Moves the WRs whose records lie before `consumed` to ready. A failed WR behind them fails the queue.
#[inline]
pub(super) fn move_consumed_to_finished_or_fail(
    qp: &Qp,
    sq: &mut SendQueue,
    consumed: u64,
) -> bool {
    move_consumed_to_finished(sq, consumed);
    if let Some(front) = sq.pending_wqes.front()
        && front.status != SUCCESS_BYTE
    {
        let status = front.status.into();
        let cause = sq.failure_cause.take();
        fail_qp_for_oldest_wr(qp, sq, status, cause);
    }
    false
}

/// Moves the WRs whose records lie before `consumed` to ready, up to a failed WR.
#[inline]
pub(super) fn move_consumed_to_finished(sq: &mut SendQueue, consumed: u64) {
    while let Some(&front) = sq.pending_wqes.front() {
        if front.status != SUCCESS_BYTE || front.ring_end_position > consumed {
            return;
        }
        sq.pending_wqes.drop_front(&front);
        if front.signaled {
            sq.finished_wrs.push(front);
        }
    }
}

/// Handles an oldest WR that is not done: it was refused, its receiver does not answer, or the receiver needs more
/// time. Returns true if a deadline is running.
#[inline]
pub(super) fn handle_unfinished_front(qp: &Qp, sq: &mut SendQueue) -> bool {
    let Some(out) = &mut sq.peer_ring else {
        return false;
    };
    if !out.is_known_to_receiver {
        out.send_ring_notice(qp.nic);
    }
    let nak = out
        .header(qp.nic)
        .map_or(0, |h| h.nak_status.load(Ordering::Acquire));
    if let Some((status, cause)) = FailureCause::decode_refusal(nak) {
        // WRs that were consumed before the refusal come first.
        if let Ok(consumed) = out.ring_producer.refresh_consumer_head() {
            move_consumed_to_finished_or_fail(qp, sq, consumed);
        }
        if qp.qp_type == QpType::Rc {
            fail_qp_for_oldest_wr(qp, sq, status, cause);
        } else {
            move_consumed_to_finished_or_fail(qp, sq, u64::MAX);
        }
        return false;
    }
    let answering = out
        .peer
        .segment
        .qp(out.dest_qp_index)
        .is_some_and(|d| is_same_ready_qp(d, out, qp.qpn));
    if out.peer.is_dead() {
        // Records that the peer took before it ended count, even if it took them after the read above.
        if let Ok(consumed) = out.ring_producer.refresh_consumer_head() {
            move_consumed_to_finished_or_fail(qp, sq, consumed);
        }
        if sq.pending_wqes.is_empty() {
            return false;
        }
        if qp.qp_type != QpType::Rc {
            move_consumed_to_finished_or_fail(qp, sq, u64::MAX);
        } else if let Some(out) = &sq.peer_ring
            && out.peer.is_death_grace_over()
        {
            let cause = FailureCause::PeerEnded { pid: out.peer.pid };
            fail_qp_for_oldest_wr(qp, sq, IBV_WC_RETRY_EXC_ERR, Some(cause));
        } else {
            return true;
        }
        return false;
    }
    if answering {
        sq.peer_silence_wait.end_wait();
        return false;
    }
    if qp.qp_type != QpType::Rc {
        move_consumed_to_finished_or_fail(qp, sq, u64::MAX);
        return false;
    }
    if has_retry_time_passed(qp, sq) {
        let cause = why_peer_is_silent(qp, sq);
        fail_qp_for_oldest_wr(qp, sq, IBV_WC_RETRY_EXC_ERR, Some(cause));
        return false;
    }
    true
}

/// Tries the deferred WRs again, in order. Returns true if one of them has to wait on.
#[cold]
pub(super) fn retry_deferred_wrs(qp: &Qp, sq: &mut SendQueue) -> bool {
    // After a failure no WR is executed. Deferred WRs are flushed as soon as the failed WR completes.
    if qp.state() == QpState::Sqd || sq.is_stopped_by_failure {
        return false;
    }
    while let Some(mut d) = sq.deferred_wrs.pop_front() {
        let view = WrView {
            wr: &d.wr,
            sges: &d.sges,
            gathered_payload: d.early_payload.as_deref(),
            ah: d.ah.as_deref(),
            bind_request: d.bind_request,
            is_followed_by_message: d.wr.opcode == IBV_WR_RDMA_WRITE
                && sq
                    .deferred_wrs
                    .iter()
                    .take(LOOK_AHEAD_WRS)
                    .any(|d| needs_receiver_to_take_record(d.wr.opcode)),
        };
        if matches!(qp.xrc_role, XrcRole::Send) {
            note_xrc_srq(sq, &d.wr);
        }
        let mut outcome = match d.fault {
            None => execute_wr(qp, sq, &view),
            Some(fault) => match apply_fault(qp, fault, d.retry_wait.start_or_elapsed_ns(now_ns()))
            {
                FaultEffect::Wait => {
                    sq.deferred_wrs.push_front(d);
                    return true;
                }
                FaultEffect::Done(outcome) => outcome,
                FaultEffect::ExecuteNow => {
                    d.retry_wait.end_wait();
                    d.fault = None;
                    execute_wr(qp, sq, &view)
                }
            },
        };
        if matches!(outcome, ExecutionResult::NotPossibleYet) && qp.qp_type != QpType::Rc {
            let now = now_ns();
            let waited = d.retry_wait.start_or_elapsed_ns(now);
            if waited >= UNRELIABLE_DROP_AFTER_NS {
                outcome = if may_have_many_receivers(qp, &d) {
                    // The other receivers get the datagram.
                    ud::stop_waiting_for_room(sq);
                    execute_wr(qp, sq, &view)
                } else {
                    if qp.qp_type == QpType::Ud {
                        ud::stop_waiting_for_receiver(qp, sq, &view);
                    }
                    ExecutionResult::Done(0)
                };
            } else if waited >= d.wake_after_ns {
                d.wake_after_ns = 2 * waited;
                wake_receivers_of_deferred_wr(qp, sq, &d);
            }
        }
        if matches!(outcome, ExecutionResult::NotPossibleYet) {
            sq.deferred_wrs.push_front(d);
            publish_rings_and_transmit_packets(qp, sq);
            return true;
        }
        let signaled = sq.sq_sig_all || d.wr.send_flags & IBV_SEND_SIGNALED != 0;
        record_result(qp, sq, &d.wr, d.seq, signaled, &outcome);
        if sq.is_stopped_by_failure {
            return false;
        }
    }
    publish_rings_and_transmit_packets(qp, sq);
    if let Some(out) = &sq.peer_ring {
        out.tell_receiver_of_deferred_wrs(qp.nic, false);
    }
    if qp.send_cq.is_armed() {
        // The receiver may neither poll nor wait, and the sender sleeps.
        wake_receiver_of_pending_wrs(qp, sq);
    }
    false
}

/// Returns true if several queue pairs may get the datagram.
fn may_have_many_receivers(qp: &Qp, d: &DeferredWr) -> bool {
    qp.qp_type == QpType::RawPacket || d.ah.as_ref().is_some_and(|ah| ah.multicast_group.is_some())
}

/// Sends datagrams for several receivers that wait for room at one of them, before their queue pair ends. On a wire
/// they would have left long ago. Programs that want no completions for them end without waiting.
pub(crate) fn send_waiting_multi_receiver_datagrams(qp: &Qp) {
    if qp.qp_type.is_connected() {
        return;
    }
    let start = now_ns();
    loop {
        {
            let mut sq = qp.sq.lock();
            let front = sq.deferred_wrs.front();
            if !front.is_some_and(|d| may_have_many_receivers(qp, d))
                || !retry_deferred_wrs(qp, &mut sq)
            {
                return;
            }
        }
        if now_ns() - start >= UNRELIABLE_DROP_AFTER_NS {
            return;
        }
        cancellation::sleep(Duration::from_micros(50));
    }
}

/// Wakes the engine of the peer that the oldest WR waits for.
#[cold]
pub(crate) fn wake_awaited_peer(qp: &Qp) {
    if let Some(mut sq) = lock_if_wrs_wait(qp) {
        if let Some(d) = sq.deferred_wrs.front() {
            wake_receivers_of_deferred_wr(qp, &sq, d);
        } else {
            wake_receiver_of_pending_wrs(qp, &mut sq);
        }
    }
}

/// Wakes the engine of the peer that the oldest WR waits for, unless the peer's program has taken messages since the
/// last call.
#[cold]
pub(crate) fn wake_awaited_peer_unless_it_takes_messages(qp: &Qp) -> AwaitedPeer {
    let Some(mut sq) = lock_if_wrs_wait(qp) else {
        return AwaitedPeer::None;
    };
    let sq = &mut *sq;
    if let Some(out) = &mut sq.peer_ring
        && !(sq.deferred_wrs.is_empty() && sq.pending_wqes.is_empty())
    {
        if out.has_program_taken_messages(qp.nic) {
            return AwaitedPeer::TakesMessages;
        }
        out.peer.wake_engine();
    } else if let Some(d) = sq.deferred_wrs.front() {
        wake_receivers_of_deferred_wr(qp, sq, d);
    } else {
        return AwaitedPeer::None;
    }
    AwaitedPeer::Woken
}

/// Locks the send queue if a poll of it has work to do. `None` if it has none, or if another thread uses the queue.
fn lock_if_wrs_wait(qp: &Qp) -> Option<BiasedGuard<'_, SendQueue>> {
    if qp.send_poll_work.load(Ordering::Relaxed) == SendWork::None as u8 {
        return None;
    }
    qp.sq.try_lock_unless_in_steady_use()
}

/// Wakes the engines of the processes that a WR is addressed to.
#[cold]
fn wake_receivers_of_deferred_wr(qp: &Qp, sq: &SendQueue, d: &DeferredWr) {
    if let Some(out) = &sq.peer_ring {
        out.peer.wake_engine();
    } else if qp.qp_type == QpType::RawPacket {
        raw::wake_receivers(sq);
    } else if qp.qp_type == QpType::Ud {
        // SAFETY: the union's member for UD; a plain integer.
        let qpn = unsafe { d.wr.wr.ud.remote_qpn };
        if let Some(group) = d.ah.as_ref().and_then(|ah| ah.multicast_group) {
            for peer in qp.nic.fabric.live_processes() {
                if multicast::member_qp_indices(&peer, group).next().is_some() {
                    peer.wake_engine();
                }
            }
        } else if let Some(peer) = qp.nic.fabric.peer(qpn as usize >> QP_INDEX_BITS) {
            peer.wake_engine();
        }
    }
}

/// Returns the fault that the fault plan prescribes for a work request.
#[cold]
pub(super) fn decide_wr_fault(qp: &Qp, view: &WrView<'_>) -> Option<WorkRequestFault> {
    let peer_qpn = if qp.qp_type.is_connected() {
        qp.shared_state().dest_qpn.load(Ordering::Relaxed)
    } else if qp.qp_type == QpType::Ud {
        // SAFETY: the union's member for UD; a plain integer.
        unsafe { view.wr.wr.ud.remote_qpn }
    } else {
        0
    };
    let gid = match view.ah {
        Some(ah) => ah.dest_gid,
        None => qp.peer_gid(),
    };
    let facts = WorkRequestFacts {
        operation: operation_of_opcode(view.wr.opcode),
        queue_pair: qp.fault_plan_identity(),
        peer: PeerIds {
            address: gid.map(faults::address_of_gid),
            qpn: (peer_qpn != 0).then_some(peer_qpn),
        },
    };
    faults::decide_work_request_fault(&facts, view.wr.wr_id)
}

/// The effect of a fault on a work request that has waited.
enum FaultEffect {
    /// The work request keeps waiting.
    Wait,
    /// The work request has ended with this outcome.
    Done(ExecutionResult),
    /// The fault is over; the work request is executed now.
    ExecuteNow,
}

/// Applies a fault to a work request that has waited for `waited_ns`.
#[cold]
fn apply_fault(qp: &Qp, fault: WorkRequestFault, waited_ns: u64) -> FaultEffect {
    match fault {
        WorkRequestFault::Status(status) => {
            why::note_cause(FailureCause::InjectedFault);
            FaultEffect::Done(ExecutionResult::Failed(status))
        }
        // The sender is not told; the message is lost.
        WorkRequestFault::ReceiverNotReady(_) if qp.qp_type != QpType::Rc => {
            FaultEffect::Done(ExecutionResult::Done(0))
        }
        WorkRequestFault::ReceiverNotReady(time) => {
            let patience = qp.rnr_fault_timeout_ns().unwrap_or(u64::MAX);
            if waited_ns >= time.min(patience) {
                if time > patience {
                    why::note_cause(FailureCause::InjectedFault);
                    FaultEffect::Done(ExecutionResult::Failed(IBV_WC_RNR_RETRY_EXC_ERR))
                } else {
                    FaultEffect::ExecuteNow
                }
            } else {
                FaultEffect::Wait
            }
        }
    }
}
