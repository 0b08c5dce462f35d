//! Measurement of the one-way time of a cache line between two cores.
//!
//! This time decides how every other figure of the same machine is to be read. Hypervisors move
//! virtual processors between cores that share a cache (tens of nanoseconds) and cores that do not
//! (hundreds), even while a benchmark runs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use anyhow::Result;

use crate::core_pinning::{CorePair, pin_thread_to_core};
use crate::stats::median;

/// A word on a pair of cache lines of its own: processors prefetch lines in pairs.
#[repr(align(128))]
struct PaddedWord(AtomicU32);

/// Longest one-way bounce that is called near, in nanoseconds. On virtual machines with EPYC and
/// Xeon processors, cores that share a cache took 20 to 70 ns. Other cores took 100 ns and more.
pub const MAX_NEAR_CORES_BOUNCE_NS: f64 = 80.0;

/// Measures the distance of two cores in a few milliseconds, in nanoseconds. The result is the
/// median of several bounces, because an interrupted thread makes one bounce long.
///
/// # Errors
/// As [`one_way_bounce_ns`].
pub fn quick_one_way_bounce_ns(cores: CorePair) -> Result<f64> {
    let bounces: Vec<_> = (0..5)
        .map(|_| one_way_bounce_ns(cores, 4_000))
        .collect::<Result<_>>()?;
    Ok(median(&bounces).unwrap_or(f64::INFINITY))
}

/// Measures the one-way time of a cache line between two pinned threads, in nanoseconds: half of
/// the mean round trip over `rounds`.
///
/// # Errors
/// When a thread cannot be pinned.
pub fn one_way_bounce_ns(cores: CorePair, rounds: u32) -> Result<f64> {
    let line = PaddedWord(AtomicU32::new(0));
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| -> Result<()> {
            let pinned = pin_thread_to_core(cores.responder);
            for i in 0..=rounds {
                // Acquire pairs with the Release store of the other thread. The two threads
                // exchange no other data.
                while line.0.load(Ordering::Acquire) != 2 * i + 1 {
                    std::hint::spin_loop();
                }
                line.0.store(2 * i + 2, Ordering::Release);
            }
            pinned
        });
        let timer = scope.spawn(|| -> Result<f64> {
            let pinned = pin_thread_to_core(cores.requester);
            let mut begin = Instant::now();
            for i in 0..=rounds {
                if i == 1 {
                    // Start the timer after the first exchange, which waits for the other thread to
                    // start.
                    begin = Instant::now();
                }
                line.0.store(2 * i + 1, Ordering::Release);
                while line.0.load(Ordering::Acquire) != 2 * i + 2 {
                    std::hint::spin_loop();
                }
            }
            pinned?;
            Ok(begin.elapsed().as_secs_f64() * 1e9 / f64::from(rounds.max(1)) / 2.0)
        });
        let echoed = echo.join().expect("the echoing thread does not panic");
        let timed = timer.join().expect("the timing thread does not panic");
        echoed.and(timed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounce_takes_time() {
        let ns = one_way_bounce_ns(CorePair::first_two().unwrap(), 2_000).unwrap();
        assert!(ns > 0.0 && ns.is_finite());
        let ns = quick_one_way_bounce_ns(CorePair::first_two().unwrap()).unwrap();
        assert!(ns > 0.0 && ns.is_finite());
    }
}
