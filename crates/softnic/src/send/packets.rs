//! The sending side of queue pairs that reach their peers by packets.

use super::*;
use roce::counts::StateMachineCounters;
use roce::opcode::{LastPacketField, MessagePosition, PacketOperation, Transport};
use roce::packet::{Bth, Deth, ExtendedHeaders, Packet};
use roce::psn::Psn;
use roce::rc::requester::Requester;
use roce::request::{LocalFault, LocalMemory, Request, RequestFailure, RequestOperation};
use roce::uc;

use crate::multicast::MULTICAST_QPN;
use crate::path::{Counter, DEFAULT_PKEY, DropReason, PacketArrival};
use crate::why::MemorySide;
use link::PacketFlow;

/// Payloads of at most this many bytes are copied when they are posted. Most of them are sent at once, and looking up
/// their region a second time costs more.
const MAX_COPIED_PAYLOAD_BYTES: u64 = 256;

/// The requester of a connected queue pair that reaches its peer by packets.
pub(crate) struct ConnectedRequester {
    state_machine: RequesterMachine,
    packet_flow: PacketFlow,
    /// Memory of the work requests in flight; the first entry belongs to the request behind `done_request_count`.
    wr_memory: VecDeque<WrMemory>,
    removed_wr_memory_entry_count: u64,
}

/// The requester's state machine of a transport service.
enum RequesterMachine {
    Rc(Box<Requester>),
    Uc(uc::Sender),
}

impl RequesterMachine {
    fn counts(&mut self) -> &mut StateMachineCounters {
        match self {
            Self::Rc(requester) => &mut requester.counts,
            Self::Uc(sender) => &mut sender.counts,
        }
    }
}

/// The payload of a work request, or the buffers for its result.
enum WrMemory {
    Bytes(Box<[u8]>),
    Sges(Box<[ibv_sge]>),
}

impl ConnectedRequester {
    /// Returns the requester of a reliable connection.
    pub(crate) fn new_rc(requester: Requester, flow: PacketFlow) -> Self {
        Self::new(RequesterMachine::Rc(Box::new(requester)), flow)
    }

    /// Returns the requester of an unreliable connection.
    pub(crate) fn new_uc(sender: uc::Sender, flow: PacketFlow) -> Self {
        Self::new(RequesterMachine::Uc(sender), flow)
    }

    fn new(machine: RequesterMachine, flow: PacketFlow) -> Self {
        Self {
            state_machine: machine,
            packet_flow: flow,
            wr_memory: VecDeque::new(),
            removed_wr_memory_entry_count: 0,
        }
    }

    /// Returns the number of requests that are done, from the first on.
    pub(super) fn done_request_count(&self) -> u64 {
        match &self.state_machine {
            RequesterMachine::Rc(requester) => requester.done_request_count(),
            RequesterMachine::Uc(sender) => sender.done_request_count(),
        }
    }

    /// Returns the requester of a reliable connection; `None` on UC.
    pub(super) fn rc_requester(&mut self) -> Option<&mut Requester> {
        match &mut self.state_machine {
            RequesterMachine::Rc(requester) => Some(requester),
            RequesterMachine::Uc(_) => None,
        }
    }

    /// Drops the memory of requests that are done.
    fn drop_memory_of_done_requests(&mut self) {
        let done = self.done_request_count();
        while self.removed_wr_memory_entry_count < done {
            self.wr_memory.pop_front();
            self.removed_wr_memory_entry_count += 1;
        }
    }
}

/// The memory of a queue pair's work requests, which its requester addresses by position.
struct QpWrMemory<'a> {
    qp: &'a Qp,
    local_regions: &'a mut RegionCache,
    request_memory: &'a VecDeque<WrMemory>,
    /// Number of requests that are done and have no entry in `request_memory`.
    removed_wr_memory_entry_count: u64,
}

