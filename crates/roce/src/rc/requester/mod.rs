//! The requester of a reliable connection: segments requests into packets, sends again what is lost, and takes the
//! responses (requester and completer of IBTA vol. 1, 9.7).
//!
//! Packets have sequence numbers of 64 bits here, whose lower 24 bits lead to the PSN. Requests take theirs when they are
//! posted. Two numbers say how far a requester is: everything in front of `acked` is acknowledged, `next` is sent next.
//! A retry sets `next` back to `acked` (go-back-N).

mod config;
mod queue;
mod results;
mod retry;
mod window;

pub use crate::request::{Failure, LocalFault, LocalMemory, Request, RequestOperation};
pub use config::{PACKET_OVERHEAD_BYTES, PROBE_NS, RequesterConfig, WINDOW_BYTES, WINDOW_PACKETS};

use crate::counts::Counts;
use crate::dcqcn::ReactionPoint;
use crate::opcode::{Operation, Transport};
use crate::packet::{
    NAK_INVALID_REQUEST, NAK_PSN_SEQUENCE, NAK_REMOTE_ACCESS, Packet, Syndrome, emit_with,
};
use crate::segment::{Connection, Segment, segment};
use crate::sequence::Numbering;
use queue::{Queue, Reach, Slot};
use results::Outcome;
use retry::{Expiry, Retry};
use window::Window;

/// The largest window. PSNs of packets that are 2^23 apart are ambiguous (IBTA vol. 1, 9.7.1).
const MAX_WINDOW_PACKETS: u32 = 1 << 22;

/// READ requests that a window has room for: a long READ is several on the wire.
///
/// Responses to one request come in one burst, which the window cannot hold back, and the queue pairs of a process share the
/// buffer of a socket. So requests are short where many of them may be outstanding.
fn reads_a_window(max_rd_atomic: u8) -> u32 {
    u32::from(max_rd_atomic).clamp(2, 8)
}

/// The requester of a reliable connection.
#[derive(Debug)]
pub struct Requester {
    connection: Connection,
    numbering: Numbering,
    window: Window,
    max_rd_atomic: u32,
    queue: Queue,
    retry: Retry,
    congestion: Option<ReactionPoint>,
    failure: Option<Failure>,
    /// The position whose payload cannot be read: nothing is sent from there on.
    unreadable: Option<u64>,
    /// Packets since the last that asked for an acknowledgement.
    unasked: u32,
    /// What was counted since [`Counts::take`].
    pub counts: Counts,
}

impl Requester {
    /// A requester that has sent nothing.
    #[must_use]
    pub fn new(config: RequesterConfig) -> Self {
        let window = Window::new(
            config.window_packets.min(MAX_WINDOW_PACKETS),
            config.window_bytes,
            config.mtu_bytes,
        );
        let connection = Connection {
            transport: Transport::Rc,
            dest_qpn: config.dest_qpn,
            pkey: config.pkey,
            mtu_bytes: config.mtu_bytes,
            read_packets: (window.full_packets() / reads_a_window(config.max_rd_atomic)).max(1),
        };
        Self {
            connection,
            numbering: Numbering::new(config.first_psn),
            window,
            max_rd_atomic: u32::from(config.max_rd_atomic.max(1)),
            queue: Queue::new(connection),
            retry: Retry::new(&config),
            congestion: config.congestion.map(ReactionPoint::new),
            failure: None,
            unreadable: None,
            unasked: 0,
            counts: Counts::default(),
        }
    }

    /// Queues a request; its position: 1 for the first.
    pub fn post(&mut self, request: Request) -> u64 {
        let psns = self.connection.psns_of(&request.operation);
        self.queue.push(request, psns)
    }

