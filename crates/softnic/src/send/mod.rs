//! The send queue: turns work requests into records, copies and atomics.
//!
//! The posting thread executes one-sided verbs at once. Two-sided verbs become records in a ring that the receiver
//! reads. On RC and UC they complete when the receiver has consumed them. A work request that cannot be executed yet is
//! deferred: the peer is not ready, its ring is full, or the queue is being drained. Each poll tries deferred work
//! requests again.

mod builder;
mod burst;
mod codes;
mod connected;
mod gather;
mod local;
mod one_sided;
mod out_ring;
mod packets;
mod progress;
mod raw;
mod rendezvous;
mod responder_memory;
mod single_send;
mod single_write;
mod traffic;
mod ud;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ::faults::WorkRequestFault;
use nic_core::qp_state::ack_timeout_ns;
use nic_core::retry::WaitTimer;
use nic_core::verbs::{carries_payload, completion_opcode};
use verbs_abi::*;

use crate::ah::Ah;
use crate::cq::WcSink;
use crate::device::LinkLayer;
use crate::mw::bind_request;
use crate::nic::Nic;
use crate::path;
use crate::path::traffic::HostPortId;
use crate::qp::Qp;
use crate::qp_state::{QpState, QpType};
use crate::record::{
    FLAG_BY_REFERENCE, FLAG_RECEIVER_SEND_COMPLETES_FIRST, FLAG_SOLICITED, RecordKind, header,
};
use crate::recv::{failed_recv_wc, wake_waiter_if_cq_armed};
use crate::region_cache::{KeyError, RegionCache};
use crate::sge::{AlignedSges, checked_sge};
use crate::why::{self, FailureCause};
use crate::xrc::XrcRole;
use shm::clock::now_ns;
use shm::fabric::Peer;
use shm::fabric::layout::*;
use shm::fabric::ring::{Producer, SLOT_BYTES, record_slots};
use shm::keys::BindRequest;
use shm::mem::{AtomicOp, BOUNCE, MemoryFault, is_readable, probe_writable};

use connected::*;
use gather::*;
use local::*;
use one_sided::*;
use out_ring::*;
use progress::*;
pub(crate) use rendezvous::read_rendezvous_payload_and_send_fin;
use traffic::{DestinationPort, PacketFormat, UnpublishedTraffic};
use ud::*;

pub(crate) use builder::{BuiltPostlist, WrBuilder};
pub(crate) use connected::{WRITE_RECORD_PREFIX_BYTES, start_counting_traffic};
pub(crate) use one_sided::{
    FlushRange, TargetQp, read_to_unmapped_or_tell_if_local_failed, remote_region,
};
pub(crate) use packets::{
    ConnectedRequester, packet_timeout_ns, process_answer_or_congestion_notice,
    transmit_after_answers,
};
pub(crate) use progress::{
    complete_finished_sends, free_place_of_polled_completion, publish_traffic,
    publish_traffic_if_send_queue_free, send_waiting_multi_receiver_datagrams, wake_awaited_peer,
};
pub(crate) use responder_memory::RequestedMemory;
pub(crate) use single_send::{is_single_send, post_unless_general_path_needed as post_single_send};
pub(crate) use single_write::{
    is_single_write, post_unless_general_path_needed as post_single_write,
};

/// The work that a poll of the send CQ finds in a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SendWork {
    /// Nothing.
    None = 0,
    /// Only unsignaled WRs that are not acknowledged yet. A poll does not check them each time: that would fetch a
    /// cache line that the receiver writes to.
    Unsignaled = 1,
    /// Completions, or WRs that will become completions.
    Completions = 2,
}

/// A fixed-size queue.
///
/// All methods are `inline(always)`, so that an entry is built in its place. An entry that passes through the stack is
/// read back in larger pieces than it was written in. That read waits until every earlier store has reached the cache.
/// One of these stores may be a message that waits for its cache line. The wait took half of the time of a WRITE.
struct FixedFifo<T> {
    items: Box<[T]>,
    head: usize,
    tail: usize,
}

impl<T: Copy + Default> FixedFifo<T> {
    /// Returns an empty queue, or `None` if there is no memory for it.
    fn new(capacity: usize) -> Option<Self> {
        Some(Self {
            items: crate::filled::try_boxed_slice(T::default(), capacity.next_power_of_two())?,
            head: 0,
            tail: 0,
        })
    }
    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.head == self.tail
    }
    #[inline(always)]
    fn push(&mut self, item: T) {
        debug_assert!(self.tail - self.head < self.items.len());
        let mask = self.items.len() - 1;
        self.items[self.tail & mask] = item;
        self.tail += 1;
    }
    #[inline(always)]
    fn front(&self) -> Option<&T> {
        (!self.is_empty()).then(|| &self.items[self.head & (self.items.len() - 1)])
    }
    /// Removes entries from the front as long as `wanted` returns true. The head is stored once.
    #[inline(always)]
    fn pop_while(&mut self, mut wanted: impl FnMut(&T) -> bool) {
        let (mut head, tail) = (self.head, self.tail);
        let mask = self.items.len() - 1;
        while head != tail && wanted(&self.items[head & mask]) {
            head += 1;
        }
        self.head = head;
    }
    fn clear(&mut self) {
        self.head = self.tail;
    }
}

