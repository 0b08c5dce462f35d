//! The requester of a reliable connection: segments requests into packets, retransmits lost packets, and processes
//! responses (requester and completer of IBTA vol. 1, 9.7).
//!
//! Packets have sequence numbers of 64 bits, whose lower 24 bits determine the PSN. A request gets its sequence numbers
//! when it is posted. Two numbers describe the progress: all packets in front of `acked` are acknowledged, and `next`
//! is sent next. A retry sets `next` back to `acked` (go-back-N).

mod config;
mod packet_window;
mod process_response;
mod queue;
mod retry;

pub use crate::request::{LocalFault, LocalMemory, Request, RequestFailure, RequestOperation};
pub use config::{
    DEFAULT_MIN_PROBE_WAIT_NS, DEFAULT_WINDOW_BYTES, DEFAULT_WINDOW_PACKETS, RequesterConfig,
    SOCKET_BUFFER_OVERHEAD_BYTES_PER_PACKET,
};

use crate::counts::StateMachineCounters;
use crate::dcqcn::ReactionPoint;
use crate::opcode::{PacketOperation, Transport};
use crate::packet::{
    NAK_INVALID_REQUEST, NAK_PSN_SEQUENCE, NAK_REMOTE_ACCESS, Packet, Syndrome,
    emit_with_payload_writer,
};
use crate::psn::Psn;
use crate::segment::{ConnectionParameters, Segment, make_segment};
use crate::sequence::{FIRST_SEQUENCE, PsnNumbering};
use packet_window::PacketWindow;
use process_response::ResponseOutcome;
use queue::{AckEffect, QueuedRequest, RequestQueue};
use retry::{RetryState, RetryTimer};

/// Largest window. PSNs of packets that are 2^23 apart are ambiguous (IBTA vol. 1, 9.7.1).
const MAX_WINDOW_PACKETS: u32 = 1 << 22;

/// Returns the number of READ requests for which a window has room; a long READ is several requests on the wire.
///
/// The responses to one request arrive in one burst, which the window cannot limit, and the queue pairs of a process
/// share a socket buffer. So requests are short if many of them may be outstanding.
fn read_requests_per_window(max_rd_atomic: u8) -> u32 {
    u32::from(max_rd_atomic).clamp(2, 8)
}

/// The requester of a reliable connection.
#[derive(Debug)]
pub struct Requester {
    connection_parameters: ConnectionParameters,
    numbering: PsnNumbering,
    window: PacketWindow,
    max_rd_atomic: u32,
    queue: RequestQueue,
    retry: RetryState,
    congestion: Option<ReactionPoint>,
    failure: Option<RequestFailure>,
    /// The PSN that the responder asked for, if that was never sent and nothing has been acknowledged.
    never_sent_psn_asked_for: Option<Psn>,
    /// Position of a request whose payload cannot be read. Nothing is sent from this position on.
    unreadable_request_position: Option<u64>,
    /// Number of packets since the last one with an acknowledgement request.
    packets_since_ack_request: u32,
    /// Counters since the last [`StateMachineCounters::take_unless_all_zero`].
    pub counts: StateMachineCounters,
}

impl Requester {
    /// Makes a requester that has sent nothing.
    #[must_use]
    pub fn new(config: RequesterConfig) -> Self {
        let window = PacketWindow::new(
            config.window_packets.min(MAX_WINDOW_PACKETS),
            config.window_bytes,
            config.mtu_bytes,
        );
        let connection = ConnectionParameters {
            transport: Transport::Rc,
            dest_qpn: config.dest_qpn,
            pkey: config.pkey,
            mtu_bytes: config.mtu_bytes,
            max_responses_per_read_request: (window.largest_window_full_packets()
                / read_requests_per_window(config.max_rd_atomic))
            .max(1),
        };
        Self {
            connection_parameters: connection,
            numbering: PsnNumbering::new(config.first_psn),
            window,
            max_rd_atomic: u32::from(config.max_rd_atomic.max(1)),
            queue: RequestQueue::new(connection),
            retry: RetryState::new(&config),
            congestion: config.congestion.map(ReactionPoint::new),
            failure: None,
            never_sent_psn_asked_for: None,
            unreadable_request_position: None,
            packets_since_ack_request: 0,
            counts: StateMachineCounters::default(),
        }
    }

