//! The objects of this process's NIC: queue pairs and completion queues by index, and the delivery to them.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use roce::mad::GSI_QPN;
use roce::opcode::{PacketOperation, Transport};
use roce::packet::Packet;

use crate::context::Context;
use crate::cq::Cq;
use crate::device::gids_of;
use crate::lock::lock;
use crate::nic::{Nic, NicObjects, PacketDeliveryCaller};
use crate::path::{DEFAULT_PKEY, DropReason, MadDelivery, PacketArrival, note_packets_in_use};
use crate::qp::Qp;
use crate::qp_attributes::QpType;
use crate::recv::{
    awaits_gap_nak, has_answers_to_send, make_responder_nak_after_host_drops,
    process_request_or_datagram, send_answers,
};
use crate::send::{process_answer_or_congestion_notice, transmit_after_answers};
use shm::clock::now_ns;
use shm::fabric::armed::ArmedWord;
use shm::fabric::layout::*;
use shm::fabric::mailbox::MAILBOX_SLOTS;
use shm::sync::SpinLock;

/// The reader's state of the peers' connection notices.
#[derive(Default)]
struct NoticeReader {
    /// Position of the next notice.
    next_position: u64,
    /// Notices of processes that could not be reached for want of descriptors or memory.
    postponed_notices: Vec<u64>,
}

/// The objects of a NIC.
pub(crate) struct ObjectRegistry {
    qps: Box<[SpinLock<Option<Arc<Qp>>>]>,
    next_qp_index: AtomicUsize,
    cqs: Mutex<Vec<Option<Arc<Cq>>>>,
    /// Contexts that stand for other processes' devices, until those have ended.
    imported_contexts: Mutex<Vec<&'static Context>>,
    notice_reader: SpinLock<NoticeReader>,
    /// Numbers of queue pairs whose answers the next check for packets sends.
    qps_owing_answers: SpinLock<Vec<u32>>,
    /// True if there are such queue pairs.
    has_owed_answers: AtomicBool,
}

/// Returns the objects of `nic`.
pub(crate) fn objects_of_nic(nic: &Nic) -> &'static ObjectRegistry {
    match nic.objects.as_any().downcast_ref() {
        Some(registry) => registry,
        None => unreachable!("`process::new_nic` makes every NIC with a registry"),
    }
}

impl NicObjects for ObjectRegistry {
    fn as_any(&self) -> &dyn Any {
        self
    }

    /// Opens the rings that peers made for queue pairs of this process.
    fn process_connection_notices(&self, nic: &Nic) {
        let mailbox = nic.this_process().segment.mailbox();
        // Held until all notices are processed, in the order of their arrival.
        let mut notices = self.notice_reader.lock();
        while let Some(notice) = mailbox.take_notice(&mut notices.next_position) {
            nic.note_notices_read(notices.next_position);
            if self.open_ring(nic, notice).is_err()
                && notices.postponed_notices.len() < MAILBOX_SLOTS
            {
                notices.postponed_notices.push(notice);
                nic.wake_engine_unless_ticking();
            }
            mailbox.acknowledge(notices.next_position);
        }
    }

    /// Delivers the packets that have arrived to their queue pairs, and sends what these have to send then. The caller
    /// holds no lock of a queue.
    ///
    /// Acknowledgements of packets that a poll finds are left to the next check, or to what the program posts until
    /// then. The program sees its completions before the kernel has carried the acknowledgement, and its answer takes
    /// the acknowledgement along.
    fn deliver_arrived_packets(&self, nic: &Nic, by: PacketDeliveryCaller) -> bool {
        let Some(mut delivery) = nic
            .packet_path
            .try_begin_delivery(by == PacketDeliveryCaller::BeforeQpChange)
        else {
            return false;
        };
        let mut came = false;
        let mut touched = self.take_qps_with_postponed_answers();
        let leaves_answers = by == PacketDeliveryCaller::Poll && touched.responding_qps.is_empty();
        for _ in 0..MAX_DELIVERY_ROUNDS {
            let now = now_ns();
            let received =
                nic.packet_path
                    .receive_and_deliver(&mut delivery, now, |arrival, packet| {
                        if packet.bth.dest_qpn == GSI_QPN {
                            return deliver_mad_to_process(nic, arrival, packet);
                        }
                        self.deliver_packet_to_qp(arrival, packet, now, &mut touched)
                    });
            if received == 0 {
                break;
            }
            came = true;
            if nic
                .packet_path
                .has_new_socket_drops(&mut delivery, received)
            {
                touched.tell_responders_of_host_drops();
            }
            if !leaves_answers || touched.has_intra_process {
                let heard = nic
                    .packet_path
                    .delivered_until_ns_for_last_socket(&delivery, now);
                self.send_answers_or_postpone(&mut touched, now, heard);
            }
            touched.transmit_next(now);
            nic.packet_path.send_enqueued();
            if by != PacketDeliveryCaller::BeforeQpChange
                && delivery.is_drained()
                && !touched.has_intra_process
            {
                break;
            }
        }
        if leaves_answers {
            self.postpone_answers(touched.responding_qps);
        } else if !touched.responding_qps.is_empty() {
            self.send_answers_or_postpone(
                &mut touched,
                now_ns(),
                nic.packet_path.delivered_until_ns(),
            );
            nic.packet_path.send_enqueued();
        }
        came
    }

