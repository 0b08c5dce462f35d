//! Requests that reach a queue pair by packets.

use super::*;
use nic_core::rights::Access;
use roce::opcode::{LastPacketField, PacketOperation};
use roce::packet::Packet;
use roce::rc::responder::Responder;
use roce::responder_target::{AtomicOperation, Refusal, ResponderTarget};
use roce::uc;

use super::requested_memory::RequestedMemory;
use crate::lock::lock;
use crate::path::{Counter, DropReason, PacketArrival};
use link::PacketFlow;

/// The state of a queue pair for requests that reach it by packets.
#[derive(Default)]
pub(crate) struct PacketResponderState {
    responder: Option<Box<QpResponder>>,
    memory: ResponderMemory,
}

/// The responder of a connected queue pair.
pub(crate) struct QpResponder {
    state_machine: ResponderMachine,
    /// The flow back to the requester.
    requester_flow: PacketFlow,
}

/// The responder's state machine of a transport service.
enum ResponderMachine {
    Rc(Box<Responder>),
    Uc(uc::Receiver),
}

impl QpResponder {
    /// Returns the responder of a reliable connection.
    pub(crate) fn new_rc(machine: Responder, flow: PacketFlow) -> Self {
        Self {
            state_machine: ResponderMachine::Rc(Box::new(machine)),
            requester_flow: flow,
        }
    }

    /// Returns the responder of an unreliable connection.
    pub(crate) fn new_uc(machine: uc::Receiver, flow: PacketFlow) -> Self {
        Self {
            state_machine: ResponderMachine::Uc(machine),
            requester_flow: flow,
        }
    }
}

/// The memory on which requests are executed.
struct ResponderMemory {
    /// Regions of this process that requests name.
    request_regions: RegionCache,
    /// Regions of this process that receive WRs name.
    recv_regions: RegionCache,
    /// The SEND that is arriving.
    partial_message: Vec<u8>,
}

impl Default for ResponderMemory {
    fn default() -> Self {
        Self {
            request_regions: RegionCache::new(),
            recv_regions: RegionCache::new(),
            partial_message: Vec::new(),
        }
    }
}

impl PacketResponderState {
    /// Starts to answer requests.
    pub(crate) fn set_responder(&mut self, responder: QpResponder) {
        self.responder = Some(Box::new(responder));
    }
}

/// Processes a request to a queue pair, or a datagram.
///
/// # Errors
/// The reason why the packet is dropped.
pub(crate) fn process_request_or_datagram(
    qp: &Qp,
    arrival: &PacketArrival,
    packet: &Packet<'_>,
    now_ns: u64,
) -> Result<(), DropReason> {
    if !matches!(
        qp.state(),
        QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
    ) {
        return Err(DropReason::NotReady);
    }
    let mut side = lock(&qp.packet_responder_state);
    let PacketResponderState { responder, memory } = &mut *side;
    if qp.qp_type == QpType::Ud {
        return deliver_datagram(qp, memory, arrival, packet);
    }
    let responder = responder.as_mut().ok_or(DropReason::NotReady)?;
    if !arrival.is_from_peer(&responder.requester_flow) {
        return Err(DropReason::WrongSource);
    }
    let mut target = QpRequestExecutor {
        qp,
        memory,
        last_refusal_reason: None,
    };
    match &mut responder.state_machine {
        ResponderMachine::Rc(machine) => {
            let had_failed = machine.has_failed();
            machine.process_received_packet(now_ns, packet, arrival.is_ecn_marked, &mut target);
            if machine.has_failed() && !had_failed {
                let failure = target
                    .last_refusal_reason
                    .unwrap_or(RefusalReason::InvalidRequest);
                if let Some(invalid) = machine.refused_invalid_request() {
                    why::report_invalid_request(qp.qpn, &invalid);
                }
                drop(side);
                fail_after_refusal(qp, failure);
            }
        }
        ResponderMachine::Uc(machine) => {
            let had_failed = machine.has_failed();
            machine.process_received_packet(packet, &mut target);
            if machine.has_failed() && !had_failed {
                drop(side);
                fail_after_refusal(qp, RefusalReason::ReceiveWrFailed);
            }
        }
    }
    Ok(())
}

