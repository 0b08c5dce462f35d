//! What is known of a simulated thread.

use corosensei::{Coroutine, Yielder};

use crate::event::Event;
use crate::prefetch::prefetch;
use crate::queue::{EventQueue, Ps};

/// The stack of a thread, and where it goes on.
pub(crate) type Stack = Coroutine<(), (), ()>;

/// A simulated thread. There are many, and each is looked at seldom: what most of them need is in one cache line.
#[repr(C, align(64))]
pub(crate) struct Thread {
    pub(crate) machine: u32,
    pub(crate) state: State,
    /// There is something in `more_cqs`.
    pub(crate) several_cqs: bool,
    /// It waits in [`idle_polling`](crate::idle_polling).
    pub(crate) polls: bool,
    pub(crate) clock: Ps,
    /// When it goes on, unless it runs. There is an event for it then, or the timer's before.
    pub(crate) resume_at: Ps,
    /// The event that stands for the end of its waits: where a wait ends early it stays, for the next one.
    pub(crate) timer: Ps,
    /// The completion queue that it polled first since it last waited.
    pub(crate) first_cq: Option<u32>,
    /// What tells this time from all others.
    pub(crate) stamp: u64,
    pub(crate) yielder: *const Yielder<(), ()>,
    /// Not there while it runs.
    pub(crate) stack: Option<Box<Stack>>,
    /// Those that it polled besides.
    pub(crate) more_cqs: Vec<u32>,
    /// Where it waits in [`idle_polling`](crate::idle_polling).
    pub(crate) polling: Polling,
}

/// A loop that polls one completion queue and does nothing else while there is nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Polling {
    pub(crate) cq: u32,
    /// Polls that found nothing, up to this wait.
    pub(crate) misses: u32,
    /// When this wait began, and when it ends.
    pub(crate) from: Ps,
    pub(crate) end: Ps,
    /// From when on the loop has to do something else, in nanoseconds.
    pub(crate) until_ns: u64,
}

const _: () = assert!(std::mem::offset_of!(Thread, more_cqs) == 64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    /// It goes on at its time whatever happens.
    Stopped,
    /// It goes on at its time, or when there is something that it polled.
    Waiting,
    Done,
}

impl std::fmt::Debug for Thread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Thread({:?})", self.state)
    }
}

impl Thread {
    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Done
    }
}

/// Something that a thread watches changes at a time.
#[inline(always)]
pub(crate) fn wake(threads: &mut [Thread], events: &mut EventQueue<Event>, thread: u32, at: Ps) {
    let Some(sleeper) = threads.get_mut(thread as usize) else {
        return;
    };
    if sleeper.state != State::Waiting {
        return;
    }
    let at = at.max(sleeper.clock);
    if at < sleeper.resume_at {
        sleeper.resume_at = at;
        events.push(at, Event::Resume { thread });
        if let Some(stack) = &sleeper.stack {
            prefetch(&raw const **stack);
        }
    }
}
