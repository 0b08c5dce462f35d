//! Completion queues that are overrun: IBTA vol. 1, 10.8.1 and 11.6.3; `IBV_EVENT_CQ_ERR`.
//!
//! A NIC writes completions to a buffer of fixed size. A completion without a place in the buffer puts the queue into
//! error. Here, a poll makes completions from the state of the queue pairs, so each has a place. The engine therefore
//! detects queues that are too small. It fills the queue's buffer to one completion more than the queue was made for.
//! The queue is overrun if that one is there at [`OVERFULL_TICKS_UNTIL_ERROR`] of its checks in a row, without a poll
//! in between.
//!
//! A queue that has room for all that its queue pairs can complete is never checked. Other queues are *watched*. The
//! engine wakes for them ten times a second, and not at all after a time in which nothing happens
//! (`overrun_parking.rs`). It skips queues that have been polled since the last time. The data path has no cost. The
//! kind of completion does not matter, nor whether a thread waits for it: sends that complete by themselves, datagrams
//! whose sender has ended, work requests that are flushed.

use std::sync::Mutex;

use verbs_abi::IBV_EVENT_CQ_ERR;

use super::*;
use crate::biased_lock::BiasedGuard;
use crate::lock::lock;
use crate::srq::Srq;

/// Number of the engine's ticks in a row at which a queue holds too much until it is overrun: a quarter of a second. It
/// is longer in a process with more than 256 queues. A runnable thread does not wait for a core that long, even on a machine with dozens of threads for each core. (A time
/// slice is some milliseconds.) The time is short enough to show the error to a person who tests a program. A NIC
/// allows no time at all.
///
/// The limit counts checks, not time, so that a process or a machine that was stopped continues without an overrun.
const OVERFULL_TICKS_UNTIL_ERROR: u32 = 250;

/// The largest number of completions in a completion queue from which the program takes nothing.
#[derive(Default)]
pub(super) struct MaxUnpolledCompletions {
    /// Work requests of queues that are not shared and complete here.
    unshared_queue_wr_count: u64,
    /// Shared receive queues: the address, the number of work requests, and the number of queue pairs here that take
    /// from it.
    srqs: Vec<(*const Srq, u64, usize)>,
}

// SAFETY: the pointers are compared, never dereferenced.
unsafe impl Send for MaxUnpolledCompletions {}

impl MaxUnpolledCompletions {
    fn total(&self) -> u64 {
        let shared = self.srqs.iter().map(|&(_, wrs, _)| wrs);
        shared.fold(self.unshared_queue_wr_count, u64::saturating_add)
    }

    fn add_srq(&mut self, srq: &Arc<Srq>) {
        let address = Arc::as_ptr(srq);
        match self.srqs.iter_mut().find(|(of, ..)| *of == address) {
            Some((.., users)) => *users += 1,
            None => self.srqs.push((address, srq.recv_queue.lock().max_wr(), 1)),
        }
    }

    fn remove_srq(&mut self, srq: &Arc<Srq>) {
        let address = Arc::as_ptr(srq);
        if let Some(at) = self.srqs.iter().position(|(of, ..)| *of == address) {
            self.srqs[at].2 -= 1;
            if self.srqs[at].2 == 0 {
                self.srqs.swap_remove(at);
            }
        }
    }
}

/// The engine's knowledge of a queue that can be overrun.
pub(super) struct OverrunState {
    max_unpolled_completions: Mutex<MaxUnpolledCompletions>,
    /// True if more can complete here than there is room for, and overruns are not ignored.
    can_overrun: AtomicBool,
    /// True if the periodic checks of the queue are suspended. Changed under the lock of `max_unpolled_completions`.
    is_watch_parked: AtomicBool,
    /// True if the queue is in error.
    is_cq_in_error: AtomicBool,
    /// `IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`: "This CQ will not pass to error state if overrun" (`ibv_create_cq_ex(3)`).
    ignores_overrun: bool,
}