    fn send_owed_answers(&self, nic: &Nic) {
        let mut owed = self.take_qps_with_postponed_answers();
        if !owed.responding_qps.is_empty() {
            self.send_answers_or_postpone(
                &mut owed,
                now_ns(),
                nic.packet_path.delivered_until_ns(),
            );
            nic.packet_path.send_enqueued();
        }
    }

    fn do_qps_share_context(&self, one: usize, other: usize) -> bool {
        let (one, other) = (self.qp_at_index(one), self.qp_at_index(other));
        one.zip(other)
            .is_some_and(|(one, other)| one.has_context_of(&other))
    }

    /// Removes the queue pair at `index`.
    fn remove_qp(&self, index: usize) {
        let removed = self.qps.get(index).and_then(|place| place.lock().take());
        drop(removed);
    }

    /// Removes the completion queue at `index`.
    fn remove_cq(&self, index: usize) {
        if let Some(place) = lock(&self.cqs).get_mut(index) {
            *place = None;
        }
    }
}

/// The bit of a P_Key that marks a full member (IBTA vol. 1, 10.9.1.1).
const PKEY_FULL_MEMBER_BIT: u16 = 0x8000;

/// Queue pairs for which packets have arrived.
#[derive(Default)]
struct QpsWithPackets {
    responding_qps: Vec<Arc<Qp>>,
    requesting_qps: Vec<Arc<Qp>>,
    /// True if one of them is connected to a queue pair of this process: its packets come back here.
    has_intra_process: bool,
}

impl QpsWithPackets {
    /// Makes responders ask for the requests that follow the received ones.
    fn tell_responders_of_host_drops(&self) {
        for qp in &self.responding_qps {
            make_responder_nak_after_host_drops(qp);
        }
    }

    /// Transmits the next packets of the requesters.
    fn transmit_next(&mut self, now: u64) {
        for qp in self.requesting_qps.drain(..) {
            transmit_after_answers(&qp, now);
        }
    }
}

/// Number of checks for packets in a row. Two queue pairs of one process can keep each other busy for ever. One
/// of them may have no receive WR, for example, and the program can only post one when its poll returns.
const MAX_DELIVERY_ROUNDS: usize = 4;

/// Adds `qp` once to a list of few queue pairs.
fn add_qp_once(list: &mut Vec<Arc<Qp>>, qp: &Arc<Qp>) {
    if !list.iter().rev().any(|other| Arc::ptr_eq(other, qp)) {
        list.push(Arc::clone(qp));
    }
}

/// Delivers a management datagram to its process.
///
/// # Errors
/// The reason why the datagram is dropped.
#[cold]
fn deliver_mad_to_process(
    nic: &Nic,
    arrival: &PacketArrival,
    packet: &Packet<'_>,
) -> Result<(), DropReason> {
    if packet.bth.transport != Transport::Ud || packet.bth.operation != PacketOperation::Send {
        return Err(DropReason::Malformed);
    }
    if packet.bth.pkey | PKEY_FULL_MEMBER_BIT != DEFAULT_PKEY {
        return Err(DropReason::WrongPkey);
    }
    let fabric = crate::nic::fabric_dir().map_err(|_| DropReason::NotReady)?;
    let (source, destination) = gids_of(&arrival.flow.addresses);
    let gsi = &nic.packet_path.gsi;
    if gsi.deliver(&fabric, source, destination, packet)? == MadDelivery::Waits {
        nic.this_process().wake_engine();
    }
    Ok(())
}

