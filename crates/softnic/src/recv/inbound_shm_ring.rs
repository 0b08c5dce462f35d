//! The receiving end of a ring.

use super::*;

use shm::fabric::armed::{ArmedWord, WakeTarget};

/// A ring through which a peer's queue pair sends to one of ours.
pub(crate) struct InboundShmRing {
    pub(super) consumer: Consumer,
    pub(super) peer: Arc<Peer>,
    pub(super) ring_offset: usize,
    pub(super) src_qpn: u32,
    pub(super) sender_cq_index: usize,
    /// Time since the record at the front was first found to have no receive WR.
    pub(super) rnr_wait: WaitTimer,
    /// True if no more records are taken: the sender was refused, wrote garbage, has ended, or has closed the ring.
    pub(super) is_stopped: bool,
    pub(super) sender_regions: RegionCache,
    /// UD: the path that the completion of every message of this ring reports.
    pub(super) path_in_completion: MessagePathInCompletion,
}

/// The path of the messages of a ring. It does not change, so it is read once.
pub(super) struct MessagePathInCompletion {
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
    pub(super) wc_flags: u32,
    pub(super) grh: [u8; GRH_BYTES],
    /// Payload length, and presence of an immediate, for which the lengths in `grh` are right.
    pub(super) grh_lengths_for: (u32, bool),
}

impl MessagePathInCompletion {
    pub(super) fn from_ring_header(header: &RingHeader) -> Self {
        let mut grh = [0; GRH_BYTES];
        for (bytes, word) in grh.chunks_exact_mut(8).zip(&header.grh) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        Self::new(header.src_lid_sl_grh.load(Ordering::Relaxed), grh)
    }

    /// Returns the path that `path` (as in `RingHeader::path`) and the GRH describe.
    #[allow(clippy::cast_possible_truncation)] // taking the fields of a word apart
    pub(super) fn new(path: u64, grh: [u8; GRH_BYTES]) -> Self {
        Self {
            slid: path as u16,
            sl: (path >> 16) as u8,
            dlid_path_bits: (path >> 24) as u8,
            wc_flags: if path >> 32 & 1 != 0 { IBV_WC_GRH } else { 0 },
            grh,
            grh_lengths_for: (u32::MAX, false),
        }
    }

    /// Returns the last word of a completion: partition index, LID of the sender, service level and path bits.
    #[inline(always)]
    pub(super) fn last_wc_word(&self) -> u64 {
        u64::from(self.slid) << 16 | u64::from(self.sl) << 32 | u64::from(self.dlid_path_bits) << 40
    }

    /// Returns the GRH of a message, if messages of this ring have one.
    #[inline]
    pub(super) fn grh_with_lengths(
        &mut self,
        payload: u32,
        with_imm: bool,
    ) -> Option<&[u8; GRH_BYTES]> {
        if self.wc_flags == 0 {
            return None;
        }
        if self.grh_lengths_for != (payload, with_imm) {
            self.grh_lengths_for = (payload, with_imm);
            let payload = u16::try_from(payload).unwrap_or(u16::MAX);
            let bytes = crate::device::ud_packet_bytes_from_bth_to_icrc(payload, with_imm);
            crate::device::set_grh_length(&mut self.grh, bytes);
        }
        Some(&self.grh)
    }
}

impl InboundShmRing {
    /// Opens the ring at `offset` of `peer`'s segment. `None` if no ring is there.
    pub(crate) fn open(peer: Arc<Peer>, offset: usize) -> Option<Self> {
        let header = peer.segment.ring_header(offset)?;
        let slots = header.slot_count.load(Ordering::Relaxed);
        // SAFETY: `peer` keeps the segment mapped and lives in the same value.
        let memory = unsafe { peer.segment.ring(offset, slots)? };
        Some(Self {
            consumer: Consumer::new(memory),
            src_qpn: header.src_qpn.load(Ordering::Relaxed),
            sender_cq_index: peer
                .segment
                .cq_index_or_max_if_never_used(&header.src_send_cq_index),
            rnr_wait: WaitTimer::NOT_WAITING,
            is_stopped: false,
            sender_regions: RegionCache::new(),
            path_in_completion: MessagePathInCompletion::from_ring_header(header),
            peer,
            ring_offset: offset,
        })
    }

    pub(crate) fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    pub(crate) fn src_qpn(&self) -> u32 {
        self.src_qpn
    }

