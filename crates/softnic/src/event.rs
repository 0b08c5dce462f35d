//! Event queues of completion channels and asynchronous events, on which a program can sleep.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use cancellation::EventCount;

use crate::lock::lock;

/// A queue with a file descriptor that is readable while the queue is not empty.
pub(crate) struct EventQueue<T>(Mutex<EventState<T>>);

struct EventState<T> {
    /// The descriptor, until it is closed.
    fd: Option<Arc<EventCount>>,
    queue: VecDeque<T>,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Mutex::new(EventState {
            fd: Some(Arc::new(EventCount::new()?)),
            queue: VecDeque::new(),
        })))
    }

    /// Returns the descriptor to poll; -1 if it is closed. A program may set `O_NONBLOCK` on it; [`Self::next`] then
    /// does not wait.
    pub(crate) fn raw_fd(&self) -> i32 {
        let state = lock(&self.0);
        state.fd.as_ref().map_or(-1, |fd| fd.as_fd().as_raw_fd())
    }

    /// Closes the descriptor: there are no more events, and a thread that waits for one gets an error.
    pub(crate) fn close(&self) {
        let fd = lock(&self.0).fd.take();
        if let Some(fd) = fd {
            fd.add_endless();
        }
    }

    pub(crate) fn push(&self, value: T) {
        let mut state = lock(&self.0);
        let Some(fd) = state.fd.clone() else {
            return;
        };
        state.queue.push_back(value);
        fd.add();
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
                let is_counted = fd.take_count_of_wait();
                if let Some(value) = state.queue.pop_front() {
                    if !is_counted {
                        fd.take(1);
                    }
                    count(&value);
                    return Ok(value);
                }
                fd
            };
            fd.wait()?;
        }
    }

    /// Removes the values for which `gone` returns true.
    pub(crate) fn discard_matching(&self, gone: impl Fn(&T) -> bool) {
        let mut state = lock(&self.0);
        let before = state.queue.len();
        state.queue.retain(|v| !gone(v));
        if let Some(fd) = &state.fd {
            fd.take(before - state.queue.len());
        }
    }
}

/// A wait for acknowledgements that takes longer is reported.
const REPORTED_WAIT: Duration = Duration::from_secs(2);

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

    /// Waits until every event that was got has been acknowledged (`ibv_destroy_cq(3)`). `verb` is the verb that waits
    /// for calls of `acknowledging_verb`; a long wait is reported.
    pub(crate) fn wait_until_all_acknowledged(&self, verb: &str, acknowledging_verb: &str) {
        let mut counts = lock(&self.counts);
        counts.waiter_count += 1;
        let mut is_reported = false;
        while counts.unacknowledged_events > 0 {
            let waited = self
                .all_acknowledged_condvar
                .wait_timeout(counts, REPORTED_WAIT);
            let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            counts = guard;
            if timeout.timed_out() && counts.unacknowledged_events > 0 && !is_reported {
                is_reported = true;
                let count = counts.unacknowledged_events;
                crate::why::report_wait_for_acknowledgement(verb, count, acknowledging_verb);
            }
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
        rustix::fs::fcntl_setfl(fd.as_fd(), rustix::fs::OFlags::NONBLOCK).unwrap();
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
            move || u.wait_until_all_acknowledged("", "")
        });
        u.acknowledge(2);
        waiter.join().unwrap();
    }
}
