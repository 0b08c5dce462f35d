//! Looking for a while before sleeping, where that has paid off.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a look lasts at most. A peer that is woken by the kernel answers within some 10 µs to 30 µs.
const LONGEST: Duration = Duration::from_micros(25);
/// Spins in a row that found nothing, after which most are left out.
const PATIENCE: u32 = 4;
/// Of those that are left out, every so many one is tried.
const RETRY: u32 = 32;

static MISSES: AtomicU32 = AtomicU32::new(0);

/// One wait.
pub(crate) struct Spin {
    tries: bool,
}

impl Spin {
    /// A wait begins.
    pub(crate) fn begin() -> Self {
        let misses = MISSES.load(Ordering::Relaxed);
        let tries = has_two_processors() && (misses < PATIENCE || misses.is_multiple_of(RETRY));
        if !tries {
            MISSES.store(misses.wrapping_add(1).max(PATIENCE), Ordering::Relaxed);
        }
        Self { tries }
    }

    /// Looks until `ready`, or for as long as it has paid off; whether it is.
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
            // No `sched_yield(2)`: on a busy machine it costs a time slice, and a sleeper that is woken none.
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
