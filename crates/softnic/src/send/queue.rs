//! The state of a send queue: its work requests, posted, pending, finished and deferred.

use super::*;

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
pub(super) struct FixedFifo<T> {
    items: Box<[T]>,
    head: usize,
    tail: usize,
}

impl<T: Copy + Default> FixedFifo<T> {
    /// Returns an empty queue, or `None` if there is no memory for it.
    pub(super) fn new(capacity: usize) -> Option<Self> {
        Some(Self {
            items: crate::fallible_alloc::try_boxed_slice(
                T::default(),
                capacity.next_power_of_two(),
            )?,
            head: 0,
            tail: 0,
        })
    }
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.head == self.tail
    }
    #[inline(always)]
    pub(super) fn push(&mut self, item: T) {
        debug_assert!(self.tail - self.head < self.items.len());
        let mask = self.items.len() - 1;
        self.items[self.tail & mask] = item;
        self.tail += 1;
    }
    #[inline(always)]
    pub(super) fn front(&self) -> Option<&T> {
        (!self.is_empty()).then(|| &self.items[self.head & (self.items.len() - 1)])
    }
    /// Removes entries from the front as long as `wanted` returns true. The head is stored once.
    #[inline(always)]
    pub(super) fn pop_while(&mut self, mut wanted: impl FnMut(&T) -> bool) {
        let (mut head, tail) = (self.head, self.tail);
        let mask = self.items.len() - 1;
        while head != tail && wanted(&self.items[head & mask]) {
            head += 1;
        }
        self.head = head;
    }
    pub(super) fn clear(&mut self) {
        self.head = self.tail;
    }
}

/// A send WR whose outcome is known (in `finished_wrs`) or awaited (in `pending_wqes`).
#[derive(Clone, Copy, Default)]
pub(super) struct SendWqe {
    pub(super) wr_id: u64,
    /// Position of the ring up to which the receiver must have consumed; 0 if the WR is done already.
    pub(super) ring_end_position: u64,
    /// Sequence number of the WR, in the order of posting.
    pub(super) seq: u64,
    /// The completion's byte length, or its `vendor_err` if the WR failed: a completion in error has no length.
    pub(super) byte_len_or_vendor_err: u32,
    /// `ibv_wc_opcode` and `ibv_wc_status`, whose values fit into a byte, so that an entry takes few stores.
    pub(super) opcode: u8,
    pub(super) status: u8,
    pub(super) signaled: bool,
    /// 1 for a WRITE that the receiver executes in the order of the ring, else 0. The field is as large as its
    /// neighbours, so that one store writes them all.
    pub(super) ordered_write_count: u8,
}

/// The error with which a work request completes.
#[derive(Clone, Copy)]
pub(crate) struct WrError {
    pub(super) status: ibv_wc_status,
    pub(super) vendor_err: u32,
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
pub(super) const fn code_as_byte(code: u32) -> u8 {
    debug_assert!(code <= 0xff);
    code as u8
}

/// `IBV_WC_SUCCESS` as stored in a send-queue entry.
pub(super) const SUCCESS_BYTE: u8 = code_as_byte(IBV_WC_SUCCESS);

impl SendWqe {
    /// Returns the contribution of this WR to the counts of [`PendingWqes`].
    #[inline(always)]
    pub(super) fn pending_counts(&self) -> u64 {
        let is_in_order = self.opcode == code_as_byte(IBV_WC_SEND) || self.ordered_write_count != 0;
        u64::from(self.signaled) | u64::from(self.ring_end_position != 0 && is_in_order) << 32
    }
}

/// The WRs that are not done, in the order of posting.
pub(super) struct PendingWqes {
    wqes: FixedFifo<SendWqe>,
    /// The lower half counts signaled WRs. The upper half counts SENDs that the receiver has not taken, and WRITEs that
    /// it has not executed. Both share one word: the compiler would access two words as a vector in one place and one
    /// by one in another, and these accesses wait for each other.
    packed_counts: u64,
}

impl PendingWqes {
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.wqes.is_empty()
    }
    /// Returns true if a pending WR is signaled.
    #[inline(always)]
    pub(super) fn has_signaled(&self) -> bool {
        self.packed_counts & u64::from(u32::MAX) != 0
    }
    /// Returns true if a pending WR is a SEND that the receiver has not taken, or a WRITE that it has not executed.
    #[inline(always)]
    pub(super) fn has_wrs_pending_at_receiver(&self) -> bool {
        self.packed_counts >> 32 != 0
    }
    #[inline(always)]
    pub(super) fn front(&self) -> Option<&SendWqe> {
        self.wqes.front()
    }
    #[inline(always)]
    pub(super) fn push(&mut self, wqe: SendWqe) {
        self.packed_counts += wqe.pending_counts();
        self.wqes.push(wqe);
    }
    #[inline(always)]
    pub(super) fn pop(&mut self) -> Option<SendWqe> {
        let wqe = *self.front()?;
        self.drop_front(&wqe);
        Some(wqe)
    }
    /// Removes the WR at the front, of which the caller has a copy.
    #[inline(always)]
    pub(super) fn drop_front(&mut self, front: &SendWqe) {
        debug_assert!(self.front().is_some_and(|wqe| wqe.seq == front.seq));
        self.wqes.head += 1;
        self.packed_counts -= front.pending_counts();
    }
    pub(super) fn clear(&mut self) {
        self.wqes.clear();
        self.packed_counts = 0;
    }
}

