//! The sending end of a ring, and the creation of rings.

use super::*;

use shm::fabric::armed::{ArmedWord, WakeTarget};

/// A ring into which a queue pair of this process sends.
pub(super) struct OutboundShmRing {
    pub(super) ring_producer: Producer,
    pub(super) peer: Arc<Peer>,
    /// Index of the receiving queue pair in its process.
    pub(super) dest_qp_index: usize,
    pub(super) dest_epoch: u32,
    /// True until the first request of a reliable connection has found that the PSNs of both ends agree.
    pub(super) is_psn_check_due: bool,
    pub(super) dest_cq_index: usize,
    pub(super) ring_offset: usize,
    pub(super) ring_bytes: usize,
    pub(super) is_known_to_receiver: bool,
    /// True if the open postlist has a solicited message.
    pub(super) open_list_has_solicited: bool,
    /// Number of the shared receive queue that the current WR names (XRC), else 0.
    pub(super) current_srqn: u32,
    /// True if a datagram has waited in vain for room in this ring, and the ring had no room since.
    pub(super) datagram_waited_in_vain: bool,
    /// The port of the receiving queue pair, to count its datagrams.
    pub(super) dest_port: DestinationPort,
    /// Position up to which the receiver had consumed the ring at the last call of
    /// [`has_program_taken_messages`](OutboundShmRing::has_program_taken_messages).
    pub(super) consumed_at_last_check: u64,
}

impl OutboundShmRing {
    pub(super) fn header<'n>(&self, nic: &'n Nic) -> Option<&'n RingHeader> {
        nic.this_process().segment.ring_header(self.ring_offset)
    }

    /// Tells the receiver whether the sender has deferred work requests.
    #[cold]
    pub(super) fn tell_receiver_of_deferred_wrs(&self, nic: &Nic, any: bool) {
        if let Some(header) = self.header(nic) {
            header
                .sender_has_deferred_wrs
                .store(any.into(), Ordering::Relaxed);
        }
    }

    /// Returns the port of the receiving queue pair, if that has one now.
    pub(super) fn dest_port_id(&self) -> Option<HostPortId> {
        let segment = &self.peer.segment;
        let place = segment
            .qp(self.dest_qp_index)?
            .host_wide_port_number
            .load(Ordering::Relaxed);
        let key = segment.header().port_counters_key.load(Ordering::Relaxed);
        (place != 0).then_some(HostPortId {
            process_ports_key: key,
            host_wide_number: place,
        })
    }

    /// Returns the receiving queue pair.
    #[inline(always)]
    pub(super) fn target_qp(&self) -> TargetQp<'_> {
        TargetQp {
            peer: &self.peer,
            qp_index: self.dest_qp_index,
            srqn: self.current_srqn,
        }
    }

    /// Makes the open postlist visible and wakes the receiver if it sleeps.
    #[inline(always)]
    pub(super) fn publish_postlist(&mut self, nic: &Nic) {
        if self.ring_producer.publish_postlist() {
            self.announce_and_wake(nic, self.open_list_has_solicited);
            self.open_list_has_solicited = false;
        }
    }

    /// Announces the ring if the receiver does not know it, and wakes it if it sleeps.
    #[inline(always)]
    pub(super) fn announce_and_wake(&mut self, nic: &Nic, solicited: bool) {
        let was_announced = self.is_known_to_receiver;
        if !was_announced {
            self.send_ring_notice(nic);
        }
        if let Some(cq) = self.peer.segment.cq(self.dest_cq_index) {
            let by = (solicited, nic.this_process().slot);
            wake_waiter_if_cq_armed(cq, self.dest_cq_index, &self.peer, by, |for_solicited| {
                if was_announced {
                    self.choose_wake_target(nic, for_solicited)
                } else {
                    WakeTarget::Engine
                }
            });
        }
    }

    /// Decides which thread a message that has just been published wakes, if its receiver lets peers wake programs.
    /// `for_solicited` is true if the receiver's CQ is armed for solicited completions only.
    #[cold]
    fn choose_wake_target(&self, nic: &Nic, for_solicited: bool) -> WakeTarget {
        let is_certain = self
            .peer
            .segment
            .qp(self.dest_qp_index)
            .is_some_and(|dest| {
                // Unsolicited messages since the arming may have used up the receive WRs.
                dest.next_message_completes.load(Ordering::Relaxed) != 0
                    && (!for_solicited
                        || self.ring_producer.write_position()
                            <= dest
                                .messages_complete_up_to_position
                                .load(Ordering::Relaxed))
            });
        if !is_certain {
            return WakeTarget::Engine;
        }
        match self.header(nic) {
            // The receiver found all records before it armed its CQ; this thread was held up.
            Some(header)
                if header.consumer_head.load(Ordering::Acquire)
                    == self.ring_producer.write_position() =>
            {
                WakeTarget::Nobody
            }
            _ => WakeTarget::Program,
        }
    }

    /// Returns true if the receiving program has taken messages of this ring since the last call. Messages that the
    /// receiver's engine has taken, which somebody has woken, do not count.
    #[cold]
    pub(super) fn has_program_taken_messages(&mut self, nic: &Nic) -> bool {
        let consumed = self
            .ring_producer
            .refresh_consumer_head()
            .unwrap_or(self.consumed_at_last_check);
        let by_engine = self.header(nic).is_none_or(|header| {
            // The load of the head has acquired what the engine stored before it.
            header.head_stored_by_engine.load(Ordering::Relaxed) == consumed
        });
        std::mem::replace(&mut self.consumed_at_last_check, consumed) != consumed && !by_engine
    }

    /// Returns true if a thread of the receiving program takes the messages of this ring, so that its engine need not be
    /// woken to take them.
    ///
    /// If the receiver's CQ is armed and has a channel, the sender knows whether its messages have woken a thread.
    /// Otherwise the receiver may poll or may do something else; then messages that its program has taken are the sign
    /// that it polls.
    #[cold]
    pub(super) fn does_receiver_take_messages_itself(&mut self, nic: &Nic) -> bool {
        let has_advanced = self.has_program_taken_messages(nic);
        let Some(cq) = self.peer.segment.cq(self.dest_cq_index) else {
            return false;
        };
        let armed = ArmedWord(&cq.armed_word);
        if armed.is_armed() && cq.channel_number.load(Ordering::Relaxed) != 0 {
            armed.is_woken()
        } else {
            has_advanced
        }
    }

    #[cold]
    pub(super) fn send_ring_notice(&mut self, nic: &Nic) {
        let notice = (nic.this_process().slot as u64) << 32 | (self.ring_offset / 64) as u64;
        self.is_known_to_receiver = self.peer.segment.mailbox().put_notice(notice).is_ok();
        if !self.is_known_to_receiver {
            self.peer.wake_engine();
        }
    }

    /// Withdraws the records that the receiver has not taken: the program may write to the payloads from now on.
    #[cold]
    pub(super) fn withdraw_untaken_records(&self, nic: &Nic) {
        if let Some(header) = self.header(nic) {
            header
                .lifecycle_state
                .store(RING_WITHDRAWN, Ordering::Relaxed);
            // SYNC POINT W: a receiver that copies what the program writes after this sees the store.
            std::sync::atomic::fence(Ordering::SeqCst);
        }
    }

    /// Closes the ring: the receiver reads the remaining records and detaches.
    pub(super) fn close(mut self, nic: &Nic) {
        self.ring_producer.publish_postlist();
        if let Some(header) = self.header(nic) {
            // A withdrawn ring stays withdrawn.
            let _ = header.lifecycle_state.compare_exchange(
                RING_OPEN,
                RING_CLOSED,
                Ordering::Release,
                Ordering::Relaxed,
            );
        }
        nic.retire_ring(
            self.ring_offset,
            self.ring_bytes,
            self.is_known_to_receiver.then(|| Arc::clone(&self.peer)),
        );
    }
}

