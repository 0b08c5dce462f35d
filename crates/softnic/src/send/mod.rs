//! The send queue: turns work requests into records, copies and atomics.
//!
//! The posting thread executes one-sided verbs at once. Two-sided verbs become records in a ring that the receiver
//! reads. On RC and UC they complete when the receiver has consumed them. A work request that cannot be executed yet is
//! deferred: the peer is not ready, its ring is full, or the queue is being drained. Each poll tries deferred work
//! requests again.

mod bind_and_invalidate;
mod builder;
mod connected;
mod gather_payload;
mod one_sided;
mod opcode_assertions;
mod outbound_shm_ring;
mod packets;
mod post;
mod progress;
mod queue;
mod raw;
mod rendezvous;
mod run_fast_path;
mod single_send;
mod single_write;
mod traffic;
mod ud;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use ::faults::WorkRequestFault;
use nic_core::retry_timeouts::WaitTimer;
use nic_core::transport_opcodes::{carries_payload, completion_opcode};
use verbs_abi::*;

use crate::ah::Ah;
use crate::cq::WcSink;
use crate::device::LinkLayer;
use crate::mw::bind_request;
use crate::nic::Nic;
use crate::path;
use crate::path::traffic::HostPortId;
use crate::qp::Qp;
use crate::qp_attributes::{QpState, QpType};
use crate::recv::{failed_recv_wc, wake_waiter_if_cq_armed};
use crate::region_cache::{KeyError, RegionCache};
use crate::ring_record::{
    FLAG_BY_REFERENCE, FLAG_RECEIVER_SEND_COMPLETES_FIRST, FLAG_SOLICITED, RecordKind,
    make_record_header,
};
use crate::sge::{AlignedSges, check_and_pin_sge};
use crate::why::{self, FailureCause};
use crate::xrc::XrcRole;
use shm::clock::now_ns;
use shm::fabric::Peer;
use shm::fabric::layout::*;
use shm::fabric::ring::{Producer, SLOT_BYTES, slots_for_payload};
use shm::keys::BindRequest;
use shm::mem::{AtomicOp, BOUNCE_BUFFER_BYTES, MemoryFault, is_readable, probe_writable};

use bind_and_invalidate::*;
use connected::*;
use gather_payload::*;
use one_sided::*;
use outbound_shm_ring::*;
use progress::*;
use queue::*;
pub(crate) use rendezvous::read_rendezvous_payload_and_send_fin;
use traffic::{DestinationPort, PacketFormat, UnpublishedTraffic};
use ud::*;

pub(crate) use builder::{BuiltPostlist, WrBuilder};
pub(crate) use connected::{WRITE_RECORD_PREFIX_BYTES, start_counting_traffic};
pub(crate) use one_sided::{
    FlushRange, TargetQp, authorize_remote_region, read_to_unmapped_or_tell_if_local_failed,
    required_pd_number,
};
pub(crate) use packets::{
    ConnectedRequester, process_answer_or_congestion_notice, transmit_after_answers,
};
pub(crate) use post::{post_send, post_send_all_or_none, post_send_under_faults, post_send_xrc};
pub(crate) use progress::{
    complete_finished_sends, free_place_of_polled_completion, publish_traffic,
    publish_traffic_if_send_queue_free, send_waiting_multi_receiver_datagrams, wake_awaited_peer,
    wake_awaited_peer_unless_it_takes_messages,
};
pub(crate) use queue::{SendQueue, SendWork, WrError};
pub(crate) use single_send::{is_single_send, post_unless_general_path_needed as post_single_send};
pub(crate) use single_write::{
    is_single_write, post_unless_general_path_needed as post_single_write,
};

/// A WR prepared for execution.
struct WrView<'a> {
    wr: &'a ibv_send_wr,
    sges: &'a [ibv_sge],
    /// The payload, if it has been gathered already.
    gathered_payload: Option<&'a [u8]>,
    ah: Option<&'a Ah>,
    /// The request of a WR that binds a memory window.
    bind_request: Option<BindRequest>,
    /// True if a message of this queue follows, for which the receiver has to read the ring.
    is_followed_by_message: bool,
}

/// The result of an attempt to execute a WR.
enum ExecutionResult {
    /// Executed; the completion reports this number of bytes.
    Done(u32),
    /// Written to a ring, up to this position.
    InRing(u64),
    /// A WRITE written to a ring, up to this position; the completion reports this number of bytes.
    OrderedWriteInRing(u64, u32),
    /// Sent in packets and done at this position; the completion reports this number of bytes.
    SentInPackets(u64, u32),
    /// Not possible yet.
    NotPossibleYet,
    /// Failed with this status.
    Failed(ibv_wc_status),
}