/// A WR that waits to be executed, with copies of everything that it points to.
pub(super) struct DeferredWr {
    pub(super) wr: ibv_send_wr,
    pub(super) sges: Vec<ibv_sge>,
    /// The payload, if it was read when the WR was posted.
    pub(super) early_payload: Option<Vec<u8>>,
    pub(super) seq: u64,
    /// Time since the WR was first tried again.
    pub(super) retry_wait: WaitTimer,
    /// Time in nanoseconds that the WR has waited when the receiver is woken next.
    pub(super) wake_after_ns: u64,
    pub(super) ah: Option<Arc<Ah>>,
    pub(super) bind_request: Option<BindRequest>,
    /// The fault that the fault plan prescribes for this WR.
    pub(super) fault: Option<WorkRequestFault>,
}

// SAFETY: the raw pointers in `wr` are not dereferenced; `sges`, `payload`, `ah` and `bind_request` replace them.
unsafe impl Send for DeferredWr {}

/// The send queue of a queue pair.
pub(crate) struct SendQueue {
    /// Number of WRs posted, and number of WRs whose places are free again. A place is freed when a completion of its
    /// WR or of a later one has been polled (`ibv_post_send(3)`).
    pub(super) posted_wr_count: u64,
    pub(super) freed_wr_count: u64,
    /// The values of `freed_wr_count` that come into force when the program takes completions from the buffer of the
    /// completion queue: one for each completion there, in their order.
    pub(super) freed_wrs_after_buffered_completions: VecDeque<u64>,
    pub(super) max_wr: u64,
    pub(super) max_sge: usize,
    pub(super) max_inline_bytes: usize,
    pub(super) sq_sig_all: bool,
    pub(super) unpublished_traffic: UnpublishedTraffic,
    pub(super) pending_wqes: PendingWqes,
    pub(super) finished_wrs: FixedFifo<SendWqe>,
    pub(super) deferred_wrs: VecDeque<DeferredWr>,
    /// RC and UC by shared memory: the ring to the peer.
    pub(super) peer_ring: Option<OutboundShmRing>,
    /// RC and UC by packets: the requests to the peer.
    pub(super) packet_requester: Option<Box<ConnectedRequester>>,
    /// PSN of the next datagram.
    pub(super) datagram_psn: u32,
    /// UD: rings by destination.
    pub(super) ud_rings: UdRings,
    /// The state that a raw packet queue pair needs to send.
    pub(super) raw_qp_state: Option<Box<raw::RawQpState>>,
    pub(super) local_regions: RegionCache,
    pub(super) peer_regions: RegionCache,
    /// Time since the peer of a reliable queue pair was first found not to answer.
    pub(super) peer_silence_wait: WaitTimer,
    /// Position of the ring behind the last WRITE that was left to the receiver.
    pub(super) last_ordered_write_end: u64,
    /// The cause of the failure of the failed WR in `pending_wqes`.
    pub(super) failure_cause: Option<FailureCause>,
    pub(super) is_stopped_by_failure: bool,
    /// True if the program wants an event when the outcome of every executed WR is known (`en_sqd_async_notify`).
    pub(super) wants_drained_event: bool,
}

