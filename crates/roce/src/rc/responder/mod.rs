//! The responder of a reliable connection: executes requests in order, each once, and replies to them (IBTA vol. 1,
//! 9.7.4).
//!
//! [`Responder::process_received_packet`] checks a request in the order of the specification. Replies are queued in the
//! order of their requests until [`Responder::append_next_packet`] sends them. READ data is read from memory when the
//! responses are sent.

mod config;
mod invalid_request;
mod replies;

pub use crate::responder_target::{AtomicOperation, Refusal, ResponderTarget};
pub use config::{AllowedOperations, ResponderConfig};
pub use invalid_request::{FailedCheck, InvalidRequest};

use crate::counts::StateMachineCounters;
use crate::dcqcn::{NotificationPoint, ReactionPoint};
use crate::opcode::{MessagePosition, PacketOperation, Transport};
use crate::packet::{
    Aeth, ExtendedHeaders, NAK_INVALID_REQUEST, NAK_PSN_SEQUENCE, NAK_REMOTE_ACCESS,
    NAK_REMOTE_OPERATIONAL, Packet, Syndrome, emit_with_payload_writer,
};
use crate::partial_message::{self, PartialMessage};
use crate::psn::Psn;
use crate::segment::ConnectionParameters;
use crate::sequence::{FIRST_SEQUENCE, PsnNumbering};
use replies::{ReadRequest, RepliesForDuplicates, Reply, ReplyKind, ReplyQueue};

/// Limit of queued replies, in addition to two for each READ. Beyond the limit, packets are dropped as if they were
/// lost.
const MAX_QUEUED_REPLIES: usize = 64;

/// AETH credit count: end-to-end credits are not used (IBTA vol. 1, 9.7.7.2).
const CREDITS_UNUSED: u8 = 31;

/// The reason why a request is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rejection {
    /// The request is dropped without a reply.
    DropSilently,
    /// The request was already executed.
    Duplicate,
    /// An earlier request is missing.
    PsnGap,
    /// No receive work request is available.
    NotReady,
    /// The request is refused, and the queue pair fails.
    Refused(Refusal),
}

impl From<Refusal> for Rejection {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotReady => Self::NotReady,
            refusal => Self::Refused(refusal),
        }
    }
}

/// The responder of a reliable connection.
#[derive(Debug)]
pub struct Responder {
    connection_parameters: ConnectionParameters,
    numbering: PsnNumbering,
    allowed_operations: AllowedOperations,
    min_rnr_timer: u8,
    /// Sequence number of the next packet to execute.
    expected_sequence: u64,
    /// All packets in front of this sequence number have a reply.
    replied_until_sequence: u64,
    /// The latest packet that arrived ahead of `expected_sequence`, if a NAK was due for the gap.
    last_ahead_sequence: Option<u64>,
    /// Arrival time of a packet ahead of `expected_sequence` whose NAK is not yet sent.
    pending_nak_since_ns: Option<u64>,
    failure: Option<Refusal>,
    /// The request that was refused as invalid.
    refused_invalid_request: Option<InvalidRequest>,
    /// Message sequence number: executed messages, modulo 2^24.
    msn: u32,
    partial_message: Option<PartialMessage>,
    queued_replies: ReplyQueue,
    replies_for_duplicates: RepliesForDuplicates,
    notification_point: NotificationPoint,
    congestion: Option<ReactionPoint>,
    /// Counters since the last [`StateMachineCounters::take_unless_all_zero`].
    pub counts: StateMachineCounters,
}

impl Responder {
    /// Makes a responder that has received nothing.
    #[must_use]
    pub fn new(config: ResponderConfig) -> Self {
        Self {
            connection_parameters: ConnectionParameters {
                transport: Transport::Rc,
                dest_qpn: config.dest_qpn,
                pkey: config.pkey,
                mtu_bytes: config.mtu_bytes,
                max_responses_per_read_request: 1,
            },
            numbering: PsnNumbering::new(config.first_psn),
            allowed_operations: config.allowed_operations,
            min_rnr_timer: config.min_rnr_timer,
            expected_sequence: FIRST_SEQUENCE,
            replied_until_sequence: FIRST_SEQUENCE,
            last_ahead_sequence: None,
            pending_nak_since_ns: None,
            failure: None,
            refused_invalid_request: None,
            msn: 0,
            partial_message: None,
            queued_replies: ReplyQueue::default(),
            replies_for_duplicates: RepliesForDuplicates::new(config.max_dest_rd_atomic),
            notification_point: NotificationPoint::default(),
            congestion: config.congestion.map(ReactionPoint::new),
            counts: StateMachineCounters::default(),
        }
    }