    /// Queues a request and returns its position: 1 for the first.
    pub fn post(&mut self, request: Request) -> u64 {
        let psns = self
            .connection_parameters
            .request_psn_count(&request.operation);
        self.queue.push(request, psns)
    }

    /// Processes a received response or congestion notification. Other packets are ignored.
    pub fn process_received_packet(
        &mut self,
        now_ns: u64,
        packet: &Packet<'_>,
        memory: &mut impl LocalMemory,
    ) {
        let is_connected = matches!(packet.bth.transport, Transport::Rc | Transport::Cnp);
        if self.failure.is_some() || !is_connected {
            return;
        }
        match packet.bth.operation {
            PacketOperation::Acknowledge => self.process_acknowledge(now_ns, packet),
            PacketOperation::ReadResponse | PacketOperation::AtomicAcknowledge => {
                self.process_result(now_ns, packet, memory);
            }
            PacketOperation::Cnp => {
                if let Some(congestion) = &mut self.congestion {
                    self.counts.rp_cnp_handled += 1;
                    congestion.on_cnp_received(now_ns);
                }
            }
            _ => {}
        }
    }

    /// Returns the number of requests that are done, in posting order.
    #[must_use]
    pub fn done_request_count(&self) -> u64 {
        self.queue.done_request_count()
    }

    /// Returns the failure of the oldest request that is not done. After a failure, nothing is sent or received.
    #[must_use]
    pub fn failure(&self) -> Option<RequestFailure> {
        self.failure
    }

    /// Returns the PSN that the responder asked for by a NAK, if that was never sent and nothing has been acknowledged: it
    /// expects another first PSN.
    #[must_use]
    pub fn never_sent_psn_asked_for(&self) -> Option<Psn> {
        self.never_sent_psn_asked_for
            .filter(|_| self.queue.acked_until_sequence() == FIRST_SEQUENCE)
    }

    /// Returns the number of requests that are posted and not done.
    #[must_use]
    pub fn unfinished_request_count(&self) -> usize {
        self.queue.len()
    }

    /// Changes the response timeout.
    pub fn set_timeout_ns(&mut self, timeout_ns: Option<u64>) {
        self.retry.timeout_ns = timeout_ns;
    }

    /// Changes the number of retries without progress.
    pub fn set_retry_cnt(&mut self, retry_cnt: u8) {
        self.retry.set_retry_cnt(retry_cnt);
    }

    /// Changes the number of retries after RNR NAKs; 7 is unlimited.
    pub fn set_rnr_retry(&mut self, rnr_retry: u8) {
        self.retry.set_rnr_retry(rnr_retry);
    }

    /// Changes the largest number of outstanding READs, atomics and FLUSHes.
    pub fn set_max_rd_atomic(&mut self, max_rd_atomic: u8) {
        self.max_rd_atomic = u32::from(max_rd_atomic.max(1));
    }