impl SendQueue {
    /// Returns an empty queue, or `None` if there is no memory for it.
    pub(crate) fn new(cap: &ibv_qp_cap, sq_sig_all: bool) -> Option<Self> {
        let depth = cap.max_send_wr.max(1) as usize;
        Some(Self {
            posted_wr_count: 0,
            freed_wr_count: 0,
            freed_wrs_after_buffered_completions: VecDeque::new(),
            max_wr: u64::from(cap.max_send_wr),
            max_sge: cap.max_send_sge as usize,
            max_inline_bytes: cap.max_inline_data as usize,
            sq_sig_all,
            unpublished_traffic: UnpublishedTraffic::new(),
            pending_wqes: PendingWqes {
                wqes: FixedFifo::new(depth)?,
                packed_counts: 0,
            },
            finished_wrs: FixedFifo::new(depth)?,
            deferred_wrs: VecDeque::new(),
            peer_ring: None,
            packet_requester: None,
            datagram_psn: 0,
            ud_rings: UdRings::default(),
            raw_qp_state: None,
            local_regions: RegionCache::new(),
            peer_regions: RegionCache::new(),
            peer_silence_wait: WaitTimer::NOT_WAITING,
            last_ordered_write_end: 0,
            failure_cause: None,
            is_stopped_by_failure: false,
            wants_drained_event: false,
        })
    }

    /// Makes the queue want an event when the outcome of every executed WR is known.
    pub(crate) fn want_drained_event(&mut self) {
        self.wants_drained_event = true;
    }

    /// Returns true once if the event is wanted and due.
    pub(crate) fn take_due_drained_event(&mut self) -> bool {
        let is_due = self.wants_drained_event && self.pending_wqes.is_empty();
        self.wants_drained_event &= !is_due;
        is_due
    }

    /// Returns true if the queue has failed and nothing in it is still executed. The program owns the memory of all its
    /// WRs again, so no packet of them may leave.
    pub(super) fn is_flushed(&self) -> bool {
        self.is_stopped_by_failure && self.pending_wqes.is_empty()
    }

    /// Returns the work that a poll finds in this queue.
    #[inline]
    pub(super) fn work_for_next_poll(&self) -> SendWork {
        if self.pending_wqes.has_signaled()
            || !self.finished_wrs.is_empty()
            || !self.deferred_wrs.is_empty()
        {
            SendWork::Completions
        } else if self.pending_wqes.is_empty() {
            SendWork::None
        } else {
            SendWork::Unsignaled
        }
    }

    /// Creates the ring to the peer of a connected queue pair (INIT to RTR).
    pub(crate) fn connect_by_shared_memory(
        &mut self,
        qp: &Qp,
        peer: Arc<Peer>,
        dest_qpn: u32,
    ) -> Result<(), i32> {
        // The ring has room for `max_wr` records of the smallest size into which any WR fits.
        let record =
            slots_for_payload(self.max_inline_bytes.max(self.max_sge * SLOT_BYTES).max(16));
        let slots = (self.max_wr * record + 2 * record + 2)
            .next_power_of_two()
            .clamp(64, 32768);
        let ring = NewRingParameters {
            slot_count: slots,
            dest_qp_index: dest_qpn as usize % MAX_QPS,
            rnr_retry: 0,
            grh: None,
            completion_path_word: 0,
        };
        let mut out = new_ring(qp, peer, &ring).ok_or(libc::ENOMEM)?;
        out.is_psn_check_due = qp.is_rc_without_xrc();
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
            requester.set_timeout_ns(nic_core::retry_timeouts::live_peer_timeout_ns(timeout));
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
        self.pending_wqes.clear();
        self.finished_wrs.clear();
        self.deferred_wrs.clear();
        self.freed_wr_count = self.posted_wr_count;
        self.freed_wrs_after_buffered_completions.clear();
        for ring in self
            .peer_ring
            .take()
            .into_iter()
            .chain(self.ud_rings.rings.drain(..).flatten())
        {
            ring.close(nic);
        }
        self.ud_rings = UdRings::default();
        self.packet_requester = None;
        self.local_regions.clear();
        self.peer_regions.clear();
        self.peer_silence_wait.end_wait();
        self.last_ordered_write_end = 0;
        self.failure_cause = None;
        self.is_stopped_by_failure = false;
        self.wants_drained_event = false;
    }

    /// Withdraws the SENDs that the receiver has not taken, before the program sees their completions.
    pub(super) fn withdraw_untaken_sends(&self, nic: &Nic) {
        if self.pending_wqes.has_wrs_pending_at_receiver()
            && let Some(out) = &self.peer_ring
        {
            out.withdraw_untaken_records(nic);
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
            .map(|out| out.ring_producer.refresh_consumer_head())
        {
            move_consumed_to_finished(self, consumed);
        }
        if let Some(wire) = &self.packet_requester {
            let done = wire.done_request_count();
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
        while let Some(wqe) = self.pending_wqes.pop() {
            if wqe.ring_end_position == 0 && wqe.status == SUCCESS_BYTE {
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
        while let Some(d) = self.deferred_wrs.pop_front() {
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
        self.wants_drained_event = false;
    }
}
