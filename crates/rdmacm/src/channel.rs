//! Event channels: queues of events that a file descriptor announces.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl};

use crate::errno::{Errno, Result};
use crate::lock::lock;

/// An event channel.
///
/// Its eventfd is readable if and only if the queue is not empty: programs wait for it with `poll(2)` and its
/// kin, and switch taking events to not waiting by `O_NONBLOCK`.
pub struct Channel<E> {
    fd: OwnedFd,
    queue: Mutex<VecDeque<E>>,
}

impl<E> Channel<E> {
    pub(crate) fn new() -> Result<Arc<Self>> {
        // O_NONBLOCK is the program's, so reads of the descriptor must not depend on it: see `settle`.
        Ok(Arc::new(Self {
            fd: eventfd(0, EventfdFlags::CLOEXEC)?,
            queue: Mutex::new(VecDeque::new()),
        }))
    }

    /// The descriptor that announces events.
    #[must_use]
    pub fn raw_fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    pub(crate) fn push(&self, event: E) {
        let mut queue = lock(&self.queue);
        queue.push_back(event);
        // At every event, so that edge-triggered waiters are woken. The count cannot overflow.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// The next event. Waits for it unless the descriptor has `O_NONBLOCK`.
    ///
    /// `prepare` sees the event before any other thread can take one behind it; it must take no locks of channels.
    ///
    /// # Errors
    /// `EAGAIN` where there is none and the descriptor does not block, `EINTR` when a signal came.
    pub(crate) fn next(&self, prepare: impl Fn(&E)) -> Result<E> {
        loop {
            {
                let mut queue = lock(&self.queue);
                if let Some(event) = queue.pop_front() {
                    prepare(&event);
                    self.settle(&queue);
                    return Ok(event);
                }
            }
            let blocks = !fcntl_getfl(&self.fd)?.contains(OFlags::NONBLOCK);
            if !blocks || cancellation::waits_outside(self.fd.as_raw_fd()) {
                return Err(Errno(libc::EAGAIN));
            }
            poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], None)?;
        }
    }

    /// Whether there is no event.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        lock(&self.queue).is_empty()
    }

    /// Takes those events out that `is_taken` says: they will not be reported from here.
    pub(crate) fn take(&self, is_taken: impl Fn(&E) -> bool) -> Vec<E> {
        let mut queue = lock(&self.queue);
        let (taken, kept): (VecDeque<E>, _) = queue.drain(..).partition(is_taken);
        *queue = kept;
        self.settle(&queue);
        Vec::from(taken)
    }

    /// Makes the descriptor unreadable when nothing is left. Does not wait if it is so already.
    fn settle(&self, queue: &VecDeque<E>) {
        if queue.is_empty() {
            let readable = poll(
                &mut [PollFd::new(&self.fd, PollFlags::IN)],
                Some(&Timespec::default()),
            );
            if readable.is_ok_and(|n| n > 0) {
                let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
            }
        }
    }
}
