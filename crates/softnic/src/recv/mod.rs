//! The receive side of a queue pair: receive queues, and the processing of records in inbound rings.

mod inbound_shm_ring;
mod packets;
mod place_payload;
mod queue;
mod requested_memory;
mod run_fast_path;
mod tag_matching;
mod xrc;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nic_core::retry_timeouts::{self, RNR_RETRY_FOREVER, WaitTimer};
use verbs_abi::*;

use crate::cq::{ReceivedSend, WcSink};
use crate::nic::Nic;
use crate::qp::Qp;
use crate::qp_attributes::{QpState, QpType};
use crate::region_cache::{KeyError, RegionCache};
use crate::ring_record::{
    FLAG_BY_REFERENCE, FLAG_RECEIVER_SEND_COMPLETES_FIRST, FLAG_SOLICITED, RecordKind,
    make_record_header,
};
use crate::send;
use crate::sge::{LastRegion, SgeError, check_and_pin_sge, is_made_to_fail};
use crate::why::{self, FailureCause};
use shm::clock::now_ns;
use shm::fabric::Peer;
use shm::fabric::layout::*;
use shm::fabric::ring::{Consumer, RingRecord};
use shm::mem::{MemoryFault, copy};

use inbound_shm_ring::MessagePathInCompletion;
use place_payload::*;
use tag_matching::{PendingRendezvous, TagMatchResult};

pub(crate) use inbound_shm_ring::{InboundShmRing, wake_waiter_if_cq_armed};
pub(crate) use packets::{
    PacketResponderState, QpResponder, awaits_gap_nak, enqueue_owed_acknowledgement,
    has_answers_to_send, make_responder_nak_after_host_drops, process_request_or_datagram,
    send_answers,
};
pub(crate) use queue::RecvQueue;
pub(crate) use tag_matching::{CompletionTag, TagList};

/// Bytes that precede the payload in a UD receive buffer: `ibv_post_recv(3)`.
pub(crate) const GRH_BYTES: usize = 40;

/// The receive side of a queue pair, owned by its receive CQ.
pub(crate) struct RecvSide {
    qp: Arc<Qp>,
    rings: Vec<InboundShmRing>,
    /// Index of the ring near the front that is polled first.
    front_ring_polled_first: usize,
    ring_cursor: usize,
    pass_count: u32,
    /// True if a ring is to be removed when its sender has closed it.
    has_stopped_ring: bool,
    /// The rendezvous that later messages wait for.
    pending_rendezvous: Option<Box<PendingRendezvous>>,
    local_regions: RegionCache,
}

/// The result of handling a record.
enum RecordResult {
    /// The record is done; continue.
    Done,
    /// No receive WR is posted for the record yet.
    NoReceiveWrYet,
    /// The queue pair failed; the requester gets this status.
    QueuePairFailed(ibv_wc_status),
    /// The sender has ended or has withdrawn the record.
    SenderEndedOrWithdrew,
    /// The payload of a rendezvous is still to come.
    Rendezvous(Box<PendingRendezvous>),
    /// The requester's own memory cannot be read: the requester gets a local error, and nothing changes here.
    SenderMemoryUnreadable,
}

impl RecvSide {
    pub(crate) fn new(qp: Arc<Qp>) -> Self {
        Self {
            qp,
            rings: Vec::new(),
            front_ring_polled_first: 0,
            ring_cursor: 0,
            pass_count: 0,
            has_stopped_ring: false,
            pending_rendezvous: None,
            local_regions: RegionCache::new(),
        }
    }

    #[inline]
    pub(crate) fn qp(&self) -> &Arc<Qp> {
        &self.qp
    }