    /// Changes the operations that the queue pair allows.
    pub fn set_allowed_operations(&mut self, access: AllowedOperations) {
        self.allowed_operations = access;
    }

    /// Changes the RNR timer code: the time that a requester waits after an RNR NAK.
    pub fn set_min_rnr_timer(&mut self, min_rnr_timer: u8) {
        self.min_rnr_timer = min_rnr_timer;
    }

    /// Returns true if a request was refused and the queue pair has failed. Queued replies are still sent.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Returns the reason why a request was refused.
    #[must_use]
    pub fn failure(&self) -> Option<Refusal> {
        self.failure
    }

    /// Returns the request that was refused as invalid, if that is why the queue pair has failed.
    #[must_use]
    pub fn refused_invalid_request(&self) -> Option<InvalidRequest> {
        self.refused_invalid_request
    }

    /// Records an ECN mark on a packet for the requester of this queue pair, e.g. a READ response. Marked CNPs are not
    /// recorded.
    pub fn on_response_ecn_mark(&mut self, now_ns: u64) {
        self.on_request_ecn_mark(now_ns);
    }

    /// Processes a received request or congestion notification. Other packets are ignored.
    ///
    /// `is_ecn_marked` is true if a switch has marked the packet (IP ECN field 3).
    pub fn process_received_packet(
        &mut self,
        now_ns: u64,
        packet: &Packet<'_>,
        is_ecn_marked: bool,
        target: &mut impl ResponderTarget,
    ) {
        // A congestion notification never causes another one.
        if packet.bth.operation == PacketOperation::Cnp {
            if let Some(congestion) = &mut self.congestion {
                congestion.on_cnp_received(now_ns);
            }
            return;
        }
        if is_ecn_marked {
            self.on_request_ecn_mark(now_ns);
        }
        let is_request =
            packet.bth.transport == Transport::Rc && !packet.bth.operation.goes_to_requester();
        let is_full = self.queued_replies.len()
            >= MAX_QUEUED_REPLIES + 2 * self.replies_for_duplicates.max_kept_replies();
        if self.failure.is_some() || is_full || !is_request {
            return;
        }
        if let Err(rejection) = self.execute_and_queue_reply(packet, target) {
            self.reply_to_rejected(rejection, now_ns, packet, target);
        }
    }

    /// Asks for a missing packet once all packets that arrived before `heard_ns` have been given to
    /// [`process_received_packet`](Self::process_received_packet).
    ///
    /// A NAK is not sent earlier, for three reasons. If the responder's socket buffer has overflowed, the buffer is
    /// still full. The first retransmitted packets would be dropped as well. Soft-RoCE ignores a second NAK for the
    /// same packet. A packet that was only overtaken needs no NAK.
    pub fn queue_gap_nak_if_due(&mut self, heard_ns: u64) {
        if self.failure.is_none()
            && self
                .pending_nak_since_ns
                .is_some_and(|gap_ns| gap_ns <= heard_ns)
        {
            self.queue_sequence_nak();
        }
    }

    /// Asks for the next packet after the host has dropped packets that may belong to this queue pair.
    ///
    /// If the end of a burst was dropped, no later packet shows the gap. A requester ignores a NAK for a packet that it
    /// has not sent.
    pub fn queue_nak_after_host_drops(&mut self) {
        if self.failure.is_none() {
            self.queue_sequence_nak();
        }
    }

    /// Records a received packet that a switch marked with ECN.
    fn on_request_ecn_mark(&mut self, now_ns: u64) {
        self.counts.np_ecn_marked_roce_packets += 1;
        self.notification_point.on_ecn_mark_received(now_ns);
    }