/// A send WR whose outcome is known (in `finished_wrs`) or awaited (in `pending`).
#[derive(Clone, Copy, Default)]
struct SendWqe {
    wr_id: u64,
    /// Position of the ring up to which the receiver must have consumed; 0 if the WR is done already.
    ring_end: u64,
    /// Sequence number of the WR, in the order of posting.
    seq: u64,
    /// The completion's byte length, or its `vendor_err` if the WR failed: a completion in error has no length.
    byte_len_or_vendor_err: u32,
    /// `ibv_wc_opcode` and `ibv_wc_status`, whose values fit into a byte, so that an entry takes few stores.
    opcode: u8,
    status: u8,
    signaled: bool,
    /// 1 for a WRITE that the receiver executes in the order of the ring, else 0. The field is as large as its
    /// neighbours, so that one store writes them all.
    ordered_write_count: u8,
}

/// The error with which a work request completes.
#[derive(Clone, Copy)]
pub(crate) struct WrError {
    status: ibv_wc_status,
    vendor_err: u32,
}

impl WrError {
    const FLUSHED: Self = Self {
        status: IBV_WC_WR_FLUSH_ERR,
        vendor_err: 0,
    };
}

/// Converts a code of a completion to the byte that queue entries store.
#[allow(clippy::cast_possible_truncation)] // asserted
#[inline(always)]
const fn code_as_byte(code: u32) -> u8 {
    debug_assert!(code <= 0xff);
    code as u8
}

/// `IBV_WC_SUCCESS` as stored in a send-queue entry.
const SUCCESS_BYTE: u8 = code_as_byte(IBV_WC_SUCCESS);

impl SendWqe {
    /// Returns the contribution of this WR to the counts of [`PendingWqes`].
    #[inline(always)]
    fn pending_counts(&self) -> u64 {
        let is_in_order = self.opcode == code_as_byte(IBV_WC_SEND) || self.ordered_write_count != 0;
        u64::from(self.signaled) | u64::from(self.ring_end != 0 && is_in_order) << 32
    }
}

/// The WRs that are not done, in the order of posting.
struct PendingWqes {
    wqes: FixedFifo<SendWqe>,
    /// The lower half counts signaled WRs. The upper half counts SENDs that the receiver has not taken, and WRITEs that
    /// it has not executed. Both share one word: the compiler would access two words as a vector in one place and one
    /// by one in another, and these accesses wait for each other.
    packed_counts: u64,
}

impl PendingWqes {
    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.wqes.is_empty()
    }
    /// Returns true if a pending WR is signaled.
    #[inline(always)]
    fn has_signaled(&self) -> bool {
        self.packed_counts & u64::from(u32::MAX) != 0
    }
    /// Returns true if a pending WR is a SEND that the receiver has not taken, or a WRITE that it has not executed.
    #[inline(always)]
    fn has_wrs_left_to_receiver(&self) -> bool {
        self.packed_counts >> 32 != 0
    }
    #[inline(always)]
    fn front(&self) -> Option<&SendWqe> {
        self.wqes.front()
    }
    #[inline(always)]
    fn push(&mut self, wqe: SendWqe) {
        self.packed_counts += wqe.pending_counts();
        self.wqes.push(wqe);
    }
    #[inline(always)]
    fn pop(&mut self) -> Option<SendWqe> {
        let wqe = *self.front()?;
        self.drop_front(&wqe);
        Some(wqe)
    }
    /// Removes the WR at the front, of which the caller has a copy.
    #[inline(always)]
    fn drop_front(&mut self, front: &SendWqe) {
        debug_assert!(self.front().is_some_and(|wqe| wqe.seq == front.seq));
        self.wqes.head += 1;
        self.packed_counts -= front.pending_counts();
    }
    fn clear(&mut self) {
        self.wqes.clear();
        self.packed_counts = 0;
    }
}

/// A WR that waits to be executed, with copies of everything that it points to.
struct DeferredWr {
    wr: ibv_send_wr,
    sges: Vec<ibv_sge>,
    /// The payload, if it was read when the WR was posted.
    early_payload: Option<Vec<u8>>,
    seq: u64,
    /// Time since the WR was first tried again.
    retry_wait: WaitTimer,
    /// Time in nanoseconds that the WR has waited when the receiver is woken next.
    wake_after_ns: u64,
    ah: Option<Arc<Ah>>,
    bind: Option<BindRequest>,
    /// The fault that the fault plan prescribes for this WR.
    fault: Option<WorkRequestFault>,
}

// SAFETY: the raw pointers in `wr` are not dereferenced; `sges`, `payload`, `ah` and `bind` replace them.
unsafe impl Send for DeferredWr {}

/// A WR prepared for execution.
struct WrView<'a> {
    wr: &'a ibv_send_wr,
    sges: &'a [ibv_sge],
    /// The payload, if it has been gathered already.
    gathered_payload: Option<&'a [u8]>,
    ah: Option<&'a Ah>,
    /// The request of a WR that binds a memory window.
    bind: Option<BindRequest>,
    /// True if a message of this queue follows, for which the receiver has to read the ring.
    message_follows: bool,
}

