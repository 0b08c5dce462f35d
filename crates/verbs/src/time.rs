//! The clock, and what a program does beside its verbs: on a simulated NIC both are virtual.
//!
//! Code that reads its time here and says what its cores do runs on simulated cores too. Everywhere else
//! [`now`] is [`Instant::now`], and saying costs nothing.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// The time: [`Instant::now`], or that of the simulated thread which calls.
#[must_use]
pub fn now() -> Instant {
    match simnic::now() {
        Some(since) => origin() + since,
        None => Instant::now(),
    }
}

/// The origin of virtual time.
fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(Instant::now)
}

/// The same time in nanoseconds, from a time on that is the same in all of this process: for loops that look at it often.
#[inline]
#[must_use]
pub fn now_ns() -> u64 {
    /// Since the origin.
    #[inline(never)]
    fn real() -> u64 {
        let since = Instant::now().saturating_duration_since(origin());
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }
    simnic::now_ns().unwrap_or_else(real)
}

/// The calling core handles so many small requests, as a server does.
#[inline]
pub fn serve(requests: usize) {
    if simnic::is_simulated() {
        simnic::spend_requests(requests as u64);
    }
}

/// The calling core works for so long on a simulated NIC, where its own work takes no time.
#[inline]
pub fn work(time: Duration) {
    if simnic::is_simulated() {
        simnic::spend(time);
    }
}

/// The calling core looked at so many places that peers WRITE to, each in a cache line of its own, and found nothing new.
#[inline]
pub fn look_in_vain(places: usize) {
    if simnic::is_simulated() {
        simnic::spend_empty_looks(places as u64);
    }
}

/// The calling core adds to this word, which other cores may add to as well.
#[inline]
pub fn add_to_shared(word: &AtomicU64) {
    if simnic::is_simulated() {
        simnic::spend_shared_add(std::ptr::from_ref(word).addr() as u64);
    }
}

/// The calling core walks data structures: `overlapped` chains at a time, each of `lines` cache lines touched one after the
/// other at random places of a working set of `working_set_bytes`.
///
/// - `working_set_bytes`: all lines that are touched as often as these or more often, since they compete for the cache.
///   For level k of a tree these are the levels from the root to k. A binary search has hot lines of its own. Its step
///   j touches one of 2^j lines of a node, so a step at a time is more exact than a node at a time.
/// - `overlapped`: chains that the program interleaves with prefetches, so that their misses overlap; 0 counts as 1.
///   The call accounts for all of them.
/// - Cost: virtual time on a simulated NIC, by the caches and the memory latency of the core; nothing elsewhere.
#[inline]
pub fn touch_lines(working_set_bytes: u64, lines: u64, overlapped: u64) {
    if simnic::is_simulated() {
        simnic::spend_touches(working_set_bytes, lines, overlapped);
    }
}