/// Sends the answers of a queue pair, and collects the counts of its responder. All packets that arrived before
/// `heard_ns` have been processed.
pub(crate) fn send_answers(qp: &Qp, now_ns: u64, heard_ns: u64) {
    let mut side = lock(&qp.packet_responder_state);
    let PacketResponderState { responder, memory } = &mut *side;
    let Some(QpResponder {
        state_machine: ResponderMachine::Rc(machine),
        requester_flow: flow,
    }) = responder.as_deref_mut()
    else {
        return;
    };
    let mut target = QpRequestExecutor {
        qp,
        memory,
        last_refusal_reason: None,
    };
    machine.queue_gap_nak_if_due(heard_ns);
    let had_failed = machine.has_failed();
    qp.nic.packet_path.enqueue_packets(qp.qpn, flow, |packet| {
        machine.append_next_packet(now_ns, &mut target, packet)
    });
    let counters = &qp.nic.packet_path.counters;
    counters.add_qp_counts(|| qp.host_wide_port_number(), &mut machine.counts);
    if machine.has_failed() && !had_failed {
        let failure = target
            .last_refusal_reason
            .unwrap_or(RefusalReason::InvalidRequest);
        drop(side);
        fail_after_refusal(qp, failure);
    }
}

/// Tells the responder that the host dropped packets for lack of room, perhaps some of this queue pair.
pub(crate) fn make_responder_nak_after_host_drops(qp: &Qp) {
    if let Some(QpResponder {
        state_machine: ResponderMachine::Rc(machine),
        ..
    }) = lock(&qp.packet_responder_state).responder.as_deref_mut()
    {
        machine.queue_nak_after_host_drops();
    }
}

/// Returns true if a queue pair has answers to send.
pub(crate) fn has_answers_to_send(qp: &Qp) -> bool {
    responder_satisfies(qp, Responder::has_pending_output)
}

/// Returns true if a queue pair asks for a missing packet once all earlier arrivals have been processed.
pub(crate) fn awaits_gap_nak(qp: &Qp) -> bool {
    responder_satisfies(qp, Responder::has_pending_gap_nak)
}

fn responder_satisfies(qp: &Qp, is_so: impl FnOnce(&Responder) -> bool) -> bool {
    match lock(&qp.packet_responder_state).responder.as_deref() {
        Some(QpResponder {
            state_machine: ResponderMachine::Rc(machine),
            ..
        }) => is_so(machine),
        _ => false,
    }
}

/// Sends the acknowledgement that a queue pair owes along with the packets that are about to leave. Skips it if another
/// thread is busy with the queue pair's requests.
pub(crate) fn enqueue_owed_acknowledgement(qp: &Qp) {
    // The holder of this lock may wait for a completion queue. A thread that polls that queue may wait for the send
    // queue, which the caller has locked.
    let Ok(mut side) = qp.packet_responder_state.try_lock() else {
        return;
    };
    if let Some(QpResponder {
        state_machine: ResponderMachine::Rc(machine),
        requester_flow: flow,
    }) = side.responder.as_deref_mut()
    {
        let network = &qp.nic.packet_path;
        network.enqueue_packets(qp.qpn, flow, |packet| {
            machine.append_next_reply_if_ack(packet)
        });
    }
}

/// The reason why a reliable queue pair has refused a request.
#[derive(Clone, Copy)]
enum RefusalReason {
    /// Its own receive WR failed.
    ReceiveWrFailed,
    /// The request had no access right.
    NoAccessRight,
    /// The request is not valid.
    InvalidRequest,
}

/// Fails the queue pair after it has refused a request.
#[cold]
fn fail_after_refusal(qp: &Qp, failure: RefusalReason) {
    qp.flush_and_enter_error();
    match failure {
        RefusalReason::ReceiveWrFailed => {}
        RefusalReason::NoAccessRight => qp.raise_event(IBV_EVENT_QP_ACCESS_ERR),
        RefusalReason::InvalidRequest => qp.raise_event(IBV_EVENT_QP_REQ_ERR),
    }
}