impl ObjectRegistry {
    /// Delivers a packet to its queue pair.
    ///
    /// # Errors
    /// The reason why the packet is dropped.
    fn deliver_packet_to_qp(
        &self,
        arrival: &PacketArrival,
        packet: &Packet<'_>,
        now: u64,
        touched: &mut QpsWithPackets,
    ) -> Result<(), DropReason> {
        let bth = &packet.bth;
        if bth.pkey | PKEY_FULL_MEMBER_BIT != DEFAULT_PKEY {
            return Err(DropReason::WrongPkey);
        }
        let qp = self
            .qp_by_number(bth.dest_qpn)
            .ok_or(DropReason::UnknownQueuePair)?;
        let service = match bth.transport {
            Transport::Rc | Transport::Cnp => QpType::Rc,
            Transport::Uc => QpType::Uc,
            Transport::Ud => QpType::Ud,
            // XRC does not use packets.
            Transport::Xrc => return Err(DropReason::UnknownQueuePair),
        };
        if qp.qp_type != service {
            return Err(DropReason::UnknownQueuePair);
        }
        note_packets_in_use();
        let is_notification = bth.transport == Transport::Cnp;
        if bth.operation.goes_to_requester() {
            process_answer_or_congestion_notice(&qp, arrival, packet, now)?;
            add_qp_once(&mut touched.requesting_qps, &qp);
        }
        // A congestion notification slows down both ends of a queue pair.
        if is_notification || !bth.operation.goes_to_requester() {
            process_request_or_datagram(&qp, arrival, packet, now)?;
            if bth.operation == PacketOperation::ReadRequest {
                // The response holds the memory as it is before the requests behind it.
                send_answers(&qp, now, 0);
            }
            if service == QpType::Rc {
                let addresses = &arrival.flow.addresses;
                touched.has_intra_process |=
                    addresses.src() == addresses.dst() && qp.has_peer_in_process();
                add_qp_once(&mut touched.responding_qps, &qp);
            }
        }
        Ok(())
    }

    /// Answers requests. NAKs that wait until all packets have been processed are left to the next check.
    fn send_answers_or_postpone(&self, touched: &mut QpsWithPackets, now: u64, heard: u64) {
        let waits = |qp: &Arc<Qp>| {
            send_answers(qp, now, heard);
            awaits_gap_nak(qp)
        };
        touched.responding_qps.retain(waits);
        self.postpone_answers(std::mem::take(&mut touched.responding_qps));
    }

