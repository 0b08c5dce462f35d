//! Prefetches of the simulator's own memory.
//!
//! A run of hundreds of clients has more state than a core's caches hold, and each message accesses other queue pairs.

#![allow(unsafe_code)]

/// Prefetches the cache line at `place`.
#[inline(always)]
pub(crate) fn prefetch<T>(place: *const T) {
    // SAFETY: a prefetch changes no memory and cannot fault, whatever the address, and SSE is part of every x86-64.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
