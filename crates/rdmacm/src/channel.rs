//! Event channels: queues of events, with a file descriptor to wait for.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl};

use crate::errno::{Errno, Result};
use crate::lock::lock;

/// An event channel: a queue of events and an eventfd.
///
/// The eventfd is readable if and only if the queue is not empty. Programs wait for it with `poll(2)` and similar
/// calls, and set `O_NONBLOCK` on it to take events without waiting.
pub struct EventChannel<E> {
    event_fd: OwnedFd,
    event_queue: Mutex<VecDeque<E>>,
}

impl<E> EventChannel<E> {
    pub(crate) fn new() -> Result<Arc<Self>> {
        // The program decides about O_NONBLOCK, so reads of the descriptor must not depend on it: see
        // `clear_eventfd_if_empty`.
        Ok(Arc::new(Self {
            event_fd: eventfd(0, EventfdFlags::CLOEXEC)?,
            event_queue: Mutex::new(VecDeque::new()),
        }))
    }

    /// Returns the descriptor that is readable while the channel has events.
    #[must_use]
    pub fn raw_fd(&self) -> c_int {
        self.event_fd.as_raw_fd()
    }

    pub(crate) fn push(&self, event: E) {
        let mut queue = lock(&self.event_queue);
        queue.push_back(event);
        // Each event writes to the eventfd, so that edge-triggered waiters are woken. The count cannot overflow.
        let _ = rustix::io::write(&self.event_fd, &1u64.to_ne_bytes());
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
                if let Some(event) = queue.pop_front() {
                    prepare(&event);
                    self.clear_eventfd_if_empty(&queue);
                    return Ok(event);
                }
            }
            let blocks = !fcntl_getfl(&self.event_fd)?.contains(OFlags::NONBLOCK);
            if !blocks || cancellation::is_wait_deferred(self.event_fd.as_raw_fd()) {
                return Err(Errno(libc::EAGAIN));
            }
            cancellation::wait_until_readable(&self.event_fd)?;
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
        self.clear_eventfd_if_empty(&queue);
        Vec::from(taken)
    }

    /// Makes the descriptor unreadable if the queue is empty. Does not wait if it is already unreadable.
    fn clear_eventfd_if_empty(&self, queue: &VecDeque<E>) {
        if queue.is_empty() {
            let readable = poll(
                &mut [PollFd::new(&self.event_fd, PollFlags::IN)],
                Some(&Timespec::default()),
            );
            if readable.is_ok_and(|n| n > 0) {
                let _ = rustix::io::read(&self.event_fd, &mut [0u8; 8]);
            }
        }
    }
}
