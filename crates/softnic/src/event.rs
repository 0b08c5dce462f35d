//! Completion channels and asynchronous events: what a program can sleep on.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl};

/// A queue that a file descriptor announces: readable while something is in it.
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    queue: Mutex<VecDeque<T>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?,
            queue: Mutex::new(VecDeque::new()),
        })
    }

    /// The descriptor to poll. A program may set `O_NONBLOCK` on it; [`Self::next`] then does not wait.
    pub(crate) fn raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    pub(crate) fn push(&self, value: T) {
        let mut queue = lock(&self.queue);
        queue.push_back(value);
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// The next value; waits for one unless the descriptor does not block.
    ///
    /// # Errors
    /// `EAGAIN` where there is none and the descriptor does not block, `EINTR` when a signal came.
    pub(crate) fn next(&self) -> io::Result<T> {
        loop {
            {
                let mut queue = lock(&self.queue);
                if let Some(value) = queue.pop_front() {
                    self.take_counts(1);
                    return Ok(value);
                }
            }
            let blocks = !fcntl_getfl(&self.fd)?.contains(OFlags::NONBLOCK);
            if !blocks || cancellation::waits_outside(self.raw_fd()) {
                return Err(rustix::io::Errno::AGAIN.into());
            }
            poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], None)?;
        }
    }

    /// Removes what `gone` says from the queue.
    pub(crate) fn discard(&self, gone: impl Fn(&T) -> bool) {
        let mut queue = lock(&self.queue);
        let before = queue.len();
        queue.retain(|v| !gone(v));
        self.take_counts(before - queue.len());
    }

    /// Takes the counts that announced so many values. Nobody else reads the descriptor, and each value is written to it
    /// under the queue's lock, which the caller holds: this does not wait.
    fn take_counts(&self, values: usize) {
        for _ in 0..values {
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

/// Counts events that a program got and has not acknowledged; destroying the object waits for them.
#[derive(Default)]
pub(crate) struct Unacknowledged {
    count: Mutex<u64>,
    zero: Condvar,
}

impl Unacknowledged {
    pub(crate) fn got_one(&self) {
        *lock(&self.count) += 1;
    }

    pub(crate) fn acknowledge(&self, n: u64) {
        let mut count = lock(&self.count);
        *count = count.saturating_sub(n);
        if *count == 0 {
            self.zero.notify_all();
        }
    }

    /// Waits until every event that was got has been acknowledged (`ibv_destroy_cq(3)`).
    pub(crate) fn wait(&self) {
        let mut count = lock(&self.count);
        while *count > 0 {
            count = self
                .zero
                .wait(count)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_in_order_and_an_empty_queue_says_so() {
        let q = EventQueue::new().unwrap();
        rustix::fs::fcntl_setfl(&q.fd, rustix::fs::OFlags::NONBLOCK).unwrap();
        for i in 0..4 {
            q.push(i);
        }
        q.discard(|&i| i == 1);
        assert_eq!(q.next().unwrap(), 0);
        assert_eq!(q.next().unwrap(), 2);
        assert_eq!(q.next().unwrap(), 3);
        assert_eq!(q.next().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn destroying_waits_for_the_last_acknowledgement() {
        let u = std::sync::Arc::new(Unacknowledged::default());
        u.got_one();
        u.got_one();
        let waiter = std::thread::spawn({
            let u = std::sync::Arc::clone(&u);
            move || u.wait()
        });
        u.acknowledge(2);
        waiter.join().unwrap();
    }
}
