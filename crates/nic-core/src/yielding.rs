//! When a thread that polls in vain gives its core to others.
//!
//! A thread that polls does not sleep, so where there are more of them than cores, one that waits has the core that its
//! peer needs. Giving it up costs little where the others do the same. It costs a whole time slice of the scheduler where
//! somebody computes, and nothing is gained where the core is free. Which of these it is shows in how long a yield takes.

/// A thread's experience with its yields. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Yielding {
    spin_ns: u64,
}

/// The shortest spin, longer than the round trip of a message. Threads that wait for each other on different cores
/// should meet there for a while, and not miss each other by a yield each time.
const SHORTEST_SPIN_NS: u64 = 4_000;

/// Polls in vain before the first yield. On an idle machine, completions come sooner.
const FIRST_SPIN_NS: u64 = 50_000;

/// The longest while yields find the core free: so long a newcomer on this core may have to wait.
const LONGEST_SPIN_ALONE_NS: u64 = 1_000_000;

/// A yield to nobody is a system call of 0.2 to 0.4 µs; one to another thread and back takes two switches of 0.7 µs and
/// more.
const ALONE_NS: u64 = 1_000;

/// A yield that takes so long met a thread that computes: pollers of a crowd give the core on after some microseconds.
const SLICE_NS: u64 = 500_000;

/// The spin after such a yield, at least: peers on other cores answer sooner. No longer, since pollers that find work all
/// the time look the same, and in vain it is lost.
const SPIN_BESIDE_BUSY_NS: u64 = 50_000;

/// Below this a thread is in a crowd: it has found at least twice that others wanted its core.
const CROWDED_NS: u64 = 20_000;

impl Yielding {
    /// Of a thread that has not yielded.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            spin_ns: FIRST_SPIN_NS,
        }
    }

    /// How long to poll in vain until the next yield.
    #[must_use]
    pub const fn spin_ns(&self) -> u64 {
        self.spin_ns
    }

    /// Whether others wait for this core time and again, and give it back soon.
    #[must_use]
    pub const fn is_crowded(&self) -> bool {
        self.spin_ns < CROWDED_NS
    }

    /// A yield behind a spin in vain took so long.
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
        // The same after long idleness, and when the crowd has gone it is left again.
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
        // In a crowd, too; but a peer on the same core, which a spin keeps waiting, is let run soon again.
        let mut yields = vec![CROWD; 10];
        yields.push(BUSY);
        assert_eq!(after(&yields).spin_ns(), SPIN_BESIDE_BUSY_NS);
        yields.extend([CROWD; 3]);
        assert!(after(&yields).is_crowded());
    }
}
