//! Unreliable connections: [`Sender`] and [`Receiver`] (IBTA vol. 1, 9.8).

use std::collections::VecDeque;

use crate::counts::StateMachineCounters;
use crate::opcode::{LastPacketField, PacketOperation, Transport};
use crate::packet::{Packet, emit_with_payload_writer};
use crate::partial_message::{self, PartialMessage};
use crate::psn::Psn;
use crate::request::{LocalMemory, Request, RequestFailure, RequestOperation};
use crate::responder_target::{Refusal, ResponderTarget};
use crate::segment::{ConnectionParameters, make_segment};

/// The sender of an unreliable connection: a SEND or WRITE is done when its last packet has been sent.
#[derive(Debug)]
pub struct Sender {
    connection_parameters: ConnectionParameters,
    queue: VecDeque<Request>,
    done_request_count: u64,
    /// Packets of the oldest request that have been sent.
    sent_packets_of_oldest_request: u32,
    next_psn: Psn,
    failure: Option<RequestFailure>,
    /// Counters since the last [`StateMachineCounters::take_unless_all_zero`].
    pub counts: StateMachineCounters,
}

impl Sender {
    /// Makes a sender to the queue pair `dest_qpn`, whose first packet has `first_psn`.
    #[must_use]
    pub fn new(dest_qpn: u32, pkey: u16, mtu_bytes: u32, first_psn: Psn) -> Self {
        Self {
            connection_parameters: ConnectionParameters {
                transport: Transport::Uc,
                dest_qpn,
                pkey,
                mtu_bytes,
                max_responses_per_read_request: 1,
            },
            queue: VecDeque::new(),
            done_request_count: 0,
            sent_packets_of_oldest_request: 0,
            next_psn: first_psn,
            failure: None,
            counts: StateMachineCounters::default(),
        }
    }

    /// Queues a SEND or WRITE and returns its position: 1 for the first. Other requests fail when they reach the front
    /// of the queue.
    pub fn post(&mut self, request: Request) -> u64 {
        self.queue.push_back(request);
        self.done_request_count + self.queue.len() as u64
    }

    /// Appends the next packet to `out`, from the BTH through the pad; returns false if no packet can be sent.
    pub fn append_next_packet(&mut self, memory: &mut impl LocalMemory, out: &mut Vec<u8>) -> bool {
        let (Some(request), None) = (self.queue.front(), self.failure) else {
            return false;
        };
        let packets = match request.operation {
            // Only reliable connections have SEND with invalidate (IBTA vol. 1, table 38).
            RequestOperation::Send { len, tail }
                if !matches!(tail, LastPacketField::Invalidate(_)) =>
            {
                self.connection_parameters.message_packet_count(len)
            }
            RequestOperation::Write { len, .. } => {
                self.connection_parameters.message_packet_count(len)
            }
            _ => {
                self.failure = Some(RequestFailure::RemoteInvalidRequest);
                return false;
            }
        };
        let segment = make_segment(
            &self.connection_parameters,
            request,
            self.sent_packets_of_oldest_request,
            self.next_psn,
        );
        let position = self.done_request_count + 1;
        let len = segment.payload_bytes as usize;
        let emitted =
            emit_with_payload_writer(&segment.bth, &segment.extended, len, out, |payload| {
                memory.read_payload(position, segment.payload_offset, payload)
            });
        if emitted.is_err() {
            self.failure = Some(RequestFailure::LocalProtection);
            return false;
        }
        self.next_psn = self.next_psn.plus(1);
        self.sent_packets_of_oldest_request += 1;
        if self.sent_packets_of_oldest_request == packets {
            let is_send = matches!(request.operation, RequestOperation::Send { .. });
            self.counts.rdma_sends += u64::from(is_send);
            self.queue.pop_front();
            self.done_request_count += 1;
            self.sent_packets_of_oldest_request = 0;
        }
        true
    }