    /// Tells peers whether any next message makes a completion. If so, they may wake the program themselves. The
    /// receive CQ, whose lock is held, is about to be armed.
    pub(crate) fn publish_whether_any_next_message_completes(&self) {
        let qp = &*self.qp;
        let takes = matches!(qp.qp_type, QpType::Rc | QpType::Uc)
            && matches!(qp.state(), QpState::Rtr | QpState::Rts)
            && !self.has_stopped_ring
            && self.pending_rendezvous.is_none()
            && qp.srq.as_ref().is_none_or(|srq| srq.has_one_recv_cq())
            && qp.recv_queue().lock().has_wr_for_any_tag();
        let shared = qp.shared_state();
        if takes {
            let until = match &self.rings[..] {
                // Each message takes at least one slot. Other queue pairs may take the WRs of an SRQ.
                [ring] if qp.srq.is_none() => {
                    ring.consumer.read_position() + qp.recv_queue().lock().len()
                }
                _ => 0,
            };
            if shared
                .messages_complete_up_to_position
                .load(Ordering::Relaxed)
                != until
            {
                shared
                    .messages_complete_up_to_position
                    .store(until, Ordering::Relaxed);
            }
        }
        if shared.next_message_completes.load(Ordering::Relaxed) != u32::from(takes) {
            shared
                .next_message_completes
                .store(takes.into(), Ordering::Relaxed);
        }
    }

    pub(crate) fn attach_ring(&mut self, ring: InboundShmRing) {
        self.rings.push(ring);
    }

    /// Detaches from all rings.
    pub(crate) fn detach_all_rings(&mut self) {
        for ring in self.rings.drain(..) {
            ring.detach();
        }
        self.pending_rendezvous = None;
        self.local_regions.clear();
    }

    /// Makes completions of arrived records, from at most `2 * scan` rings. With `ended`, also checks which empty rings
    /// have ended. Returns true if a record waits for a deadline.
    #[inline(always)]
    pub(crate) fn complete_arrived_records(
        &mut self,
        sink: &mut WcSink<'_>,
        scan: usize,
        ended: bool,
    ) -> bool {
        if let [_] = self.rings[..]
            && !self.has_stopped_ring
            && self.pending_rendezvous.is_none()
            && matches!(self.qp.state(), QpState::Rtr | QpState::Rts)
            && !self.qp.shared_state().has_refused_request()
        {
            self.receive_from_ring(0, sink, scan == usize::MAX, ended)
        } else {
            self.complete_arrived_records_in_any_state(sink, scan, ended)
        }
    }

    #[inline(never)]
    fn complete_arrived_records_in_any_state(
        &mut self,
        sink: &mut WcSink<'_>,
        scan: usize,
        ended: bool,
    ) -> bool {
        let state = self.qp.state();
        if state == QpState::Err {
            if let Some(rendezvous) = self.pending_rendezvous.take() {
                rendezvous.flush(&self.qp, sink);
            }
            self.flush(sink);
            return false;
        }
        if !matches!(
            state,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        ) {
            return false;
        }
        if self.qp.shared_state().has_refused_request() {
            self.fail_if_request_was_refused();
            return false;
        }
        if self.continue_rendezvous(sink) {
            return true;
        }
        let waiting = self.receive_from_many_rings(sink, scan, ended);
        if self.has_stopped_ring {
            self.remove_closed_rings();
        }
        waiting
    }

    /// Continues a rendezvous. Returns true if it has to wait.
    fn continue_rendezvous(&mut self, sink: &mut WcSink<'_>) -> bool {
        let Some(rendezvous) = &mut self.pending_rendezvous else {
            return false;
        };
        if sink.is_full() || !rendezvous.continue_rendezvous(&self.qp, sink) {
            return true;
        }
        self.pending_rendezvous = None;
        false
    }

    #[inline]
    fn receive_from_many_rings(&mut self, sink: &mut WcSink<'_>, scan: usize, ended: bool) -> bool {
        // Every eighth time the rings behind the front come first, so that a busy ring does not starve the others.
        self.pass_count = self.pass_count.wrapping_add(1);
        let far_first = self.pass_count.is_multiple_of(8);
        let mut waiting = far_first && self.receive_from_cursor_rings(sink, scan, ended);
        waiting |= self.receive_from_front_rings(sink, scan, ended);
        waiting |= !far_first && self.receive_from_cursor_rings(sink, scan, ended);
        waiting
    }

