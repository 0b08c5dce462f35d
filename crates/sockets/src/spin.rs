//! Adaptive spinning before a thread sleeps.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest spin. A peer that the kernel wakes answers within about 10 µs to 30 µs.
const MAX_SPIN: Duration = Duration::from_micros(25);
/// Number of consecutive unsuccessful spins after which most waits do not spin.
const MAX_UNSUCCESSFUL_SPINS: u32 = 4;
/// Of the waits that would not spin, one in so many spins nevertheless.
const WAITS_PER_RETRY_SPIN: u32 = 32;

static UNSUCCESSFUL_SPINS: AtomicU32 = AtomicU32::new(0);

/// One wait, with the decision whether to spin.
pub(crate) struct Spin {
    should_spin: bool,
}

impl Spin {
    /// Decides whether a wait spins.
    pub(crate) fn decide_whether_to_spin() -> Self {
        let misses = UNSUCCESSFUL_SPINS.load(Ordering::Relaxed);
        let spins = has_two_processors()
            && (misses < MAX_UNSUCCESSFUL_SPINS || misses.is_multiple_of(WAITS_PER_RETRY_SPIN));
        if !spins {
            UNSUCCESSFUL_SPINS.store(
                misses.wrapping_add(1).max(MAX_UNSUCCESSFUL_SPINS),
                Ordering::Relaxed,
            );
        }
        Self { should_spin: spins }
    }

    /// Spins until `ready` returns true, for at most [`MAX_SPIN`]. Returns the last result of `ready`.
    pub(crate) fn spin_until(&self, mut ready: impl FnMut() -> bool) -> bool {
        if ready() {
            return true;
        }
        if !self.should_spin {
            return false;
        }
        let start = Instant::now();
        loop {
            for _ in 0..64 {
                std::hint::spin_loop();
                if ready() {
                    UNSUCCESSFUL_SPINS.store(0, Ordering::Relaxed);
                    return true;
                }
            }
            // `sched_yield(2)` is avoided: on a busy machine it can cost a time slice, while waking a sleeper does not.
            if start.elapsed() > MAX_SPIN {
                UNSUCCESSFUL_SPINS.fetch_add(1, Ordering::Relaxed);
                return ready();
            }
        }
    }
}

fn has_two_processors() -> bool {
    static COUNT: OnceLock<bool> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().is_ok_and(|n| n.get() > 1))
}