    /// Takes a packet that has come: a response, or a congestion notification. Other packets are ignored.
    pub fn receive(&mut self, now_ns: u64, packet: &Packet<'_>, memory: &mut impl LocalMemory) {
        let is_connected = matches!(packet.bth.transport, Transport::Rc | Transport::Cnp);
        if self.failure.is_some() || !is_connected {
            return;
        }
        match packet.bth.operation {
            Operation::Acknowledge => self.take_acknowledge(now_ns, packet),
            Operation::ReadResponse | Operation::AtomicAcknowledge => {
                self.take_result(now_ns, packet, memory);
            }
            Operation::Cnp => {
                if let Some(congestion) = &mut self.congestion {
                    self.counts.rp_cnp_handled += 1;
                    congestion.notified(now_ns);
                }
            }
            _ => {}
        }
    }

    /// How many requests are done, from the first on.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.queue.done()
    }

    /// Why the oldest request that is not done has failed. Nothing is sent or received any more then.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// How many requests are posted and not done.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.queue.len()
    }

    /// Changes the time that a response may take.
    pub fn set_timeout_ns(&mut self, timeout_ns: Option<u64>) {
        self.retry.timeout_ns = timeout_ns;
    }

    /// Changes how often requests are sent again without progress.
    pub fn set_retry_cnt(&mut self, retry_cnt: u8) {
        self.retry.set_retry_cnt(retry_cnt);
    }

    /// Changes how often a receiver that is not ready is asked again; 7: for ever.
    pub fn set_rnr_retry(&mut self, rnr_retry: u8) {
        self.retry.set_rnr_retry(rnr_retry);
    }

    /// Changes how many READs, atomics and FLUSHes are outstanding at most.
    pub fn set_max_rd_atomic(&mut self, max_rd_atomic: u8) {
        self.max_rd_atomic = u32::from(max_rd_atomic.max(1));
    }

    /// Appends the next packet to `out`, from the BTH to the pad; false if nothing may be sent now.
    pub fn transmit(
        &mut self,
        now_ns: u64,
        memory: &mut impl LocalMemory,
        out: &mut Vec<u8>,
    ) -> bool {
        if self.failure.is_some() || self.retry.is_receiver_awaited(now_ns) {
            return false;
        }
        let Some((position, slot)) = self.sendable() else {
            return false;
        };
        if self.congestion_until(now_ns).is_some() {
            return false;
        }
        let next = self.queue.next();
        let psn = self.numbering.psn(next);
        let mut segment = segment(&self.connection, &slot.request, slot.index_of(next), psn);
        let asks = self.asks_for_acknowledgement(&slot);
        segment.bth.ack_request = asks;
        let start = out.len();
        if !self.append(position, &segment, memory, out) {
            return false;
        }
        self.unasked = if asks { 0 } else { self.unasked + 1 };
        let is_first_time = next >= self.queue.sent_end();
        let measurable = (asks && is_first_time).then_some(next);
        self.retry
            .sent(now_ns, self.queue.is_outstanding(), measurable);
        self.queue.advance(&slot);
        if let Some(congestion) = &mut self.congestion {
            congestion.sent(out.len() - start, now_ns);
        }
        true
    }

    /// The request whose next packet may be sent, as far as the responder is concerned.
    fn sendable(&self) -> Option<(u64, Slot)> {
        let (position, slot) = self.queue.next_slot()?;
        let out = self.queue.next() - self.queue.acked();
        let is_in_window = out < self.window_of(&slot);
        let begins = self.queue.next() == slot.first;
        let awaited = self.queue.awaited();
        let waits_for_responses = (begins && slot.request.fence && awaited > 0)
            || (slot.has_response() && awaited >= self.max_rd_atomic);
        let is_held = waits_for_responses || self.unreadable == Some(position);
        (is_in_window && !is_held).then_some((position, slot))
    }

    /// Packets that may be outstanding, as long as those of a request.
    fn window_of(&self, slot: &Slot) -> u64 {
        if self.retry.is_probing() {
            return 1;
        }
        let mtu_bytes = self.connection.mtu_bytes;
        self.window.packets(match slot.request.operation {
            RequestOperation::Send { len, .. } | RequestOperation::Write { len, .. } => {
                len.min(mtu_bytes)
            }
            // Its responses count.
            _ => mtu_bytes,
        })
    }

    fn congestion_until(&self, now_ns: u64) -> Option<u64> {
        self.congestion
            .as_ref()
            .and_then(|congestion| congestion.blocked_until(now_ns))
    }

    /// Whether the next packet asks for an acknowledgement: the last of a message, some in each window, the one that closes
    /// it, and each under congestion, where packets are far apart.
    fn asks_for_acknowledgement(&self, slot: &Slot) -> bool {
        let next = self.queue.next();
        slot.has_response()
            || next + 1 == slot.end
            || u64::from(self.unasked) + 1 >= self.window.ack_request_packets()
            || next + 1 - self.queue.acked() >= self.window_of(slot)
            || self.congestion_until(0).is_some()
    }

    /// Appends a packet; false if its payload cannot be read.
    fn append(
        &mut self,
        position: u64,
        segment: &Segment,
        memory: &mut impl LocalMemory,
        out: &mut Vec<u8>,
    ) -> bool {
        let len = segment.payload_bytes as usize;
        let Segment { bth, extended, .. } = segment;
        let emitted = emit_with(bth, extended, len, out, |payload| {
            memory.read(position, segment.offset, payload)
        });
        if emitted.is_err() {
            self.unreadable = Some(position);
            self.fail_unreadable();
        }
        emitted.is_ok()
    }

    /// Takes an acknowledgement, positive or negative.
    fn take_acknowledge(&mut self, now_ns: u64, packet: &Packet<'_>) {
        let (Some(sequence), Some(aeth)) = (self.answered(packet), packet.extended.aeth) else {
            return;
        };
        // A NAK acknowledges what is in front of its PSN.
        let is_positive = matches!(aeth.syndrome, Syndrome::Ack(_));
        let before = self.queue.acked();
        let reach = self.queue.acknowledge(sequence + u64::from(is_positive));
        self.note_progress(now_ns, before);
        match aeth.syndrome {
            _ if reach == Reach::Blocked => self.recover_implied(now_ns),
            Syndrome::Ack(_) => {}
            Syndrome::RnrNak(code) => self.receiver_not_ready(now_ns, sequence, code),
            Syndrome::Nak(NAK_PSN_SEQUENCE) => {
                self.counts.rcvd_seq_err += 1;
                self.recover(now_ns);
            }
            Syndrome::Nak(NAK_INVALID_REQUEST) => self.fail(Failure::RemoteInvalidRequest),
            Syndrome::Nak(NAK_REMOTE_ACCESS) => self.fail(Failure::RemoteAccess),
            Syndrome::Nak(_) => self.fail(Failure::RemoteOperational),
        }
    }

    /// Takes a response that brings a result.
    fn take_result(&mut self, now_ns: u64, packet: &Packet<'_>, memory: &mut impl LocalMemory) {
        let Some(sequence) = self.answered(packet) else {
            return;
        };
        let before = self.queue.acked();
        let outcome = results::take(&mut self.queue, &self.connection, sequence, packet, memory);
        self.note_progress(now_ns, before);
        match outcome {
            Outcome::Taken => {}
            Outcome::Gap => self.recover_implied(now_ns),
            Outcome::Failed(failure) => self.fail(failure),
        }
    }

    /// The sequence number that a packet answers; `None` for a duplicate answer, and for one that nothing asked for.
    fn answered(&self, packet: &Packet<'_>) -> Option<u64> {
        let acked = self.queue.acked();
        let sequence = self.numbering.sequence(packet.bth.psn, acked);
        (acked..self.queue.sent_end())
            .contains(&sequence)
            .then_some(sequence)
    }

    fn note_progress(&mut self, now_ns: u64, before: u64) {
        let acked = self.queue.acked();
        if acked > before {
            self.retry.progressed(now_ns, acked);
            self.window.acknowledged(acked - before);
            self.counts.rdma_sends += self.queue.take_sends();
            self.fail_unreadable();
        }
    }

    /// Fails the oldest request if its payload cannot be read.
    fn fail_unreadable(&mut self) {
        if self.unreadable == Some(self.queue.done() + 1) {
            self.fail(Failure::LocalProtection);
        }
    }

    /// Sends again what is lost, once a loss.
    fn recover(&mut self, now_ns: u64) {
        if !self.retry.is_recovering(now_ns) {
            self.begin_retry(now_ns);
        }
    }

    /// Asks again for responses that did not come before later ones.
    ///
    /// This does not count as a retry, as a probe does not: a responder that is slow sends what it was asked for before,
    /// gap after gap, and the timeout counts whether there is progress.
    fn recover_implied(&mut self, now_ns: u64) {
        if self.retry.timeout_ns.is_none() {
            self.recover(now_ns);
        } else if !self.retry.is_probe_answered_soon(now_ns) {
            self.retry.begin_uncounted(now_ns);
            self.send_again();
        }
    }

    /// Asks for an answer by the oldest packet that has none, without counting.
    ///
    /// An answer that is late is as likely as a loss, and what is lost can be sent again when the answer has said so.
    fn probe(&mut self, now_ns: u64) {
        self.retry.probe(now_ns);
        self.send_again();
    }

    /// Everything that is not acknowledged is sent again.
    fn send_again(&mut self) {
        self.counts.completer_retry_err += 1;
        self.window.lost();
        self.queue.rewind();
    }

    /// Sends again what is not acknowledged, or fails if that was done too often.
    fn begin_retry(&mut self, now_ns: u64) {
        if self.retry.begin(now_ns) {
            self.send_again();
        } else {
            self.counts.retry_exceeded_err += 1;
            self.fail(Failure::RetryExceeded);
        }
    }

    /// The receiver of the packet `sequence` is not ready.
    fn receiver_not_ready(&mut self, now_ns: u64, sequence: u64, code: u8) {
        // Of a packet that waits to be sent again, the NAK is a duplicate.
        if sequence >= self.queue.next() {
            return;
        }
        self.counts.rcvd_rnr_err += 1;
        if self.retry.receiver_not_ready(now_ns, code) {
            self.queue.rewind();
        } else {
            self.counts.retry_rnr_exceeded_err += 1;
            self.fail(Failure::RnrRetryExceeded);
        }
    }

    /// The time at which [`expire`](Self::expire) and [`transmit`](Self::transmit) are to be called; `None`: not before
    /// the next packet or request.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        if self.failure.is_some() {
            return None;
        }
        if let Some(until) = self.retry.rnr_until() {
            return Some(until);
        }
        let timer = self.queue.is_outstanding().then(|| self.retry.timer());
        let timer = timer.flatten().map(|(at, _)| at);
        let paced = self.sendable().and_then(|_| self.congestion_until(0));
        [timer, paced].into_iter().flatten().min()
    }

    /// Applies the timers that have run out by `now_ns`; [`transmit`](Self::transmit) then sends again what is late.
    ///
    /// All packets that came before `heard_ns` have been given to [`receive`](Self::receive). A timer that ends later
    /// does not count yet: the response may wait in a socket, where no thread had time to take it.
    pub fn expire(&mut self, now_ns: u64, heard_ns: u64) {
        if self.failure.is_some() || !self.queue.is_outstanding() {
            return;
        }
        match self.retry.timer() {
            Some((at, _)) if at > now_ns.min(heard_ns) => {}
            Some((_, Expiry::Timeout)) => self.begin_retry(now_ns),
            Some((_, Expiry::Probe)) => self.probe(now_ns),
            None => {}
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.failure = self.failure.or(Some(failure));
    }
}