impl OverrunState {
    pub(super) fn new(ignored: bool) -> Self {
        Self {
            max_unpolled_completions: Mutex::new(MaxUnpolledCompletions::default()),
            can_overrun: AtomicBool::new(false),
            is_watch_parked: AtomicBool::new(false),
            is_cq_in_error: AtomicBool::new(false),
            ignores_overrun: ignored,
        }
    }
}

impl Cq {
    /// Adds work requests that can complete here, of a queue that completes nowhere else.
    pub(crate) fn add_expected_wrs(&self, wrs: u64) {
        self.change_max_unpolled_completions(|demand| demand.unshared_queue_wr_count += wrs);
    }

    /// Removes work requests that can complete here.
    pub(crate) fn remove_expected_wrs(&self, wrs: u64) {
        self.change_max_unpolled_completions(|demand| {
            demand.unshared_queue_wr_count = demand.unshared_queue_wr_count.saturating_sub(wrs)
        });
    }

    /// Adds the receives of `qp`, which complete here.
    pub(super) fn add_expected_receives(&self, qp: &Qp) {
        match &qp.srq {
            Some(srq) => self.change_max_unpolled_completions(|demand| demand.add_srq(srq)),
            None => self.add_expected_wrs(qp.max_send_and_recv_wrs().1),
        }
    }

    /// Removes the receives of `qp`, which no longer complete here.
    pub(super) fn remove_expected_receives(&self, qp: &Qp) {
        match &qp.srq {
            Some(srq) => self.change_max_unpolled_completions(|demand| demand.remove_srq(srq)),
            None => self.remove_expected_wrs(qp.max_send_and_recv_wrs().1),
        }
    }

    fn change_max_unpolled_completions(&self, change: impl FnOnce(&mut MaxUnpolledCompletions)) {
        let mut demand = lock(&self.overrun_state.max_unpolled_completions);
        change(&mut demand);
        self.update_overrun_watch(&demand);
    }

    /// Updates the watch after a change of the depth, or after an overrun.
    pub(super) fn recheck_overrun_watch(&self) {
        self.update_overrun_watch(&lock(&self.overrun_state.max_unpolled_completions));
    }

    /// Makes the engine watch the queue, or stops that. Resumes a parked watch.
    fn update_overrun_watch(&self, demand: &MaxUnpolledCompletions) {
        let depth = self.depth.load(Ordering::Relaxed) as u64;
        let overrun = &self.overrun_state;
        let wanted = demand.total() > depth && !overrun.ignores_overrun && !self.is_overrun();
        let was_parked = overrun.is_watch_parked.swap(false, Ordering::Relaxed);
        let was_wanted = overrun.can_overrun.swap(wanted, Ordering::Relaxed);
        let was_checked = was_wanted && !was_parked;
        if was_checked == wanted {
            return;
        }
        let count = &self.nic.overrun_checked_cq_count;
        if !wanted {
            count.fetch_sub(1, Ordering::Relaxed);
        } else if count.fetch_add(1, Ordering::Relaxed) == 0
            && !shm::mem::is_this_thread_the_engine()
        {
            // The engine sleeps without limit.
            self.nic.this_process().wake_engine();
        }
    }

    /// Suspends the periodic checks of a watched queue. Returns false if the queue is not watched.
    pub(super) fn park_counted_watch(&self) -> bool {
        let _demand = lock(&self.overrun_state.max_unpolled_completions);
        let parks = self.is_watched_for_overrun() && !self.is_overrun_watch_parked();
        if parks {
            self.overrun_state
                .is_watch_parked
                .store(true, Ordering::Relaxed);
            self.nic
                .overrun_checked_cq_count
                .fetch_sub(1, Ordering::Relaxed);
        }
        parks
    }

    /// Returns true if the engine checks the queue periodically.
    pub(crate) fn is_checked_for_overrun(&self) -> bool {
        self.is_watched_for_overrun() && !self.is_overrun_watch_parked()
    }

