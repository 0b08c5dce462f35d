//! Messages: work requests in flight.

use verbs_abi as abi;

use crate::event_queue::Ps;
use crate::memory::Payload;
use crate::outstanding_reads::ReadSequence;
use crate::retransmission::SequenceNumber;

/// A work request between its post and its completion. It has the size of a cache line, since many are in flight.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct InFlightMessage {
    /// Queue pair of the requester; `responder_qp`: that of the responder, valid once the message has left.
    pub(crate) requester_qp: u32,
    pub(crate) responder_qp: u32,
    /// LID of the requester's machine.
    pub(crate) requester_lid: u16,
    /// Position among the messages of a reliable queue pair.
    pub(crate) sequence_number: SequenceNumber,
    /// Immediate, big-endian as in the work request.
    pub(crate) imm: u32,
    /// Q_Key of a datagram, or R_Key; `remote_addr`: the remote address.
    pub(crate) qkey_or_rkey: u32,
    pub(crate) remote_addr: u64,
    pub(crate) wr_id: u64,
    /// Payload; for a READ or atomic, the payload of the response.
    pub(crate) payload: Payload,
    pub(crate) cost_index: u16,
    /// Status of a reliable request.
    pub(crate) status: u8,
    pub(crate) flags: MessageFlags,
    /// Index of the additional fields of a READ or atomic in [`InFlightMessages`].
    pub(crate) read_or_atomic_fields_index: u32,
    /// Number of work requests in flight that this message represents: programs post lists of equal datagrams without
    /// payload. The other fields do not change while it is more than one.
    pub(crate) work_request_count: u32,
}

const _: () = assert!(size_of::<InFlightMessage>() == 64);

/// Converts a code of the ABI, all of which fit into a byte.
#[expect(clippy::cast_possible_truncation, reason = "asserted")]
pub(crate) const fn abi_code_to_u8(code: u32) -> u8 {
    assert!(code <= 0xff);
    code as u8
}

/// The flags of a work request that its NIC or the responder's needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageFlags(u8);

impl MessageFlags {
    /// Takes the flags from `send_flags` of the work request.
    #[inline(always)]
    pub(crate) fn from_send_flags(flags: u32) -> Self {
        const KEPT: u32 = abi::IBV_SEND_SIGNALED | abi::IBV_SEND_SOLICITED;
        const { assert!(KEPT <= 0xff) };
        Self((flags & KEPT) as u8)
    }

    #[inline(always)]
    pub(crate) fn is_signaled(self) -> bool {
        u32::from(self.0) & abi::IBV_SEND_SIGNALED != 0
    }

    #[inline(always)]
    pub(crate) fn is_solicited(self) -> bool {
        u32::from(self.0) & abi::IBV_SEND_SOLICITED != 0
    }
}

/// `IBV_WC_SUCCESS` as stored in a message.
pub(crate) const SUCCESS_STATUS: u8 = abi_code_to_u8(abi::IBV_WC_SUCCESS);

/// The additional fields of READs and atomics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadOrAtomicFields {
    /// Operands of an atomic.
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    /// Local address for the response.
    pub(crate) local_addr: u64,
    pub(crate) local_lkey: u32,
    /// Position of a READ among the READs of its queue pair, for the WQE cache.
    pub(crate) read_sequence: Option<ReadSequence>,
    /// Time from the first to the last packet of a READ's response, where its next event is: it leaves, or has arrived.
    pub(crate) last_packet_delay: Ps,
}

/// The messages in flight, by index; indexes are reused.
#[derive(Debug, Default)]
pub(crate) struct InFlightMessages {
    slots: Vec<InFlightMessage>,
    free_slots: Vec<u32>,
    read_or_atomic_fields_pool: Vec<ReadOrAtomicFields>,
    free_read_or_atomic_fields: Vec<u32>,
}

/// Requester of a message whose queue pair was reset.
pub(crate) const NO_REQUESTER: u32 = u32::MAX;

/// Index of the additional fields for messages that have none.
pub(crate) const NO_READ_OR_ATOMIC_FIELDS: u32 = u32::MAX;

impl InFlightMessages {
    /// Stores the additional fields of a READ or atomic; returns their index.
    pub(crate) fn put_read_or_atomic_fields(&mut self, answer: ReadOrAtomicFields) -> u32 {
        if let Some(free) = self.free_read_or_atomic_fields.pop() {
            self.read_or_atomic_fields_pool[free as usize] = answer;
            return free;
        }
        self.read_or_atomic_fields_pool.push(answer);
        last_index(self.read_or_atomic_fields_pool.len())
    }

    #[inline(always)]
    pub(crate) fn put(&mut self, message: InFlightMessage) -> u32 {
        if let Some(free) = self.free_slots.pop()
            && let Some(place) = self.slots.get_mut(free as usize)
        {
            *place = message;
            return free;
        }
        self.slots.push(message);
        last_index(self.slots.len())
    }

    /// Reduces the number of work requests that a message represents, and frees the message at 0.
    #[inline(always)]
    pub(crate) fn release_work_requests(&mut self, message: u32, count: u32) {
        let this = &mut self.slots[message as usize];
        this.work_request_count -= count;
        if this.work_request_count > 0 {
            return;
        }
        let answer = this.read_or_atomic_fields_index;
        if answer != NO_READ_OR_ATOMIC_FIELDS {
            self.free_read_or_atomic_fields.push(answer);
        }
        self.free_slots.push(message);
    }

    /// Makes the messages of a queue pair that are in flight messages without a requester.
    pub(crate) fn forget_requester(&mut self, index: u32) {
        for message in &mut self.slots {
            if message.requester_qp == index && message.work_request_count > 0 {
                message.requester_qp = NO_REQUESTER;
            }
        }
    }

    #[inline(always)]
    pub(crate) fn release_one_work_request(&mut self, message: u32) {
        self.release_work_requests(message, 1);
    }

    /// Returns the additional fields of a READ or atomic.
    pub(crate) fn read_or_atomic_fields(
        &mut self,
        message: u32,
    ) -> Option<&mut ReadOrAtomicFields> {
        let answer = self.slots[message as usize].read_or_atomic_fields_index;
        self.read_or_atomic_fields_pool.get_mut(answer as usize)
    }
}

/// Returns the index of the last of `len` items.
fn last_index(len: usize) -> u32 {
    u32::try_from(len - 1).expect("fewer messages under way than 2^32")
}

impl std::ops::Index<u32> for InFlightMessages {
    type Output = InFlightMessage;

    #[inline]
    fn index(&self, message: u32) -> &InFlightMessage {
        &self.slots[message as usize]
    }
}

impl std::ops::IndexMut<u32> for InFlightMessages {
    #[inline]
    fn index_mut(&mut self, message: u32) -> &mut InFlightMessage {
        &mut self.slots[message as usize]
    }
}