    #[inline]
    fn receive_from_front_rings(
        &mut self,
        sink: &mut WcSink<'_>,
        scan: usize,
        ended: bool,
    ) -> bool {
        if sink.is_full() {
            return false;
        }
        let near = self.rings.len().min(scan);
        let mut waiting = false;
        for i in round_robin(self.front_ring_polled_first, near) {
            waiting |= self.receive_from_ring(i, sink, scan == usize::MAX, ended);
            if sink.is_full() {
                // The next poll starts behind the ring where this poll had to stop.
                self.front_ring_polled_first = i + 1;
                return waiting;
            }
        }
        self.front_ring_polled_first = 0;
        waiting
    }

    #[inline]
    fn receive_from_cursor_rings(
        &mut self,
        sink: &mut WcSink<'_>,
        scan: usize,
        ended: bool,
    ) -> bool {
        let n = self.rings.len();
        let mut waiting = false;
        if n > scan {
            for _ in 0..scan {
                if sink.is_full() {
                    break;
                }
                self.ring_cursor = if self.ring_cursor + 1 >= n || self.ring_cursor < scan {
                    scan
                } else {
                    self.ring_cursor + 1
                };
                let (i, before) = (self.ring_cursor, sink.len());
                waiting |= self.receive_from_ring(i, sink, scan == usize::MAX, ended);
                if sink.len() > before {
                    self.rings.swap(i, i % scan);
                }
            }
        }
        waiting
    }

    /// Flushes the posted receive WRs after the queue pair has failed.
    #[cold]
    fn flush(&mut self, sink: &mut WcSink<'_>) {
        if self.qp.srq.is_some() {
            return;
        }
        let mut rq = self.qp.rq.lock();
        while !sink.is_full() {
            let Some(wqe) = rq.take_oldest() else { return };
            sink.push(report_failed_recv_and_make_wc(
                &self.qp,
                wqe.wr_id,
                IBV_WC_WR_FLUSH_ERR,
            ));
        }
    }

    /// Fails the queue pair if a requester has reported that it refuses a request.
    #[cold]
    fn fail_if_request_was_refused(&mut self) {
        let event = self.qp.shared_state().take_refused_request();
        if let Some(event) = event
            && self.qp.qp_type == QpType::Rc
        {
            self.qp.flush_and_enter_error();
            self.qp.raise_event(event);
        }
    }

    #[cold]
    fn remove_closed_rings(&mut self) {
        let qp = Arc::clone(&self.qp);
        self.rings.retain_mut(|ring| {
            let over = ring.is_stopped
                && (!qp.qp_type.is_connected()
                    || ring.peer.is_dead()
                    || ring
                        .header()
                        .is_none_or(|h| h.lifecycle_state.load(Ordering::Acquire) != RING_OPEN));
            if over {
                ring.detach();
            }
            !over
        });
        self.has_stopped_ring = self.rings.iter().any(|ring| ring.is_stopped);
    }

    #[inline(always)]
    fn receive_from_ring(
        &mut self,
        i: usize,
        sink: &mut WcSink<'_>,
        by_engine: bool,
        ended: bool,
    ) -> bool {
        let Some(ring) = self.rings.get_mut(i) else {
            return false;
        };
        if ring.is_stopped {
            return false;
        }
        if ring.consumer.is_empty() {
            ring.consumer.release_slots();
            if ended {
                Self::stop_if_sender_ended(ring);
                self.has_stopped_ring |= ring.is_stopped;
            }
            return false;
        }
        if self.qp.qp_type == QpType::Ud {
            self.take_records::<true>(i, sink, by_engine)
        } else {
            self.take_records::<false>(i, sink, by_engine)
        }
    }