    /// Returns true if the periodic checks of the queue are suspended.
    pub(crate) fn is_overrun_watch_parked(&self) -> bool {
        self.overrun_state.is_watch_parked.load(Ordering::Relaxed)
    }

    /// Returns true if the queue can be overrun and holds more completions than its depth.
    pub(super) fn is_overfull(&self, state: &CqState) -> bool {
        self.is_watched_for_overrun()
            && state.buffered_completions.len() > self.depth.load(Ordering::Relaxed)
    }

    /// Returns true if the queue can be overrun.
    pub(crate) fn is_watched_for_overrun(&self) -> bool {
        self.overrun_state.can_overrun.load(Ordering::Relaxed)
    }

    /// Returns true if the queue is in error.
    pub(crate) fn is_overrun(&self) -> bool {
        self.overrun_state.is_cq_in_error.load(Ordering::Acquire)
    }

    /// Returns the number of completions that the engine makes for a program that does not poll: as many as fit, and
    /// one more if the queue is watched.
    pub(super) fn engine_buffer_target(&self) -> usize {
        let depth = self.depth.load(Ordering::Relaxed);
        depth.saturating_add(self.is_watched_for_overrun().into())
    }

    /// Checks for an overrun after the engine has filled the buffer. Returns true if the engine is to check again at
    /// the next tick.
    pub(super) fn check_overrun(
        &self,
        mut state: BiasedGuard<'_, CqState>,
        look: EngineCheckReason,
    ) -> bool {
        if !self.is_overfull(&state) {
            state.overfull_engine_ticks = 0;
            return false;
        }
        state.overfull_engine_ticks += u32::from(look == EngineCheckReason::Tick);
        if state.overfull_engine_ticks < OVERFULL_TICKS_UNTIL_ERROR {
            return true;
        }
        let depth = self.depth.load(Ordering::Relaxed);
        let qps = self.declare_overrun(&mut state, depth);
        // The state of a queue pair is changed without the lock of a CQ.
        drop(state);
        crate::why::report_cq_overrun(depth);
        for qp in qps {
            qp.fail_for_cq_overrun();
        }
        false
    }

    /// Declares the queue overrun: completions that fit are kept, and none come after them. Returns the queue pairs
    /// that complete here.
    #[cold]
    fn declare_overrun(&self, state: &mut CqState, depth: usize) -> Vec<Arc<Qp>> {
        tracing::warn!(
            "completion queue {} of {depth} entries is overrun",
            self.index
        );
        state.buffered_completions.truncate(depth);
        let mut qps = std::mem::take(&mut state.sending_qps);
        for mut side in state.recv_sides.drain(..) {
            side.detach_all_rings();
            qps.push(Arc::clone(side.qp()));
        }
        qps.sort_unstable_by_key(|qp| qp.index);
        qps.dedup_by_key(|qp| qp.index);
        // A thread that makes one of them ready from now on finds this flag and fails the queue pair.
        self.overrun_state
            .is_cq_in_error
            .store(true, Ordering::Release);
        self.recheck_overrun_watch();
        // Raised under the lock, so that the event does not come after the end of the queue (`Cq::end`).
        self.context
            .raise_cq_event(IBV_EVENT_CQ_ERR, self.handle().0);
        qps
    }

    /// Ends a queue that the program destroys and in which no queue pair completes: the queue raises no more events.
    pub(crate) fn stop_and_await_event_acknowledgements(&self) {
        {
            let _state = self.state.lock();
            self.overrun_state
                .is_cq_in_error
                .store(true, Ordering::Release);
        }
        self.context
            .discard_events_of_object(self.handle().0.cast());
        self.unacknowledged_comp_events
            .wait_until_all_acknowledged("ibv_destroy_cq", "ibv_ack_cq_events");
        self.unacknowledged_async_events
            .wait_until_all_acknowledged("ibv_destroy_cq", "ibv_ack_async_event");
    }
}