impl<'a> QpWrMemory<'a> {
    fn memory_at(&self, position: u64) -> Option<&'a WrMemory> {
        let index = position.checked_sub(self.removed_wr_memory_entry_count + 1)?;
        self.request_memory.get(usize::try_from(index).ok()?)
    }
}

impl LocalMemory for QpWrMemory<'_> {
    fn read_payload(
        &mut self,
        position: u64,
        offset: u32,
        into: &mut [u8],
    ) -> Result<(), LocalFault> {
        match self.memory_at(position) {
            Some(WrMemory::Bytes(bytes)) => {
                let from = offset as usize;
                let part = bytes.get(from..from + into.len()).ok_or(LocalFault)?;
                into.copy_from_slice(part);
                Ok(())
            }
            Some(WrMemory::Sges(sges)) => {
                let mut rest = into;
                let (qp, memory) = (self.qp, &mut *self.local_regions);
                for_each_sge_piece(sges, offset, rest.len(), |sge| {
                    let (part, behind) =
                        std::mem::take(&mut rest).split_at_mut(sge.length as usize);
                    rest = behind;
                    let (region, at, _pin) =
                        check_and_pin_sge(qp.nic, memory, qp.pd_number, sge, false)
                            .map_err(|_| LocalFault)?;
                    if region.is_null() {
                        part.fill(0);
                        return Ok(());
                    }
                    // SAFETY: `part` is as long as the SGE that `check_and_pin_sge` permitted; the region is pinned.
                    unsafe { region.read(at, part.as_mut_ptr()) }.map_err(|MemoryFault| LocalFault)
                })
            }
            None => Err(LocalFault),
        }
    }

    fn write_read_or_atomic_result(
        &mut self,
        position: u64,
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), LocalFault> {
        let Some(WrMemory::Sges(sges)) = self.memory_at(position) else {
            return Err(LocalFault);
        };
        let mut rest = bytes;
        let (qp, memory) = (self.qp, &mut *self.local_regions);
        for_each_sge_piece(sges, offset, rest.len(), |sge| {
            let (part, behind) = rest.split_at(sge.length as usize);
            rest = behind;
            let (region, at, _pin) = check_and_pin_sge(qp.nic, memory, qp.pd_number, sge, true)
                .map_err(|_| LocalFault)?;
            // SAFETY: `part` is as long as the SGE that `check_and_pin_sge` permitted; the region is pinned.
            unsafe { region.write(at, part.as_ptr()) }.map_err(|MemoryFault| LocalFault)
        })
    }
}

/// Calls `f` for each contiguous piece of the `len` bytes from `offset` on.
///
/// # Errors
/// The error of `f`, or a fault if the list is shorter than `offset + len`.
fn for_each_sge_piece(
    sges: &[ibv_sge],
    offset: u32,
    len: usize,
    mut f: impl FnMut(&ibv_sge) -> Result<(), LocalFault>,
) -> Result<(), LocalFault> {
    let (mut skip, mut left) = (u64::from(offset), len as u64);
    for sge in sges {
        let length = u64::from(sge.length);
        if skip >= length {
            skip -= length;
            continue;
        }
        if left == 0 {
            break;
        }
        let here = left.min(length - skip);
        #[allow(clippy::cast_possible_truncation)] // at most the SGE's length
        let piece = ibv_sge {
            addr: sge.addr.wrapping_add(skip),
            length: here as u32,
            lkey: sge.lkey,
        };
        f(&piece)?;
        left -= here;
        skip = 0;
    }
    if left == 0 { Ok(()) } else { Err(LocalFault) }
}