/// The result of an attempt to execute a WR.
enum ExecutionResult {
    /// Executed; the completion reports this number of bytes.
    Done(u32),
    /// Written to a ring, up to this position.
    InRing(u64),
    /// A WRITE written to a ring, up to this position; the completion reports this number of bytes.
    OrderedWriteInRing(u64, u32),
    /// Sent in packets and done at this position; the completion reports this number of bytes.
    SentInPackets(u64, u32),
    /// Not possible yet.
    Later,
    /// Failed with this status.
    Failed(ibv_wc_status),
}

/// The send queue of a queue pair.
pub(crate) struct SendQueue {
    /// Number of WRs posted, and number of WRs whose places are free again. A place is freed when a completion of its
    /// WR or of a later one has been polled (`ibv_post_send(3)`).
    posted_wrs: u64,
    freed_wrs: u64,
    /// The values of `freed_wrs` that come into force when the program takes completions from the buffer of the
    /// completion queue: one for each completion there, in their order.
    freed_wrs_after_buffered_completions: VecDeque<u64>,
    max_wr: u64,
    max_sge: usize,
    max_inline: usize,
    sq_sig_all: bool,
    traffic: UnpublishedTraffic,
    pending: PendingWqes,
    finished_wrs: FixedFifo<SendWqe>,
    deferred: VecDeque<DeferredWr>,
    /// RC and UC by shared memory: the ring to the peer.
    peer_ring: Option<OutRing>,
    /// RC and UC by packets: the requests to the peer.
    packet_requester: Option<Box<ConnectedRequester>>,
    /// PSN of the next datagram.
    datagram_psn: u32,
    /// UD: rings by destination.
    ud: UdRings,
    /// The state that a raw packet queue pair needs to send.
    raw: Option<Box<raw::RawQpState>>,
    local_regions: RegionCache,
    peer_regions: RegionCache,
    /// Time since the peer of a reliable queue pair was first found not to answer.
    peer_silence: WaitTimer,
    /// Position of the ring behind the last WRITE that was left to the receiver.
    last_ordered_write_end: u64,
    /// The cause of the failure of the failed WR in `pending`.
    failure_cause: Option<FailureCause>,
    is_stopped_by_failure: bool,
}

impl SendQueue {
    /// Returns an empty queue, or `None` if there is no memory for it.
    pub(crate) fn new(cap: &ibv_qp_cap, sq_sig_all: bool) -> Option<Self> {
        let depth = cap.max_send_wr.max(1) as usize;
        Some(Self {
            posted_wrs: 0,
            freed_wrs: 0,
            freed_wrs_after_buffered_completions: VecDeque::new(),
            max_wr: u64::from(cap.max_send_wr),
            max_sge: cap.max_send_sge as usize,
            max_inline: cap.max_inline_data as usize,
            sq_sig_all,
            traffic: UnpublishedTraffic::new(),
            pending: PendingWqes {
                wqes: FixedFifo::new(depth)?,
                packed_counts: 0,
            },
            finished_wrs: FixedFifo::new(depth)?,
            deferred: VecDeque::new(),
            peer_ring: None,
            packet_requester: None,
            datagram_psn: 0,
            ud: UdRings::default(),
            raw: None,
            local_regions: RegionCache::new(),
            peer_regions: RegionCache::new(),
            peer_silence: WaitTimer::NOT_WAITING,
            last_ordered_write_end: 0,
            failure_cause: None,
            is_stopped_by_failure: false,
        })
    }

