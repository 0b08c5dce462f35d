//! The clock, and a program's work beside its verbs; both are virtual on a simulated NIC.
//!
//! Code that reads the time here and reports the work of its cores also runs on simulated cores. On
//! other NICs, [`now`] is [`Instant::now`], and reports cost nothing.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use crate::simulated;

/// Returns [`Instant::now`], or the virtual time of the calling simulated thread.
#[must_use]
pub fn now() -> Instant {
    match simulated::now() {
        Some(since) => clock_origin() + since,
        None => Instant::now(),
    }
}

/// Returns the origin of virtual time.
fn clock_origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(Instant::now)
}

/// Returns the time in nanoseconds since an origin that is fixed for this process; for loops that
/// read it often.
#[inline]
#[must_use]
pub fn now_ns() -> u64 {
    /// Returns real time since the origin.
    #[inline(never)]
    fn real_ns() -> u64 {
        let since = Instant::now().saturating_duration_since(clock_origin());
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }
    simulated::now_ns().unwrap_or_else(real_ns)
}

/// Reports that the calling core handles `requests` small requests, as a server does.
#[inline]
pub fn charge_server_requests(requests: usize) {
    if simulated::is_simulated() {
        simulated::spend_server_request_work(requests as u64);
    }
}

/// Reports that the calling core works for `time`; on a simulated NIC, other work of the program
/// takes no virtual time.
#[inline]
pub fn charge_time(time: Duration) {
    if simulated::is_simulated() {
        simulated::spend_core_time(time);
    }
}

/// Reports that the calling core has read `places` that peers WRITE to, each in its own cache line,
/// and found nothing new.
#[inline]
pub fn charge_empty_polls(places: usize) {
    if simulated::is_simulated() {
        simulated::spend_empty_memory_polls(places as u64);
    }
}

/// Reports that the calling core adds to this word, to which other cores may add as well.
#[inline]
pub fn charge_shared_add(word: &AtomicU64) {
    if simulated::is_simulated() {
        simulated::spend_shared_atomic_add(std::ptr::from_ref(word).addr() as u64);
    }
}

/// Reports that the calling core walks data structures: `overlapped` chains at a time. Each chain
/// touches `lines` cache lines one after the other, at random places of a working set of
/// `working_set_bytes`.
///
/// - `working_set_bytes`: all lines that are touched at least as often as these, since they compete
///   for the cache. For level k of a tree these are the levels from the root to k. A binary search
///   has its own hot lines: step j touches one of 2^j lines of a node. Therefore one call per step
///   is more exact than one per node.
/// - `overlapped`: chains that the program interleaves with prefetches, so that their misses
///   overlap; 0 counts as 1. The call accounts for all of them.
/// - Cost: virtual time on a simulated NIC, by the caches and the memory latency of the core; no
///   effect elsewhere.
#[inline]
pub fn charge_cache_lines(working_set_bytes: u64, lines: u64, overlapped: u64) {
    if simulated::is_simulated() {
        simulated::spend_random_accesses(working_set_bytes, lines, overlapped);
    }
}