    /// [`receive_from_ring`](Self::receive_from_ring) for a ring with records in it.
    #[inline(never)]
    fn take_records<const UD: bool>(
        &mut self,
        i: usize,
        sink: &mut WcSink<'_>,
        by_engine: bool,
    ) -> bool {
        let Some(ring) = self.rings.get_mut(i) else {
            return false;
        };
        let qp = &*self.qp;
        let mut rq = None;
        let mut window = LastRegion::none();
        let mut waiting = false;
        while !sink.is_full() {
            let queue = rq.get_or_insert_with(|| qp.recv_queue().lock());
            run_fast_path::complete_plain_sends::<UD>(qp, ring, queue, &window, sink);
            if sink.is_full() {
                break;
            }
            let record = match ring.consumer.peek() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(_) => {
                    Self::stop_at_garbage(qp, ring);
                    break;
                }
            };
            if !UD && record.header.flags & FLAG_RECEIVER_SEND_COMPLETES_FIRST != 0 {
                // A send queue's lock is taken before that of a receive queue. A deferred WRITE pins two regions.
                rq = None;
                window.release_region();
                if complete_earlier_sends(qp, sink) {
                    break;
                }
            }
            let rq = rq.get_or_insert_with(|| qp.recv_queue().lock());
            let slots = record.slot_count();
            let mut from = RecordOrigin {
                peer: &ring.peer,
                ring_offset: ring.ring_offset,
                src_qpn: ring.src_qpn,
                sender_payload_regions: &mut ring.sender_regions,
                path_in_completion: &mut ring.path_in_completion,
            };
            let mut to = RecordDestination {
                last_recv_region: &mut window,
                local_regions: &mut self.local_regions,
                sink,
                is_engine_thread: by_engine,
            };
            let handled = deliver_record::<UD>(qp, rq, &record, &mut from, &mut to);
            let goes_on = Self::apply_record_result(qp, ring, &handled, slots, &mut waiting);
            if let RecordResult::Rendezvous(begun) = handled {
                self.pending_rendezvous = Some(begun);
                break;
            }
            if !goes_on {
                break;
            }
        }
        if let Some(srq) = &qp.srq
            && let Some(rq) = &mut rq
        {
            srq.raise_limit_event_if_due(rq);
        }
        drop(rq);
        ring.release_consumed_records(!UD, by_engine);
        self.has_stopped_ring |= ring.is_stopped;
        // A rendezvous pins two regions.
        window.release_region();
        waiting | self.continue_rendezvous(sink)
    }

    /// Applies the result of a record to its ring. Returns false if the ring has to stop here. Sets `waiting` if the
    /// record waits for a deadline.
    #[inline(always)]
    fn apply_record_result(
        qp: &Qp,
        ring: &mut InboundShmRing,
        handled: &RecordResult,
        slots: u64,
        waiting: &mut bool,
    ) -> bool {
        match *handled {
            RecordResult::Done | RecordResult::Rendezvous(_) => {
                ring.consumer.advance(slots);
                ring.rnr_wait.end_wait();
                return true;
            }
            RecordResult::NoReceiveWrYet if !qp.qp_type.is_connected() => {}
            RecordResult::NoReceiveWrYet => *waiting |= Self::handle_rnr(qp, ring),
            RecordResult::QueuePairFailed(status) => {
                Self::refuse_record_and_fail_qp(qp, ring, status)
            }
            RecordResult::SenderEndedOrWithdrew => ring.is_stopped = true,
            RecordResult::SenderMemoryUnreadable if qp.qp_type == QpType::Rc => {
                ring.refuse_front_record(IBV_WC_LOC_PROT_ERR, None)
            }
            RecordResult::SenderMemoryUnreadable => {
                ring.consumer.advance(slots);
                return true;
            }
        }
        false
    }

    /// Stops a ring whose content is not a record.
    #[cold]
    fn stop_at_garbage(qp: &Qp, ring: &mut InboundShmRing) {
        tracing::warn!(
            "queue pair {:#x} got garbage from {:#x}",
            qp.qpn,
            ring.src_qpn
        );
        if qp.qp_type == QpType::Rc {
            Self::refuse_record_and_fail_qp(qp, ring, IBV_WC_REM_OP_ERR);
        }
        ring.is_stopped = true;
    }

    /// Stops an empty ring if its sender has ended or closed it.
    #[cold]
    fn stop_if_sender_ended(ring: &mut InboundShmRing) {
        let over = ring.peer.is_dead()
            || ring
                .header()
                .is_some_and(|h| h.lifecycle_state.load(Ordering::Acquire) != RING_OPEN);
        if over && matches!(ring.consumer.peek(), Ok(None)) {
            ring.is_stopped = true;
        }
    }

    #[cold]
    fn refuse_record_and_fail_qp(qp: &Qp, ring: &mut InboundShmRing, status: ibv_wc_status) {
        ring.refuse_front_record(status, why::take_last_cause());
        qp.flush_and_enter_error();
    }

    /// Handles a record at the front of a reliable ring that has no receive WR. Returns true if a deadline is running.
    #[cold]
    fn handle_rnr(qp: &Qp, ring: &mut InboundShmRing) -> bool {
        // The count is read each time: a ring may be opened before its sender reaches RTS and knows the count.
        let rnr_retry = ring
            .header()
            .map_or(RNR_RETRY_FOREVER, |h| h.rnr_retry.load(Ordering::Relaxed));
        let Some(patience) = requester_rnr_timeout_ns(qp, rnr_retry) else {
            return false;
        };
        if ring.rnr_wait.start_or_elapsed_ns(now_ns()) >= patience {
            // The requester gives up; this queue pair keeps waiting (IBTA vol. 1, 9.7.5.2.8).
            ring.refuse_front_record(IBV_WC_RNR_RETRY_EXC_ERR, Some(FailureCause::NoReceiveWr));
            return false;
        }
        true
    }
}