    /// Leaves the answers of queue pairs to the next check.
    fn postpone_answers(&self, answering: Vec<Arc<Qp>>) {
        if !answering.is_empty() {
            let mut owed = self.qps_owing_answers.lock();
            owed.extend(answering.iter().map(|qp| qp.qpn));
            self.has_owed_answers.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if queue pairs have answers that were left to the next check.
    pub(crate) fn has_owed_answers(&self) -> bool {
        self.has_owed_answers.load(Ordering::Relaxed)
    }

    /// Returns the queue pairs whose answers were left to this check.
    fn take_qps_with_postponed_answers(&self) -> QpsWithPackets {
        let mut touched = QpsWithPackets::default();
        if self.has_owed_answers.load(Ordering::Relaxed) {
            let mut owed = self.qps_owing_answers.lock();
            self.has_owed_answers.store(false, Ordering::Relaxed);
            let qps = owed.drain(..).filter_map(|qpn| self.qp_by_number(qpn));
            touched.responding_qps.extend(qps);
            drop(owed);
            // A later post of the queue pair may have taken the answers along.
            touched.responding_qps.retain(|qp| has_answers_to_send(qp));
        }
        touched
    }

    /// Makes a registry without any object.
    pub(crate) fn new() -> Self {
        Self {
            qps: (0..MAX_QPS).map(|_| SpinLock::new(None)).collect(),
            next_qp_index: AtomicUsize::new(0),
            cqs: Mutex::new(Vec::new()),
            imported_contexts: Mutex::new(Vec::new()),
            notice_reader: SpinLock::new(NoticeReader::default()),
            qps_owing_answers: SpinLock::new(Vec::new()),
            has_owed_answers: AtomicBool::new(false),
        }
    }

    /// Makes a queue pair with `make` at a free index. Indices are used in turn, so that a QP number comes back as late
    /// as possible.
    pub(crate) fn add_qp(
        &self,
        nic: &Nic,
        make: impl FnOnce(usize) -> Result<Arc<Qp>, i32>,
    ) -> Result<Arc<Qp>, i32> {
        for _ in 0..MAX_QPS {
            let index = self.next_qp_index.fetch_add(1, Ordering::Relaxed) % MAX_QPS;
            let mut place = self.qps[index].lock();
            if place.is_none() {
                nic.fabric
                    .back_with_memory(
                        QPS_AT + index * size_of::<QpShared>(),
                        size_of::<QpShared>(),
                    )
                    .map_err(|_| libc::ENOMEM)?;
                let qp = make(index)?;
                *place = Some(Arc::clone(&qp));
                return Ok(qp);
            }
        }
        Err(libc::ENOMEM)
    }

    /// Sends the answers that wait, before the process ends.
    pub(crate) fn send_waiting_answers_of_all_qps(&self) {
        for place in &self.qps {
            let qp = place.lock().clone();
            if let Some(qp) = qp {
                qp.send_waiting_answers();
            }
        }
    }

    /// Returns the queue pair at `index`.
    pub(crate) fn qp_at_index(&self, index: usize) -> Option<Arc<Qp>> {
        self.qps.get(index)?.lock().clone()
    }

    /// Returns all queue pairs.
    pub(crate) fn all_qps(&self) -> Vec<Arc<Qp>> {
        let places = self.qps.iter();
        places.filter_map(|place| place.lock().clone()).collect()
    }

    /// Returns the queue pair of this process with that number.
    pub(crate) fn qp_by_number(&self, qpn: u32) -> Option<Arc<Qp>> {
        let qp = self.qp_at_index(qpn as usize % MAX_QPS)?;
        (qp.qpn == qpn).then_some(qp)
    }

    /// Makes a completion queue with `make` at a free index.
    pub(crate) fn add_cq(
        &self,
        nic: &Nic,
        make: impl FnOnce(usize) -> Result<Arc<Cq>, i32>,
    ) -> Result<Arc<Cq>, i32> {
        let mut cqs = lock(&self.cqs);
        let index = cqs.iter().position(Option::is_none).unwrap_or(cqs.len());
        if index >= MAX_CQS {
            return Err(libc::ENOMEM);
        }
        nic.fabric
            .back_with_memory(
                CQS_AT + index * size_of::<CqShared>(),
                size_of::<CqShared>(),
            )
            .map_err(|_| libc::ENOMEM)?;
        let cq = make(index)?;
        if index == cqs.len() {
            cqs.push(None);
        }
        cqs[index] = Some(Arc::clone(&cq));
        Ok(cq)
    }

    /// Returns all completion queues.
    pub(crate) fn all_cqs(&self) -> Vec<Arc<Cq>> {
        lock(&self.cqs).iter().flatten().cloned().collect()
    }

    /// Returns the completion queues for which peers have called the engine since its last check. Reads one cache line for
    /// each queue, in the order of memory.
    pub(crate) fn cqs_with_engine_calls(&self, nic: &Nic) -> Vec<Arc<Cq>> {
        let is_called = |index: usize| {
            nic.this_process().segment.cq(index).is_some_and(|shared| {
                ArmedWord(&shared.armed_word).is_engine_woken()
                    || shared.lost_token_count.load(Ordering::Relaxed) != 0
            })
        };
        let cqs = lock(&self.cqs);
        let called = cqs
            .iter()
            .enumerate()
            .filter(|(index, _)| is_called(*index));
        called.filter_map(|(_, cq)| cq.clone()).collect()
    }

    /// Registers `context`, which stands for another process's device, for the event at the end of that process.
    pub(crate) fn add_imported_context(&self, context: &'static Context) {
        lock(&self.imported_contexts).push(context);
        // The process may have ended just now.
        context.nic.this_process().wake_engine();
    }

    /// Unregisters `context` from that event.
    pub(crate) fn remove_imported_context(&self, context: &'static Context) {
        lock(&self.imported_contexts).retain(|c| !std::ptr::eq(*c, context));
    }

    /// Raises `IBV_EVENT_DEVICE_FATAL` at the contexts whose device's process has ended.
    pub(crate) fn raise_device_fatal_for_imported_contexts(&self) {
        lock(&self.imported_contexts).retain(|context| {
            let ended = context
                .imported_from
                .as_ref()
                .is_some_and(|home| home.is_dead());
            if ended {
                context.raise_device_fatal_event();
            }
            !ended
        });
    }

    /// Processes the notices that were put off. Returns true if some still are.
    pub(crate) fn process_postponed_notices(&self, nic: &Nic) -> bool {
        let mut notices = self.notice_reader.lock();
        notices
            .postponed_notices
            .retain(|&notice| self.open_ring(nic, notice).is_err());
        !notices.postponed_notices.is_empty()
    }

    /// Opens the ring that a notice names.
    ///
    /// # Errors
    /// This process lacks the resources to reach the sender: the notice is to be processed later.
    fn open_ring(&self, nic: &Nic, notice: u64) -> Result<(), i32> {
        let (slot, offset) = (
            (notice >> 32) as usize,
            (notice & 0xffff_ffff) as usize * 64,
        );
        let Some(peer) = nic.fabric.peer_or_exhaustion_errno(slot)? else {
            return Ok(());
        };
        let Some(header) = peer.segment.ring_header(offset) else {
            return Ok(());
        };
        let qpn = header.dest_qpn.load(Ordering::Relaxed) as usize;
        let ours = header.magic.load(Ordering::Acquire) == RING_MAGIC
            && header.dest_incarnation.load(Ordering::Relaxed) == nic.this_process().incarnation
            && qpn >> QP_INDEX_BITS == nic.this_process().slot;
        match self.qp_at_index(qpn % MAX_QPS) {
            Some(qp) if ours => qp.open_inbound_ring(peer, offset),
            _ => header.is_receiver_detached.store(1, Ordering::Release),
        }
        Ok(())
    }
}