/// Delivers a datagram to the receive WR at the front.
fn deliver_datagram(
    qp: &Qp,
    memory: &mut ResponderMemory,
    arrival: &PacketArrival,
    packet: &Packet<'_>,
) -> Result<(), DropReason> {
    let deth = packet.extended.deth.ok_or(DropReason::Malformed)?;
    if packet.bth.operation != PacketOperation::Send {
        return Err(DropReason::Malformed);
    }
    let own_qkey = qp.qkey.load(Ordering::Relaxed);
    if deth.qkey != own_qkey {
        why::report_datagram_with_wrong_qkey(qp.qpn, deth.src_qpn, deth.qkey, own_qkey);
        return Err(DropReason::WrongQkey);
    }
    let grh = qp.nic.first_port.received_grh(&arrival.flow);
    let mut path = MessagePathInCompletion::new(
        qp.nic.first_port.completion_path_word_of_received(&grh),
        grh,
    );
    let (kind, imm) = match packet.extended.imm {
        Some(imm) => (RecordKind::SendWithImm, u32::from_ne_bytes(imm)),
        None => (RecordKind::Send, 0),
    };
    memory.partial_message.clear();
    memory.partial_message.extend_from_slice(packet.payload);
    #[allow(clippy::cast_possible_truncation)] // a datagram
    let len = packet.payload.len() as u32;
    let header = make_record_header(
        kind,
        record_flags(packet.bth.solicited),
        imm,
        len,
        deth.qkey,
    );
    deliver_message::<true>(qp, memory, header, deth.src_qpn, &mut path);
    Ok(())
}

fn record_flags(solicited: bool) -> u8 {
    if solicited { FLAG_SOLICITED } else { 0 }
}

/// Delivers a complete message to the receive WR at the front. Its completion goes to the CQ's buffer.
fn deliver_message<const UD: bool>(
    qp: &Qp,
    memory: &mut ResponderMemory,
    header: shm::fabric::ring::RecordHeader,
    src_qpn: u32,
    path: &mut MessagePathInCompletion,
) -> RecordResult {
    let ResponderMemory {
        recv_regions: local,
        partial_message: message,
        ..
    } = memory;
    let record = RingRecord::from_header_and_bytes(header, message);
    let mut handled = RecordResult::Done;
    qp.recv_cq.add_completion_made_by(|sink| {
        let mut rq = qp.recv_queue().lock();
        let mut from = RecordOrigin {
            peer: qp.nic.this_process(),
            ring_offset: 0,
            src_qpn,
            sender_payload_regions: &mut RegionCache::new(),
            path_in_completion: path,
        };
        let mut to = RecordDestination {
            last_recv_region: &mut LastRegion::none(),
            local_regions: local,
            sink,
            is_engine_thread: false,
        };
        handled = deliver_record::<UD>(qp, &mut rq, &record, &mut from, &mut to);
        if let Some(srq) = &qp.srq {
            srq.raise_limit_event_if_due(&mut rq);
        }
    });
    if matches!(handled, RecordResult::Done) {
        let counters = &qp.nic.packet_path.counters;
        counters.add(qp.host_wide_port_number(), Counter::Receives, 1);
    }
    handled
}

/// A queue pair as the target on which requests are executed.
struct QpRequestExecutor<'a> {
    qp: &'a Qp,
    memory: &'a mut ResponderMemory,
    /// The reason of the last refusal.
    last_refusal_reason: Option<RefusalReason>,
}

impl QpRequestExecutor<'_> {
    fn note_reason_and_refuse<T>(&mut self, refusal: Refusal) -> Result<T, Refusal> {
        self.last_refusal_reason = Some(match refusal {
            Refusal::RemoteAccess => RefusalReason::NoAccessRight,
            _ => RefusalReason::InvalidRequest,
        });
        Err(refusal)
    }

    /// Runs `f` on the memory that a request names.
    fn with_requested_memory<T>(
        &mut self,
        (addr, rkey, len): (u64, u32, u64),
        access: Access,
        f: impl FnOnce(RequestedMemory<'_>) -> Result<T, MemoryFault>,
    ) -> Result<T, Refusal> {
        let found = RequestedMemory::locate_own_memory(
            self.qp,
            &mut self.memory.request_regions,
            (addr, rkey),
            len,
            access,
        );
        match found.and_then(f) {
            Ok(value) => Ok(value),
            Err(MemoryFault) => self.note_reason_and_refuse(Refusal::RemoteAccess),
        }
    }
}