/// Turns a work request of a connected queue pair into a request by packets.
pub(super) fn execute_by_packets(
    qp: &Qp,
    sq: &mut SendQueue,
    view: &WrView<'_>,
) -> ExecutionResult {
    if matches!(view.wr.opcode, IBV_WR_BIND_MW | IBV_WR_LOCAL_INV) {
        return bind_or_invalidate_window(qp, view);
    }
    let total: u64 = view.sges.iter().map(|s| u64::from(s.length)).sum();
    if total > u64::from(crate::device::MAX_MSG_SZ) {
        return fail_too_long(total, crate::device::MAX_MSG_SZ);
    }
    #[allow(clippy::cast_possible_truncation)] // at most 2^30
    let len = total as u32;
    let (operation, memory) = match operation_and_memory(qp, sq, view, len) {
        Ok(described) => described,
        Err(status) => return ExecutionResult::Failed(status),
    };
    let Some(wire) = &mut sq.packet_requester else {
        return ExecutionResult::Failed(IBV_WC_LOC_QP_OP_ERR);
    };
    let request = Request {
        operation,
        solicited: view.wr.send_flags & IBV_SEND_SOLICITED != 0,
        fence: view.wr.send_flags & IBV_SEND_FENCE != 0,
    };
    wire.wr_memory.push_back(memory);
    let position = match &mut wire.state_machine {
        RequesterMachine::Rc(requester) => requester.post(request),
        RequesterMachine::Uc(sender) => sender.post(request),
    };
    let byte_len = if matches!(operation, RequestOperation::Flush { .. }) {
        0
    } else {
        len
    };
    ExecutionResult::SentInPackets(position, byte_len)
}

/// Returns the operation that the work request asks for, and its memory.
///
/// # Errors
/// The status of a work request that fails at the requester.
fn operation_and_memory(
    qp: &Qp,
    sq: &mut SendQueue,
    view: &WrView<'_>,
    len: u32,
) -> Result<(RequestOperation, WrMemory), ibv_wc_status> {
    // SAFETY: members of the unions for these opcodes; plain integers, and initialised as such by the program.
    let (imm, rdma, atomic_operands) =
        unsafe { (view.wr.imm.imm_data, view.wr.wr.rdma, view.wr.wr.atomic) };
    let (addr, rkey) = (rdma.remote_addr, rdma.rkey);
    let send = |tail| RequestOperation::Send { len, tail };
    let write = |imm| RequestOperation::Write {
        addr,
        rkey,
        len,
        imm,
    };
    let operation = match view.wr.opcode {
        IBV_WR_SEND => send(LastPacketField::None),
        IBV_WR_SEND_WITH_IMM => send(LastPacketField::Imm(imm.to_ne_bytes())),
        IBV_WR_SEND_WITH_INV => send(LastPacketField::Invalidate(imm)),
        IBV_WR_RDMA_WRITE => write(None),
        IBV_WR_RDMA_WRITE_WITH_IMM => write(Some(imm.to_ne_bytes())),
        IBV_WR_RDMA_READ => RequestOperation::Read { addr, rkey, len },
        IBV_WR_ATOMIC_WRITE => RequestOperation::AtomicWrite { addr, rkey },
        IBV_WR_ATOMIC_CMP_AND_SWP => RequestOperation::CompareSwap {
            addr: atomic_operands.remote_addr,
            rkey: atomic_operands.rkey,
            compare: atomic_operands.compare_add,
            swap: atomic_operands.swap,
        },
        IBV_WR_ATOMIC_FETCH_AND_ADD => RequestOperation::FetchAdd {
            addr: atomic_operands.remote_addr,
            rkey: atomic_operands.rkey,
            add: atomic_operands.compare_add,
        },
        _ => flush_operation(atomic_operands),
    };
    let needs_resources = !matches!(
        operation,
        RequestOperation::Send { .. } | RequestOperation::Write { .. }
    );
    if needs_resources && qp.max_rd_atomic.load(Ordering::Relaxed) == 0 {
        why::note_cause(FailureCause::NoReadOrAtomicResources {
            side: MemorySide::Local,
        });
        return Err(IBV_WC_LOC_QP_OP_ERR);
    }
    let memory = match operation {
        RequestOperation::CompareSwap { .. }
        | RequestOperation::FetchAdd { .. }
        | RequestOperation::AtomicWrite { .. }
            if len != 8 =>
        {
            why::note_cause(FailureCause::WrongOperandLength(len as u64));
            return Err(IBV_WC_LOC_LEN_ERR);
        }
        // Result buffers are checked when the result arrives.
        RequestOperation::CompareSwap { .. }
        | RequestOperation::FetchAdd { .. }
        | RequestOperation::Read { .. } => WrMemory::Sges(view.sges.into()),
        RequestOperation::Flush { .. } => WrMemory::Bytes(Box::default()),
        _ => copy_or_reference_payload(qp, sq, view, len)?,
    };
    Ok((operation, memory))
}

