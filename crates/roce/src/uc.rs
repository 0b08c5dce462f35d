//! Unreliable connections: [`Sender`] and [`Receiver`] (IBTA vol. 1, 9.8).

use std::collections::VecDeque;

use crate::assembly::{self, Message};
use crate::counts::Counts;
use crate::opcode::{Operation, Tail, Transport};
use crate::packet::{Packet, emit_with};
use crate::psn::Psn;
use crate::request::{Failure, LocalMemory, Request, RequestOperation};
use crate::segment::{Connection, segment};
use crate::target::{Refusal, Target};

/// The sending end: SENDs and WRITEs are done when their last packet is out.
#[derive(Debug)]
pub struct Sender {
    connection: Connection,
    queue: VecDeque<Request>,
    done: u64,
    /// Packets of the oldest request that are out.
    sent: u32,
    next: Psn,
    failure: Option<Failure>,
    /// What was counted since [`Counts::take`].
    pub counts: Counts,
}

impl Sender {
    /// A sender to the queue pair `dest_qpn`, whose first packet has `first_psn`.
    #[must_use]
    pub fn new(dest_qpn: u32, pkey: u16, mtu_bytes: u32, first_psn: Psn) -> Self {
        Self {
            connection: Connection {
                transport: Transport::Uc,
                dest_qpn,
                pkey,
                mtu_bytes,
                read_packets: 1,
            },
            queue: VecDeque::new(),
            done: 0,
            sent: 0,
            next: first_psn,
            failure: None,
            counts: Counts::default(),
        }
    }

    /// Queues a SEND or WRITE; its position: 1 for the first. Other requests fail when it is their turn.
    pub fn post(&mut self, request: Request) -> u64 {
        self.queue.push_back(request);
        self.done + self.queue.len() as u64
    }

    /// Appends the next packet to `out`, from the BTH to the pad; false if there is none.
    pub fn transmit(&mut self, memory: &mut impl LocalMemory, out: &mut Vec<u8>) -> bool {
        let (Some(request), None) = (self.queue.front(), self.failure) else {
            return false;
        };
        let packets = match request.operation {
            // SEND with invalidate is an operation of reliable connections only (IBTA vol. 1, table 38).
            RequestOperation::Send { len, tail } if !matches!(tail, Tail::Invalidate(_)) => {
                self.connection.packets_of(len)
            }
            RequestOperation::Write { len, .. } => self.connection.packets_of(len),
            _ => {
                self.failure = Some(Failure::RemoteInvalidRequest);
                return false;
            }
        };
        let segment = segment(&self.connection, request, self.sent, self.next);
        let position = self.done + 1;
        let len = segment.payload_bytes as usize;
        let emitted = emit_with(&segment.bth, &segment.extended, len, out, |payload| {
            memory.read(position, segment.offset, payload)
        });
        if emitted.is_err() {
            self.failure = Some(Failure::LocalProtection);
            return false;
        }
        self.next = self.next.plus(1);
        self.sent += 1;
        if self.sent == packets {
            let is_send = matches!(request.operation, RequestOperation::Send { .. });
            self.counts.rdma_sends += u64::from(is_send);
            self.queue.pop_front();
            self.done += 1;
            self.sent = 0;
        }
        true
    }

    /// How many requests are done, from the first on.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Why the oldest request that is not done has failed. Nothing is sent any more then.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }
}

/// The receiving end: a message of which a packet is lost does not complete.
///
/// What a lost WRITE has written stays. A lost SEND leaves its receive work request to the next message.
#[derive(Debug)]
pub struct Receiver {
    mtu_bytes: u32,
    expected: Psn,
    message: Option<Message>,
    failure: Option<Refusal>,
}

impl Receiver {
    /// A receiver that expects `first_psn`.
    #[must_use]
    pub fn new(mtu_bytes: u32, first_psn: Psn) -> Self {
        Self {
            mtu_bytes,
            expected: first_psn,
            message: None,
            failure: None,
        }
    }

    /// Whether a message had to be refused in a way that fails the queue pair.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Takes a packet. Packets that go on with no message are ignored.
    pub fn receive(&mut self, packet: &Packet<'_>, target: &mut impl Target) {
        let is_message = packet.bth.transport == Transport::Uc
            && matches!(packet.bth.operation, Operation::Send | Operation::Write);
        if self.failure.is_some() || !is_message || packet.bth.psn.is_before(self.expected) {
            return;
        }
        if packet.bth.psn != self.expected {
            self.message = None;
        }
        self.expected = packet.bth.psn.plus(1);
        if packet.bth.position.is_first() {
            self.message = None;
        }
        let message = self.message.take();
        match self.process(message, packet, target) {
            Ok(message) => self.message = message,
            // A malformed message is dropped; a receive work request that is too short fails the queue pair.
            Err(Refusal::InvalidRequest | Refusal::RemoteAccess | Refusal::NotReady) => {}
            Err(Refusal::RemoteOperational) => self.failure = Some(Refusal::RemoteOperational),
        }
    }

    /// Executes a packet of a message; the message if more of it is to come.
    fn process(
        &mut self,
        message: Option<Message>,
        packet: &Packet<'_>,
        target: &mut impl Target,
    ) -> Result<Option<Message>, Refusal> {
        let Some(message) = assembly::opcode_sequence(message, packet)? else {
            return Ok(None);
        };
        if assembly::needs_receive(packet) && !target.begin_receive() {
            return Err(Refusal::NotReady);
        }
        assembly::length(Some(message), packet, self.mtu_bytes)?;
        assembly::rights(packet, target)?;
        let message = message.place(packet, target)?;
        if !packet.bth.position.is_last() {
            return Ok(Some(message));
        }
        message.finish(packet, target)?;
        Ok(None)
    }
}
