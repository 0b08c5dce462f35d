//! Shared receive queues.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use verbs_abi::{IBV_EVENT_SRQ_LIMIT_REACHED, ibv_srq};

use crate::abi_cell::AbiCell;
use crate::biased_lock::{BiasedGuard, BiasedLock};
use crate::context::Context;
use crate::cq::Cq;
use crate::event::Unacknowledged;
use crate::live;
use crate::pd::Pd;
use crate::recv::RecvQueue;
use crate::xrc::XrcSrq;

/// A shared receive queue; the program's handle points to its first field.
#[repr(C)]
pub(crate) struct Srq {
    abi: AbiCell<ibv_srq>,
    pub(crate) context: &'static Context,
    pub(crate) queue: BiasedLock<RecvQueue>,
    pub(crate) uses: AtomicUsize,
    /// 1 + the index of the one receive CQ of its queue pairs; 0: there is none; `MANY_CQS`.
    cq: AtomicUsize,
    pub(crate) unacknowledged: Unacknowledged,
    pub(crate) xrc: Option<XrcSrq>,
    /// Of one for tag matching: where its operations complete.
    pub(crate) tags_cq: Option<Arc<Cq>>,
    /// What it was made of, which it leaves when it is destroyed.
    pub(crate) pd: Arc<Pd>,
}

live::object!(Srq, ibv_srq);

const MANY_CQS: usize = usize::MAX;

impl Srq {
    pub(crate) fn new(
        pd: Arc<Pd>,
        abi: ibv_srq,
        queue: RecvQueue,
        xrc: Option<XrcSrq>,
        tags_cq: Option<Arc<Cq>>,
    ) -> Self {
        Self {
            abi: AbiCell::new(abi),
            context: pd.context,
            pd,
            queue: BiasedLock::new(queue),
            uses: AtomicUsize::new(0),
            cq: AtomicUsize::new(0),
            unacknowledged: Unacknowledged::default(),
            xrc,
            tags_cq,
        }
    }

    /// What it gets completes in this CQ, too.
    pub(crate) fn note_cq(&self, index: usize) {
        let noted = self.cq.compare_exchange(0, index + 1, Relaxed, Relaxed);
        if noted.is_err_and(|other| other != index + 1) {
            self.cq.store(MANY_CQS, Relaxed);
        }
    }

    /// Have all its queue pairs, since it was made, had the same receive CQ?
    pub(crate) fn has_one_cq(&self) -> bool {
        self.xrc.is_none() && self.cq.load(Relaxed) != MANY_CQS
    }

    /// The program's handle.
    pub(crate) fn handle(&self) -> *mut ibv_srq {
        self.abi.handle()
    }

    /// What requesters name it by: only those for XRC have a number.
    pub(crate) fn number(&self) -> Option<u32> {
        self.xrc.as_ref().map(|xrc| xrc.number)
    }

    /// Where something of it completes that no queue pair's send or receive queue accounts for, and how many of these
    /// there can be at a time.
    pub(crate) fn own_completions(&self) -> Option<(&Arc<Cq>, u64)> {
        let mut queue = self.queue.lock();
        match (&self.xrc, &self.tags_cq) {
            // The queue pairs of its domain have no CQ.
            (Some(xrc), _) => Some((&xrc.cq, queue.max_wr())),
            (None, Some(cq)) => {
                // What adds an entry to the list, and the message that takes it.
                let entries = queue.tags_mut().map_or(0, |tags| tags.max_entries());
                Some((cq, 2 * entries as u64))
            }
            (None, None) => None,
        }
    }

    /// Raises the limit event once if fewer WRs are left than the limit says (`ibv_modify_srq(3)`).
    #[inline]
    pub(crate) fn check_limit(&self, queue: &mut BiasedGuard<'_, RecvQueue>) {
        if queue.limit != 0 && queue.len() < u64::from(queue.limit) {
            queue.limit = 0;
            self.context
                .raise_srq(IBV_EVENT_SRQ_LIMIT_REACHED, self.handle());
        }
    }
}
