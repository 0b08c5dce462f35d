//! Fetching ahead what is needed soon.
//!
//! A run of hundreds of clients has more state than a core's own caches hold, and each message touches other queue pairs.

#![allow(unsafe_code)]

/// Begins to fetch the cache line that `place` begins in.
#[inline(always)]
pub(crate) fn prefetch<T>(place: &T) {
    // SAFETY: a prefetch changes no memory and cannot fault, and SSE is part of every x86-64. The address is that of a
    // reference, which is not used after this.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
