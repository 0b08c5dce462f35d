//! Queue pairs: creation, state, and the failure of both their queues.

mod connect;
mod modify;

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex};

use ::faults::QueuePairIds;
use nic_core::peer_wakeup::AwaitedPeer;
use nic_core::retry_timeouts::total_rnr_wait_ns;
use verbs_abi::*;

use crate::biased_lock::BiasedLock;
use crate::context::Context;
use crate::cq::{Cq, WcSink};
use crate::device::PortPlace;
use crate::event::UnacknowledgedEvents;
use crate::faults;
use crate::live_handles;
use crate::lock::lock;
use crate::nic::Nic;
use crate::pd::Pd;
use crate::qp_attributes::{
    DeviceLimits, QpState, QpType, STANDARD_ATTRIBUTES, attributes_to_check, check_transition,
};
use crate::recv::{InboundShmRing, PacketResponderState, RecvQueue, RecvSide};
use crate::send::{self, SendQueue, SendWork, WrBuilder};
use crate::srq::Srq;
use crate::why;
use crate::xrc::XrcRole;
use link::PacketFlow;
use shm::fabric::Peer;
use shm::fabric::layout::*;

/// A queue pair; the program's handle points to its first field.
#[repr(C)]
pub(crate) struct Qp {
    /// The program's structure; it starts with an `ibv_qp`.
    abi: UnsafeCell<ibv_qp_ex_with_flush>,
    /// State of the extended post API, if the queue pair was made with `send_ops_flags`.
    pub(crate) builder: Option<WrBuilder>,
    pub(crate) nic: &'static Nic,
    pub(crate) context: &'static Context,
    /// Index of the queue pair in this process.
    pub(crate) index: usize,
    pub(crate) qpn: u32,
    /// The transport service: [`QpType::service_with_xrc_as_rc`].
    pub(crate) qp_type: QpType,
    /// The opcodes (`ibv_wr_opcode`) of the work requests that the queue pair accepts, as bits.
    pub(crate) accepted_wr_opcodes: u32,
    /// The type with which the queue pair was created.
    created_type: QpType,
    pub(crate) xrc_role: XrcRole,
    /// Number of uses: the creation, and every `ibv_open_qp`.
    pub(crate) open_count: AtomicUsize,
    /// Number of multicast groups, or of flows, that the queue pair is attached to.
    pub(crate) multicast_group_or_flow_count: AtomicUsize,
    /// The table of work queues over which the queue pair spreads raw packets.
    pub(crate) rss_table: Option<RssTableUse>,
    /// The work queue that the program sees instead of the queue pair; NULL for a queue pair.
    visible_wq: AtomicPtr<ibv_wq>,
    /// True if the queue pair does not receive what it sends to its own groups: `IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`.
    pub(crate) blocks_multicast_loopback: AtomicBool,
    pub(crate) pd_number: u32,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) srq: Option<Arc<Srq>>,
    init_attr: ibv_qp_init_attr,
    state: AtomicU32,
    pub(crate) qkey: AtomicU32,
    pub(crate) max_rd_atomic: AtomicU32,
    /// `timeout` in bits 0 to 7, `retry_cnt` from bit 8 on, `rnr_retry` from bit 16 on.
    coded_timeout_and_retries: AtomicU32,
    /// The work that the next poll of the send CQ finds in the send queue: a `SendWork`.
    pub(crate) send_poll_work: AtomicU8,
    pub(crate) sq: BiasedLock<SendQueue>,
    pub(crate) rq: BiasedLock<RecvQueue>,
    /// The state for requests that arrive by packets.
    pub(crate) packet_responder_state: Mutex<PacketResponderState>,
    /// Indices of the queue pair in the lists of its two CQs; written under their locks.
    pub(crate) index_in_send_cq: AtomicUsize,
    pub(crate) index_in_recv_cq: AtomicUsize,
    modifiable_state: Mutex<ModifiableState>,
    /// [`QP_CONNECTED_BY_PACKETS`] if the messages of the connected queue pair are packets; else 0.
    path_in_shared_state: AtomicU32,
    pub(crate) unacknowledged_events: UnacknowledgedEvents,
    /// The protection domain, which the queue pair uses until it is destroyed.
    pub(crate) held_pd: Option<Arc<Pd>>,
    /// Number of the queue pair in the order of creation in this process, from 1 on.
    pub(crate) creation_number: u32,
    /// The GID of the peer, which a fault plan may name.
    peer_gid: Mutex<Option<[u8; 16]>>,
}

