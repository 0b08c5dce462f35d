//! Completion queues that are overrun: IBTA vol. 1, 10.8.1 and 11.6.3; `IBV_EVENT_CQ_ERR`.
//!
//! A NIC writes completions to a buffer of fixed size, and one for which there is no place ends the queue. Here a
//! completion is made when it is polled, from what the queue pairs hold, so none is ever without a place. What tells
//! a program that made its queue too small is therefore the engine: it fills the queue's buffer, to one more than it
//! was made for, and if that one is there at [`OVERRUN_LOOKS`] of its looks in a row, with no poll in between, the
//! queue is overrun.
//!
//! A queue that has room for all that its queue pairs can complete is never looked at for this. Others are *watched*: the
//! engine wakes for them, ten times a second and more rarely while nothing happens (`engine.rs`), and leaves alone those
//! that have been polled since the last time. So nothing
//! of this costs the data path anything, and it does not matter who makes the completions, or whether anybody waits for
//! them: sends that complete by themselves, datagrams whose sender has ended, work requests that are flushed.

use std::sync::Mutex;

use verbs_abi::IBV_EVENT_CQ_ERR;

use super::*;
use crate::biased_lock::BiasedGuard;
use crate::lock::lock;
use crate::srq::Srq;

/// So many ticks of the engine in a row a queue holds too much until it is overrun, a quarter of a second: longer than a
/// thread that could run waits for a core on a machine with dozens of threads a core (a turn of a thread is some
/// milliseconds), and so short that whoever tests a program sees what becomes of it. On a NIC it is no time at all.
///
/// It is looks that count and not time, so that a process which was stopped, or a machine, goes on as if nothing had
/// happened.
const OVERRUN_LOOKS: u32 = 250;

/// What can be in a completion queue at a time, if the program takes nothing out of it.
#[derive(Default)]
pub(super) struct Demand {
    /// Work requests of queues that complete here alone.
    wrs: u64,
    /// Shared receive queues, by address, with the work requests of each and the number of queue pairs here that take
    /// from it.
    shared: Vec<(*const Srq, u64, usize)>,
}

// SAFETY: the pointers are compared, never followed.
unsafe impl Send for Demand {}

impl Demand {
    fn total(&self) -> u64 {
        let shared = self.shared.iter().map(|&(_, wrs, _)| wrs);
        shared.fold(self.wrs, u64::saturating_add)
    }

    fn add_shared(&mut self, srq: &Arc<Srq>) {
        let address = Arc::as_ptr(srq);
        match self.shared.iter_mut().find(|(of, ..)| *of == address) {
            Some((.., users)) => *users += 1,
            None => self.shared.push((address, srq.queue.lock().max_wr(), 1)),
        }
    }

    fn remove_shared(&mut self, srq: &Arc<Srq>) {
        let address = Arc::as_ptr(srq);
        if let Some(at) = self.shared.iter().position(|(of, ..)| *of == address) {
            self.shared[at].2 -= 1;
            if self.shared[at].2 == 0 {
                self.shared.swap_remove(at);
            }
        }
    }
}

/// What the engine knows of a queue that can be overrun.
pub(super) struct Overrun {
    demand: Mutex<Demand>,
    /// More can complete here than there is room for, and that counts.
    watched: AtomicBool,
    /// The queue is in error.
    declared: AtomicBool,
    /// `IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`: "This CQ will not pass to error state if overrun" (`ibv_create_cq_ex(3)`).
    ignored: bool,
}

impl Overrun {
    pub(super) fn new(ignored: bool) -> Self {
        Self {
            demand: Mutex::new(Demand::default()),
            watched: AtomicBool::new(false),
            declared: AtomicBool::new(false),
            ignored,
        }
    }
}

impl Cq {
    /// So many more work requests can complete here; of a queue that completes nowhere else.
    pub(crate) fn expect_more(&self, wrs: u64) {
        self.change_demand(|demand| demand.wrs += wrs);
    }

    /// So many fewer work requests can complete here.
    pub(crate) fn expect_less(&self, wrs: u64) {
        self.change_demand(|demand| demand.wrs = demand.wrs.saturating_sub(wrs));
    }

