//! The messages that a thread sent and received, so that a reader can tell whether each message was answered.
//!
//! Between two received messages a thread only sends. So the most messages without an answer are there when the thread
//! finds a received message, and a post costs nothing.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::Relaxed};

use crate::layout::RepeatedPosts;

/// The numbers of messages of one thread, on all its queue pairs. Only this thread uses the balance.
pub(crate) struct MessageBalance {
    /// Number of posted work requests, without some of the repetitions in the list.
    sent: AtomicU64,
    received: AtomicU64,
    /// List of the queue pairs on which repetitions may have been posted since the last received message.
    first_repeating: AtomicPtr<RepeatedSends>,
}

/// The repetitions that a thread posted to one queue pair.
pub(crate) struct RepeatedSends {
    /// The word with [`RepeatedPosts`], which a post increments.
    packed_repeated_posts: &'static AtomicU64,
    /// Number of these posts that the balance contains already.
    balanced: AtomicU64,
    is_listed: AtomicBool,
    next: AtomicPtr<RepeatedSends>,
}

/// The messages by which one number of a balance exceeded the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

impl RepeatedSends {
    /// Returns the repetitions that `packed_repeated_posts` counts; they are never freed.
    pub(crate) fn new_leaked(packed_repeated_posts: &'static AtomicU64) -> &'static Self {
        Box::leak(Box::new(Self {
            packed_repeated_posts,
            balanced: AtomicU64::new(0),
            is_listed: AtomicBool::new(false),
            next: AtomicPtr::new(ptr::null_mut()),
        }))
    }
}

impl MessageBalance {
    pub(crate) const fn new() -> Self {
        Self {
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            first_repeating: AtomicPtr::new(ptr::null_mut()),
        }
    }

    #[inline(always)]
    pub(crate) fn count_sent(&self, count: u64) {
        self.sent
            .store(self.sent.load(Relaxed).wrapping_add(count), Relaxed);
    }

    /// Lists a queue pair on which the next posts may be repetitions.
    #[inline(always)]
    pub(crate) fn expect_repetitions(&self, sends: &'static RepeatedSends) {
        if !sends.is_listed.load(Relaxed) {
            sends.is_listed.store(true, Relaxed);
            sends
                .next
                .store(self.first_repeating.load(Relaxed), Relaxed);
            self.first_repeating
                .store(ptr::from_ref(sends).cast_mut(), Relaxed);
        }
    }

    /// Counts repetitions that are now removed from their word.
    pub(crate) fn count_merged_repetitions(&self, sends: &RepeatedSends, count: u64) {
        self.count_sent(count.saturating_sub(sends.balanced.load(Relaxed)));
        sends.balanced.store(0, Relaxed);
    }

    /// Counts received messages. Returns by how many messages each number was ahead: the sent ones before these
    /// messages, the received ones after them.
    #[inline(always)]
    pub(crate) fn count_received(&self, count: u64) -> Ahead {
        if !self.first_repeating.load(Relaxed).is_null() {
            self.add_listed_repetitions();
        }
        let (sent, before) = (self.sent.load(Relaxed), self.received.load(Relaxed));
        let after = before.wrapping_add(count);
        self.received.store(after, Relaxed);
        Ahead {
            sent: sent.saturating_sub(before),
            received: after.saturating_sub(sent),
        }
    }

    #[inline(never)]
    fn add_listed_repetitions(&self) {
        let mut at = self.first_repeating.swap(ptr::null_mut(), Relaxed);
        // SAFETY: `expect_repetitions` stores only addresses of repetitions that are never freed, and the same thread
        // reads them.
        while let Some(sends) = unsafe { at.as_ref() } {
            let count = RepeatedPosts(sends.packed_repeated_posts.load(Relaxed)).count();
            self.count_sent(count.saturating_sub(sends.balanced.load(Relaxed)));
            sends.balanced.store(count, Relaxed);
            sends.is_listed.store(false, Relaxed);
            at = sends.next.load(Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word() -> &'static AtomicU64 {
        Box::leak(Box::new(AtomicU64::new(
            RepeatedPosts::zero_of_kind(3, false).0,
        )))
    }

    #[test]
    fn a_client_is_ahead_by_its_window_and_a_server_by_what_it_found() {
        let (client, server) = (MessageBalance::new(), MessageBalance::new());
        for _ in 0..3 {
            client.count_sent(4);
            let found = client.count_received(4);
            assert_eq!((found.sent, found.received), (4, 0));
            let found = server.count_received(4);
            assert_eq!((found.sent, found.received), (0, 4));
            server.count_sent(4);
        }
    }

    #[test]
    fn repetitions_on_several_queue_pairs_count_once() {
        let balance = MessageBalance::new();
        let words = [word(), word()];
        let sends = words.map(RepeatedSends::new_leaked);
        for (word, sends) in words.iter().zip(sends) {
            balance.count_sent(1);
            balance.expect_repetitions(sends);
            balance.expect_repetitions(sends);
            word.fetch_add(3, Relaxed);
        }
        assert_eq!(
            balance.count_received(8),
            Ahead {
                sent: 8,
                received: 0
            }
        );
        // The next post on the first queue pair removes its repetitions from the word.
        words[0].fetch_sub(3, Relaxed);
        balance.count_merged_repetitions(sends[0], 3);
        balance.count_sent(1);
        balance.expect_repetitions(sends[0]);
        assert_eq!(
            balance.count_received(1),
            Ahead {
                sent: 1,
                received: 0
            }
        );
    }
}
