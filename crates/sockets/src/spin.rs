//! Adaptive spinning before a thread sleeps.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest spin. A peer that the kernel wakes answers within about 10 µs to 30 µs.
const LONGEST: Duration = Duration::from_micros(25);
/// Number of consecutive unsuccessful spins after which most waits do not spin.
const PATIENCE: u32 = 4;
/// Of the waits that would not spin, one in so many spins nevertheless.
const RETRY: u32 = 32;

static MISSES: AtomicU32 = AtomicU32::new(0);

/// One wait, with the decision whether to spin.
pub(crate) struct Spin {
    tries: bool,
}

impl Spin {
    /// Decides whether a wait spins.
    pub(crate) fn begin() -> Self {
        let misses = MISSES.load(Ordering::Relaxed);
        let tries = has_two_processors() && (misses < PATIENCE || misses.is_multiple_of(RETRY));
        if !tries {
            MISSES.store(misses.wrapping_add(1).max(PATIENCE), Ordering::Relaxed);
        }
        Self { tries }
    }

    /// Spins until `ready` returns true, for at most [`LONGEST`]. Returns the last result of `ready`.
    pub(crate) fn until(&self, mut ready: impl FnMut() -> bool) -> bool {
        if ready() {
            return true;
        }
        if !self.tries {
            return false;
        }
        let start = Instant::now();
        loop {
            for _ in 0..64 {
                std::hint::spin_loop();
                if ready() {
                    MISSES.store(0, Ordering::Relaxed);
                    return true;
                }
            }
            // `sched_yield(2)` is avoided: on a busy machine it can cost a time slice, while waking a sleeper does not.
            if start.elapsed() > LONGEST {
                MISSES.fetch_add(1, Ordering::Relaxed);
                return ready();
            }
        }
    }
}

fn has_two_processors() -> bool {
    static COUNT: OnceLock<bool> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().is_ok_and(|n| n.get() > 1))
}
