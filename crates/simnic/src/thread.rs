//! The state of a simulated thread.

use corosensei::{Coroutine, Yielder};

use crate::event::SimulationEvent;
use crate::event_queue::{EventQueue, Ps};
use crate::prefetch::prefetch;

/// The coroutine of a thread, with its stack.
pub(crate) type ThreadCoroutine = Coroutine<(), (), ()>;

/// A simulated thread. Many exist, and each runs rarely, so the fields that are usually needed share one cache line.
#[repr(C, align(64))]
pub(crate) struct SimulatedThread {
    pub(crate) machine: u32,
    pub(crate) state: ThreadState,
    /// True if `further_polled_cqs` is not empty.
    pub(crate) polls_several_cqs: bool,
    /// True while the thread waits in [`idle_polling`](crate::suspend_while_polling_cq).
    pub(crate) waits_in_polling_loop: bool,
    pub(crate) clock: Ps,
    /// Time at which the thread resumes, unless it runs. An event is queued for this time, or the timer's event for an
    /// earlier time.
    pub(crate) resume_at: Ps,
    /// Time of the queued event for the end of a wait. If a wait ends early, the event stays queued and serves the next
    /// wait.
    pub(crate) timer_event_at: Ps,
    /// First completion queue that the thread polled since its last wait.
    pub(crate) first_polled_cq: Option<u32>,
    /// Number of the period since the thread's last wait, unique in the simulation.
    pub(crate) wait_period_number: u64,
    pub(crate) yielder: *const Yielder<(), ()>,
    /// Coroutine; `None` while the thread runs.
    pub(crate) coroutine: Option<Box<ThreadCoroutine>>,
    /// Further completion queues that the thread polled.
    pub(crate) further_polled_cqs: Vec<u32>,
    /// The completion queue, the start and the end of the current wait in
    /// [`idle_polling`](crate::suspend_while_polling_cq).
    pub(crate) polling_loop: PollingLoop,
}

/// A loop that only polls one completion queue while that is empty.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PollingLoop {
    pub(crate) cq: u32,
    /// Number of unsuccessful polls before this wait.
    pub(crate) empty_polls_before_wait: u32,
    /// Start of this wait; `wait_end`: the end.
    pub(crate) wait_start: Ps,
    pub(crate) wait_end: Ps,
    /// Time at which the loop must do something else, in nanoseconds.
    pub(crate) deadline_ns: u64,
}

const _: () = assert!(std::mem::offset_of!(SimulatedThread, further_polled_cqs) == 64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadState {
    Running,
    /// Resumes at its time, regardless of events.
    ResumesAtTime,
    /// Resumes at its time, or when something that it polled changes.
    ResumesAtTimeOrChange,
    Done,
}

impl std::fmt::Debug for SimulatedThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Thread({:?})", self.state)
    }
}

impl SimulatedThread {
    pub(crate) fn is_done(&self) -> bool {
        self.state == ThreadState::Done
    }
}

/// Wakes a waiting thread at `at`, because something that it watches changes.
#[inline(always)]
pub(crate) fn wake_if_waiting(
    threads: &mut [SimulatedThread],
    events: &mut EventQueue<SimulationEvent>,
    thread: u32,
    at: Ps,
) {
    let Some(sleeper) = threads.get_mut(thread as usize) else {
        return;
    };
    if sleeper.state != ThreadState::ResumesAtTimeOrChange {
        return;
    }
    let at = at.max(sleeper.clock);
    if at < sleeper.resume_at {
        sleeper.resume_at = at;
        events.push(at, SimulationEvent::Resume { thread });
        if let Some(stack) = &sleeper.coroutine {
            prefetch(&raw const **stack);
        }
    }
}