    /// Appends the next packet to `out`, from the BTH through the pad; returns false if no packet can be sent now.
    pub fn append_next_packet(
        &mut self,
        now_ns: u64,
        memory: &mut impl LocalMemory,
        out: &mut Vec<u8>,
    ) -> bool {
        if self.failure.is_some() || self.retry.is_rnr_wait_ongoing(now_ns) {
            return false;
        }
        let Some((position, slot)) = self.next_sendable_request() else {
            return false;
        };
        if self.rate_limited_until(now_ns).is_some() {
            return false;
        }
        let next = self.queue.next_send_sequence();
        let psn = self.numbering.psn(next);
        let mut segment = make_segment(
            &self.connection_parameters,
            &slot.request,
            slot.packet_index_of(next),
            psn,
        );
        let asks = self.asks_for_acknowledgement(&slot);
        segment.bth.ack_request = asks;
        let start = out.len();
        if !self.append_packet_if_readable(position, &segment, memory, out) {
            return false;
        }
        self.packets_since_ack_request = if asks {
            0
        } else {
            self.packets_since_ack_request + 1
        };
        let is_first_time = next >= self.queue.sent_end_sequence();
        let measurable = (asks && is_first_time).then_some(next);
        self.retry
            .on_packet_sent(now_ns, self.queue.has_outstanding_packets(), measurable);
        self.queue.advance_after_send(&slot);
        if let Some(congestion) = &mut self.congestion {
            congestion.on_packet_sent(out.len() - start, now_ns);
        }
        true
    }

    /// Returns the request whose next packet the window, fences and `max_rd_atomic` allow to send. The rate limit is
    /// not checked.
    fn next_sendable_request(&self) -> Option<(u64, QueuedRequest)> {
        let (position, slot) = self.queue.next_request_to_send()?;
        let out = self.queue.next_send_sequence() - self.queue.acked_until_sequence();
        let is_in_window = out < self.window_packets_for(&slot);
        let begins = self.queue.next_send_sequence() == slot.first_sequence;
        let awaited = self.queue.requests_awaiting_response();
        let waits_for_responses = (begins && slot.request.fence && awaited > 0)
            || (slot.completes_by_own_response() && awaited >= self.max_rd_atomic);
        let is_held = waits_for_responses || self.unreadable_request_position == Some(position);
        (is_in_window && !is_held).then_some((position, slot))
    }

    /// Returns the number of packets that may be outstanding, if all are as long as those of `slot`.
    fn window_packets_for(&self, slot: &QueuedRequest) -> u64 {
        if self.retry.is_probing() {
            return 1;
        }
        let mtu_bytes = self.connection_parameters.mtu_bytes;
        self.window
            .max_outstanding_packets(match slot.request.operation {
                RequestOperation::Send { len, .. } | RequestOperation::Write { len, .. } => {
                    len.min(mtu_bytes)
                }
                // The responses of a READ use the window.
                _ => mtu_bytes,
            })
    }

    fn rate_limited_until(&self, now_ns: u64) -> Option<u64> {
        self.congestion
            .as_ref()
            .and_then(|congestion| congestion.sends_blocked_until_ns(now_ns))
    }

    /// Returns true if the next packet must ask for an acknowledgement. These are the last packet of a message, some
    /// packets in each window, and the packet that fills the window. While the rate is limited, every packet asks for
    /// one.
    fn asks_for_acknowledgement(&self, slot: &QueuedRequest) -> bool {
        let next = self.queue.next_send_sequence();
        slot.completes_by_own_response()
            || next + 1 == slot.end_sequence
            || u64::from(self.packets_since_ack_request) + 1 >= self.window.ack_request_interval()
            || next + 1 - self.queue.acked_until_sequence() >= self.window_packets_for(slot)
            || self.rate_limited_until(0).is_some()
    }

    /// Appends a packet; returns false if its payload cannot be read.
    fn append_packet_if_readable(
        &mut self,
        position: u64,
        segment: &Segment,
        memory: &mut impl LocalMemory,
        out: &mut Vec<u8>,
    ) -> bool {
        let len = segment.payload_bytes as usize;
        let Segment { bth, extended, .. } = segment;
        let emitted = emit_with_payload_writer(bth, extended, len, out, |payload| {
            memory.read_payload(position, segment.payload_offset, payload)
        });
        if emitted.is_err() {
            self.unreadable_request_position = Some(position);
            self.fail_if_oldest_is_unreadable();
        }
        emitted.is_ok()
    }