/// Notes the shared receive queue that an XRC work request names.
fn note_xrc_srq(sq: &mut SendQueue, wr: &ibv_send_wr) {
    if let Some(out) = &mut sq.peer_ring {
        // SAFETY: the union's member for XRC; a plain integer.
        out.current_srqn = unsafe { wr.qp_type.xrc.remote_srqn };
    }
}

/// Handles a post while the send CQ is armed, which means that the poster is about to sleep. Reports completions that
/// are ready, and makes the peer take the pending WRs.
#[cold]
fn publish_before_sleep(qp: &Qp, sq: &mut SendQueue) {
    // An engine that is called resumes a parked watch: the next posts find the queue unarmed.
    if !sq.finished_wrs.is_empty() || qp.send_cq.is_overrun_watch_parked() {
        qp.send_cq.call_engine_if_armed();
    }
    wake_receiver_of_pending_wrs(qp, sq);
}

/// Wakes the engine of the receiver of the pending WRs, unless it is not needed.
///
/// The engine makes progress for a program that neither polls nor waits. If the send CQ is armed for solicited
/// completions, the sender waits only for failures. The function then wakes no receiver that takes messages by itself.
/// A wake-up would cost a system call for each post, and the engine would revoke the bias of all locks of the receiver.
#[cold]
pub(super) fn wake_receiver_of_pending_wrs(qp: &Qp, sq: &mut SendQueue) {
    if let Some(out) = &mut sq.peer_ring
        && !sq.pending_wqes.is_empty()
        && !(qp.send_cq.is_armed_for_solicited_only()
            && out.does_receiver_take_messages_itself(qp.nic))
    {
        out.peer.wake_engine();
    }
}

#[inline(always)]
fn publish_rings_and_transmit_packets(qp: &Qp, sq: &mut SendQueue) {
    if let Some(i) = sq.ud_rings.open_postlist_ring_index {
        sq.ud_rings.open_postlist_ring_index = None;
        if let Some(Some(ring)) = sq.ud_rings.rings.get_mut(i) {
            ring.publish_postlist(qp.nic);
        }
    } else if let Some(out) = &mut sq.peer_ring {
        out.publish_postlist(qp.nic);
    }
    if path::are_packets_in_use() {
        packets::transmit_posted(qp, sq);
    }
}

/// Records the outcome of a WR in the queue.
#[inline]
fn record_result(
    qp: &Qp,
    sq: &mut SendQueue,
    wr: &ibv_send_wr,
    seq: u64,
    signaled: bool,
    outcome: &ExecutionResult,
) {
    let wqe = |end, byte_len, status, signaled| SendWqe {
        wr_id: wr.wr_id,
        ring_end_position: end,
        seq,
        byte_len_or_vendor_err: byte_len,
        opcode: code_as_byte(completion_opcode(wr.opcode)),
        status: code_as_byte(status),
        signaled,
        ordered_write_count: 0,
    };
    match *outcome {
        ExecutionResult::Done(byte_len) => {
            if !sq.pending_wqes.is_empty() {
                sq.pending_wqes
                    .push(wqe(0, byte_len, IBV_WC_SUCCESS, signaled));
            } else if signaled {
                sq.finished_wrs.push(wqe(0, byte_len, IBV_WC_SUCCESS, true));
            }
        }
        ExecutionResult::InRing(end) => sq.pending_wqes.push(wqe(end, 0, IBV_WC_SUCCESS, signaled)),
        ExecutionResult::OrderedWriteInRing(end, byte_len) => {
            sq.last_ordered_write_end = end;
            sq.pending_wqes.push(SendWqe {
                ordered_write_count: 1,
                ..wqe(end, byte_len, IBV_WC_SUCCESS, signaled)
            });
        }
        ExecutionResult::SentInPackets(end, byte_len) => {
            sq.pending_wqes
                .push(wqe(end, byte_len, IBV_WC_SUCCESS, signaled));
        }
        ExecutionResult::Failed(status) => {
            // The failed WR completes behind the WRs posted before it, which may still be pending.
            sq.pending_wqes.push(wqe(0, 0, status, true));
            sq.failure_cause = why::take_last_cause();
            stop_after_failed_wr(qp, sq);
        }
        ExecutionResult::NotPossibleYet => {}
    }
}

