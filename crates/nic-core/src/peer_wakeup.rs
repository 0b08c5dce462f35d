//! When a program that polls an empty completion queue wakes the engines of its peers.
//!
//! A peer that neither polls nor waits takes no messages. Its engine takes them instead, if it is woken. A peer that
//! takes messages itself is not woken, however long the queue stays empty: its engine would only cost it time.

/// Number of empty polls in a row after which peers are woken for the first time.
const EMPTY_POLLS_UNTIL_FIRST_WAKEUP: u32 = 4096;

/// Time of empty polls, in nanoseconds, after which peers are woken for the first time. It is for a program that
/// rarely runs between its polls: 4,096 polls take from 50 µs to minutes, on a machine with more work than cores.
const EMPTY_TIME_UNTIL_FIRST_WAKEUP_NS: u64 = 1_000_000;

/// The wait of a queue for its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerWakeupTimer {
    /// Number of empty polls in a row, and the time, at which the wait began. The time is unknown until the clock is
    /// read for the first time.
    began_at_poll: u32,
    began_at_ns: Option<u64>,
    /// Number by which the first limits are multiplied. It doubles with each wake-up.
    limit_factor: u32,
}

impl PeerWakeupTimer {
    /// Makes the timer of a queue that has not been polled in vain.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            began_at_poll: 0,
            began_at_ns: None,
            limit_factor: 1,
        }
    }

    /// Ends the wait: the queue had a completion, and empty polls count from zero.
    #[inline(always)]
    pub fn reset(&mut self) {
        *self = Self::new();
    }

    /// Returns true if peers are to be checked after the given number of empty polls in a row.
    #[must_use]
    pub fn is_due(&mut self, empty_polls: u32, now_ns: u64) -> bool {
        let began_at_ns = *self.began_at_ns.get_or_insert(now_ns);
        let factor = u64::from(self.limit_factor);
        u64::from(empty_polls.saturating_sub(self.began_at_poll))
            >= factor * u64::from(EMPTY_POLLS_UNTIL_FIRST_WAKEUP)
            || now_ns.saturating_sub(began_at_ns) >= factor * EMPTY_TIME_UNTIL_FIRST_WAKEUP_NS
    }

    /// Begins a new wait, as after a completion.
    pub fn restart(&mut self, empty_polls: u32, now_ns: u64) {
        *self = Self {
            began_at_poll: empty_polls,
            began_at_ns: Some(now_ns),
            limit_factor: 1,
        };
    }

    /// Doubles the wait until the next wake-up.
    pub fn back_off(&mut self) {
        self.limit_factor = self.limit_factor.saturating_mul(2);
    }
}

impl Default for PeerWakeupTimer {
    fn default() -> Self {
        Self::new()
    }
}

/// The peer for which the oldest work request of a queue pair waits, and whether its engine was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AwaitedPeer {
    /// No work request waits, or another thread uses the send queue.
    None,
    /// Not woken: its program has taken messages since the last check.
    TakesMessages,
    /// Woken.
    Woken,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn polls_or_time_make_a_wakeup_due_and_each_doubles_the_wait() {
        let mut by_polls = PeerWakeupTimer::new();
        assert!(!by_polls.is_due(4095, 0));
        assert!(by_polls.is_due(4096, 0));
        by_polls.back_off();
        assert!(!by_polls.is_due(8191, 0));
        assert!(by_polls.is_due(8192, 0));
        let mut by_time = PeerWakeupTimer::new();
        assert!(
            !by_time.is_due(32, 5 * MS),
            "the first reading of the clock"
        );
        assert!(!by_time.is_due(64, 6 * MS - 1));
        assert!(by_time.is_due(64, 6 * MS));
        by_time.back_off();
        assert!(!by_time.is_due(96, 7 * MS - 1));
        assert!(by_time.is_due(96, 7 * MS));
    }

    #[test]
    fn a_wait_that_begins_again_has_the_first_limits() {
        let mut timer = PeerWakeupTimer::new();
        assert!(!timer.is_due(32, 0));
        (0..40).for_each(|_| timer.back_off());
        assert!(!timer.is_due(u32::MAX, 1000 * MS));
        timer.restart(100, 1000 * MS);
        assert!(!timer.is_due(4195, 1001 * MS - 1));
        assert!(timer.is_due(4196, 1000 * MS));
        timer.restart(u32::MAX, 0);
        assert!(timer.is_due(u32::MAX, MS), "the count of polls has ended");
    }
}
