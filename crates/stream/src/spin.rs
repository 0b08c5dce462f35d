//! The time for which a stream polls before it sleeps.

use std::time::{Duration, Instant};

/// Longest poll, in multiples of the configured time. Polling each of 100 streams of a runtime once takes longer than
/// the default time of 50 µs.
const MAX_SPIN_FACTOR: u32 = 16;

/// Number of sleeps for which the poll does not grow after a poll of the longest time has found no completion. Each
/// further such poll doubles the number.
const FIRST_GROWTH_PAUSE_SLEEPS: u32 = 16;
const MAX_GROWTH_PAUSE_SLEEPS: u32 = 4096;

/// Decides how long a stream polls before it sleeps.
///
/// A sleep costs both sides a system call, and the sleeping side some 10 µs to 30 µs. If a sleep was shorter than the
/// longest poll, a longer poll would have been cheaper. The next poll is then twice as long. After a long sleep
/// the next poll has the configured length. It also has this length after a poll of the longest time that found no
/// completion: the peer may need this core to answer.
pub(crate) struct Spin {
    configured_spin: Duration,
    current_spin: Duration,
    /// Start of the current period without progress.
    idle_since: Option<Instant>,
    /// Time at which the stream began to sleep in this period.
    sleep_started_at: Option<Instant>,
    /// Number of further sleeps for which `current_spin` must not grow.
    sleeps_left_without_growth: u32,
    next_growth_pause_sleeps: u32,
}

impl Spin {
    pub(crate) fn new(configured: Duration) -> Self {
        Self {
            configured_spin: configured,
            current_spin: configured,
            idle_since: None,
            sleep_started_at: None,
            sleeps_left_without_growth: 0,
            next_growth_pause_sleeps: FIRST_GROWTH_PAUSE_SLEEPS,
        }
    }

    /// Returns true if the stream, which has found no completion at `now`, polls again. Otherwise the stream sleeps.
    pub(crate) fn should_poll_again(&mut self, now: Instant) -> bool {
        let since = *self.idle_since.get_or_insert(now);
        if now.saturating_duration_since(since) < self.current_spin {
            return true;
        }
        if self.sleep_started_at.is_none() {
            self.sleep_started_at = Some(now);
            if self.current_spin > self.configured_spin
                && self.current_spin == MAX_SPIN_FACTOR * self.configured_spin
            {
                self.current_spin = self.configured_spin;
                self.sleeps_left_without_growth = self.next_growth_pause_sleeps;
                self.next_growth_pause_sleeps =
                    MAX_GROWTH_PAUSE_SLEEPS.min(2 * self.next_growth_pause_sleeps);
            }
        }
        false
    }

    /// Records that the stream has made progress. `now` is called only if the stream has slept.
    pub(crate) fn record_progress(&mut self, now: impl FnOnce() -> Instant) {
        self.idle_since = None;
        let longest = MAX_SPIN_FACTOR * self.configured_spin;
        match self.sleep_started_at.take() {
            None if self.current_spin > self.configured_spin => {
                self.next_growth_pause_sleeps = FIRST_GROWTH_PAUSE_SLEEPS
            }
            None => {}
            Some(_) if self.sleeps_left_without_growth > 0 => self.sleeps_left_without_growth -= 1,
            Some(since) if now().saturating_duration_since(since) < longest => {
                self.current_spin = longest.min(2 * self.current_spin);
            }
            Some(_) => self.current_spin = self.configured_spin,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIGURED: Duration = Duration::from_micros(50);

    /// A stream whose clock the test sets.
    struct Stream {
        spin: Spin,
        now: Instant,
    }

    impl Stream {
        fn new(configured: Duration) -> Self {
            Self {
                spin: Spin::new(configured),
                now: Instant::now(),
            }
        }

        /// Waits for a message that comes after `wait`. Returns the time for which the stream polled.
        fn wait(&mut self, wait: Duration) -> Duration {
            let start = self.now;
            let mut polled = None;
            while self.now < start + wait {
                if !self.spin.should_poll_again(self.now) {
                    polled.get_or_insert(self.now - start);
                }
                self.now += Duration::from_micros(5);
            }
            let now = self.now;
            self.spin.record_progress(|| now);
            polled.unwrap_or(wait)
        }
    }

    #[test]
    fn short_sleeps_make_polls_longer_and_a_long_one_shorter() {
        let mut stream = Stream::new(CONFIGURED);
        let wait = Duration::from_micros(250);
        let polled: Vec<_> = (0..5).map(|_| stream.wait(wait)).collect();
        assert_eq!(polled, [50, 100, 200, 250, 250].map(Duration::from_micros));

        stream.wait(Duration::from_millis(50));
        assert_eq!(stream.wait(wait), CONFIGURED);
    }

    #[test]
    fn polls_that_are_in_vain_do_not_grow() {
        let mut stream = Stream::new(CONFIGURED);
        // The peer answers 10 µs after this stream has begun to sleep.
        let mut total = Duration::ZERO;
        let waits = 10_000;
        for _ in 0..waits {
            let current = stream.spin.current_spin;
            total += stream.wait(current + Duration::from_micros(10));
        }
        assert!(total < waits * CONFIGURED * 6 / 5, "{total:?}");
    }

    #[test]
    fn a_stream_configured_not_to_poll_never_does() {
        let mut stream = Stream::new(Duration::ZERO);
        for _ in 0..100 {
            assert_eq!(stream.wait(Duration::from_micros(10)), Duration::ZERO);
        }
    }
}
