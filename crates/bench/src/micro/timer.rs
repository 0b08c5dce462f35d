//! Timing without reading the clock for every message: a slow clock would dominate the measurement.

use crate::clock::now_ns;

/// Part of a run that is not measured: one in this many.
const WARM_UP_DIVISOR: u64 = 10;

/// Timer that reads the clock about once per thousandth of its duration.
pub(crate) struct RunTimer {
    begin_ns: u64,
    duration_ns: u64,
    last_reading_ns: u64,
    /// Calls of `is_over` between two readings of the clock.
    calls_per_reading: u32,
    calls_until_reading: u32,
    is_over: bool,
}

impl RunTimer {
    /// Starts the timer now.
    pub(crate) fn new(duration_ms: u64) -> RunTimer {
        let now = now_ns();
        RunTimer {
            begin_ns: now,
            duration_ns: duration_ms.saturating_mul(1_000_000),
            last_reading_ns: now,
            calls_per_reading: 1,
            calls_until_reading: 1,
            is_over: false,
        }
    }

    /// Returns true if the time is over. Once it is over, it stays over.
    #[inline]
    pub(crate) fn is_over(&mut self) -> bool {
        self.calls_until_reading -= 1;
        if self.calls_until_reading == 0 {
            self.read_clock();
        }
        self.is_over
    }

    #[cold]
    fn read_clock(&mut self) {
        let now = now_ns();
        let step = now.saturating_sub(self.last_reading_ns);
        if step < self.duration_ns / 2000 {
            self.calls_per_reading = self.calls_per_reading.saturating_mul(2).min(1 << 16);
        } else if step > self.duration_ns / 500 {
            self.calls_per_reading = (self.calls_per_reading / 2).max(1);
        }
        self.last_reading_ns = now;
        self.calls_until_reading = self.calls_per_reading;
        self.is_over |= now.saturating_sub(self.begin_ns) >= self.duration_ns;
    }
}

/// Operations and the time that they took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimedOperations {
    pub(crate) ops: u64,
    pub(crate) elapsed_ns: u64,
}

/// Counter of operations from the end of the warm-up on.
pub(crate) struct OperationMeter {
    warm_up_ns: u64,
    /// Number of operations done, and the time in ns, at the first tick.
    operations_and_ns_at_first_tick: Option<(u64, u64)>,
    /// Number of operations done, and the time in ns, at the end of the warm-up.
    operations_and_ns_at_warm_up_end: Option<(u64, u64)>,
}

impl OperationMeter {
    /// Creates a meter of the operations per second of a run of `duration_ms`.
    pub(crate) fn new(duration_ms: u64) -> OperationMeter {
        OperationMeter {
            warm_up_ns: duration_ms.saturating_mul(1_000_000) / WARM_UP_DIVISOR,
            operations_and_ns_at_first_tick: None,
            operations_and_ns_at_warm_up_end: None,
        }
    }

    /// Notes that `done` operations are done.
    #[inline]
    pub(crate) fn note_total_done_operations(&mut self, done: u64) {
        if self.operations_and_ns_at_warm_up_end.is_none() {
            self.mark_first_tick_or_warm_up_end(done, now_ns());
        }
    }

    fn mark_first_tick_or_warm_up_end(&mut self, done: u64, now: u64) {
        match self.operations_and_ns_at_first_tick {
            None => self.operations_and_ns_at_first_tick = Some((done, now)),
            Some((_, begin)) if now.saturating_sub(begin) >= self.warm_up_ns => {
                self.operations_and_ns_at_warm_up_end = Some((done, now));
            }
            Some(_) => {}
        }
    }

    /// Returns the measurement, if the last of `done` operations was done at `end_ns`.
    pub(crate) fn operations_since_warm_up(&self, done: u64, end_ns: u64) -> TimedOperations {
        let since = |(count, ns): (u64, u64)| TimedOperations {
            ops: done.saturating_sub(count),
            elapsed_ns: end_ns.saturating_sub(ns),
        };
        let worth = |timed: &TimedOperations| timed.ops > 0 && timed.elapsed_ns > 0;
        let marked = self
            .operations_and_ns_at_warm_up_end
            .map(since)
            .filter(worth);
        marked
            .or_else(|| self.operations_and_ns_at_first_tick.map(since))
            .unwrap_or(TimedOperations {
                ops: 0,
                elapsed_ns: 0,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_ends_and_stays_over() {
        let mut timer = RunTimer::new(2);
        let begin = now_ns();
        while !timer.is_over() {}
        assert!(now_ns() - begin >= 1_900_000);
        assert!((0..1000).all(|_| timer.is_over()));
        assert!(RunTimer::new(0).is_over());
    }

    #[test]
    fn the_warm_up_is_not_counted() {
        let mut meter = OperationMeter::new(100);
        let ms = |n: u64| n * 1_000_000;
        for (done, now) in [(10, 0), (20, 5), (30, 9), (40, 12)] {
            if meter.operations_and_ns_at_warm_up_end.is_none() {
                meter.mark_first_tick_or_warm_up_end(done, ms(now));
            }
        }
        let timed = meter.operations_since_warm_up(1040, ms(112));
        assert_eq!((timed.ops, timed.elapsed_ns), (1000, ms(100)));
    }

    #[test]
    fn a_run_that_ends_in_its_warm_up_counts_from_its_first_look() {
        let mut meter = OperationMeter::new(1000);
        meter.mark_first_tick_or_warm_up_end(4, 100);
        meter.mark_first_tick_or_warm_up_end(8, 200);
        let timed = meter.operations_since_warm_up(16, 400);
        assert_eq!((timed.ops, timed.elapsed_ns), (12, 300));
        assert_eq!(OperationMeter::new(1).operations_since_warm_up(5, 5).ops, 0);
    }
}