/// Stops the queue after the WR at the end of `pending` has failed. If no WR is in front of it, the queue pair fails
/// now, else when those are done.
#[cold]
fn stop_after_failed_wr(qp: &Qp, sq: &mut SendQueue) {
    sq.is_stopped_by_failure = true;
    if let Some(front) = sq.pending_wqes.front()
        && front.status != SUCCESS_BYTE
    {
        let status = front.status;
        let cause = sq.failure_cause.take();
        fail_qp_for_oldest_wr(qp, sq, status.into(), cause);
    }
}

/// Fails the queue pair after the oldest WR has failed with `status`, for `cause` if known.
#[cold]
fn fail_qp_for_oldest_wr(
    qp: &Qp,
    sq: &mut SendQueue,
    status: ibv_wc_status,
    cause: Option<FailureCause>,
) {
    publish_rings_and_transmit_packets(qp, sq);
    let cause = cause.or(FailureCause::only_cause_of_status(status));
    let first = WrError {
        status,
        vendor_err: why::vendor_err(cause),
    };
    if let Some((wr_id, opcode)) = sq.flush(qp.nic, Some(first)) {
        let report = why::FailureReport {
            qp: qp.report_description(),
            wr_id,
            opcode,
            status,
            cause,
        };
        report.print_or_count();
    }
    // "Completion in error of a send WR of UD or UC: Send Queue Error state" (IBTA vol. 1, 10.3.1.6).
    if qp.qp_type == QpType::Rc {
        qp.enter_error();
    } else {
        qp.set_state(QpState::Sqe);
    }
}

#[inline]
fn execute_wr(qp: &Qp, sq: &mut SendQueue, view: &WrView<'_>) -> ExecutionResult {
    if qp.qp_type == QpType::Ud {
        if path::are_packets_in_use() && packets::is_by_packets(qp, view) {
            return packets::send_datagram(qp, sq, view);
        }
        return ud_send(qp, sq, view);
    }
    let Some(out) = &mut sq.peer_ring else {
        if sq.packet_requester.is_some() {
            return packets::execute_by_packets(qp, sq, view);
        }
        if qp.qp_type == QpType::RawPacket {
            return raw::send_frame(qp, sq, view);
        }
        // RTS without a peer: the peer's process did not exist when the queue pair was connected.
        return silent_peer_result(qp, sq, view);
    };
    if out.peer.is_dead() {
        return if qp.qp_type == QpType::Rc && !out.peer.is_death_grace_over() {
            silent_peer_result(qp, sq, view)
        } else {
            dead_peer_result_for(qp, &out.peer, view)
        };
    }
    let Some(dest) = out.peer.segment.qp(out.dest_qp_index) else {
        return ExecutionResult::Failed(IBV_WC_LOC_QP_OP_ERR);
    };
    if !is_same_ready_qp(dest, out, qp.qpn) && !check_psns_or_reconnect(qp, sq) {
        return silent_peer_result(qp, sq, view);
    }
    sq.peer_silence_wait.end_wait();
    let outcome = match view.wr.opcode {
        IBV_WR_SEND => connected_send(qp, sq, view, RecordKind::Send),
        IBV_WR_SEND_WITH_IMM => connected_send(qp, sq, view, RecordKind::SendWithImm),
        IBV_WR_SEND_WITH_INV => connected_send(qp, sq, view, RecordKind::SendWithInv),
        IBV_WR_BIND_MW | IBV_WR_LOCAL_INV => bind_or_invalidate_window(qp, view),
        // A responder executes requests in order (IBTA vol. 1, 9.5). Requests that access memory wait until the SENDs
        // in front of them have reached the receiver's memory.
        IBV_WR_RDMA_WRITE if has_pending_ring_work(sq) => leave_write_to_receiver(qp, sq, view),
        _ if has_pending_ring_work(sq) => ExecutionResult::NotPossibleYet,
        IBV_WR_RDMA_WRITE => execute_write(qp, sq, view).unwrap_or_else(|o| o),
        IBV_WR_RDMA_WRITE_WITH_IMM => execute_write_with_imm(qp, sq, view),
        IBV_WR_RDMA_READ => execute_read(qp, sq, view, qp.pd_number).unwrap_or_else(|o| o),
        IBV_WR_ATOMIC_WRITE => execute_atomic_write(qp, sq, view).unwrap_or_else(|o| o),
        IBV_WR_FLUSH => execute_flush(qp, sq, view).unwrap_or_else(|o| o),
        _ => execute_atomic(qp, sq, view).unwrap_or_else(|o| o),
    };
    if !matches!(
        outcome,
        ExecutionResult::NotPossibleYet | ExecutionResult::Failed(_)
    ) {
        count_request_traffic(qp, sq, view, DestinationPort::PEER);
    }
    outcome
}
