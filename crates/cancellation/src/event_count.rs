//! The descriptor of a queue of events.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;

use crate::{take_token_bytes_read_from, wait_for_token};

/// Bytes that a read of an eventfd takes.
const COUNT_BYTES: usize = 8;

/// The count that [`EventCount::add_endless`] adds: threads take 1 at a time.
const ENDLESS: u64 = 1 << 62;

/// An eventfd whose count is the number of events in a queue. The descriptor is readable while the queue has events.
///
/// A program may poll the descriptor, and may set `O_NONBLOCK` on it.
pub struct EventCount {
    fd: OwnedFd,
    /// Number of events that were taken while another thread held their count: that thread has read the count, and has
    /// not looked into the queue yet.
    owed_counts: AtomicUsize,
}

impl EventCount {
    /// Makes the descriptor of an empty queue.
    ///
    /// # Errors
    /// Those of `eventfd(2)`.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            fd: eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)?,
            owed_counts: AtomicUsize::new(0),
        })
    }

    /// Adds an event, and wakes a thread that waits. The count is never near its limit.
    pub fn add(&self) {
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Makes the descriptor readable forever, and wakes all threads that wait.
    pub fn add_endless(&self) {
        let _ = rustix::io::write(&self.fd, &ENDLESS.to_ne_bytes());
    }

    /// Returns true if the wait of this thread ([`Self::wait`]) has read the count of an event that is still in the
    /// queue. The caller holds the lock of the queue.
    #[must_use]
    pub fn take_count_of_wait(&self) -> bool {
        take_token_bytes_read_from(self.fd.as_raw_fd()).is_some()
            && self
                .owed_counts
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |owed| {
                    owed.checked_sub(1)
                })
                .is_err()
    }

    /// Takes the counts of `events` that the caller has removed from the queue, whose lock it holds. Never waits: a
    /// forked child, too, may have taken counts.
    pub fn take(&self, events: usize) {
        for _ in 0..events {
            let readable = poll(
                &mut [PollFd::new(&self.fd, PollFlags::IN)],
                Some(&Timespec::default()),
            );
            let taken = readable.is_ok_and(|n| n > 0)
                && rustix::io::read(&self.fd, &mut [0u8; COUNT_BYTES]).is_ok();
            if !taken {
                self.owed_counts.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Waits for an event, and reads its count for [`Self::take_count_of_wait`] of this thread.
    ///
    /// # Errors
    /// `EAGAIN` if the program has set `O_NONBLOCK`, or if [`take_or_wait`](crate::take_or_wait) waits instead; `EINTR`
    /// after a signal whose handler has no `SA_RESTART`.
    pub fn wait(&self) -> Result<(), Errno> {
        if fcntl_getfl(&self.fd)?.contains(OFlags::NONBLOCK) {
            return Err(Errno::AGAIN);
        }
        wait_for_token(&self.fd, COUNT_BYTES)
    }
}

impl AsFd for EventCount {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(count: &EventCount) -> bool {
        let mut fd = [PollFd::new(count, PollFlags::IN)];
        poll(&mut fd, Some(&Timespec::default())) == Ok(1)
    }

    #[test]
    fn the_descriptor_is_readable_while_there_are_events() {
        let count = EventCount::new().unwrap();
        assert!(!is_readable(&count));
        count.add();
        count.add();
        count.take(1);
        assert!(is_readable(&count));
        assert_eq!(count.wait(), Ok(()));
        assert!(count.take_count_of_wait());
        assert!(!is_readable(&count) && !count.take_count_of_wait());
    }

    /// Thread A has read the count of an event, and thread B takes the event before A looks.
    #[test]
    fn a_count_whose_event_another_thread_has_taken_counts_no_later_event() {
        let count = EventCount::new().unwrap();
        count.add();
        assert_eq!(count.wait(), Ok(()));
        count.take(1);
        count.add();
        assert!(!count.take_count_of_wait());
        count.take(1);
        assert!(!is_readable(&count));
    }

    #[test]
    fn an_endless_count_wakes_all_threads() {
        let count = EventCount::new().unwrap();
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..3).map(|_| scope.spawn(|| count.wait())).collect();
            std::thread::yield_now();
            count.add_endless();
            for waiter in waiting {
                assert_eq!(waiter.join().unwrap(), Ok(()));
            }
        });
        assert!(is_readable(&count));
    }
}
