//! Yielding of the core by a thread that polls without success.
//!
//! A polling thread does not sleep. If polling threads outnumber the cores, a waiting thread may occupy the core that
//! its peer needs. A yield is cheap if the other threads on the core poll as well. It costs a whole scheduler time
//! slice if another thread computes, and gains nothing if the core is otherwise idle. The duration of a yield tells
//! these cases apart.

/// The spin time of a thread, derived from its yields. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Yielding {
    spin_ns: u64,
}

/// Shortest spin, longer than the round trip of a message. Threads on different cores that wait for each other then
/// overlap, and do not miss each other by a yield each time.
const SHORTEST_SPIN_NS: u64 = 4_000;

/// Spin before the first yield. On an idle machine, completions arrive sooner.
const FIRST_SPIN_NS: u64 = 50_000;

/// Longest spin while yields find the core idle: a new thread on this core may have to wait that long.
const LONGEST_SPIN_ALONE_NS: u64 = 1_000_000;

/// Limit below which a yield found the core idle. Such a yield is a system call of 0.2 to 0.4 µs. A yield to another
/// thread and back takes two switches of 0.7 µs or more.
const ALONE_NS: u64 = 1_000;

/// Limit above which a yield met a computing thread: polling threads yield after some microseconds.
const SLICE_NS: u64 = 500_000;

/// Spin after such a yield: peers on other cores answer sooner. The spin is not longer, since pollers that always find
/// work look the same, and spinning beside them is wasted.
const SPIN_BESIDE_BUSY_NS: u64 = 50_000;

/// Limit of the spin below which a thread is in a crowd: at least two yields found that other threads wanted the core.
const CROWDED_NS: u64 = 20_000;

impl Yielding {
    /// Makes the state of a thread that has not yielded.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            spin_ns: FIRST_SPIN_NS,
        }
    }

    /// Returns the time to poll without success until the next yield.
    #[must_use]
    pub const fn spin_ns(&self) -> u64 {
        self.spin_ns
    }

    /// Returns true if other threads repeatedly wait for this core and soon yield it again.
    #[must_use]
    pub const fn is_crowded(&self) -> bool {
        self.spin_ns < CROWDED_NS
    }

    /// Records the duration of a yield after an unsuccessful spin.
    pub fn yielded(&mut self, took_ns: u64) {
        self.spin_ns = if took_ns < ALONE_NS {
            (2 * self.spin_ns).min(LONGEST_SPIN_ALONE_NS)
        } else if took_ns < SLICE_NS {
            (self.spin_ns / 2).max(SHORTEST_SPIN_NS)
        } else {
            SPIN_BESIDE_BUSY_NS
        };
    }
}

impl Default for Yielding {
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

    fn after(yields: &[u64]) -> Yielding {
        let mut yielding = Yielding::new();
        yields.iter().for_each(|took| yielding.yielded(*took));
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
        // The result is the same after a long idle time, and the crowd state ends when the crowd has gone.
        let mut yields = vec![ALONE; 40];
        yields.extend([CROWD; 12]);
        assert_eq!(after(&yields).spin_ns(), SHORTEST_SPIN_NS);
        yields.extend([ALONE; 3]);
        assert!(!after(&yields).is_crowded());
    }

    #[test]
    fn beside_a_thread_that_computes_the_spin_is_longer() {
        assert_eq!(after(&[BUSY]).spin_ns(), SPIN_BESIDE_BUSY_NS);
        assert_eq!(after(&[BUSY; 40]).spin_ns(), SPIN_BESIDE_BUSY_NS);
        // The same happens in a crowd. A peer on the same core, which a long spin delays, is soon considered again.
        let mut yields = vec![CROWD; 10];
        yields.push(BUSY);
        assert_eq!(after(&yields).spin_ns(), SPIN_BESIDE_BUSY_NS);
        yields.extend([CROWD; 3]);
        assert!(after(&yields).is_crowded());
    }
}