impl ResponderTarget for QpRequestExecutor<'_> {
    fn try_begin_receive(&mut self) -> bool {
        self.memory.partial_message.clear();
        self.qp.recv_queue().lock().len() != 0
    }

    fn write_to_receive_buffers(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Refusal> {
        // A part arrives again if no receive WR was left for the message.
        self.memory.partial_message.truncate(offset as usize);
        self.memory.partial_message.extend_from_slice(bytes);
        Ok(())
    }

    fn finish_receive(
        &mut self,
        by_write: Option<u32>,
        tail: LastPacketField,
        solicited: bool,
    ) -> Result<(), Refusal> {
        let (kind, imm) = match (by_write, tail) {
            (Some(_), LastPacketField::Imm(imm)) => {
                (RecordKind::WriteWithImm, u32::from_ne_bytes(imm))
            }
            (None, LastPacketField::Imm(imm)) => (RecordKind::SendWithImm, u32::from_ne_bytes(imm)),
            (None, LastPacketField::Invalidate(key)) => (RecordKind::SendWithInv, key),
            (None, LastPacketField::None) => (RecordKind::Send, 0),
            (Some(_), _) => return self.note_reason_and_refuse(Refusal::InvalidRequest),
        };
        #[allow(clippy::cast_possible_truncation)] // the machine takes no message longer than 2^31
        let len = by_write.unwrap_or(self.memory.partial_message.len() as u32);
        let header = make_record_header(kind, record_flags(solicited), imm, len, 0);
        let mut path = MessagePathInCompletion::new(0, [0; GRH_BYTES]);
        let src_qpn = self.qp.shared_state().dest_qpn.load(Ordering::Relaxed);
        match deliver_message::<false>(self.qp, self.memory, header, src_qpn, &mut path) {
            RecordResult::NoReceiveWrYet => Err(Refusal::NotReady),
            RecordResult::QueuePairFailed(status) => {
                // The NAK has no room for the cause, and the receive WRs that are flushed now have another.
                why::take_last_cause();
                self.last_refusal_reason = Some(RefusalReason::ReceiveWrFailed);
                // UC has no answer that would name the reason, and the queue pair fails for every reason.
                let is_uc = self.qp.qp_type == QpType::Uc;
                Err(if status == IBV_WC_REM_INV_REQ_ERR && !is_uc {
                    Refusal::InvalidRequest
                } else {
                    Refusal::RemoteOperational
                })
            }
            // Payloads by reference and rendezvous do not arrive by packets.
            RecordResult::Done
            | RecordResult::SenderEndedOrWithdrew
            | RecordResult::SenderMemoryUnreadable
            | RecordResult::Rendezvous(_) => Ok(()),
        }
    }

    fn check_write(&mut self, addr: u64, rkey: u32, len: u32) -> Result<(), Refusal> {
        self.with_requested_memory((addr, rkey, len.into()), Access::RemoteWrite, |_| Ok(()))
    }

    fn write_memory(&mut self, addr: u64, rkey: u32, bytes: &[u8]) -> Result<(), Refusal> {
        self.with_requested_memory(
            (addr, rkey, bytes.len() as u64),
            Access::RemoteWrite,
            |memory| memory.write(bytes),
        )
    }

    fn check_read(&mut self, addr: u64, rkey: u32, len: u32) -> Result<(), Refusal> {
        self.with_requested_memory((addr, rkey, len.into()), Access::RemoteRead, |_| Ok(()))
    }

    fn read_memory(&mut self, addr: u64, rkey: u32, into: &mut [u8]) -> Result<(), Refusal> {
        self.with_requested_memory(
            (addr, rkey, into.len() as u64),
            Access::RemoteRead,
            |memory| memory.read(into),
        )
    }

    fn execute_atomic(
        &mut self,
        addr: u64,
        rkey: u32,
        operation: AtomicOperation,
    ) -> Result<u64, Refusal> {
        if !addr.is_multiple_of(8) {
            return self.note_reason_and_refuse(Refusal::InvalidRequest);
        }
        let access = match operation {
            AtomicOperation::Write(_) => Access::RemoteWrite,
            AtomicOperation::CompareSwap { .. } | AtomicOperation::FetchAdd { .. } => {
                Access::RemoteAtomic
            }
        };
        self.with_requested_memory((addr, rkey, 8), access, |memory| {
            memory.execute_atomic(operation)
        })
    }

    fn execute_flush(
        &mut self,
        addr: u64,
        rkey: u32,
        len: u32,
        placement: u8,
        selectivity: u8,
    ) -> Result<(), Refusal> {
        let range = (addr, rkey, u64::from(len));
        match RequestedMemory::execute_flush(
            self.qp,
            &mut self.memory.request_regions,
            range,
            placement,
            selectivity,
        ) {
            Ok(()) => Ok(()),
            Err(MemoryFault) => self.note_reason_and_refuse(Refusal::RemoteAccess),
        }
    }
}
