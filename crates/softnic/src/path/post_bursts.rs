//! The decision whether the packets of a post wait for the next post.
//!
//! Many programs post work requests one by one, several between two polls. One system call can send the packets of all
//! of them. The packets of a post therefore wait while more posts are expected: as many as the program made between the
//! two polls before. The poll sends packets that still wait. A program may answer a message in its memory without a
//! poll. Its packets do not wait, since nothing tells when it will post or poll again.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The posts between two polls. Threads that post at the same time may miscount a few, which costs some microseconds.
#[derive(Debug, Default)]
pub(super) struct PostBursts {
    /// Number of polls at the last post.
    poll_count_at_last_post: AtomicU64,
    /// Number of packets that had arrived at the last post.
    arrived_packet_count_at_last_post: AtomicU64,
    /// Number of posts in a row, without a poll or a packet in between.
    posts_in_row: AtomicU32,
    /// Number of posts that are expected before the next poll.
    expected_posts_before_poll: AtomicU32,
}

impl PostBursts {
    /// Records a post, given the numbers of polls and packets so far. Returns true if another post is expected before
    /// the program polls.
    pub(super) fn note_post_and_predict_burst(&self, polls: u64, received: u64) -> bool {
        let before = self.posts_in_row.load(Ordering::Relaxed);
        let mut expected = self.expected_posts_before_poll.load(Ordering::Relaxed);
        let is_polled = self.poll_count_at_last_post.load(Ordering::Relaxed) != polls;
        let has_received = self
            .arrived_packet_count_at_last_post
            .load(Ordering::Relaxed)
            != received;
        let posts = if is_polled {
            expected = before;
            1
        } else if has_received {
            expected = 1;
            1
        } else {
            before.saturating_add(1)
        };
        self.poll_count_at_last_post.store(polls, Ordering::Relaxed);
        self.arrived_packet_count_at_last_post
            .store(received, Ordering::Relaxed);
        self.posts_in_row.store(posts, Ordering::Relaxed);
        self.expected_posts_before_poll
            .store(expected, Ordering::Relaxed);
        posts < expected
    }

    /// Resets the expectation, because the program may sleep after its next posts.
    pub(super) fn forget_expectation(&self) {
        self.posts_in_row.store(0, Ordering::Relaxed);
        self.expected_posts_before_poll.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::PostBursts;

    /// Returns, for each of `count` posts after `polls` and `received`, whether another one is expected.
    fn posts(bursts: &PostBursts, count: usize, polls: u64, received: u64) -> Vec<bool> {
        (0..count)
            .map(|_| bursts.note_post_and_predict_burst(polls, received))
            .collect()
    }

    #[test]
    fn posts_wait_for_as_many_as_there_were_between_the_last_two_polls() {
        let bursts = PostBursts::default();
        assert_eq!(posts(&bursts, 4, 1, 0), [false; 4]);
        assert_eq!(posts(&bursts, 5, 2, 3), [true, true, true, false, false]);
        assert_eq!(posts(&bursts, 2, 9, 5), [true, true], "the poll sends them");
        assert_eq!(posts(&bursts, 2, 12, 6), [true, false]);
    }

    #[test]
    fn what_is_answered_without_a_poll_does_not_wait() {
        let bursts = PostBursts::default();
        posts(&bursts, 4, 1, 0);
        for received in 1..5 {
            assert_eq!(posts(&bursts, 2, 1, received), [false; 2]);
        }
        assert_eq!(posts(&bursts, 1, 1, 6), [false]);
        assert_eq!(
            posts(&bursts, 2, 2, 6),
            [false; 2],
            "one came before the poll"
        );
    }

    #[test]
    fn a_program_that_may_sleep_does_not_wait() {
        let bursts = PostBursts::default();
        posts(&bursts, 4, 1, 0);
        bursts.forget_expectation();
        assert_eq!(posts(&bursts, 4, 2, 1), [false; 4]);
    }
}
