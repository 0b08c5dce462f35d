//! Prefetching of cache lines.

#![allow(unsafe_code)]

/// Starts loading the cache line of `place` into the first-level cache, without waiting for it. No
/// effect on processors other than x86-64.
#[inline(always)]
pub fn prefetch<T: ?Sized>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults and changes no memory, and SSE is part of every x86-64. The
    // address is that of a reference, so the access reveals nothing that the caller may not see.
    // JUSTIFICATION: looking up 64 random keys of 8 million takes half the time if their cache
    // lines are loaded concurrently.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
