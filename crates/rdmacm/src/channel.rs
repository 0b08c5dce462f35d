//! Event channels: queues of events, with a file descriptor to wait for.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex};

use cancellation::EventCount;

use crate::errno::Result;
use crate::lock::lock;

/// An event channel: a queue of events and an eventfd.
///
/// The eventfd is readable if and only if the queue is not empty. Programs wait for it with `poll(2)` and similar
/// calls, and set `O_NONBLOCK` on it to take events without waiting.
pub struct EventChannel<E> {
    event_count: EventCount,
    event_queue: Mutex<VecDeque<E>>,
}

impl<E> EventChannel<E> {
    pub(crate) fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            event_count: EventCount::new()?,
            event_queue: Mutex::new(VecDeque::new()),
        }))
    }

    /// Returns the descriptor that is readable while the channel has events.
    #[must_use]
    pub fn raw_fd(&self) -> c_int {
        self.event_count.as_fd().as_raw_fd()
    }

    pub(crate) fn push(&self, event: E) {
        let mut queue = lock(&self.event_queue);
        queue.push_back(event);
        // Each event writes to the eventfd, so that edge-triggered waiters are woken.
        self.event_count.add();
    }

    /// Returns the next event. Waits for it unless the descriptor has `O_NONBLOCK`.
    ///
    /// `prepare` is called before another thread can take a later event. It must not lock a channel.
    ///
    /// # Errors
    /// `EAGAIN` if the channel is empty and the descriptor does not block, `EINTR` after a signal
    /// whose handler has no `SA_RESTART`.
    pub(crate) fn next(&self, prepare: impl Fn(&E)) -> Result<E> {
        loop {
            {
                let mut queue = lock(&self.event_queue);
                let is_counted = self.event_count.take_count_of_wait();
                if let Some(event) = queue.pop_front() {
                    if !is_counted {
                        self.event_count.take(1);
                    }
                    prepare(&event);
                    return Ok(event);
                }
            }
            self.event_count.wait()?;
        }
    }

    /// Returns true if the channel has no event.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        lock(&self.event_queue).is_empty()
    }

    /// Removes and returns the events for which `is_taken` is true; this channel will not report them.
    pub(crate) fn remove_events(&self, is_taken: impl Fn(&E) -> bool) -> Vec<E> {
        let mut queue = lock(&self.event_queue);
        let (taken, kept): (VecDeque<E>, _) = queue.drain(..).partition(is_taken);
        *queue = kept;
        self.event_count.take(taken.len());
        Vec::from(taken)
    }
}