/// The parameters of a new ring.
pub(super) struct NewRingParameters {
    pub(super) slot_count: u64,
    pub(super) dest_qp_index: usize,
    pub(super) rnr_retry: u32,
    /// The GRH that receivers of UD messages get before the payload; `None` without a GRH.
    pub(super) grh: Option<[u8; 40]>,
    pub(super) completion_path_word: u64,
}

pub(super) fn new_ring(
    qp: &Qp,
    peer: Arc<Peer>,
    ring: &NewRingParameters,
) -> Option<OutboundShmRing> {
    let nic = qp.nic;
    let bytes = size_of::<RingHeader>() + ring.slot_count as usize * SLOT_BYTES;
    let offset = nic
        .alloc_ring(bytes)
        .inspect_err(|e| tracing::warn!("no shared memory for a ring: {e}"))
        .ok()?;
    let dest = peer.segment.back_qp_entry(ring.dest_qp_index).ok()?;
    let header = nic.this_process().segment.ring_header(offset)?;
    let slots = u32::try_from(ring.slot_count).ok()?;
    header.slot_count.store(slots, Ordering::Relaxed);
    header.src_qpn.store(qp.qpn, Ordering::Relaxed);
    #[allow(clippy::cast_possible_truncation)] // 24 bits
    let dest_qpn = (peer.slot << QP_INDEX_BITS | ring.dest_qp_index) as u32;
    header.dest_qpn.store(dest_qpn, Ordering::Relaxed);
    header.src_epoch.store(
        qp.shared_state().epoch.load(Ordering::Relaxed),
        Ordering::Relaxed,
    );
    #[allow(clippy::cast_possible_truncation)] // 14 bits
    header
        .src_send_cq_index
        .store(qp.send_cq.index as u32, Ordering::Relaxed);
    header.rnr_retry.store(ring.rnr_retry, Ordering::Relaxed);
    header
        .dest_incarnation
        .store(peer.incarnation, Ordering::Relaxed);
    if let Some(grh) = ring.grh {
        for (word, bytes) in header.grh.iter().zip(grh.chunks_exact(8)) {
            let mut b = [0; 8];
            b.copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(b), Ordering::Relaxed);
        }
    }
    header
        .src_lid_sl_grh
        .store(ring.completion_path_word, Ordering::Relaxed);
    header.magic.store(RING_MAGIC, Ordering::Release);
    // SAFETY: the own segment is mapped as long as the process lives.
    let memory = unsafe { nic.this_process().segment.ring(offset, slots)? };
    Some(OutboundShmRing {
        ring_producer: Producer::new(memory),
        dest_qp_index: ring.dest_qp_index,
        dest_epoch: dest.epoch.load(Ordering::Acquire),
        is_psn_check_due: false,
        dest_cq_index: peer
            .segment
            .cq_index_or_max_if_never_used(&dest.recv_cq_index),
        peer,
        ring_offset: offset,
        ring_bytes: bytes,
        is_known_to_receiver: false,
        open_list_has_solicited: false,
        current_srqn: 0,
        datagram_waited_in_vain: false,
        dest_port: DestinationPort::PEER,
        consumed_at_last_check: 0,
    })
}