    /// Checks and executes a request, and queues its reply.
    fn execute_and_queue_reply(
        &mut self,
        packet: &Packet<'_>,
        target: &mut impl ResponderTarget,
    ) -> Result<(), Rejection> {
        self.check_psn(packet)?;
        let message = partial_message::check_opcode_sequence(self.partial_message, packet)?;
        self.check_operation_allowed(packet)?;
        self.check_resources_and_reserve_receive(packet, target)?;
        partial_message::check_length(message, packet, self.connection_parameters.mtu_bytes)?;
        partial_message::check_rkey_and_range(packet, target)?;
        let kind = match message {
            Some(message) => {
                let message = message.write_payload(packet, target)?;
                self.complete_if_last(message, packet, target)?;
                ReplyKind::Ack
            }
            None => self.execute_single_packet(packet, target)?,
        };
        self.advance_and_queue_reply(packet, kind);
        Ok(())
    }

    /// Checks that the packet is the expected one (IBTA vol. 1, 9.7.4.1.1).
    fn check_psn(&mut self, packet: &Packet<'_>) -> Result<(), Rejection> {
        let sequence = self.sequence_of(packet);
        if sequence > self.expected_sequence {
            return Err(Rejection::PsnGap);
        }
        if sequence < FIRST_SEQUENCE {
            return Err(Rejection::DropSilently);
        }
        if sequence < self.expected_sequence {
            return Err(Rejection::Duplicate);
        }
        self.last_ahead_sequence = None;
        self.pending_nak_since_ns = None;
        Ok(())
    }

    /// Checks that the queue pair allows the operation.
    fn check_operation_allowed(&self, packet: &Packet<'_>) -> Result<(), Rejection> {
        if self.allowed_operations.allows(packet.bth.operation) {
            Ok(())
        } else {
            Err(Rejection::Refused(Refusal::InvalidRequest))
        }
    }

    /// Checks that a message has a receive work request and a READ or atomic a responder resource (IBTA vol. 1,
    /// 9.7.4.1.4).
    fn check_resources_and_reserve_receive(
        &mut self,
        packet: &Packet<'_>,
        target: &mut impl ResponderTarget,
    ) -> Result<(), Rejection> {
        if self.lacks_rd_atomic_resources(packet) {
            return Err(Rejection::Refused(Refusal::InvalidRequest));
        }
        if partial_message::consumes_receive_work_request(packet) && !target.try_begin_receive() {
            return Err(Rejection::NotReady);
        }
        Ok(())
    }

    /// Returns true if a request needs a responder resource, and the queue pair has none.
    fn lacks_rd_atomic_resources(&self, packet: &Packet<'_>) -> bool {
        let is_message = matches!(
            packet.bth.operation,
            PacketOperation::Send | PacketOperation::Write
        );
        !is_message && self.replies_for_duplicates.max_kept_replies() == 0
    }

    /// Executes a request of a single packet.
    fn execute_single_packet(
        &mut self,
        packet: &Packet<'_>,
        target: &mut impl ResponderTarget,
    ) -> Result<ReplyKind, Refusal> {
        let ExtendedHeaders {
            reth, atomic, feth, ..
        } = packet.extended;
        match (packet.bth.operation, reth, atomic) {
            (PacketOperation::ReadRequest, Some(reth), _) => {
                Ok(ReplyKind::RemainingReadResponses(ReadRequest {
                    addr: reth.addr,
                    rkey: reth.rkey,
                    len: reth.len,
                    first_sequence: self.expected_sequence,
                    end_sequence: self.expected_sequence
                        + u64::from(self.connection_parameters.message_packet_count(reth.len)),
                }))
            }
            (PacketOperation::CompareSwap, _, Some(eth)) => {
                let atomic = AtomicOperation::CompareSwap {
                    compare: eth.compare,
                    swap: eth.swap_or_add,
                };
                target
                    .execute_atomic(eth.addr, eth.rkey, atomic)
                    .map(ReplyKind::AtomicResponse)
            }
            (PacketOperation::FetchAdd, _, Some(eth)) => {
                let atomic = AtomicOperation::FetchAdd {
                    add: eth.swap_or_add,
                };
                target
                    .execute_atomic(eth.addr, eth.rkey, atomic)
                    .map(ReplyKind::AtomicResponse)
            }
            (PacketOperation::AtomicWrite, Some(reth), _) => {
                let bytes = packet.payload.try_into();
                let bytes = bytes.map_err(|_| Refusal::InvalidRequest)?;
                target.execute_atomic(reth.addr, reth.rkey, AtomicOperation::Write(bytes))?;
                Ok(ReplyKind::EmptyResponse)
            }
            (PacketOperation::Flush, Some(reth), _) => {
                let feth = feth.ok_or(Refusal::InvalidRequest)?;
                target.execute_flush(
                    reth.addr,
                    reth.rkey,
                    reth.len,
                    feth.placement,
                    feth.selectivity,
                )?;
                Ok(ReplyKind::EmptyResponse)
            }
            _ => Err(Refusal::InvalidRequest),
        }
    }