/// Returns the FLUSH that a work request asks for.
fn flush_operation(atomic_operands: ibv_send_wr_wr_atomic) -> RequestOperation {
    let range = FlushRange::from_atomic_operands(atomic_operands);
    #[allow(clippy::cast_possible_truncation)] // the codes of both, and a length of 32 bits
    RequestOperation::Flush {
        addr: range.remote_addr,
        rkey: range.rkey,
        len: range.len as u32,
        placement: range.placement,
        selectivity: u8::from(range.covers_whole_region),
    }
}

/// Returns the payload of a work request: a copy, or its checked SGEs.
fn copy_or_reference_payload(
    qp: &Qp,
    sq: &mut SendQueue,
    view: &WrView<'_>,
    len: u32,
) -> Result<WrMemory, ibv_wc_status> {
    // READs in front of a fenced request may still write its payload.
    let is_short =
        u64::from(len) <= MAX_COPIED_PAYLOAD_BYTES && view.wr.send_flags & IBV_SEND_FENCE == 0;
    let is_copied =
        is_short || view.gathered_payload.is_some() || view.wr.send_flags & IBV_SEND_INLINE != 0;
    if !is_copied {
        for_each_payload_part(qp, &mut sq.local_regions, view, |_, _| Ok(()))?;
        return Ok(WrMemory::Sges(view.sges.into()));
    }
    let mut bytes = vec![0; len as usize].into_boxed_slice();
    copy_payload(qp, sq, view, &mut bytes)?;
    Ok(WrMemory::Bytes(bytes))
}

/// Copies the payload of a work request into `into`, which has the same length.
fn copy_payload(
    qp: &Qp,
    sq: &mut SendQueue,
    view: &WrView<'_>,
    into: &mut [u8],
) -> Result<(), ibv_wc_status> {
    let mut at = 0;
    for_each_payload_part(qp, &mut sq.local_regions, view, |src, len| {
        let part = into.get_mut(at..at + len).ok_or(IBV_WC_LOC_LEN_ERR)?;
        at += len;
        // SAFETY: `part` has `len` bytes of our own; `for_each_payload_part` has checked `src`.
        unsafe { shm::mem::copy(part.as_mut_ptr(), src, len) }
            .map_err(|MemoryFault| IBV_WC_LOC_PROT_ERR)
    })
}

/// Returns true if a datagram goes by packets.
pub(super) fn is_by_packets(qp: &Qp, view: &WrView<'_>) -> bool {
    view.ah.is_some_and(|ah| ah.is_reached_by_packets) && qp.nic.packet_path.is_open()
}

