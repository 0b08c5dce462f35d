//! Shared receive queues.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use verbs_abi::{IBV_EVENT_SRQ_LIMIT_REACHED, IBV_SRQT_BASIC, IBV_SRQT_TM, IBV_SRQT_XRC, ibv_srq};

use crate::abi_cell::AbiCell;
use crate::biased_lock::{BiasedGuard, BiasedLock};
use crate::context::Context;
use crate::cq::Cq;
use crate::event::UnacknowledgedEvents;
use crate::listed_object::{ListedObject, ListedSrq};
use crate::live_handles;
use crate::pd::Pd;
use crate::recv::RecvQueue;
use crate::xrc::XrcSrq;

/// A shared receive queue; the program's handle points to its first field.
#[repr(C)]
pub(crate) struct Srq {
    abi: AbiCell<ibv_srq>,
    pub(crate) context: &'static Context,
    pub(crate) recv_queue: BiasedLock<RecvQueue>,
    pub(crate) qp_count: AtomicUsize,
    /// 1 + the index of the only receive CQ of the queue pairs; 0 if there is none, `MANY_CQS` if there are several.
    only_recv_cq_index_plus_1: AtomicUsize,
    pub(crate) unacknowledged_events: UnacknowledgedEvents,
    pub(crate) xrc_srq: Option<XrcSrq>,
    /// The CQ in which operations on the tag matching list complete, if the queue has such a list.
    pub(crate) tag_ops_cq: Option<Arc<Cq>>,
    /// The queue on lists of the fabric's objects.
    pub(crate) listed_object: ListedObject,
    /// The protection domain, which the queue uses until it is destroyed.
    pub(crate) pd: Arc<Pd>,
}

live_handles::object!(Srq, ibv_srq);

const MANY_CQS: usize = usize::MAX;

impl Srq {
    pub(crate) fn new(
        pd: Arc<Pd>,
        abi: ibv_srq,
        queue: RecvQueue,
        xrc: Option<XrcSrq>,
        tags_cq: Option<Arc<Cq>>,
    ) -> Self {
        let own_cq = xrc.as_ref().map(|xrc| &xrc.cq).or(tags_cq.as_ref());
        let srq_type = match (&xrc, &tags_cq) {
            (Some(_), _) => IBV_SRQT_XRC,
            (None, Some(_)) => IBV_SRQT_TM,
            (None, None) => IBV_SRQT_BASIC,
        };
        let shown = ListedSrq {
            srq_type,
            pd_number: pd.local_number,
            cq_index: own_cq.map(|cq| cq.index),
        };
        Self {
            listed_object: ListedObject::list_srq(pd.context.nic, pd.context.device.number, &shown),
            abi: AbiCell::new(abi),
            context: pd.context,
            pd,
            recv_queue: BiasedLock::new(queue),
            qp_count: AtomicUsize::new(0),
            only_recv_cq_index_plus_1: AtomicUsize::new(0),
            unacknowledged_events: UnacknowledgedEvents::default(),
            xrc_srq: xrc,
            tag_ops_cq: tags_cq,
        }
    }

    /// Notes that receives of this queue complete in the CQ with this index, too.
    pub(crate) fn note_recv_cq(&self, index: usize) {
        let noted = self
            .only_recv_cq_index_plus_1
            .compare_exchange(0, index + 1, Relaxed, Relaxed);
        if noted.is_err_and(|other| other != index + 1) {
            self.only_recv_cq_index_plus_1.store(MANY_CQS, Relaxed);
        }
    }

    /// Returns true if all queue pairs of this queue have had the same receive CQ since its creation.
    pub(crate) fn has_one_recv_cq(&self) -> bool {
        self.xrc_srq.is_none() && self.only_recv_cq_index_plus_1.load(Relaxed) != MANY_CQS
    }

    /// Returns the program's handle.
    pub(crate) fn handle(&self) -> *mut ibv_srq {
        self.abi.handle()
    }

    /// Returns the number by which requesters name the queue. Only XRC queues have one.
    pub(crate) fn xrc_srqn(&self) -> Option<u32> {
        self.xrc_srq.as_ref().map(|xrc| xrc.srqn)
    }

    /// Returns the CQ of completions that no queue pair's send or receive queue accounts for, and the largest number of
    /// them at a time.
    pub(crate) fn own_cq_and_max_completions(&self) -> Option<(&Arc<Cq>, u64)> {
        let mut queue = self.recv_queue.lock();
        match (&self.xrc_srq, &self.tag_ops_cq) {
            // Queue pairs of an XRC domain have no receive CQ.
            (Some(xrc), _) => Some((&xrc.cq, queue.max_wr())),
            (None, Some(cq)) => {
                // Each entry can complete twice: when it is added to the list, and when a message takes it.
                let entries = queue.tag_list_mut().map_or(0, |tags| tags.max_entries());
                Some((cq, 2 * entries as u64))
            }
            (None, None) => None,
        }
    }

    /// Raises the limit event once if fewer WRs are left than the limit says (`ibv_modify_srq(3)`).
    #[inline]
    pub(crate) fn raise_limit_event_if_due(&self, queue: &mut BiasedGuard<'_, RecvQueue>) {
        if queue.srq_limit != 0 && queue.len() < u64::from(queue.srq_limit) {
            queue.srq_limit = 0;
            self.context
                .raise_srq_event(IBV_EVENT_SRQ_LIMIT_REACHED, self.handle());
        }
    }
}
