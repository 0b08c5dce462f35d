//! Event queues of completion channels and asynchronous events, on which a program can sleep.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl};

use crate::lock::lock;

/// A queue with a file descriptor that is readable while the queue is not empty.
pub(crate) struct EventQueue<T>(Mutex<EventState<T>>);

struct EventState<T> {
    /// The descriptor, until it is closed.
    fd: Option<Arc<OwnedFd>>,
    queue: VecDeque<T>,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)?;
        Ok(Self(Mutex::new(EventState {
            fd: Some(Arc::new(fd)),
            queue: VecDeque::new(),
        })))
    }

    /// Returns the descriptor to poll; -1 if it is closed. A program may set `O_NONBLOCK` on it; [`Self::next`] then
    /// does not wait.
    pub(crate) fn raw_fd(&self) -> i32 {
        lock(&self.0).fd.as_ref().map_or(-1, |fd| fd.as_raw_fd())
    }

    /// Closes the descriptor: there are no more events, and a thread that waits for one gets an error.
    pub(crate) fn close(&self) {
        let fd = lock(&self.0).fd.take();
        if let Some(fd) = fd {
            // No thread takes this count, so the descriptor stays readable.
            add_to_eventfd(&fd);
        }
    }

    pub(crate) fn push(&self, value: T) {
        let mut state = lock(&self.0);
        let Some(fd) = state.fd.clone() else {
            return;
        };
        state.queue.push_back(value);
        add_to_eventfd(&fd);
    }

    /// Returns the next value; waits for one unless the descriptor is non-blocking. `count` counts the delivery before
    /// another thread can find that the value is gone, and destroy its object.
    ///
    /// # Errors
    /// `EAGAIN` if there is no value and the descriptor is non-blocking, `EINTR` after a signal
    /// whose handler has no `SA_RESTART`, `EBADF` if the descriptor is closed.
    pub(crate) fn next(&self, count: impl Fn(&T)) -> io::Result<T> {
        loop {
            let fd = {
                let mut state = lock(&self.0);
                let fd = state.fd.clone().ok_or(rustix::io::Errno::BADF)?;
                if let Some(value) = state.queue.pop_front() {
                    take_eventfd_counts(&fd, 1);
                    count(&value);
                    return Ok(value);
                }
                fd
            };
            let blocks = !fcntl_getfl(&fd)?.contains(OFlags::NONBLOCK);
            if !blocks || cancellation::is_wait_deferred(fd.as_raw_fd()) {
                return Err(rustix::io::Errno::AGAIN.into());
            }
            cancellation::wait_until_readable(&fd)?;
        }
    }

    /// Removes the values for which `gone` returns true.
    pub(crate) fn discard_matching(&self, gone: impl Fn(&T) -> bool) {
        let mut state = lock(&self.0);
        let before = state.queue.len();
        state.queue.retain(|v| !gone(v));
        if let Some(fd) = &state.fd {
            take_eventfd_counts(fd, before - state.queue.len());
        }
    }
}

/// Adds 1 to the count of an eventfd, which wakes a thread that waits for it. The count is never near its limit.
fn add_to_eventfd(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Takes the counts that announced the given number of values, without waiting: a forked child may have taken some.
fn take_eventfd_counts(fd: &OwnedFd, values: usize) {
    for _ in 0..values {
        let readable = poll(
            &mut [PollFd::new(fd, PollFlags::IN)],
            Some(&Timespec::default()),
        );
        if readable.is_ok_and(|n| n > 0) {
            let _ = rustix::io::read(fd, &mut [0u8; 8]);
        }
    }
}

/// Counts events that a program got and has not acknowledged; destroying the object waits for them.
#[derive(Default)]
pub(crate) struct UnacknowledgedEvents {
    counts: Mutex<EventCounts>,
    all_acknowledged_condvar: Condvar,
}

#[derive(Default)]
struct EventCounts {
    unacknowledged_events: u64,
    /// Number of threads that wait until all events are acknowledged. A notification without waiters would also be a
    /// system call.
    waiter_count: u32,
}

impl UnacknowledgedEvents {
    pub(crate) fn note_delivered(&self) {
        lock(&self.counts).unacknowledged_events += 1;
    }

    pub(crate) fn acknowledge(&self, n: u64) {
        let mut counts = lock(&self.counts);
        counts.unacknowledged_events = counts.unacknowledged_events.saturating_sub(n);
        if counts.unacknowledged_events == 0 && counts.waiter_count > 0 {
            self.all_acknowledged_condvar.notify_all();
        }
    }

    /// Waits until every event that was got has been acknowledged (`ibv_destroy_cq(3)`).
    pub(crate) fn wait_until_all_acknowledged(&self) {
        let mut counts = lock(&self.counts);
        counts.waiter_count += 1;
        while counts.unacknowledged_events > 0 {
            counts = self
                .all_acknowledged_condvar
                .wait(counts)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        counts.waiter_count -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_in_order_and_an_empty_queue_says_so() {
        let q = EventQueue::new().unwrap();
        let fd = lock(&q.0).fd.clone().unwrap();
        rustix::fs::fcntl_setfl(&fd, OFlags::NONBLOCK).unwrap();
        for i in 0..4 {
            q.push(i);
        }
        q.discard_matching(|&i| i == 1);
        assert_eq!(q.next(|_| ()).unwrap(), 0);
        assert_eq!(q.next(|_| ()).unwrap(), 2);
        assert_eq!(q.next(|_| ()).unwrap(), 3);
        assert_eq!(
            q.next(|_| ()).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
    }

    #[test]
    fn who_waits_for_a_queue_that_is_closed_hears_so() {
        let q = EventQueue::<()>::new().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| q.next(|_| ()));
            std::thread::yield_now();
            q.close();
            let e = waiter.join().unwrap().unwrap_err();
            assert_eq!(e.raw_os_error(), Some(libc::EBADF));
        });
        q.push(());
        assert_eq!(q.raw_fd(), -1);
    }

    #[test]
    fn destroying_waits_for_the_last_acknowledgement() {
        let u = std::sync::Arc::new(UnacknowledgedEvents::default());
        u.note_delivered();
        u.note_delivered();
        let waiter = std::thread::spawn({
            let u = std::sync::Arc::clone(&u);
            move || u.wait_until_all_acknowledged()
        });
        u.acknowledge(2);
        waiter.join().unwrap();
    }
}