/// Returns the time that a requester with `rnr_retry` waits for a receive WR of `qp`. `None` means no limit.
#[cold]
fn requester_rnr_timeout_ns(qp: &Qp, rnr_retry: u32) -> Option<u64> {
    let timer = qp.shared_state().min_rnr_timer.load(Ordering::Relaxed);
    retry_timeouts::total_rnr_wait_ns(rnr_retry, u8::try_from(timer & 31).unwrap_or(0))
}

/// Returns all indices below `n` once, from `start` on and then from 0.
#[inline]
pub(crate) fn round_robin(start: usize, n: usize) -> impl Iterator<Item = usize> {
    let start = if start < n { start } else { 0 };
    (start..start + n).map(move |i| if i < n { i } else { i - n })
}

/// Reports a failed receive WR, and returns its completion.
#[cold]
pub(crate) fn report_failed_recv_and_make_wc(qp: &Qp, wr_id: u64, status: ibv_wc_status) -> ibv_wc {
    let cause = why::take_last_cause();
    let report = why::FailureReport {
        qp: qp.report_description(),
        wr_id,
        opcode: IBV_WC_RECV,
        status,
        cause,
    };
    report.print_or_count();
    // The man page promises no opcode here. It tells the program that a receive WR failed.
    ibv_wc {
        opcode: IBV_WC_RECV,
        ..failed_recv_wc(qp, wr_id, status, why::vendor_err(cause))
    }
}

/// Returns a completion in error; only these fields of it are valid (`ibv_poll_cq(3)`).
#[cold]
pub(crate) fn failed_recv_wc(
    qp: &Qp,
    wr_id: u64,
    status: ibv_wc_status,
    vendor_err: u32,
) -> ibv_wc {
    let mut wc = ibv_wc::zeroed();
    wc.wr_id = wr_id;
    wc.status = status;
    wc.vendor_err = vendor_err;
    wc.qp_num = qp.qpn;
    wc
}

/// The origin of a record.
struct RecordOrigin<'a> {
    peer: &'a Arc<Peer>,
    /// Offset of the ring in the peer's segment.
    ring_offset: usize,
    src_qpn: u32,
    /// Regions of the peer that hold payloads sent by reference.
    sender_payload_regions: &'a mut RegionCache,
    path_in_completion: &'a mut MessagePathInCompletion,
}

/// The destination of a record, besides its receive WR.
struct RecordDestination<'a, 'wc> {
    last_recv_region: &'a mut LastRegion<true>,
    local_regions: &'a mut RegionCache,
    sink: &'a mut WcSink<'wc>,
    is_engine_thread: bool,
}