    #[inline]
    pub(super) fn header(&self) -> Option<&RingHeader> {
        self.peer.segment.ring_header(self.ring_offset)
    }

    /// Tells the sender that this process no longer reads the ring.
    pub(crate) fn detach(&self) {
        if let Some(header) = self.header() {
            header.is_receiver_detached.store(1, Ordering::Release);
        }
    }

    /// Refuses the record at the front: the requester gets `status`.
    pub(super) fn refuse_front_record(
        &mut self,
        status: ibv_wc_status,
        cause: Option<FailureCause>,
    ) {
        self.is_stopped = true;
        self.consumer.release_slots();
        if let Some(header) = self.header() {
            header.nak_status.store(
                FailureCause::encode_refusal(status, cause),
                Ordering::Release,
            );
        }
        self.wake_sender_if_armed(true);
    }

    /// Wakes the sender's engine if its send CQ is armed. If the CQ is armed for solicited completions, only a
    /// refusal is a reason, or room for work requests that the sender has deferred.
    pub(super) fn wake_sender_if_armed(&self, refused: bool) {
        if let Some(cq) = self.peer.segment.cq(self.sender_cq_index)
            && !ArmedWord(&cq.armed_word).is_unarmed_unfenced()
        {
            let is_urgent = refused
                || self.header().is_some_and(|header| {
                    header.sender_has_deferred_wrs.load(Ordering::Relaxed) != 0
                });
            // Many sends complete unsignaled; only the sender's engine knows which.
            wake_waiter_if_cq_armed(cq, self.sender_cq_index, &self.peer, (is_urgent, 0), |_| {
                WakeTarget::Engine
            });
        }
    }

    /// Tells the sender that the records up to here were not taken by the program, which may not poll at all.
    #[cold]
    fn note_that_engine_consumed(&self) {
        if let Some(header) = self.header() {
            let head = self.consumer.read_position();
            // The `Release` store of the head follows.
            header.head_stored_by_engine.store(head, Ordering::Relaxed);
        }
    }

    /// Returns consumed records to the sender. On reliable transports this is the acknowledgement. `maybe_engine`: the
    /// calling thread may be the engine.
    #[inline]
    pub(super) fn release_consumed_records(&mut self, acknowledge: bool, maybe_engine: bool) {
        let unreleased = self.consumer.unreleased_slot_count();
        if unreleased == 0 {
            return;
        }
        if acknowledge {
            if maybe_engine && shm::mem::is_this_thread_the_engine() {
                self.note_that_engine_consumed();
            }
            self.consumer.release_slots();
            self.wake_sender_if_armed(false);
        } else if unreleased >= self.consumer.ring_slot_count() / 8 {
            self.consumer.release_slots();
        }
    }
}

/// Wakes the waiter of a completion queue of `peer`, if the queue is armed for the completion of the record just
/// published. Does nothing if the waiter has been woken already. `by`: whether the record is solicited, and the slot of
/// this process. `candidate`: as for
/// [`ArmedWord::choose_and_record_wake_target`](shm::fabric::armed::ArmedWord::choose_and_record_wake_target).
#[inline]
pub(crate) fn wake_waiter_if_cq_armed(
    cq: &CqShared,
    cq_index: usize,
    peer: &Peer,
    by: (bool, usize),
    candidate: impl Fn(bool) -> WakeTarget,
) {
    let armed = ArmedWord(&cq.armed_word);
    if !armed.is_unarmed_unfenced() {
        wake_target(
            cq,
            cq_index,
            peer,
            armed.choose_and_record_wake_target(by.0, by.1, candidate),
        );
    }
}

#[cold]
fn wake_target(cq: &CqShared, cq_index: usize, peer: &Peer, target: WakeTarget) {
    match target {
        WakeTarget::Nobody => {}
        WakeTarget::Engine => peer.wake_engine(),
        WakeTarget::Program => {
            let channel = peer.open_completion_channel(cq.channel_number.load(Ordering::Relaxed));
            // A token cannot hold a larger index. It then names no queue, and its reader checks all queues.
            let token = u16::try_from(cq_index).unwrap_or(u16::MAX);
            if !channel.is_some_and(|channel| channel.write_token(token)) {
                // The peer's engine writes the token instead.
                cq.lost_token_count.fetch_add(1, Ordering::Relaxed);
                peer.wake_engine();
            }
        }
    }
}