    /// Processes an ACK, NAK or RNR NAK.
    fn process_acknowledge(&mut self, now_ns: u64, packet: &Packet<'_>) {
        let Some(aeth) = packet.extended.aeth else {
            return;
        };
        let Some(sequence) = self.answered_sequence_if_outstanding(packet) else {
            if aeth.syndrome == Syndrome::Nak(NAK_PSN_SEQUENCE) {
                self.never_sent_psn_asked_for = Some(packet.bth.psn);
            }
            return;
        };
        // A NAK acknowledges all packets in front of its PSN.
        let is_positive = matches!(aeth.syndrome, Syndrome::Ack(_));
        let before = self.queue.acked_until_sequence();
        let reach = self
            .queue
            .acknowledge_before(sequence + u64::from(is_positive));
        self.on_new_acknowledgements(now_ns, before);
        match aeth.syndrome {
            _ if reach == AckEffect::BlockedByMissingResponse => {
                self.rerequest_missing_responses(now_ns)
            }
            Syndrome::Ack(_) => {}
            Syndrome::RnrNak(code) => self.process_rnr_nak(now_ns, sequence, code),
            Syndrome::Nak(NAK_PSN_SEQUENCE) => {
                self.counts.rcvd_seq_err += 1;
                self.begin_retry_unless_recovering(now_ns);
            }
            Syndrome::Nak(NAK_INVALID_REQUEST) => self.fail(RequestFailure::RemoteInvalidRequest),
            Syndrome::Nak(NAK_REMOTE_ACCESS) => self.fail(RequestFailure::RemoteAccess),
            Syndrome::Nak(_) => self.fail(RequestFailure::RemoteOperational),
        }
    }

    /// Processes a response with a result: a READ response or an atomic acknowledgement.
    fn process_result(&mut self, now_ns: u64, packet: &Packet<'_>, memory: &mut impl LocalMemory) {
        let Some(sequence) = self.answered_sequence_if_outstanding(packet) else {
            return;
        };
        let before = self.queue.acked_until_sequence();
        let outcome = process_response::process_response(
            &mut self.queue,
            &self.connection_parameters,
            sequence,
            packet,
            memory,
        );
        self.on_new_acknowledgements(now_ns, before);
        match outcome {
            ResponseOutcome::Accepted => {}
            ResponseOutcome::EarlierResponseMissing => self.rerequest_missing_responses(now_ns),
            ResponseOutcome::Failed(failure) => self.fail(failure),
        }
    }

    /// Returns the sequence number that a packet answers; `None` for duplicates and for packets that nothing has asked
    /// for.
    fn answered_sequence_if_outstanding(&self, packet: &Packet<'_>) -> Option<u64> {
        let acked = self.queue.acked_until_sequence();
        let sequence = self
            .numbering
            .sequence_of_psn_nearest_to(packet.bth.psn, acked);
        (acked..self.queue.sent_end_sequence())
            .contains(&sequence)
            .then_some(sequence)
    }

    fn on_new_acknowledgements(&mut self, now_ns: u64, before: u64) {
        let acked = self.queue.acked_until_sequence();
        if acked > before {
            self.retry.on_new_acknowledgements(now_ns, acked);
            self.window.on_acknowledged(acked - before);
            self.counts.rdma_sends += self.queue.take_done_send_count();
            self.fail_if_oldest_is_unreadable();
        }
    }

    /// Fails the oldest request if its payload cannot be read.
    fn fail_if_oldest_is_unreadable(&mut self) {
        if self.unreadable_request_position == Some(self.queue.done_request_count() + 1) {
            self.fail(RequestFailure::LocalProtection);
        }
    }

    /// Begins a retry, unless one is already repairing the loss.
    fn begin_retry_unless_recovering(&mut self, now_ns: u64) {
        if !self.retry.is_recovering(now_ns) {
            self.begin_counted_retry_or_fail(now_ns);
        }
    }