live_handles::object!(Qp, ibv_qp);

/// The state that `ibv_modify_qp` changes.
struct ModifiableState {
    attr: ibv_qp_attr,
    /// The process that the queue pair is connected to.
    peer_process: Option<Arc<Peer>>,
    /// The flow of packets to the peer, if packets reach it.
    peer_flow: Option<PacketFlow>,
    /// Rings that arrived before the queue pair was ready to receive.
    rings_waiting_for_rtr: Vec<InboundShmRing>,
}

// SAFETY: `abi` is written before the handle is given out, later only its `state` by `ibv_modify_qp`, as in
// the C library; all else is synchronised.
unsafe impl Sync for Qp {}
// SAFETY: as above; raw pointers in `abi` and `init_attr` are only handed back.
unsafe impl Send for Qp {}

/// The parts of a new queue pair.
pub(crate) struct NewQp {
    pub(crate) context: &'static Context,
    pub(crate) abi: ibv_qp,
    pub(crate) qp_type: QpType,
    pub(crate) pd_number: u32,
    pub(crate) held_pd: Option<Arc<Pd>>,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) srq: Option<Arc<Srq>>,
    pub(crate) init_attr: ibv_qp_init_attr,
    pub(crate) builder: Option<WrBuilder>,
    pub(crate) xrc_role: XrcRole,
    pub(crate) rss_table: Option<RssTableUse>,
}

/// A table of work queues over which a queue pair spreads raw packets.
pub(crate) struct RssTableUse {
    /// The place in the segment that describes the table to peers.
    pub(crate) segment_slot: usize,
    /// Number of queue pairs that use the table.
    pub(crate) table_qp_count: Arc<AtomicUsize>,
}

/// The number of the next queue pair.
static NEXT_CREATION_NUMBER: AtomicU32 = AtomicU32::new(1);