    /// What `qp` receives completes here.
    pub(super) fn expect_receives(&self, qp: &Qp) {
        match &qp.srq {
            Some(srq) => self.change_demand(|demand| demand.add_shared(srq)),
            None => self.expect_more(qp.max_wr().1),
        }
    }

    /// What `qp` receives completes here no longer.
    pub(super) fn expect_no_receives(&self, qp: &Qp) {
        match &qp.srq {
            Some(srq) => self.change_demand(|demand| demand.remove_shared(srq)),
            None => self.expect_less(qp.max_wr().1),
        }
    }

    fn change_demand(&self, change: impl FnOnce(&mut Demand)) {
        let mut demand = lock(&self.overrun.demand);
        change(&mut demand);
        self.settle_watch(&demand);
    }

    /// Its depth has changed, or it is overrun.
    pub(super) fn depth_changed(&self) {
        self.settle_watch(&lock(&self.overrun.demand));
    }

    /// Has the engine watch it, or not.
    fn settle_watch(&self, demand: &Demand) {
        let depth = self.depth.load(Ordering::Relaxed) as u64;
        let wanted = demand.total() > depth && !self.overrun.ignored && !self.is_overrun();
        if self.overrun.watched.swap(wanted, Ordering::Relaxed) == wanted {
            return;
        }
        let count = &self.nic.watched_cqs;
        if !wanted {
            count.fetch_sub(1, Ordering::Relaxed);
        } else if count.fetch_add(1, Ordering::Relaxed) == 0 {
            // It sleeps without limit.
            self.nic.me().wake();
        }
    }

    /// Can it be overrun?
    pub(crate) fn is_watched(&self) -> bool {
        self.overrun.watched.load(Ordering::Relaxed)
    }

    /// Is it in error?
    pub(crate) fn is_overrun(&self) -> bool {
        self.overrun.declared.load(Ordering::Acquire)
    }

    /// Completions that the engine makes for a program that does not poll: all that fit, and one that does not if that
    /// matters.
    pub(super) fn wanted_in_buffer(&self) -> usize {
        let depth = self.depth.load(Ordering::Relaxed);
        depth.saturating_add(self.is_watched().into())
    }

    /// The engine has filled the buffer. True if it is to look again at the next tick.
    pub(super) fn settle_overrun(&self, mut state: BiasedGuard<'_, CqState>, look: Look) -> bool {
        let depth = self.depth.load(Ordering::Relaxed);
        if !self.is_watched() || state.buffer.len() <= depth {
            state.overfull_looks = 0;
            return false;
        }
        state.overfull_looks += u32::from(look == Look::Tick);
        if state.overfull_looks < OVERRUN_LOOKS {
            return true;
        }
        let qps = self.declare(&mut state, depth);
        // A queue pair's state is changed without the lock of a CQ.
        drop(state);
        for qp in qps {
            qp.fail_for_overrun();
        }
        false
    }

    /// It is overrun: the completions that fit are kept, and nothing comes after them. The queue pairs that complete here.
    #[cold]
    fn declare(&self, state: &mut CqState, depth: usize) -> Vec<Arc<Qp>> {
        tracing::warn!(
            "completion queue {} of {depth} entries is overrun",
            self.index
        );
        state.buffer.truncate(depth);
        let mut qps = std::mem::take(&mut state.send);
        for mut side in state.recv.drain(..) {
            side.detach_all();
            qps.push(Arc::clone(side.qp()));
        }
        qps.sort_unstable_by_key(|qp| qp.index);
        qps.dedup_by_key(|qp| qp.index);
        // Whoever makes one of them ready from now on finds this and has it fail.
        self.overrun.declared.store(true, Ordering::Release);
        self.depth_changed();
        // Under the lock, so that it does not come behind the end of the queue (`Cq::end`).
        self.context.raise_cq(IBV_EVENT_CQ_ERR, self.handle().0);
        qps
    }

    /// The program destroys it, and no queue pair completes here: it raises no events any more.
    pub(crate) fn end(&self) {
        {
            let _state = self.state.lock();
            self.overrun.declared.store(true, Ordering::Release);
        }
        self.context.discard_events(self.handle().0.cast());
        self.unacknowledged.wait();
        self.unacknowledged_errors.wait();
    }
}