/// Delivers a record to the receive WR at the front.
#[inline(always)]
fn deliver_record<const UD: bool>(
    qp: &Qp,
    rq: &mut RecvQueue,
    record: &RingRecord<'_>,
    from: &mut RecordOrigin<'_>,
    to: &mut RecordDestination<'_, '_>,
) -> RecordResult {
    let RecordOrigin {
        peer,
        ring_offset: ring_at,
        src_qpn,
        sender_payload_regions: ref mut remote,
        path_in_completion: ref mut path,
    } = *from;
    let RecordDestination {
        last_recv_region: ref mut window,
        local_regions: ref mut local,
        ref mut sink,
        is_engine_thread: by_engine,
    } = *to;
    let header = record.header;
    if UD && header.extra_value != qp.qkey.load(Ordering::Relaxed) {
        // IBTA vol. 1, 10.2.5: a packet with the wrong Q_Key is silently dropped.
        let own = qp.qkey.load(Ordering::Relaxed);
        why::report_datagram_with_wrong_qkey(qp.qpn, src_qpn, header.extra_value, own);
        return RecordResult::Done;
    }
    let (mut opcode, flags) = match RecordKind::from_header(header.kind) {
        Some(RecordKind::Send) => (IBV_WC_RECV, 0),
        Some(RecordKind::SendWithImm) => (IBV_WC_RECV, IBV_WC_WITH_IMM),
        Some(RecordKind::Frame) => (IBV_WC_RECV, 0),
        Some(RecordKind::FrameWithGoodChecksums) => (IBV_WC_RECV, IBV_WC_IP_CSUM_OK),
        Some(RecordKind::WriteWithImm) => (IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_WITH_IMM),
        Some(RecordKind::SendWithInv) => {
            if rq.len() != 0 && !invalidate_window(qp, header.imm) {
                return fail_invalidation(qp, rq, sink);
            }
            (IBV_WC_RECV, IBV_WC_WITH_INV)
        }
        Some(RecordKind::OrderedWrite) if !UD => {
            return execute_ordered_write(qp, record, from, to);
        }
        None | Some(RecordKind::OrderedWrite) => {
            return RecordResult::QueuePairFailed(IBV_WC_REM_INV_REQ_ERR);
        }
    };
    if !UD && rq.tag_list.is_some() && opcode == IBV_WC_RECV {
        let source = tag_matching::RecordSource {
            peer,
            ring_offset: ring_at,
            src_qpn,
            local_regions: local,
            sender_regions: remote,
        };
        // A payload by reference is copied between two regions that are pinned.
        window.release_region();
        match tag_matching::deliver_to_matching_entry(qp, rq, record, source, flags, sink) {
            TagMatchResult::Handled(handled) => return handled,
            TagMatchResult::Unmatched(as_what) => opcode = as_what,
        }
    }
    let pd = rq.buffer_pd_number;
    let Some(wqe) = rq.take_oldest() else {
        return if qp.qp_type == QpType::Rc || (by_engine && !qp.qp_type.is_connected()) {
            // The program is about to poll, or sleeps. The engine leaves the datagram to the program, whose poll may
            // drop it.
            rq.is_message_waiting = true;
            RecordResult::NoReceiveWrYet
        } else {
            // IBTA vol. 1, 9.8.3.2 and 9.9.3: unreliable services drop the message.
            RecordResult::Done
        };
    };
    let wr_id = wqe.wr_id;
    let mut wc = ibv_wc {
        wr_id,
        status: IBV_WC_SUCCESS,
        opcode,
        vendor_err: 0,
        byte_len: header.len_or_value,
        imm: ibv_wc_imm {
            imm_data: header.imm,
        },
        qp_num: qp.qpn,
        src_qp: src_qpn,
        wc_flags: flags,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    };
    let mut place_len = header.len_or_value as usize;
    if opcode == IBV_WC_RECV_RDMA_WITH_IMM {
        place_len = 0;
    }
    let mut placed = Ok(());
    if UD {
        #[allow(clippy::cast_possible_truncation)] // 40
        let grh_bytes = GRH_BYTES as u32;
        wc.byte_len = header.len_or_value.saturating_add(grh_bytes);
        wc.wc_flags |= path.wc_flags;
        wc.slid = path.slid;
        wc.sl = path.sl;
        wc.dlid_path_bits = path.dlid_path_bits;
        if place_len != 0 || !wqe.sges.is_empty() {
            let grh = path.grh_with_lengths(header.len_or_value, flags != 0);
            placed = place_ud_message(qp, pd, wqe.sges, record, grh, window, local);
        }
    } else if place_len != 0 {
        placed = place_connected_message(
            qp, pd, wqe.sges, record, peer, window, local, remote, src_qpn,
        );
        if placed.is_ok()
            && header.flags & FLAG_BY_REFERENCE != 0
            && has_withdrawn_records(peer, ring_at)
        {
            placed = Err(PlaceError::SenderGone);
        }
    }
    if let Err(e) = placed {
        return complete_recv_after_place_error(qp, rq, wr_id, &e, sink);
    }
    if opcode == IBV_WC_TM_RECV
        && let Some(list) = &mut rq.tag_list
    {
        list.count_unexpected_message();
    }
    sink.has_solicited_or_error |= header.flags & FLAG_SOLICITED != 0;
    sink.push(wc);
    RecordResult::Done
}