    /// Asks again for responses that are missing in front of a later response.
    ///
    /// As a probe, this does not count as a retry. A slow responder first sends all responses that it was asked for
    /// before, so each may show a gap. The timeout detects a lack of progress.
    fn rerequest_missing_responses(&mut self, now_ns: u64) {
        if self.retry.timeout_ns.is_none() {
            self.begin_retry_unless_recovering(now_ns);
        } else if !self.retry.is_response_still_expected(now_ns) {
            self.retry.begin_uncounted_retry(now_ns);
            self.rewind_to_acked_after_loss();
        }
    }

    /// Sends the oldest unanswered packet again, without counting a retry.
    ///
    /// The response may be late instead of lost. If packets were lost, the response to the probe shows that, and they
    /// are then sent again.
    fn send_probe(&mut self, now_ns: u64) {
        self.retry.begin_probe(now_ns);
        self.rewind_to_acked_after_loss();
    }

    /// Sends everything again that is not acknowledged.
    fn rewind_to_acked_after_loss(&mut self) {
        self.counts.completer_retry_err += 1;
        self.window.on_loss();
        self.queue.rewind_to_acked();
    }

    /// Begins a retry that counts, or fails if none is left.
    fn begin_counted_retry_or_fail(&mut self, now_ns: u64) {
        if self.retry.try_begin_counted_retry(now_ns) {
            self.rewind_to_acked_after_loss();
        } else {
            self.counts.retry_exceeded_err += 1;
            self.fail(RequestFailure::RetryExceeded);
        }
    }

    /// Processes an RNR NAK for the packet `sequence`.
    fn process_rnr_nak(&mut self, now_ns: u64, sequence: u64, code: u8) {
        // If the packet already waits for retransmission, the NAK is a duplicate.
        if sequence >= self.queue.next_send_sequence() {
            return;
        }
        self.counts.rcvd_rnr_err += 1;
        if self.retry.try_begin_rnr_wait(now_ns, code) {
            self.queue.rewind_to_acked();
        } else {
            self.counts.retry_rnr_exceeded_err += 1;
            self.fail(RequestFailure::RnrRetryExceeded);
        }
    }

    /// Returns the time at which to call [`apply_expired_timers`](Self::apply_expired_timers) and
    /// [`append_next_packet`](Self::append_next_packet). `None` if only a packet or a new request can cause progress.
    #[must_use]
    pub fn next_call_time_ns(&self) -> Option<u64> {
        if self.failure.is_some() {
            return None;
        }
        if let Some(until) = self.retry.rnr_wait_end_ns() {
            return Some(until);
        }
        let timer = self
            .queue
            .has_outstanding_packets()
            .then(|| self.retry.next_timer());
        let timer = timer.flatten().map(|(at, _)| at);
        let paced = self
            .next_sendable_request()
            .and_then(|_| self.rate_limited_until(0));
        [timer, paced].into_iter().flatten().min()
    }

    /// Applies the timers that have expired by `now_ns`; [`append_next_packet`](Self::append_next_packet) then sends
    /// again.
    ///
    /// All packets that arrived before `heard_ns` must have been given to
    /// [`process_received_packet`](Self::process_received_packet). A timer that expires after `heard_ns` is not
    /// applied, because the response may still be in a socket buffer.
    pub fn apply_expired_timers(&mut self, now_ns: u64, heard_ns: u64) {
        if self.failure.is_some() || !self.queue.has_outstanding_packets() {
            return;
        }
        match self.retry.next_timer() {
            Some((at, _)) if at > now_ns.min(heard_ns) => {}
            Some((_, RetryTimer::Timeout)) => self.begin_counted_retry_or_fail(now_ns),
            Some((_, RetryTimer::Probe)) => self.send_probe(now_ns),
            None => {}
        }
    }

    fn fail(&mut self, failure: RequestFailure) {
        self.failure = self.failure.or(Some(failure));
    }
}
