//! A queue pair.

use verbs_abi as abi;

use crate::cq::Cq;
use crate::line::Line;
use crate::port::OwnPort;
use crate::prefetch::prefetch;
use crate::queue::Ps;
use crate::reads::Reads;
use crate::recvs::Recvs;

/// WQEs that were posted together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    pub(crate) len: u32,
    /// By doorbell, else by MMIO.
    pub(crate) rung: bool,
    pub(crate) shape: u16,
}

/// What decides a WR's shape. Most are like the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) opcode: u32,
    pub(crate) inline: bool,
    pub(crate) num_sge: usize,
    pub(crate) length: u64,
}

/// A queue pair, in four cache lines: a responder needs the first, a requester's core the second, and its NIC the others.
/// Hundreds of queue pairs are in no cache, and each line that a message touches is fetched.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Qp {
    pub(crate) recvs: Recvs,
    /// Nothing that comes to it is visible before this time.
    pub(crate) last_delivery: Ps,
    pub(crate) machine: u32,
    pub(crate) recv_cq: u32,
    /// What lets messages in: of datagrams the Q_Key, of others what they may do.
    pub(crate) guard: u32,
    pub(crate) transport: nicmodel::Transport,
    /// Whether it is in a state in which messages may come.
    pub(crate) receives: bool,
    pub(crate) signal_all: bool,
    pub(crate) port: OwnPort,
    /// What was posted last, and its shape.
    pub(crate) last_posted: Option<(Kind, u16)>,
    pub(crate) state: u32,
    /// WRs that are posted and not complete.
    pub(crate) outstanding: u32,
    pub(crate) cap: abi::ibv_qp_cap,
    pub(crate) peer: u32,
    /// Messages that have not left, each with how often it is still to leave, and the lists that they came in.
    pub(crate) wqes: Line<(u32, u32)>,
    pub(crate) lists: Line<List>,
    /// No completion of the send queue before this time.
    pub(crate) last_completion: Ps,
    /// None of its messages is handled before this time: they keep their order.
    pub(crate) last_handled: Ps,
    /// Lists that have arrived at the NIC.
    pub(crate) arrived: usize,
    /// A unit works on it, or it waits for one.
    pub(crate) in_service: bool,
    pub(crate) send_cq: u32,
    /// Opcode and flags of the last datagram without payload that was posted, and its shape.
    pub(crate) last_empty: Option<(u32, u32, u16)>,
    /// No answer of this responder before this time: answers keep the order of their requests.
    pub(crate) last_answer: Ps,
    pub(crate) qkey: u32,
    pub(crate) access: i32,
    /// Until when its unit fetches WQEs that the NIC's cache has lost, and how much of that is to be added to the time of
    /// the WQE that the unit works on.
    pub(crate) refetches_until: Ps,
    pub(crate) held_up: Ps,
    pub(crate) reads: Reads,
}

const _: () = {
    assert!(std::mem::offset_of!(Qp, last_posted) == 64);
    assert!(std::mem::offset_of!(Qp, wqes) == 128);
    assert!(std::mem::offset_of!(Qp, last_completion) == 192);
    assert!(size_of::<Qp>() <= 320);
};

impl Qp {
    /// A message is on its way to it: what that will need besides is fetched ahead.
    #[inline(always)]
    pub(crate) fn fetch_for_arrival(&self, cqs: &[Option<Cq>]) {
        if self.transport == nicmodel::Transport::Ud {
            prefetch(self.recvs.runs.first_place());
            prefetch(cqs.as_ptr().wrapping_add(self.recv_cq as usize));
        }
    }

    /// Its state, Q_Key or access has changed.
    pub(crate) fn changed(&mut self) {
        self.receives = matches!(self.state, abi::IBV_QPS_RTR | abi::IBV_QPS_RTS);
        self.guard = match self.transport {
            nicmodel::Transport::Ud => self.qkey,
            _ => self.access.cast_unsigned(),
        };
    }
}