/// Sends a UD datagram by packet.
pub(super) fn send_datagram(qp: &Qp, sq: &mut SendQueue, view: &WrView<'_>) -> ExecutionResult {
    let Some((ah, flow)) = view.ah.and_then(|ah| Some((ah, ah.packet_flow?))) else {
        return ExecutionResult::Failed(IBV_WC_LOC_QP_OP_ERR);
    };
    let total: usize = view.sges.iter().map(|s| s.length as usize).sum();
    if total > UD_MAX_PAYLOAD_BYTES {
        return fail_too_long(total as u64, UD_MAX_PAYLOAD_BYTES as u32);
    }
    debug_assert!(ah.multicast_group.is_none());
    // SAFETY: members of the unions for UD and immediates; plain integers.
    let (ud, imm) = unsafe { (view.wr.wr.ud, view.wr.imm.imm_data) };
    let with_imm = view.wr.opcode == IBV_WR_SEND_WITH_IMM;
    let mut payload = [0; UD_MAX_PAYLOAD_BYTES];
    let payload = &mut payload[..total];
    if let Err(status) = copy_payload(qp, sq, view, payload) {
        return ExecutionResult::Failed(status);
    }
    let packet = Packet {
        bth: Bth {
            transport: Transport::Ud,
            operation: PacketOperation::Send,
            position: MessagePosition::Only,
            solicited: view.wr.send_flags & IBV_SEND_SOLICITED != 0,
            pkey: DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest_qpn: ud.remote_qpn & MULTICAST_QPN,
            ack_request: false,
            psn: Psn::new(sq.datagram_psn),
        },
        extended: ExtendedHeaders {
            deth: Some(Deth {
                // "If the high-order bit of the Q_Key is set, the one of the queue pair is used" (IBTA 10.2.5).
                qkey: if ud.remote_qkey >> 31 != 0 {
                    qp.qkey.load(Ordering::Relaxed)
                } else {
                    ud.remote_qkey
                },
                src_qpn: qp.qpn,
            }),
            imm: with_imm.then(|| imm.to_ne_bytes()),
            ..ExtendedHeaders::default()
        },
        payload,
    };
    sq.datagram_psn = sq.datagram_psn.wrapping_add(1);
    qp.nic
        .packet_path
        .enqueue_packet(qp.qpn, &flow, |bytes| packet.emit(bytes));
    let counters = &qp.nic.packet_path.counters;
    counters.add(qp.host_wide_port_number(), Counter::Sends, 1);
    #[allow(clippy::cast_possible_truncation)] // at most 4096
    let len = total as u32;
    ExecutionResult::Done(len)
}

/// Transmits posted requests. Their packets leave now or with the next post.
#[cold]
pub(super) fn transmit_posted(qp: &Qp, sq: &mut SendQueue) {
    if sq.packet_requester.is_some() && !sq.is_flushed() {
        transmit_due_packets(qp, sq, now_ns());
        qp.enqueue_owed_acknowledgement();
    }
    qp.nic
        .packet_path
        .send_or_hold_back_after_post(&qp.nic.is_engine_ticking);
}

/// Transmits the packets that the requester may send now, and collects its counts.
fn transmit_due_packets(qp: &Qp, sq: &mut SendQueue, now: u64) {
    let SendQueue {
        packet_requester: wire,
        local_regions: local,
        ..
    } = sq;
    let Some(wire) = wire else { return };
    let mut memory = QpWrMemory {
        qp,
        local_regions: local,
        request_memory: &wire.wr_memory,
        removed_wr_memory_entry_count: wire.removed_wr_memory_entry_count,
    };
    let machine = &mut wire.state_machine;
    qp.nic
        .packet_path
        .enqueue_packets(qp.qpn, &wire.packet_flow, |packet| match machine {
            RequesterMachine::Rc(requester) => {
                requester.append_next_packet(now, &mut memory, packet)
            }
            RequesterMachine::Uc(sender) => sender.append_next_packet(&mut memory, packet),
        });
    let counters = &qp.nic.packet_path.counters;
    counters.add_qp_counts(|| qp.host_wide_port_number(), wire.state_machine.counts());
    wire.drop_memory_of_done_requests();
}