    /// Returns true if the outcome of every executed WR is known.
    pub(crate) fn has_no_pending_wrs(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns the work that a poll finds in this queue.
    #[inline]
    fn poll_work(&self) -> SendWork {
        if self.pending.has_signaled() || !self.finished_wrs.is_empty() || !self.deferred.is_empty()
        {
            SendWork::Completions
        } else if self.pending.is_empty() {
            SendWork::None
        } else {
            SendWork::Unsignaled
        }
    }

    /// Creates the ring to the peer of a connected queue pair (INIT to RTR).
    pub(crate) fn connect(&mut self, qp: &Qp, peer: Arc<Peer>, dest_qpn: u32) -> Result<(), i32> {
        // The ring has room for `max_wr` records of the smallest size into which any WR fits.
        let record = record_slots(self.max_inline.max(self.max_sge * SLOT_BYTES).max(16));
        let slots = (self.max_wr * record + 2 * record + 2)
            .next_power_of_two()
            .clamp(64, 32768);
        let ring = NewRingParameters {
            slots,
            dest_index: dest_qpn as usize % MAX_QPS,
            rnr_retry: 0,
            grh: None,
            completion_path_word: 0,
        };
        let mut out = new_ring(qp, peer, &ring).ok_or(libc::ENOMEM)?;
        out.send_ring_notice(qp.nic);
        self.peer_ring = Some(out);
        Ok(())
    }

    /// Starts requests by packets (RTR to RTS).
    pub(crate) fn connect_by_packets(&mut self, wire: ConnectedRequester) {
        self.packet_requester = Some(Box::new(wire));
    }

    /// Sets the timeout and the retry counts of requests by packets, as coded in `ibv_qp_attr`.
    pub(crate) fn set_packet_timeout_and_retries(
        &mut self,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
    ) {
        if let Some(requester) = self
            .packet_requester
            .as_mut()
            .and_then(|wire| wire.rc_requester())
        {
            requester.set_timeout_ns(packet_timeout_ns(timeout));
            requester.set_retry_cnt(retry_cnt);
            requester.set_rnr_retry(rnr_retry);
        }
    }

    /// Sets the RNR retry count that the receiver applies.
    pub(crate) fn set_rnr_retry(&mut self, nic: &Nic, rnr_retry: u8) {
        if let Some(header) = self.peer_ring.as_ref().and_then(|out| out.header(nic)) {
            header
                .rnr_retry
                .store(u32::from(rnr_retry), Ordering::Relaxed);
        }
    }

    /// Returns the queue to RESET: drops all WRs and closes all rings.
    pub(crate) fn reset(&mut self, nic: &Nic) {
        self.withdraw_untaken_sends(nic);
        self.pending.clear();
        self.finished_wrs.clear();
        self.deferred.clear();
        self.freed_wrs = self.posted_wrs;
        self.freed_wrs_after_buffered_completions.clear();
        for ring in self
            .peer_ring
            .take()
            .into_iter()
            .chain(self.ud.rings.drain(..).flatten())
        {
            ring.close(nic);
        }
        self.ud = UdRings::default();
        self.packet_requester = None;
        self.local_regions.clear();
        self.peer_regions.clear();
        self.peer_silence.end_wait();
        self.last_ordered_write_end = 0;
        self.failure_cause = None;
        self.is_stopped_by_failure = false;
    }

    /// Withdraws the SENDs that the receiver has not taken, before the program sees their completions.
    fn withdraw_untaken_sends(&self, nic: &Nic) {
        if self.pending.has_wrs_left_to_receiver()
            && let Some(out) = &self.peer_ring
        {
            out.withdraw_untaken(nic);
        }
    }

    /// Ends every WR that is not done: the oldest with `first`, if given, and all others with a flush error. A WR that
    /// the receiver has taken is done. Returns the `wr_id` and the opcode of the WR that ended with `first`.
    pub(crate) fn flush(
        &mut self,
        nic: &Nic,
        first: Option<WrError>,
    ) -> Option<(u64, ibv_wc_opcode)> {
        self.withdraw_untaken_sends(nic);
        if let Some(Ok(consumed)) = self
            .peer_ring
            .as_mut()
            .map(|out| out.producer.refresh_consumer_head())
        {
            move_consumed_to_finished(self, consumed);
        }
        if let Some(wire) = &self.packet_requester {
            let done = wire.done_requests();
            move_consumed_to_finished(self, done);
        }
        let mut left = first;
        let mut ended = None;
        let mut end = |wr_id, opcode, left: &mut Option<WrError>| {
            let failed = left.take();
            if failed.is_some() {
                ended = Some((wr_id, opcode));
            }
            failed.unwrap_or(WrError::FLUSHED)
        };
        while let Some(wqe) = self.pending.pop() {
            if wqe.ring_end == 0 && wqe.status == SUCCESS_BYTE {
                // This WR was executed while an earlier one was not acknowledged.
                left = None;
            }
            let failed = end(wqe.wr_id, wqe.opcode.into(), &mut left);
            self.finished_wrs.push(SendWqe {
                status: code_as_byte(failed.status),
                byte_len_or_vendor_err: failed.vendor_err,
                signaled: true,
                ..wqe
            });
        }
        while let Some(d) = self.deferred.pop_front() {
            let failed = end(d.wr.wr_id, completion_opcode(d.wr.opcode), &mut left);
            self.finished_wrs.push(SendWqe {
                wr_id: d.wr.wr_id,
                seq: d.seq,
                status: code_as_byte(failed.status),
                byte_len_or_vendor_err: failed.vendor_err,
                signaled: true,
                ..SendWqe::default()
            });
        }
        self.is_stopped_by_failure = true;
        ended
    }

    /// Lets the queue execute WRs again after it had failed (SQE to RTS).
    pub(crate) fn resume_after_sqe(&mut self) {
        self.is_stopped_by_failure = false;
    }
}

/// Posts a list of work requests, as `ibv_post_send`, under the lock of the send queue.
///
/// # Safety
/// `wr` is null or the first of a list of work requests as `ibv_post_send(3)` describes it.
#[inline(always)]
pub(crate) unsafe fn post_send(
    qp: &Qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> i32 {
    let mut sq = qp.sq.lock();
    // SAFETY: contract of this function.
    unsafe { post_list::<false, false>(qp, &mut sq, wr, bad_wr) }
}

/// [`post_send`] on a queue pair that sends to XRC shared receive queues.
///
/// # Safety
/// As for [`post_send`].
#[cold]
pub(crate) unsafe fn post_send_xrc(
    qp: &Qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> i32 {
    let mut sq = qp.sq.lock();
    // SAFETY: contract of this function.
    unsafe { post_list::<true, false>(qp, &mut sq, wr, bad_wr) }
}

/// [`post_send`] under a fault plan.
///
/// # Safety
/// As for [`post_send`].
#[cold]
pub(crate) unsafe fn post_send_under_faults(
    qp: &Qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> i32 {
    let mut sq = qp.sq.lock();
    // SAFETY: contract of this function.
    unsafe {
        if matches!(qp.xrc, XrcRole::Send) {
            post_list::<true, true>(qp, &mut sq, wr, bad_wr)
        } else {
            post_list::<false, true>(qp, &mut sq, wr, bad_wr)
        }
    }
}

/// Posts a list of `count` WRs if there is room for all of them.
///
/// # Safety
/// As for [`post_send`].
pub(crate) unsafe fn post_send_all<const XRC: bool, const FAULTS: bool>(
    qp: &Qp,
    wr: *mut ibv_send_wr,
    count: usize,
) -> i32 {
    let mut sq = qp.sq.lock();
    if sq.max_wr - (sq.posted_wrs - sq.freed_wrs) < count as u64 {
        return libc::ENOMEM;
    }
    let bad_wr = std::ptr::null_mut();
    // SAFETY: contract of this function.
    unsafe { post_list::<XRC, FAULTS>(qp, &mut sq, wr, bad_wr) }
}

/// Posts a list of WRs to a send queue that the caller has locked.
///
/// # Safety
/// As for [`post_send`].
#[inline(always)]
unsafe fn post_list<const XRC: bool, const FAULTS: bool>(
    qp: &Qp,
    sq: &mut SendQueue,
    mut wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> i32 {
    let state = qp.state();
    let mut result = 0;
    let held_back = !sq.deferred.is_empty();
    let ordered_before = sq.last_ordered_write_end;
    if !matches!(
        state,
        QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err
    ) {
        result =
            why::einval_because(|| format!("the queue pair is in {state}, and sends from RTS on"));
    } else {
        // SAFETY: contract of this function.
        while !wr.is_null() {
            if !XRC
                && !FAULTS
                && state == QpState::Rts
                && !sq.is_stopped_by_failure
                && sq.deferred.is_empty()
            {
                // SAFETY: as above; not null.
                wr = unsafe { burst::execute_run(qp, sq, wr) };
            }
            // SAFETY: as above.
            let Some(this) = (unsafe { wr.as_ref() }) else {
                break;
            };
            if XRC {
                note_xrc_srq(sq, this);
            }
            // SAFETY: as above.
            if let Err(errno) = unsafe { post_one::<FAULTS>(qp, sq, this, state) } {
                result = errno;
                break;
            }
            wr = this.next;
        }
    }
    if result == libc::EINVAL {
        // SAFETY: as above.
        let wr_id = unsafe { wr.as_ref() }.map_or(0, |wr| wr.wr_id);
        why::report_refused_post("ibv_post_send", qp.qpn, wr_id);
    }
    if result != 0 && !bad_wr.is_null() {
        // SAFETY: a place for the failed WR (contract of `ibv_post_send`).
        unsafe { *bad_wr = wr };
    }
    // The work is stored before the receiver can see any message. The receiver may answer, and our engine check this
    // word, before this thread continues. An engine that found no work would sleep, and nothing would wake it again.
    let work = sq.poll_work();
    if qp.send_poll_work.load(Ordering::Relaxed) != work as u8 {
        qp.send_poll_work.store(work as u8, Ordering::Relaxed);
    }
    publish_rings_and_transmit_packets(qp, sq);
    if work != SendWork::None && qp.send_cq.is_armed() {
        publish_before_sleep(qp, sq);
    }
    if (!held_back && !sq.deferred.is_empty())
        || sq.packet_requester.is_some()
        || sq.last_ordered_write_end != ordered_before
    {
        // The engine tries deferred WRs again, retransmits lost packets, and wakes a receiver to execute the WRITEs
        // left to it. It does so even if the program does not poll.
        qp.nic.wake_engine_unless_ticking();
    }
    result
}

/// Notes the shared receive queue that an XRC work request names.
fn note_xrc_srq(sq: &mut SendQueue, wr: &ibv_send_wr) {
    if let Some(out) = &mut sq.peer_ring {
        // SAFETY: the union's member for XRC; a plain integer.
        out.current_srqn = unsafe { wr.qp_type.xrc.remote_srqn };
    }
}

/// Handles a post while the send CQ is armed, which means that the poster is about to sleep. Reports completions that
/// are ready, and makes the peer take the pending WRs.
#[cold]
fn publish_before_sleep(qp: &Qp, sq: &mut SendQueue) {
    if !sq.finished_wrs.is_empty() {
        qp.send_cq.call_engine_if_armed();
    }
    wake_receiver_of_pending(qp, sq);
}

/// Wakes the engine of the receiver of the pending WRs, unless it is not needed.
///
/// The engine makes progress for a program that neither polls nor waits. If the send CQ is armed for solicited
/// completions, the sender waits only for failures. The function then wakes no receiver that takes messages by itself. A
/// wake-up would cost a system call for each post, and the engine would revoke the bias of all locks of the receiver.
#[cold]
pub(super) fn wake_receiver_of_pending(qp: &Qp, sq: &mut SendQueue) {
    if let Some(out) = &mut sq.peer_ring
        && !sq.pending.is_empty()
        && !(qp.send_cq.is_armed_for_solicited_only() && out.does_receiver_take_messages_itself())
    {
        out.peer.wake_engine();
    }
}

#[inline(always)]
fn publish_rings_and_transmit_packets(qp: &Qp, sq: &mut SendQueue) {
    if let Some(i) = sq.ud.open_ring_index {
        sq.ud.open_ring_index = None;
        if let Some(Some(ring)) = sq.ud.rings.get_mut(i) {
            ring.publish(qp.nic);
        }
    } else if let Some(out) = &mut sq.peer_ring {
        out.publish(qp.nic);
    }
    if path::are_packets_in_use() {
        packets::transmit_posted(qp, sq);
    }
}

/// Checks one WR, then executes, defers or flushes it.
///
/// # Safety
/// As for [`post_send`].
#[inline(never)]
unsafe fn post_one<const FAULTS: bool>(
    qp: &Qp,
    sq: &mut SendQueue,
    wr: &ibv_send_wr,
    state: QpState,
) -> Result<(), i32> {
    if sq.posted_wrs - sq.freed_wrs >= sq.max_wr {
        return Err(libc::ENOMEM);
    }
    if qp.accepted_wr_opcodes.checked_shr(wr.opcode).unwrap_or(0) & 1 == 0 {
        return Err(why::einval_because(|| {
            format!(
                "{:?} queue pairs of this device have no opcode {}",
                qp.qp_type, wr.opcode
            )
        }));
    }
    let count = usize::try_from(wr.num_sge).map_err(|_| libc::EINVAL)?;
    if count > sq.max_sge {
        let max = sq.max_sge;
        return Err(why::einval_because(|| {
            format!("num_sge is {count}, and max_send_sge {max}")
        }));
    }
    let mut copies = AlignedSges::none();
    let sges = if count == 0 {
        &[]
    } else if wr.sg_list.is_null() {
        return Err(libc::EINVAL);
    } else {
        // SAFETY: `sg_list` has `num_sge` entries (contract).
        unsafe { copies.align_sges(wr.sg_list, count) }
    };
    let inline = wr.send_flags & IBV_SEND_INLINE != 0;
    if inline {
        let total: u64 = sges.iter().map(|s| u64::from(s.length)).sum();
        // The 8 bytes of an atomic write are in the work request itself, whatever `max_inline_data` is.
        let fits = (total <= sq.max_inline as u64 && carries_payload(wr.opcode))
            || (wr.opcode == IBV_WR_ATOMIC_WRITE && total == 8);
        if !fits {
            let max = sq.max_inline;
            return Err(why::einval_because(|| {
                format!("IBV_SEND_INLINE with {total} bytes, and max_inline_data is {max}")
            }));
        }
    }
    let ah = if qp.qp_type == QpType::Ud {
        // SAFETY: the handle of an address handle that the program has not destroyed (contract).
        let ah = unsafe { Ah::from_handle(wr.wr.ud.ah) }.ok_or(libc::EINVAL)?;
        if ah.pd_number != qp.pd_number {
            return Err(why::einval_because(
                || "the address handle is of another protection domain",
            ));
        }
        Some(ah)
    } else {
        None
    };
    let bind = if wr.opcode == IBV_WR_BIND_MW {
        // SAFETY: handles that the program has not destroyed (contract).
        unsafe { bind_request(wr) }
    } else {
        None
    };
    let view = WrView {
        wr,
        sges,
        gathered_payload: None,
        ah,
        bind,
        message_follows: wr.opcode == IBV_WR_RDMA_WRITE
            && sq.pending.has_wrs_left_to_receiver()
            // SAFETY: contract of this function.
            && unsafe { does_message_follow_soon(wr) },
    };
    let seq = sq.posted_wrs;
    sq.posted_wrs += 1;
    sq.traffic.exclude_wr();
    let signaled = sq.sq_sig_all || wr.send_flags & IBV_SEND_SIGNALED != 0;
    if sq.is_stopped_by_failure || state == QpState::Err {
        sq.is_stopped_by_failure = true;
        let flushed = SendWqe {
            wr_id: wr.wr_id,
            seq,
            status: code_as_byte(IBV_WC_WR_FLUSH_ERR),
            signaled: true,
            ..SendWqe::default()
        };
        // Completions keep the order of the WRs, so a flushed WR may wait behind a pending SEND.
        if !sq.deferred.is_empty() {
            // SAFETY: as above.
            unsafe { defer(qp, sq, &view, seq, None) };
        } else if sq.pending.is_empty() {
            sq.finished_wrs.push(flushed);
        } else {
            sq.pending.push(flushed);
        }
        return Ok(());
    }
    let fault = if FAULTS {
        planned_fault(qp, &view)
    } else {
        None
    };
    if !sq.deferred.is_empty() || state == QpState::Sqd {
        // SAFETY: as above.
        unsafe { defer(qp, sq, &view, seq, fault) };
        return Ok(());
    }
    if FAULTS {
        match fault {
            None => {}
            Some(WorkRequestFault::Status(status)) => {
                why::note_cause(FailureCause::InjectedFault);
                record_result(qp, sq, wr, seq, signaled, &ExecutionResult::Failed(status));
                return Ok(());
            }
            Some(WorkRequestFault::ReceiverNotReady(_)) => {
                // SAFETY: as above.
                unsafe { defer(qp, sq, &view, seq, fault) };
                return Ok(());
            }
        }
    }
    match execute(qp, sq, &view) {
        ExecutionResult::Later => {
            // SAFETY: as above.
            unsafe { defer(qp, sq, &view, seq, None) };
        }
        outcome => record_result(qp, sq, wr, seq, signaled, &outcome),
    }
    Ok(())
}

/// Defers a WR, with copies of everything that it points to.
///
/// # Safety
/// As for [`post_send`]; `view` is of one of its WRs.
#[cold]
unsafe fn defer(
    qp: &Qp,
    sq: &mut SendQueue,
    view: &WrView<'_>,
    seq: u64,
    fault: Option<WorkRequestFault>,
) {
    // SAFETY: `post_one` has checked the handle.
    let ah = unsafe { Ah::retain_for_wr(view.wr, view.ah.is_some()) };
    let payload = read_payload_now_if_reusable(qp, &mut sq.local_regions, view);
    sq.deferred.push_back(DeferredWr {
        wr: *view.wr,
        sges: view.sges.to_vec(),
        early_payload: payload,
        seq,
        retry_wait: WaitTimer::NOT_WAITING,
        wake_after_ns: UNRELIABLE_WAKE_AFTER_NS,
        ah,
        bind: view.bind,
        fault,
    });
    if let Some(out) = &sq.peer_ring {
        out.tell_receiver_of_deferred(qp.nic, true);
    }
}

/// Reads the payload of a deferred WR if it has to be read now.
///
/// The program may reuse the memory of inline data after the post. Some programs also reuse the memory of a datagram
/// that an adapter would have sent: eRPC sends again from the same memory after a timeout of its own. The memory of a
/// deferred WR on RC or UC belongs to the NIC until the WR completes.
///
/// Returns `None` for a payload that is too long or cannot be read: the WR fails when it is executed.
fn read_payload_now_if_reusable(
    qp: &Qp,
    local: &mut RegionCache,
    view: &WrView<'_>,
) -> Option<Vec<u8>> {
    let most = match qp.qp_type {
        // `post_one` has checked the length against `max_inline_data`.
        _ if view.wr.send_flags & IBV_SEND_INLINE != 0 => u64::MAX,
        QpType::Ud => UD_MAX_PAYLOAD as u64,
        QpType::RawPacket => raw::MAX_FRAME as u64,
        _ => return None,
    };
    let total: u64 = view.sges.iter().map(|s| u64::from(s.length)).sum();
    if total > most {
        return None;
    }
    let mut bytes = vec![0; total as usize];
    let mut at = 0;
    for_each_payload_part(qp, local, view, |src, len| {
        let part = bytes.get_mut(at..at + len).ok_or(IBV_WC_LOC_LEN_ERR)?;
        at += len;
        // SAFETY: `part` has `len` bytes of our own.
        unsafe { shm::mem::copy(part.as_mut_ptr(), src, len) }
            .map_err(|MemoryFault| IBV_WC_LOC_PROT_ERR)
    })
    .ok()?;
    Some(bytes)
}

/// Records the outcome of a WR in the queue.
#[inline]
fn record_result(
    qp: &Qp,
    sq: &mut SendQueue,
    wr: &ibv_send_wr,
    seq: u64,
    signaled: bool,
    outcome: &ExecutionResult,
) {
    let wqe = |end, byte_len, status, signaled| SendWqe {
        wr_id: wr.wr_id,
        ring_end: end,
        seq,
        byte_len_or_vendor_err: byte_len,
        opcode: code_as_byte(completion_opcode(wr.opcode)),
        status: code_as_byte(status),
        signaled,
        ordered_write_count: 0,
    };
    match *outcome {
        ExecutionResult::Done(byte_len) => {
            if !sq.pending.is_empty() {
                sq.pending.push(wqe(0, byte_len, IBV_WC_SUCCESS, signaled));
            } else if signaled {
                sq.finished_wrs.push(wqe(0, byte_len, IBV_WC_SUCCESS, true));
            }
        }
        ExecutionResult::InRing(end) => sq.pending.push(wqe(end, 0, IBV_WC_SUCCESS, signaled)),
        ExecutionResult::OrderedWriteInRing(end, byte_len) => {
            sq.last_ordered_write_end = end;
            sq.pending.push(SendWqe {
                ordered_write_count: 1,
                ..wqe(end, byte_len, IBV_WC_SUCCESS, signaled)
            });
        }
        ExecutionResult::SentInPackets(end, byte_len) => {
            sq.pending
                .push(wqe(end, byte_len, IBV_WC_SUCCESS, signaled));
        }
        ExecutionResult::Failed(status) => {
            // The failed WR completes behind the WRs posted before it, which may still be pending.
            sq.pending.push(wqe(0, 0, status, true));
            sq.failure_cause = why::take_last_cause();
            stop_after_failed_wr(qp, sq);
        }
        ExecutionResult::Later => {}
    }
}

/// Stops the queue after the WR at the end of `pending` has failed. If no WR is in front of it, the queue pair fails
/// now, else when those are done.
#[cold]
fn stop_after_failed_wr(qp: &Qp, sq: &mut SendQueue) {
    sq.is_stopped_by_failure = true;
    if let Some(front) = sq.pending.front()
        && front.status != SUCCESS_BYTE
    {
        let status = front.status;
        let cause = sq.failure_cause.take();
        fail_qp_for_oldest_wr(qp, sq, status.into(), cause);
    }
}

/// Fails the queue pair after the oldest WR has failed with `status`, for `cause` if known.
#[cold]
fn fail_qp_for_oldest_wr(
    qp: &Qp,
    sq: &mut SendQueue,
    status: ibv_wc_status,
    cause: Option<FailureCause>,
) {
    publish_rings_and_transmit_packets(qp, sq);
    let cause = cause.or(FailureCause::of_status(status));
    let first = WrError {
        status,
        vendor_err: why::vendor_err(cause),
    };
    if let Some((wr_id, opcode)) = sq.flush(qp.nic, Some(first)) {
        let report = why::FailureReport {
            qp: qp.report_description(),
            wr_id,
            opcode,
            status,
            cause,
        };
        report.print_or_count();
    }
    // "Completion in error of a send WR of UD or UC: Send Queue Error state" (IBTA vol. 1, 10.3.1.6).
    if qp.qp_type == QpType::Rc {
        qp.enter_error();
    } else {
        qp.set_state(QpState::Sqe);
    }
}

#[inline]
fn execute(qp: &Qp, sq: &mut SendQueue, view: &WrView<'_>) -> ExecutionResult {
    if qp.qp_type == QpType::Ud {
        if path::are_packets_in_use() && packets::is_by_packets(qp, view) {
            return packets::send_datagram(qp, sq, view);
        }
        return ud_send(qp, sq, view);
    }
    let Some(out) = &mut sq.peer_ring else {
        if sq.packet_requester.is_some() {
            return packets::execute(qp, sq, view);
        }
        if qp.qp_type == QpType::RawPacket {
            return raw::send(qp, sq, view);
        }
        // RTS without a peer: the peer's process did not exist when the queue pair was connected.
        return silent_peer_result(qp, sq, view);
    };
    if out.peer.is_dead() {
        return if qp.qp_type == QpType::Rc && !out.peer.is_death_grace_over() {
            silent_peer_result(qp, sq, view)
        } else {
            dead_peer_result_for(qp, &out.peer, view)
        };
    }
    let Some(dest) = out.peer.segment.qp(out.dest_index) else {
        return ExecutionResult::Failed(IBV_WC_LOC_QP_OP_ERR);
    };
    if !is_same_ready_qp(dest, out.dest_epoch, qp.qpn) && !try_reconnect_ring(qp, sq) {
        return silent_peer_result(qp, sq, view);
    }
    sq.peer_silence.end_wait();
    let outcome = match view.wr.opcode {
        IBV_WR_SEND => connected_send(qp, sq, view, RecordKind::Send),
        IBV_WR_SEND_WITH_IMM => connected_send(qp, sq, view, RecordKind::SendWithImm),
        IBV_WR_SEND_WITH_INV => connected_send(qp, sq, view, RecordKind::SendWithInv),
        IBV_WR_BIND_MW | IBV_WR_LOCAL_INV => bind_or_invalidate_window(qp, view),
        // A responder executes requests in order (IBTA vol. 1, 9.5). Requests that access memory wait until the SENDs
        // in front of them have reached the receiver's memory.
        IBV_WR_RDMA_WRITE if has_pending_ring_work(sq) => leave_write_to_receiver(qp, sq, view),
        _ if has_pending_ring_work(sq) => ExecutionResult::Later,
        IBV_WR_RDMA_WRITE => write(qp, sq, view).unwrap_or_else(|o| o),
        IBV_WR_RDMA_WRITE_WITH_IMM => write_with_imm(qp, sq, view),
        IBV_WR_RDMA_READ => read(qp, sq, view, qp.pd_number).unwrap_or_else(|o| o),
        IBV_WR_ATOMIC_WRITE => atomic_write(qp, sq, view).unwrap_or_else(|o| o),
        IBV_WR_FLUSH => flush_remote(qp, sq, view).unwrap_or_else(|o| o),
        _ => atomic(qp, sq, view).unwrap_or_else(|o| o),
    };
    if !matches!(outcome, ExecutionResult::Later | ExecutionResult::Failed(_)) {
        count_request_traffic(qp, sq, view, DestinationPort::PEER);
    }
    outcome
}