impl Qp {
    /// Makes a queue pair. `None` if there is no memory for its queues.
    pub(crate) fn new(index: usize, new: NewQp) -> Option<Self> {
        let nic = new.context.nic;
        let cap = new.init_attr.cap;
        let (recv_wr, recv_sge) = if new.srq.is_some() {
            (0, 0)
        } else {
            (cap.max_recv_wr, cap.max_recv_sge)
        };
        let sq = SendQueue::new(&cap, new.init_attr.sq_sig_all != 0)?;
        let rq = RecvQueue::new(recv_wr, recv_sge, new.pd_number)?;
        let qpn = nic.qpn(index);
        let mut abi = ibv_qp_ex_with_flush {
            ex: ibv_qp_ex::zeroed(),
            wr_flush: None,
        };
        let base = &mut abi.ex.qp_base;
        *base = new.abi;
        base.qp_num = qpn;
        base.state = IBV_QPS_RESET;
        let qp = Self {
            abi: UnsafeCell::new(abi),
            builder: new.builder,
            nic,
            context: new.context,
            index,
            qpn,
            creation_number: NEXT_CREATION_NUMBER.fetch_add(1, Ordering::Relaxed),
            qp_type: new.qp_type.service_with_xrc_as_rc(),
            accepted_wr_opcodes: nic
                .capabilities
                .accepted_wr_opcodes(new.qp_type.service_with_xrc_as_rc()),
            created_type: new.qp_type,
            open_count: AtomicUsize::new(1),
            multicast_group_or_flow_count: AtomicUsize::new(0),
            rss_table: new.rss_table,
            visible_wq: AtomicPtr::default(),
            blocks_multicast_loopback: AtomicBool::new(false),
            pd_number: new.pd_number,
            send_cq: new.send_cq,
            recv_cq: new.recv_cq,
            srq: new.srq,
            xrc_role: new.xrc_role,
            state: AtomicU32::new(QpState::Reset.code()),
            qkey: AtomicU32::new(0),
            max_rd_atomic: AtomicU32::new(0),
            coded_timeout_and_retries: AtomicU32::new(0),
            send_poll_work: AtomicU8::new(SendWork::None as u8),
            sq: BiasedLock::new(sq),
            rq: BiasedLock::new(rq),
            packet_responder_state: Mutex::default(),
            index_in_send_cq: AtomicUsize::new(usize::MAX),
            index_in_recv_cq: AtomicUsize::new(usize::MAX),
            path_in_shared_state: AtomicU32::new(0),
            modifiable_state: Mutex::new(ModifiableState {
                attr: ibv_qp_attr::zeroed(),
                peer_process: None,
                peer_flow: None,
                rings_waiting_for_rtr: Vec::new(),
            }),
            peer_gid: Mutex::new(None),
            init_attr: new.init_attr,
            unacknowledged_events: UnacknowledgedEvents::default(),
            held_pd: new.held_pd,
        };
        faults::note_created_queue_pair(qp.fault_plan_identity());
        let shared = qp.shared_state();
        shared.clear_refused_request();
        shared.next_message_completes.store(0, Ordering::Relaxed);
        shared.dest_qpn.store(0, Ordering::Relaxed);
        shared.access.store(0, Ordering::Relaxed);
        shared.pd.store(qp.pd_number, Ordering::Relaxed);
        let domain = match &qp.xrc_role {
            XrcRole::Recv(domain, _) => domain.number,
            XrcRole::NotXrc | XrcRole::Send => 0,
        };
        shared.xrc_domain.store(domain, Ordering::Relaxed);
        shared.host_wide_port_number.store(0, Ordering::Relaxed);
        shared
            .qp_type
            .store(new.init_attr.qp_type, Ordering::Relaxed);
        #[allow(clippy::cast_possible_truncation)] // 14 bits
        shared
            .recv_cq_index
            .store(qp.recv_cq.index as u32, Ordering::Relaxed);
        let device = qp.context.device.number.into();
        shared.device.store(device, Ordering::Relaxed);
        shared.port_num.store(0, Ordering::Relaxed);
        let srq = qp
            .srq
            .as_ref()
            .map_or(0, |srq| srq.listed_object.place_plus_1());
        shared.listed_srq_plus_1.store(srq, Ordering::Relaxed);
        shared.sq_psn.store(0, Ordering::Relaxed);
        shared.rq_psn.store(0, Ordering::Relaxed);
        shared.epoch.fetch_add(1, Ordering::Relaxed);
        shared
            .state_plus_1
            .store(1 + QpState::Reset.code(), Ordering::Release);
        Some(qp)
    }

    /// Returns the program's handle.
    pub(crate) fn handle(&self) -> *mut ibv_qp {
        self.abi.get().cast()
    }

    /// Returns true if both queue pairs were made through the same context.
    pub(crate) fn has_context_of(&self, other: &Self) -> bool {
        std::ptr::eq(self.context, other.context)
    }

    /// Returns the numbers of work requests that the send queue and the queue pair's own receive queue hold.
    pub(crate) fn max_send_and_recv_wrs(&self) -> (u64, u64) {
        let cap = &self.init_attr.cap;
        (cap.max_send_wr.into(), cap.max_recv_wr.into())
    }

    /// Returns the number of its port ([`PortPlace::host_wide_number`]); 0 before the program has chosen one.
    ///
    /// [`PortPlace::host_wide_number`]: crate::device::PortPlace::host_wide_number
    pub(crate) fn host_wide_port_number(&self) -> u32 {
        self.shared_state()
            .host_wide_port_number
            .load(Ordering::Relaxed)
    }