/// Invalidates a memory window at a peer's request. Returns false if that is not allowed.
#[cold]
fn invalidate_window(qp: &Qp, key: u32) -> bool {
    qp.nic
        .key_table
        .invalidate_window(&qp.nic.fabric, qp.qpn, key)
}

/// Fails the receive WR and the SEND after an invalidation that is not allowed ("class J" of IBTA vol. 1, 9.9.3.1). The
/// statuses are those of Soft-RoCE's `RESPST_ERR_INVALIDATE_RKEY` and of a NAK for a remote operational error.
#[cold]
fn fail_invalidation(qp: &Qp, rq: &mut RecvQueue, sink: &mut WcSink<'_>) -> RecordResult {
    if let Some(wqe) = rq.take_oldest() {
        let wr_id = wqe.wr_id;
        sink.push(report_failed_recv_and_make_wc(
            qp,
            wr_id,
            IBV_WC_REM_INV_REQ_ERR,
        ));
    }
    RecordResult::QueuePairFailed(IBV_WC_REM_OP_ERR)
}

/// Completes the sends of a queue pair before a message that answers one of them, if both complete in one queue. On a
/// NIC the acknowledgement comes long before the answer. Returns true if `sink` is full.
#[cold]
fn complete_earlier_sends(qp: &Qp, sink: &mut WcSink<'_>) -> bool {
    if Arc::ptr_eq(&qp.send_cq, &qp.recv_cq) {
        qp.poll_sends(sink, true);
    }
    sink.is_full()
}

/// Returns true if the sender has withdrawn the records in its ring. Called after the payload has been copied: a sender
/// withdraws before its program may write to the payload again.
#[cold]
fn has_withdrawn_records(peer: &Peer, ring_at: usize) -> bool {
    // SYNC POINT W (see `OutboundShmRing::withdraw`): the copied bytes are older than the flag that is read here.
    std::sync::atomic::fence(Ordering::SeqCst);
    peer.segment
        .ring_header(ring_at)
        .is_none_or(|h| h.lifecycle_state.load(Ordering::Relaxed) == RING_WITHDRAWN)
}

/// Handles a payload that could not be placed: completes the receive WR, and returns what the requester gets.
#[cold]
fn complete_recv_after_place_error(
    qp: &Qp,
    rq: &mut RecvQueue,
    wr_id: u64,
    e: &PlaceError,
    sink: &mut WcSink<'_>,
) -> RecordResult {
    let (status, handled) = match e {
        // The message did not arrive whole; its receive WR waits for the next one.
        PlaceError::SenderGone => {
            rq.put_back_last_taken();
            return RecordResult::SenderEndedOrWithdrew;
        }
        PlaceError::TooLong => (
            IBV_WC_LOC_LEN_ERR,
            RecordResult::QueuePairFailed(IBV_WC_REM_INV_REQ_ERR),
        ),
        PlaceError::ReceiveMemoryUnwritable => (
            IBV_WC_LOC_PROT_ERR,
            RecordResult::QueuePairFailed(IBV_WC_REM_OP_ERR),
        ),
        // The fault is the requester's: its device could not have sent the message.
        PlaceError::SenderMemoryUnreadable => {
            rq.put_back_last_taken();
            return RecordResult::SenderMemoryUnreadable;
        }
    };
    // The sender is told the cause as well.
    let cause = why::take_last_cause().or(FailureCause::only_cause_of_status(status));
    cause.inspect(|cause| why::note_cause(*cause));
    sink.push(report_failed_recv_and_make_wc(qp, wr_id, status));
    cause.inspect(|cause| why::note_cause(*cause));
    handled
}
