//! Yielding of the core by a thread whose polls find no completion.
//!
//! A polling thread does not sleep. If polling threads outnumber the cores, a waiting thread may occupy the core that
//! its peer needs. A yield is cheap if the other threads on the core poll as well. A yield costs a whole scheduler
//! time slice if another thread computes, and gains nothing if the core is otherwise idle. The duration of a yield
//! tells these three cases apart.

/// The spin time of a polling thread, derived from the durations of its yields. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpinTime {
    spin_ns: u64,
}

/// Shortest spin in nanoseconds, longer than the round trip of a message. Two threads on different cores that wait for
/// each other then poll at the same time, and neither yields just before the other's message arrives.
const SHORTEST_SPIN_NS: u64 = 4_000;

/// Spin in nanoseconds before the first yield. On an idle machine, completions arrive sooner.
const FIRST_SPIN_NS: u64 = 50_000;

/// Longest spin in nanoseconds while yields find the core idle. A new thread on this core may have to wait this long.
const LONGEST_SPIN_ALONE_NS: u64 = 1_000_000;

/// Yields shorter than this number of nanoseconds found the core idle. Such a yield is a system call of 0.2 to 0.4 µs.
/// A yield to another thread and back takes two context switches of 0.7 µs or more.
const MAX_IDLE_YIELD_NS: u64 = 1_000;

/// Yields longer than this number of nanoseconds met a computing thread. It keeps the core for a time slice, 1.4 ms on
/// two cores and more on others (`sysctl_sched_base_slice` in the kernel's sched/fair.c). Several pollers with work keep
/// it for some hundred microseconds together. If these looked like computing threads, each would spin for
/// [`SPIN_BESIDE_BUSY_NS`], so that yields stay long.
const MIN_BUSY_YIELD_NS: u64 = 1_200_000;

/// Spin in nanoseconds after a yield that met a computing thread; peers on other cores answer sooner. The spin is not
/// longer, because pollers that always find work look like computing threads, and spinning beside them is wasted.
const SPIN_BESIDE_BUSY_NS: u64 = 50_000;

/// A thread whose spin is below this number of nanoseconds is in a crowd: at least two yields found that other threads
/// wanted the core.
const MAX_CROWDED_SPIN_NS: u64 = 20_000;

impl SpinTime {
    /// Makes the state of a thread that has not yielded.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            spin_ns: FIRST_SPIN_NS,
        }
    }

    /// Returns the nanoseconds to poll without success before the next yield.
    #[must_use]
    pub const fn spin_ns(&self) -> u64 {
        self.spin_ns
    }

    /// Returns true if other threads repeatedly wait for this core and yield it again after some microseconds.
    #[must_use]
    pub const fn is_crowded(&self) -> bool {
        self.spin_ns < MAX_CROWDED_SPIN_NS
    }

    /// Records the duration of a yield after an unsuccessful spin.
    pub fn record_yield(&mut self, took_ns: u64) {
        self.spin_ns = if took_ns < MAX_IDLE_YIELD_NS {
            (2 * self.spin_ns).min(LONGEST_SPIN_ALONE_NS)
        } else if took_ns < MIN_BUSY_YIELD_NS {
            (self.spin_ns / 2).max(SHORTEST_SPIN_NS)
        } else {
            SPIN_BESIDE_BUSY_NS
        };
    }
}

impl Default for SpinTime {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: u64 = 300;
    const CROWD: u64 = 5_000;
    const BUSY: u64 = 3_000_000;

    fn after(yields: &[u64]) -> SpinTime {
        let mut yielding = SpinTime::new();
        yields.iter().for_each(|took| yielding.record_yield(*took));
        yielding
    }

    #[test]
    fn a_free_core_is_asked_for_ever_more_rarely() {
        assert_eq!(after(&[]).spin_ns(), FIRST_SPIN_NS);
        assert_eq!(after(&[ALONE]).spin_ns(), 2 * FIRST_SPIN_NS);
        assert_eq!(after(&[ALONE; 40]).spin_ns(), LONGEST_SPIN_ALONE_NS);
        assert!(!after(&[]).is_crowded());
    }

    #[test]
    fn in_a_crowd_the_core_is_given_up_at_once() {
        assert!(after(&[CROWD; 2]).is_crowded());
        assert_eq!(after(&[CROWD; 10]).spin_ns(), SHORTEST_SPIN_NS);
        // A long idle time before the crowd does not change the result. The crowd state ends when the crowd has gone.
        let mut yields = vec![ALONE; 40];
        yields.extend([CROWD; 12]);
        assert_eq!(after(&yields).spin_ns(), SHORTEST_SPIN_NS);
        yields.extend([ALONE; 3]);
        assert!(!after(&yields).is_crowded());
    }

    #[test]
    fn several_pollers_with_work_are_a_crowd() {
        let three_that_work_for_200_us = 600_000;
        assert!(after(&[three_that_work_for_200_us; 4]).is_crowded());
    }

    #[test]
    fn beside_a_thread_that_computes_the_spin_is_longer() {
        assert_eq!(after(&[BUSY]).spin_ns(), SPIN_BESIDE_BUSY_NS);
        assert_eq!(after(&[BUSY; 40]).spin_ns(), SPIN_BESIDE_BUSY_NS);
        // A yield to a computing thread has the same effect in a crowd. A few yields later the thread is in the crowd
        // state again.
        let mut yields = vec![CROWD; 10];
        yields.push(BUSY);
        assert_eq!(after(&yields).spin_ns(), SPIN_BESIDE_BUSY_NS);
        yields.extend([CROWD; 3]);
        assert!(after(&yields).is_crowded());
    }
}