    /// Completes the message if this packet is its last.
    fn complete_if_last(
        &mut self,
        message: PartialMessage,
        packet: &Packet<'_>,
        target: &mut impl ResponderTarget,
    ) -> Result<(), Refusal> {
        if packet.bth.position.is_last() {
            message.complete_with_last_packet(packet, target)?;
            self.partial_message = None;
            self.msn = self.msn.wrapping_add(1);
        } else {
            self.partial_message = Some(message);
        }
        Ok(())
    }

    /// Describes a request that is refused as invalid: which check refuses it.
    #[cold]
    fn describe_invalid(&self, packet: &Packet<'_>) -> InvalidRequest {
        let check = match partial_message::check_opcode_sequence(self.partial_message, packet) {
            Err(_) => FailedCheck::PacketOrder {
                received: self.partial_message.map(|message| message.received_bytes()),
            },
            Ok(_) if self.check_operation_allowed(packet).is_err() => {
                FailedCheck::OperationNotAllowed
            }
            Ok(_) if self.lacks_rd_atomic_resources(packet) => FailedCheck::NoResponderResources,
            Ok(message)
                if partial_message::check_length(
                    message,
                    packet,
                    self.connection_parameters.mtu_bytes,
                )
                .is_err() =>
            {
                match partial_message::atomic_address(packet) {
                    Some(addr) if !addr.is_multiple_of(8) => FailedCheck::UnalignedAtomic(addr),
                    _ => FailedCheck::Length {
                        received: message.map_or(0, |message| message.received_bytes()),
                        announced: message.and_then(|message| message.announced_bytes()),
                        mtu: self.connection_parameters.mtu_bytes,
                    },
                }
            }
            Ok(_) => FailedCheck::RefusedByTarget,
        };
        InvalidRequest {
            psn: packet.bth.psn,
            operation: packet.bth.operation,
            position: packet.bth.position,
            payload_bytes: packet.payload.len(),
            failed_check: check,
        }
    }

    /// Advances to the next expected packet and queues a reply. SENDs and WRITEs get a reply only if an acknowledgement
    /// is requested.
    fn advance_and_queue_reply(&mut self, packet: &Packet<'_>, kind: ReplyKind) {
        if kind != ReplyKind::Ack {
            self.msn = self.msn.wrapping_add(1);
        }
        let reply = self.make_reply(self.expected_sequence, kind);
        self.expected_sequence = match kind {
            ReplyKind::RemainingReadResponses(read) => read.end_sequence,
            _ => self.expected_sequence + 1,
        };
        if kind != ReplyKind::Ack {
            self.replies_for_duplicates.add(reply);
        } else if !packet.bth.ack_request {
            return;
        }
        self.queued_replies.push(reply);
        self.replied_until_sequence = self.expected_sequence;
    }

    fn make_reply(&self, sequence: u64, kind: ReplyKind) -> Reply {
        Reply {
            acked_or_next_response_sequence: sequence,
            msn: self.msn,
            kind,
        }
    }

