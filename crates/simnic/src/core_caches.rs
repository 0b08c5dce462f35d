//! The caches of a core, and the time of accesses to memory behind them.
//!
//! Model: random accesses to a working set fill each cache evenly. So a line of a working set of S bytes is in a cache
//! of C bytes with probability min(1, C/S). This is exact for independent uniform accesses to S bytes and any
//! replacement that keeps the cache full. Real programs have hot lines and TLB misses; a profile's latencies are fitted
//! with these included.

use nicmodel::profile::{Host, Sourced};

use crate::event_queue::Ps;

/// Caches and memory of a core. Latencies are in nanoseconds and are those of dependent accesses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CoreCaches {
    /// The core's private cache, in bytes. A hit in it costs no time beyond the program's own work.
    pub(crate) private_cache_bytes: f64,
    /// The last-level cache, which cores share, in bytes.
    pub(crate) last_level_cache_bytes: f64,
    pub(crate) last_level_hit_ns: f64,
    pub(crate) memory_latency_ns: f64,
    /// Largest number of lines that a core fetches at the same time.
    pub(crate) max_outstanding_lines: f64,
}

impl CoreCaches {
    /// Returns the caches of a profile's host; `None` if the profile has no memory latency.
    pub(crate) fn of_host(host: &Host) -> Option<Self> {
        let known = |number: &Option<Sourced<f64>>| number.as_ref().map_or(0.0, |n| n.value);
        let count = |number: &Option<Sourced<u32>>| number.as_ref().map(|n| f64::from(n.value));
        Some(Self {
            private_cache_bytes: count(&host.core_cache_bytes).unwrap_or(0.0),
            last_level_cache_bytes: count(&host.cache_bytes).unwrap_or(0.0),
            last_level_hit_ns: known(&host.cache_hit_ns),
            memory_latency_ns: host.memory_ns.as_ref()?.value,
            max_outstanding_lines: count(&host.outstanding_misses).unwrap_or(1.0),
        })
    }

    /// Returns the time of `overlapped` interleaved chains. Each chain accesses `lines` lines one after the other, at
    /// random places of a working set of `set_bytes`.
    pub(crate) fn random_access_time(&self, set_bytes: u64, lines: u64, overlapped: u64) -> Ps {
        #[expect(
            clippy::cast_precision_loss,
            reason = "sizes and counts; 53 bits are exact enough"
        )]
        let (set, lines, overlapped) = (set_bytes as f64, lines as f64, overlapped.max(1) as f64);
        let share = |cache: f64| if set > cache { cache / set } else { 1.0 };
        let own = share(self.private_cache_bytes);
        let cached = share(self.last_level_cache_bytes).max(own);
        let line_ns =
            (cached - own) * self.last_level_hit_ns + (1.0 - cached) * self.memory_latency_ns;
        let at_once = overlapped.min(self.max_outstanding_lines.max(1.0));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and a cast saturates"
        )]
        let time = (line_ns * lines * overlapped / at_once * 1e3).round() as Ps;
        time.min(MAX_ACCESS_TIME)
    }
}

/// Upper limit of [`CoreCaches::random_access_time`], one hour, so that clocks cannot overflow.
const MAX_ACCESS_TIME: Ps = 3_600_000_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const CACHES: CoreCaches = CoreCaches {
        private_cache_bytes: 1000.0,
        last_level_cache_bytes: 10_000.0,
        last_level_hit_ns: 20.0,
        memory_latency_ns: 100.0,
        max_outstanding_lines: 10.0,
    };

    #[test]
    fn a_line_costs_by_the_share_of_its_set_that_each_cache_holds() {
        assert_eq!(CACHES.random_access_time(0, 5, 1), 0);
        assert_eq!(CACHES.random_access_time(1000, 5, 1), 0);
        // Half of 2000 bytes is in the private cache, all of it in the shared one.
        assert_eq!(CACHES.random_access_time(2000, 1, 1), 10_000);
        assert_eq!(CACHES.random_access_time(10_000, 1, 1), 18_000);
        // A twentieth of 20,000 bytes is in the private cache, half in either cache, and half in none.
        assert_eq!(
            CACHES.random_access_time(20_000, 3, 1),
            3 * (9_000 + 50_000)
        );
    }

    #[test]
    fn chains_overlap_up_to_what_a_core_has_outstanding() {
        let one = CACHES.random_access_time(20_000, 4, 1);
        assert_eq!(CACHES.random_access_time(20_000, 4, 0), one);
        assert_eq!(CACHES.random_access_time(20_000, 4, 8), one);
        assert_eq!(CACHES.random_access_time(20_000, 4, 10), one);
        assert_eq!(CACHES.random_access_time(20_000, 4, 20), 2 * one);
    }

    #[test]
    fn no_count_overflows() {
        assert_eq!(
            CACHES.random_access_time(u64::MAX, u64::MAX, u64::MAX),
            MAX_ACCESS_TIME
        );
        assert_eq!(CACHES.random_access_time(u64::MAX, 0, u64::MAX), 0);
    }
}
