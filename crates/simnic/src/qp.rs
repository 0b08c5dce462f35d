//! A queue pair.

use verbs_abi as abi;

use crate::cq::Cq;
use crate::event_queue::Ps;
use crate::fifo_queue::FifoQueue;
use crate::outstanding_reads::OutstandingReads;
use crate::port::QpPortIndex;
use crate::posted_recvs::PostedRecvs;
use crate::prefetch::prefetch;
use crate::retransmission::{Retransmission, RetryAttributes, SequenceNumber};

/// A list of WQEs that were posted together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostedWqes {
    pub(crate) len: u32,
    /// True if posted by a doorbell, false if by an MMIO write of the WQE.
    pub(crate) by_doorbell: bool,
    /// True if the WQEs have different sizes; otherwise they have that of `cost_index`.
    pub(crate) has_mixed_sizes: bool,
    pub(crate) cost_index: u16,
}

/// The fields of a work request that determine its shape. Most work requests equal their predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkRequestKind {
    pub(crate) opcode: u32,
    pub(crate) inline: bool,
    pub(crate) num_sge: u8,
    pub(crate) payload_bytes: u64,
}

/// A queue pair, laid out by cache line. An unreliable responder needs the first line, the requester's core the second,
/// and its NIC and reliable responders the others. With hundreds of queue pairs no cache holds them, and each line that
/// a message uses must be fetched.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Qp {
    pub(crate) posted_recvs: PostedRecvs,
    /// No message to this queue pair becomes visible before this time.
    pub(crate) last_delivery_visible_at: Ps,
    pub(crate) machine: u32,
    pub(crate) recv_cq: u32,
    /// Access check of incoming messages: the Q_Key for datagrams, otherwise the access flags.
    pub(crate) qkey_or_access_flags: u32,
    pub(crate) transport: nicmodel::Transport,
    /// True if the state allows incoming messages.
    pub(crate) can_receive: bool,
    pub(crate) signal_all: bool,
    pub(crate) port: QpPortIndex,
    /// Kind and shape of the work request that was posted last.
    pub(crate) last_posted_kind_and_cost: Option<(WorkRequestKind, u16)>,
    pub(crate) state: u32,
    /// Number of slots of the send queue that hold a work request. The poll of a completion frees the slots up to its
    /// own.
    pub(crate) used_send_queue_slots: u32,
    pub(crate) next_posted_sequence: SequenceNumber,
    pub(crate) cap: abi::ibv_qp_cap,
    pub(crate) remote_qpn: u32,
    /// Messages that have not left, each with the number of work requests still to send; `posted_lists`: the lists that
    /// contain them.
    pub(crate) unsent_messages: FifoQueue<(u32, u32)>,
    pub(crate) posted_lists: FifoQueue<PostedWqes>,
    /// No completion of the send queue is generated before this time.
    pub(crate) last_send_completion_at: Ps,
    /// No message of this queue pair is processed before this time, so that messages keep their order.
    pub(crate) last_processed_at: Ps,
    /// True if a processing unit works on the queue pair, or the queue pair waits for a unit.
    pub(crate) has_or_awaits_unit: bool,
    /// Number of the next message of a reliable requester that completes.
    pub(crate) next_completed_sequence: SequenceNumber,
    pub(crate) send_cq: u32,
    /// Messages of a reliable requester that are sent again; `None` while all have arrived at the first try, and no
    /// error or reset has happened.
    pub(crate) retransmission: Option<Box<Retransmission>>,
    /// No response of this responder is sent before this time, so that responses keep the order of their requests.
    pub(crate) last_response_at: Ps,
    /// No response arrives at this requester before this time, for the same reason.
    pub(crate) last_response_arrived_at: Ps,
    /// Number of lists that have arrived at the NIC.
    pub(crate) lists_at_nic: u32,
    /// Number of the next message that this responder of a reliable queue pair executes.
    pub(crate) expected_sequence: SequenceNumber,
    /// Number of work requests that have completed without a CQE since the last CQE of the send queue.
    pub(crate) wrs_completed_without_cqe: u16,
    /// Opcode, flags and shape of the datagram without payload that was posted last.
    pub(crate) last_empty_datagram: Option<(u32, u32, u16)>,
    pub(crate) qkey: u32,
    pub(crate) access_flags: i32,
    /// Time until which the queue pair's unit fetches WQEs that the NIC's cache has lost. `wqe_refetch_delay`: the
    /// delay that this adds to the WQE on which the unit works.
    pub(crate) wqe_refetches_until: Ps,
    pub(crate) wqe_refetch_delay: Ps,
    pub(crate) outstanding_reads: OutstandingReads,
    pub(crate) retry_attributes: RetryAttributes,
    /// Shared receive queue from which the queue pair takes RECVs.
    pub(crate) srq: Option<u32>,
}

const _: () = {
    assert!(std::mem::offset_of!(Qp, last_posted_kind_and_cost) == 64);
    assert!(std::mem::offset_of!(Qp, unsent_messages) == 128);
    assert!(std::mem::offset_of!(Qp, last_send_completion_at) == 192);
    assert!(size_of::<Qp>() <= 320);
};

impl Qp {
    /// Prefetches the state that an arriving message needs.
    #[inline(always)]
    pub(crate) fn prefetch_for_arrival(&self, cqs: &[Option<Cq>]) {
        if self.transport == nicmodel::Transport::Ud {
            prefetch(self.posted_recvs.runs.front_address());
            prefetch(cqs.as_ptr().wrapping_add(self.recv_cq as usize));
        }
    }

    /// Returns true if a message of a reliable requester was posted and has not completed.
    pub(crate) fn is_outstanding(&self, number: SequenceNumber) -> bool {
        !number.is_before(self.next_completed_sequence)
            && number.is_before(self.next_posted_sequence)
    }

    /// Sets the number of the next message that is posted.
    pub(crate) fn set_first_sequence_number(&mut self, first: SequenceNumber) {
        (self.next_posted_sequence, self.next_completed_sequence) = (first, first);
    }

    /// Records that work requests have completed without a CQE. They keep their slots of the send queue until the
    /// program polls the next CQE.
    #[inline(always)]
    pub(crate) fn record_completions_without_cqe(&mut self, count: u32) {
        let completed = &mut self.wrs_completed_without_cqe;
        *completed = completed.saturating_add(u16::try_from(count).unwrap_or(u16::MAX));
    }

    /// Updates derived fields after a change of state, Q_Key or access flags.
    pub(crate) fn update_receive_checks(&mut self) {
        self.can_receive = matches!(self.state, abi::IBV_QPS_RTR | abi::IBV_QPS_RTS);
        self.qkey_or_access_flags = match self.transport {
            nicmodel::Transport::Ud => self.qkey,
            _ => self.access_flags.cast_unsigned(),
        };
    }
}