    /// Replies to a request that was not executed, as far as the rejection requires.
    fn reply_to_rejected(
        &mut self,
        rejection: Rejection,
        now_ns: u64,
        packet: &Packet<'_>,
        target: &mut impl ResponderTarget,
    ) {
        match rejection {
            Rejection::DropSilently => self.counts.duplicate_request += 1,
            Rejection::Duplicate => {
                self.counts.duplicate_request += 1;
                self.reply_to_duplicate(packet, target);
            }
            Rejection::PsnGap => {
                self.counts.out_of_seq_request += 1;
                if self.record_gap_and_is_nak_due(packet) {
                    self.pending_nak_since_ns.get_or_insert(now_ns);
                }
            }
            Rejection::NotReady => {
                if self.record_gap_and_is_nak_due(packet) {
                    self.counts.send_rnr_err += 1;
                    let nak = ReplyKind::RnrNak(self.min_rnr_timer);
                    self.queued_replies
                        .push(self.make_reply(self.expected_sequence, nak));
                }
            }
            Rejection::Refused(refusal) => {
                if refusal == Refusal::InvalidRequest {
                    self.refused_invalid_request = Some(self.describe_invalid(packet));
                }
                self.queue_refusal_nak(self.expected_sequence, refusal);
            }
        }
    }

    /// Returns true if this packet must cause a NAK for the expected packet; each gap causes one NAK (IBTA vol. 1,
    /// 9.7.5.2.8).
    ///
    /// If sequence numbers start over, the packets belong to a retry that has lost the expected packet again. This
    /// counts as a new gap.
    fn record_gap_and_is_nak_due(&mut self, packet: &Packet<'_>) -> bool {
        let sequence = self.sequence_of(packet);
        let before = self.last_ahead_sequence.replace(sequence);
        before.is_none_or(|last| sequence <= last)
    }

    /// Queues a NAK that asks for the expected packet.
    ///
    /// A separate ACK acknowledges the packets that arrived since the last reply. Without an ACK between two NAKs,
    /// Soft-RoCE ignores the second one and waits for its timeout.
    fn queue_sequence_nak(&mut self) {
        if self.replied_until_sequence < self.expected_sequence {
            self.queued_replies
                .push(self.make_reply(self.expected_sequence - 1, ReplyKind::Ack));
            self.replied_until_sequence = self.expected_sequence;
        }
        let nak = self.make_reply(self.expected_sequence, ReplyKind::Nak(NAK_PSN_SEQUENCE));
        self.queued_replies.push(nak);
        self.pending_nak_since_ns = None;
    }

    /// Queues a NAK for a refused request; no further request is executed.
    fn queue_refusal_nak(&mut self, sequence: u64, refusal: Refusal) {
        let code = match refusal {
            Refusal::InvalidRequest => NAK_INVALID_REQUEST,
            Refusal::RemoteAccess => {
                self.counts.resp_remote_access_errors += 1;
                NAK_REMOTE_ACCESS
            }
            Refusal::RemoteOperational | Refusal::NotReady => NAK_REMOTE_OPERATIONAL,
        };
        self.failure = Some(refusal);
        self.queued_replies
            .push(self.make_reply(sequence, ReplyKind::Nak(code)));
    }

    /// Replies to a request that was already executed (IBTA vol. 1, 9.7.5.1.4 and 9.7.5.2.1).
    fn reply_to_duplicate(&mut self, packet: &Packet<'_>, target: &mut impl ResponderTarget) {
        let sequence = self.sequence_of(packet);
        if matches!(
            packet.bth.operation,
            PacketOperation::Send | PacketOperation::Write
        ) {
            // Acknowledges as many packets as possible, but none beyond a READ or atomic, whose response may be lost.
            let limit = self
                .replies_for_duplicates
                .first_own_reply_sequence_after(sequence);
            let last = limit.unwrap_or(self.expected_sequence) - 1;
            self.queued_replies
                .push(self.make_reply(last, ReplyKind::Ack));
            self.replied_until_sequence = self.replied_until_sequence.max(last + 1);
            return;
        }
        let Some(mut reply) = self.replies_for_duplicates.find(sequence) else {
            return;
        };
        if let (ReplyKind::RemainingReadResponses(read), PacketOperation::ReadRequest) =
            (reply.kind, packet.bth.operation)
        {
            if !self.is_rest_of_earlier_read(&read, sequence, packet) {
                return;
            }
            if let Err(refusal) = partial_message::check_rkey_and_range(packet, target) {
                self.queue_refusal_nak(sequence, refusal);
                return;
            }
            reply.acked_or_next_response_sequence = sequence;
        } else if !matches_operation(reply.kind, packet.bth.operation) {
            return;
        }
        self.queued_replies.push_reply_to_duplicate(reply);
    }