    /// Returns the number of requests that are done, in posting order.
    #[must_use]
    pub fn done_request_count(&self) -> u64 {
        self.done_request_count
    }

    /// Returns the failure of the oldest request that is not done. After a failure, nothing is sent.
    #[must_use]
    pub fn failure(&self) -> Option<RequestFailure> {
        self.failure
    }
}

/// The receiver of an unreliable connection: a message with a lost packet does not complete.
///
/// The bytes that an incomplete WRITE has written stay in memory. The receive work request of an incomplete SEND is
/// used by the next message.
#[derive(Debug)]
pub struct Receiver {
    mtu_bytes: u32,
    expected_psn: Psn,
    partial_message: Option<PartialMessage>,
    failure: Option<Refusal>,
}

/// Number of packets by which a network may delay a packet behind later ones. The sender of a first packet that is
/// further behind has begun with a new PSN. So a network that delays further may make a message complete twice.
const MAX_REORDERING_PACKETS: u32 = 1024;

impl Receiver {
    /// Makes a receiver that expects the packet `first_psn`.
    #[must_use]
    pub fn new(mtu_bytes: u32, first_psn: Psn) -> Self {
        Self {
            mtu_bytes,
            expected_psn: first_psn,
            partial_message: None,
            failure: None,
        }
    }

    /// Returns true if a refused message has failed the queue pair.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Processes a received packet. Packets that do not continue a message are ignored.
    pub fn process_received_packet(
        &mut self,
        packet: &Packet<'_>,
        target: &mut impl ResponderTarget,
    ) {
        let is_message = packet.bth.transport == Transport::Uc
            && matches!(
                packet.bth.operation,
                PacketOperation::Send | PacketOperation::Write
            );
        if self.failure.is_some() || !is_message || self.is_stale(packet) {
            return;
        }
        if packet.bth.psn != self.expected_psn {
            self.partial_message = None;
        }
        self.expected_psn = packet.bth.psn.plus(1);
        if packet.bth.position.is_first() {
            self.partial_message = None;
        }
        let message = self.partial_message.take();
        match self.execute_packet(message, packet, target) {
            Ok(message) => self.partial_message = message,
            // A malformed message is dropped. A receive work request that is too short fails the queue pair.
            Err(Refusal::InvalidRequest | Refusal::RemoteAccess | Refusal::NotReady) => {}
            Err(Refusal::RemoteOperational) => self.failure = Some(Refusal::RemoteOperational),
        }
    }

    /// Returns true if a packet is to be dropped for its PSN. The first packet of a message is accepted with any PSN
    /// (IBTA vol. 1, 9.8.2), but not if the network may have duplicated or delayed it.
    fn is_stale(&self, packet: &Packet<'_>) -> bool {
        let psn = packet.bth.psn;
        psn.is_before(self.expected_psn)
            && (!packet.bth.position.is_first()
                || !psn
                    .plus(MAX_REORDERING_PACKETS)
                    .is_before(self.expected_psn))
    }

    /// Executes a packet of a message; returns the message unless this packet is its last.
    fn execute_packet(
        &mut self,
        message: Option<PartialMessage>,
        packet: &Packet<'_>,
        target: &mut impl ResponderTarget,
    ) -> Result<Option<PartialMessage>, Refusal> {
        let Some(message) = partial_message::check_opcode_sequence(message, packet)? else {
            return Ok(None);
        };
        if partial_message::consumes_receive_work_request(packet) && !target.try_begin_receive() {
            return Err(Refusal::NotReady);
        }
        partial_message::check_length(Some(message), packet, self.mtu_bytes)?;
        partial_message::check_rkey_and_range(packet, target)?;
        let message = message.write_payload(packet, target)?;
        if !packet.bth.position.is_last() {
            return Ok(Some(message));
        }
        message.complete_with_last_packet(packet, target)?;
        Ok(None)
    }
}