/// Processes the answer to a request of `qp`, or a congestion notification.
///
/// # Errors
/// The reason why the packet is dropped.
pub(crate) fn process_answer_or_congestion_notice(
    qp: &Qp,
    arrival: &PacketArrival,
    packet: &Packet<'_>,
    now: u64,
) -> Result<(), DropReason> {
    let mut sq = qp.sq.lock();
    let SendQueue {
        packet_requester: wire,
        local_regions: local,
        ..
    } = &mut *sq;
    let wire = wire.as_mut().ok_or(DropReason::NotReady)?;
    if !arrival.is_from_peer(&wire.packet_flow) {
        return Err(DropReason::WrongSource);
    }
    let mut memory = QpWrMemory {
        qp,
        local_regions: local,
        request_memory: &wire.wr_memory,
        removed_wr_memory_entry_count: wire.removed_wr_memory_entry_count,
    };
    if let RequesterMachine::Rc(requester) = &mut wire.state_machine {
        requester.process_received_packet(now, packet, &mut memory);
    }
    Ok(())
}

/// Transmits the packets that the requester has to send after answers have arrived.
///
/// Requests that are done complete now: completions of sends and of receives, which packets bring too, keep the order
/// of time.
pub(crate) fn transmit_after_answers(qp: &Qp, now: u64) {
    let mut sq = qp.sq.lock();
    // A WR that failed at this end stops the queue. The requests in front of it are repeated until they are done.
    if !sq.is_flushed() {
        transmit_due_packets(qp, &mut sq, now);
    } else if let Some(wire) = &mut sq.packet_requester {
        let counters = &qp.nic.packet_path.counters;
        counters.add_qp_counts(|| qp.host_wide_port_number(), wire.state_machine.counts());
    }
    drop(sq);
    qp.send_cq.complete_finished_sends_into_buffer(qp);
}

/// Retransmits overdue requests and settles those that are done. Returns true if a request waits for a deadline.
pub(super) fn retransmit_and_complete(qp: &Qp, sq: &mut SendQueue) -> bool {
    let Some(wire) = &mut sq.packet_requester else {
        return false;
    };
    let now = now_ns();
    if let RequesterMachine::Rc(requester) = &mut wire.state_machine
        && requester.next_call_time_ns().is_some_and(|at| at <= now)
    {
        requester.apply_expired_timers(now, qp.nic.packet_path.delivered_until_ns());
        transmit_due_packets(qp, sq, now);
        qp.nic.packet_path.send_enqueued();
    }
    let Some(wire) = &mut sq.packet_requester else {
        return false;
    };
    wire.drop_memory_of_done_requests();
    let done = wire.done_request_count();
    let (failure, asked_for) = match &wire.state_machine {
        RequesterMachine::Rc(requester) => {
            (requester.failure(), requester.never_sent_psn_asked_for())
        }
        RequesterMachine::Uc(sender) => (sender.failure(), None),
    };
    move_consumed_to_finished_or_fail(qp, sq, done);
    if sq.pending_wqes.is_empty() {
        return false;
    }
    if let Some(failure) = failure {
        let cause = match failure {
            RequestFailure::RetryExceeded => Some(why_no_packet_answers(qp, asked_for)),
            // A NAK has no room for the cause that the responder knows.
            RequestFailure::RemoteInvalidRequest
            | RequestFailure::RemoteAccess
            | RequestFailure::RemoteOperational => Some(FailureCause::RefusedByNak),
            _ => None,
        };
        fail_qp_for_oldest_wr(qp, sq, wc_status_of_failure(failure), cause);
        return false;
    }
    true
}

/// Returns the status of a work request that has failed with `failure`.
fn wc_status_of_failure(failure: RequestFailure) -> ibv_wc_status {
    match failure {
        RequestFailure::LocalProtection => IBV_WC_LOC_PROT_ERR,
        RequestFailure::BadResponse => IBV_WC_BAD_RESP_ERR,
        RequestFailure::RetryExceeded => IBV_WC_RETRY_EXC_ERR,
        RequestFailure::RnrRetryExceeded => IBV_WC_RNR_RETRY_EXC_ERR,
        RequestFailure::RemoteInvalidRequest => IBV_WC_REM_INV_REQ_ERR,
        RequestFailure::RemoteAccess => IBV_WC_REM_ACCESS_ERR,
        RequestFailure::RemoteOperational => IBV_WC_REM_OP_ERR,
    }
}