    /// Returns true if a READ asks for the rest of an earlier READ, from `sequence` on.
    fn is_rest_of_earlier_read(
        &self,
        read: &ReadRequest,
        sequence: u64,
        packet: &Packet<'_>,
    ) -> bool {
        #[allow(clippy::cast_possible_truncation)] // at most 2^23 packets
        let index = (sequence - read.first_sequence) as u32;
        let (offset, _) = self
            .connection_parameters
            .packet_byte_range(read.len, index);
        packet.extended.reth.is_some_and(|reth| {
            read.len == 0
                || (reth.rkey == read.rkey
                    && reth.addr == read.addr.wrapping_add(u64::from(offset))
                    && reth.len == read.len - offset)
        })
    }

    fn sequence_of(&self, packet: &Packet<'_>) -> u64 {
        self.numbering
            .sequence_of_psn_nearest_to(packet.bth.psn, self.expected_sequence)
    }

    /// Returns the time at which to call [`append_next_packet`](Self::append_next_packet), if the rate limit delays
    /// READ responses.
    #[must_use]
    pub fn next_send_time_ns(&self) -> Option<u64> {
        let is_held = matches!(
            self.queued_replies.front()?.kind,
            ReplyKind::RemainingReadResponses(_)
        );
        let congestion = self.congestion.as_ref().filter(|_| is_held)?;
        congestion.sends_blocked_until_ns(0)
    }

    /// Appends the next packet to `out`, from the BTH through the pad; returns false if no packet can be sent now.
    pub fn append_next_packet(
        &mut self,
        now_ns: u64,
        target: &mut impl ResponderTarget,
        out: &mut Vec<u8>,
    ) -> bool {
        if self.notification_point.take_pending_cnp() {
            self.counts.np_cnp_sent += 1;
            self.append_cnp(out);
            return true;
        }
        let Some(reply) = self.queued_replies.front() else {
            return false;
        };
        let ReplyKind::RemainingReadResponses(read) = reply.kind else {
            self.append_reply(&reply, out);
            self.queued_replies.advance_after_send();
            return true;
        };
        let blocked =
            |congestion: &ReactionPoint| congestion.sends_blocked_until_ns(now_ns).is_some();
        if self.congestion.as_ref().is_some_and(blocked) {
            return false;
        }
        let start = out.len();
        if let Err(refusal) = self.append_read_response(&reply, &read, target, out) {
            self.queued_replies.clear();
            self.queue_refusal_nak(reply.acked_or_next_response_sequence, refusal);
            return self.append_next_packet(now_ns, target, out);
        }
        self.queued_replies.advance_after_send();
        if let Some(congestion) = &mut self.congestion {
            congestion.on_packet_sent(out.len() - start, now_ns);
        }
        true
    }

    /// Returns true if a NAK waits for [`queue_gap_nak_if_due`](Self::queue_gap_nak_if_due).
    #[must_use]
    pub fn has_pending_gap_nak(&self) -> bool {
        self.pending_nak_since_ns.is_some()
    }

    /// Returns true if replies or notifications are queued, or if a NAK waits for
    /// [`queue_gap_nak_if_due`](Self::queue_gap_nak_if_due).
    #[must_use]
    pub fn has_pending_output(&self) -> bool {
        self.notification_point.is_cnp_due()
            || self.queued_replies.len() > 0
            || self.has_pending_gap_nak()
    }