    /// Returns the part of the queue pair that peers see.
    #[inline(always)]
    pub(crate) fn shared_state(&self) -> &'static QpShared {
        match self.nic.this_process().segment.qp(self.index) {
            Some(shared) => shared,
            None => unreachable!("a queue pair has an index below MAX_QPS"),
        }
    }

    /// Returns the largest inline payload in bytes.
    pub(crate) fn max_inline_data(&self) -> usize {
        self.init_attr.cap.max_inline_data as usize
    }

    #[inline]
    pub(crate) fn state(&self) -> QpState {
        QpState::try_from(self.state.load(Ordering::Acquire)).unwrap_or(QpState::Err)
    }

    /// Sets the state, here and in the part that peers see.
    pub(crate) fn set_state(&self, state: QpState) {
        self.state.store(state.code(), Ordering::Release);
        self.publish_state(state);
    }

    /// Changes the state from `from` to `to`. Returns false if a failure has changed it meanwhile.
    pub(crate) fn try_change_state(&self, from: QpState, to: QpState) -> bool {
        let changed = self.state.compare_exchange(
            from.code(),
            to.code(),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if changed.is_ok() {
            self.publish_state(to);
        }
        changed.is_ok()
    }

    /// Copies the state to the part that peers see and to the program's structure.
    fn publish_state(&self, state: QpState) {
        if !matches!(state, QpState::Rtr | QpState::Rts) {
            self.shared_state()
                .next_message_completes
                .store(0, Ordering::Relaxed);
        }
        let path = self.path_in_shared_state.load(Ordering::Relaxed);
        self.shared_state()
            .state_plus_1
            .store((1 + state.code()) | path, Ordering::Release);
        // SAFETY: an aligned `u32` that the program reads without synchronisation, as with the C library.
        unsafe { (&raw mut (*self.abi.get()).ex.qp_base.state).write_volatile(state.code()) };
    }

    /// Returns `timeout` and `retry_cnt`, as coded.
    pub(crate) fn timeout_and_retry_cnt(&self) -> (u8, u8) {
        let v = self.coded_timeout_and_retries.load(Ordering::Relaxed);
        ((v & 0xff) as u8, (v >> 8 & 0xff) as u8)
    }

    /// Returns the facts by which a fault plan selects the queue pair.
    pub(crate) fn fault_plan_identity(&self) -> QueuePairIds {
        QueuePairIds {
            creation_number: self.creation_number,
            qpn: self.qpn,
        }
    }

    /// Returns the GID of the peer, if it has one.
    pub(crate) fn peer_gid(&self) -> Option<[u8; 16]> {
        *lock(&self.peer_gid)
    }

    /// Describes the queue pair for the report of a failure.
    pub(crate) fn report_description(&self) -> why::QueuePairDescription<'_> {
        why::QueuePairDescription {
            qpn: self.qpn,
            qp_type: self.created_type,
            peer_qpn: self
                .qp_type
                .is_connected()
                .then(|| self.shared_state().dest_qpn.load(Ordering::Relaxed)),
            fabric_folder: self.nic.fabric.dir(),
        }
    }

    /// Returns the time for which a fault plan can keep the receiver not ready before the requester gives up. `None`
    /// means no limit. The RNR timer is the queue pair's own, as if both ends had been given the same.
    pub(crate) fn rnr_fault_timeout_ns(&self) -> Option<u64> {
        let rnr_retry = self.coded_timeout_and_retries.load(Ordering::Relaxed) >> 16;
        let timer = self.shared_state().min_rnr_timer.load(Ordering::Relaxed);
        total_rnr_wait_ns(rnr_retry, timer.try_into().unwrap_or(0))
    }

    /// Returns the receive queue from which the queue pair takes work requests.
    #[inline]
    pub(crate) fn recv_queue(&self) -> &BiasedLock<RecvQueue> {
        self.srq.as_ref().map_or(&self.rq, |srq| &srq.recv_queue)
    }

    /// Raises an asynchronous event.
    pub(crate) fn raise_event(&self, event: ibv_event_type) {
        let wq = self.visible_wq.load(Ordering::Acquire);
        if wq.is_null() {
            self.context.raise_qp_event(event, self.handle());
        } else {
            // A work queue has only this event.
            self.context.raise_wq_event(IBV_EVENT_WQ_FATAL, wq);
        }
    }

    /// Makes the queue pair appear to the program as a work queue.
    pub(crate) fn show_as_wq(&self, wq: *mut ibv_wq) {
        self.visible_wq.store(wq, Ordering::Release);
    }

    /// Returns the state of the queue pair as that of a work queue.
    pub(crate) fn wq_state(&self) -> ibv_wq_state {
        match self.state() {
            QpState::Reset | QpState::Init => IBV_WQS_RESET,
            QpState::Err | QpState::Sqe => IBV_WQS_ERR,
            QpState::Rtr | QpState::Rts | QpState::Sqd => IBV_WQS_RDY,
        }
    }

    /// Enters the error state, unless the queue pair is reset meanwhile: its failure is then over. The caller has flushed
    /// the send queue, or is about to, and holds no lock of a CQ.
    pub(crate) fn enter_error(&self) {
        let fails = |state| {
            let state = QpState::try_from(state).unwrap_or(QpState::Err);
            (!matches!(state, QpState::Reset | QpState::Err)).then_some(QpState::Err.code())
        };
        let entered = self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, fails);
        if entered.is_err() {
            return;
        }
        self.publish_state(QpState::Err);
        if self.state() != QpState::Err {
            // A reset came in between, and what it has published is overwritten.
            self.publish_state(self.state());
        }
        if self.srq.is_some() || matches!(self.xrc_role, XrcRole::Recv(..)) {
            self.raise_event(IBV_EVENT_QP_LAST_WQE_REACHED);
        }
        self.send_poll_work
            .store(SendWork::Completions as u8, Ordering::Relaxed);
        self.send_cq.call_engine_if_armed();
        self.recv_cq.call_engine_if_armed();
        self.wake_peer();
    }

    /// Enters the error state and flushes the send queue. The caller does not hold the lock of the send queue.
    pub(crate) fn flush_and_enter_error(&self) {
        // A reset takes this lock after it has changed the state, so it comes before or after both steps.
        let mut sq = self.sq.lock();
        if self.state() == QpState::Reset {
            return;
        }
        sq.flush(self.nic, None);
        self.enter_error();
    }

    /// Fails the queue pair, if it is in use, with `IBV_EVENT_QP_FATAL`, because a CQ of its work requests is overrun.
    /// The caller holds no lock of a CQ.
    pub(crate) fn fail_for_cq_overrun(&self) {
        self.fail_and_raise_if_in_use(IBV_EVENT_QP_FATAL);
    }

    /// Fails the queue pair, if it is in use, and raises `event`. The caller holds no lock of a CQ.
    pub(crate) fn fail_and_raise_if_in_use(&self, event: ibv_event_type) {
        if self.fail_if_in_use() {
            self.raise_event(event);
        }
    }

    /// Fails the queue pair, if it is in use, without an event: the event of the device covers all its queue pairs.
    pub(crate) fn fail_quietly(&self) {
        self.fail_if_in_use();
    }

    fn fail_if_in_use(&self) -> bool {
        // Under the lock, the queue pair is neither reset nor destroyed meanwhile.
        let control = lock(&self.modifiable_state);
        if matches!(self.state(), QpState::Reset | QpState::Err) {
            return false;
        }
        self.flush_and_enter_error();
        if let Some(peer) = &control.peer_process {
            peer.wake_engine();
        }
        true
    }

    /// Wakes the peer, which may wait for something that this queue pair will never send.
    fn wake_peer(&self) {
        if let Ok(control) = self.modifiable_state.try_lock()
            && let Some(peer) = &control.peer_process
        {
            peer.wake_engine();
        }
    }

    /// Makes completions of finished sends; looks for unsignaled ones too if `all`. Returns true if a work request
    /// waits for a deadline.
    #[inline(always)]
    pub(crate) fn poll_sends(&self, sink: &mut WcSink<'_>, all: bool) -> bool {
        let least = if all {
            SendWork::Unsignaled
        } else {
            SendWork::Completions
        };
        self.send_poll_work.load(Ordering::Relaxed) >= least as u8
            && send::complete_finished_sends(self, sink)
    }

    #[inline]
    pub(crate) fn wake_awaited_peer(&self) {
        send::wake_awaited_peer(self);
    }

    #[inline]
    pub(crate) fn wake_awaited_peer_unless_it_takes_messages(&self) -> AwaitedPeer {
        send::wake_awaited_peer_unless_it_takes_messages(self)
    }

    /// Opens a ring that a peer has made for this queue pair.
    pub(crate) fn open_inbound_ring(&self, peer: Arc<Peer>, offset: usize) {
        let Some(ring) = InboundShmRing::open(peer, offset) else {
            return;
        };
        let mut control = lock(&self.modifiable_state);
        if self.accepts_ring(&control, &ring) {
            self.attach_ring(ring);
        } else if self.state() == QpState::Err {
            ring.detach();
        } else {
            control.rings_waiting_for_rtr.push(ring);
        }
    }

    /// Starts to receive from `ring`.
    fn attach_ring(&self, ring: InboundShmRing) {
        self.with_recv_side(|side| match side {
            Some(side) => side.attach_ring(ring),
            None => ring.detach(),
        });
    }

    /// Returns true if this queue pair receives from `ring` in its present state.
    fn accepts_ring(&self, control: &ModifiableState, ring: &InboundShmRing) -> bool {
        if !matches!(
            self.state(),
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        ) {
            return false;
        }
        !self.qp_type.is_connected()
            || (control.attr.dest_qp_num == ring.src_qpn()
                && control
                    .peer_process
                    .as_ref()
                    .is_some_and(|p| p.incarnation == ring.peer().incarnation))
    }

    /// Executes `ibv_query_qp`.
    pub(crate) fn query(&self) -> (ibv_qp_attr, ibv_qp_init_attr) {
        let mut attr = lock(&self.modifiable_state).attr;
        attr.qp_state = self.state().code();
        attr.cur_qp_state = attr.qp_state;
        attr.cap = self.init_attr.cap;
        (attr, self.init_attr)
    }

    /// Runs `f` on the receive side of the queue pair.
    fn with_recv_side(&self, f: impl FnOnce(Option<&mut RecvSide>)) {
        match &self.xrc_role {
            XrcRole::Recv(domain, _) => domain.with_recv_side(self, f),
            XrcRole::NotXrc | XrcRole::Send => self.recv_cq.with_recv_side(self, f),
        }
    }

    /// Takes the messages that have arrived so far, before a flush or reset.
    fn complete_arrived_messages_into_buffer(&self) {
        match &self.xrc_role {
            XrcRole::Recv(domain, _) => {
                domain.deliver_arrived_messages();
            }
            XrcRole::NotXrc | XrcRole::Send => {
                self.recv_cq.complete_arrived_messages_into_buffer(self)
            }
        }
    }

    /// Executes `ibv_destroy_qp`: removes the queue pair from everything that refers to it.
    pub(crate) fn destroy(&self) {
        send::send_waiting_multi_receiver_datagrams(self);
        self.reset(&mut lock(&self.modifiable_state));
        self.send_cq.remove_sending_qp(self);
        match &self.xrc_role {
            XrcRole::Recv(domain, _) => domain.remove_receiving_qp(self),
            XrcRole::NotXrc | XrcRole::Send => self.recv_cq.remove_receiving_qp(self),
        }
        self.shared_state().state_plus_1.store(0, Ordering::Release);
        let wq = self.visible_wq.load(Ordering::Acquire);
        let handle = if wq.is_null() {
            self.handle().cast()
        } else {
            wq.cast()
        };
        self.context.discard_events_of_object(handle);
        self.unacknowledged_events
            .wait_until_all_acknowledged("ibv_destroy_qp", "ibv_ack_async_event");
        self.nic.objects.remove_qp(self.index);
        self.send_cq.remove_user();
        self.recv_cq.remove_user();
        if let Some(srq) = &self.srq {
            srq.qp_count.fetch_sub(1, Ordering::Relaxed);
        }
        if let XrcRole::Recv(_, uses) = &self.xrc_role {
            uses.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(spread) = &self.rss_table {
            self.nic
                .rss_configs
                .remove_rss_config(&self.nic.fabric, spread.segment_slot);
            spread.table_qp_count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