    /// Appends the next reply if it is an acknowledgement; returns false otherwise. The function accesses no memory of
    /// the target and cannot fail.
    pub fn append_next_reply_if_ack(&mut self, out: &mut Vec<u8>) -> bool {
        let front = self.queued_replies.front();
        let Some(reply) = front.filter(|reply| reply.kind == ReplyKind::Ack) else {
            return false;
        };
        self.append_reply(&reply, out);
        self.queued_replies.advance_after_send();
        true
    }

    fn append_cnp(&self, out: &mut Vec<u8>) {
        let mut bth = self.connection_parameters.make_bth(
            PacketOperation::Cnp,
            MessagePosition::Only,
            Psn::new(0),
        );
        bth.transport = Transport::Cnp;
        bth.becn = true;
        let packet = Packet {
            bth,
            extended: ExtendedHeaders::default(),
            payload: &[],
        };
        packet.emit(out);
    }

    /// Appends a reply of a single packet.
    fn append_reply(&self, reply: &Reply, out: &mut Vec<u8>) {
        let mut extended = ExtendedHeaders::default();
        let (operation, syndrome) = match reply.kind {
            ReplyKind::Ack => (PacketOperation::Acknowledge, Syndrome::Ack(CREDITS_UNUSED)),
            ReplyKind::RnrNak(code) => (PacketOperation::Acknowledge, Syndrome::RnrNak(code)),
            ReplyKind::Nak(code) => (PacketOperation::Acknowledge, Syndrome::Nak(code)),
            ReplyKind::EmptyResponse | ReplyKind::RemainingReadResponses(_) => {
                (PacketOperation::ReadResponse, Syndrome::Ack(CREDITS_UNUSED))
            }
            ReplyKind::AtomicResponse(original) => {
                extended.original_value = Some(original);
                (
                    PacketOperation::AtomicAcknowledge,
                    Syndrome::Ack(CREDITS_UNUSED),
                )
            }
        };
        extended.aeth = Some(make_aeth(reply, syndrome));
        let psn = self.numbering.psn(reply.acked_or_next_response_sequence);
        let packet = Packet {
            bth: self
                .connection_parameters
                .make_bth(operation, MessagePosition::Only, psn),
            extended,
            payload: &[],
        };
        packet.emit(out);
    }

    /// Appends the next response of a READ. If a retried READ does not start at the first byte, its first response is
    /// MIDDLE or LAST, since Soft-RoCE accepts nothing else.
    fn append_read_response(
        &self,
        reply: &Reply,
        read: &ReadRequest,
        target: &mut impl ResponderTarget,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        #[allow(clippy::cast_possible_truncation)] // at most 2^23 packets
        let index = (reply.acked_or_next_response_sequence - read.first_sequence) as u32;
        let (offset, len) = self
            .connection_parameters
            .packet_byte_range(read.len, index);
        let position = MessagePosition::from_first_and_last_flags(
            index == 0,
            reply.acked_or_next_response_sequence + 1 == read.end_sequence,
        );
        let acknowledges = position != MessagePosition::Middle;
        let psn = self.numbering.psn(reply.acked_or_next_response_sequence);
        let bth = self
            .connection_parameters
            .make_bth(PacketOperation::ReadResponse, position, psn);
        let extended = ExtendedHeaders {
            aeth: acknowledges.then(|| make_aeth(reply, Syndrome::Ack(CREDITS_UNUSED))),
            ..ExtendedHeaders::default()
        };
        let addr = read.addr.wrapping_add(u64::from(offset));
        emit_with_payload_writer(&bth, &extended, len as usize, out, |payload| {
            target.read_memory(addr, read.rkey, payload)
        })
    }
}

/// Returns true if the kept reply is of the type that the operation requires.
fn matches_operation(kind: ReplyKind, operation: PacketOperation) -> bool {
    match kind {
        ReplyKind::EmptyResponse => matches!(
            operation,
            PacketOperation::AtomicWrite | PacketOperation::Flush
        ),
        ReplyKind::AtomicResponse(_) => {
            matches!(
                operation,
                PacketOperation::CompareSwap | PacketOperation::FetchAdd
            )
        }
        _ => false,
    }
}

fn make_aeth(reply: &Reply, syndrome: Syndrome) -> Aeth {
    Aeth {
        syndrome,
        msn: Psn::new(reply.msn).get(),
    }
}
