//! Monotonic time.

#![allow(unsafe_code)]

use std::sync::OnceLock;

/// Returns `CLOCK_MONOTONIC` in nanoseconds.
#[must_use]
pub fn now_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec.cast_unsigned() * 1_000_000_000 + t.tv_nsec.cast_unsigned()
}

/// Returns a cheap running counter for loops in which reading the clock would cost too much. The counter is
/// the processor's time stamp counter where it can be read, else [`now_ns`]. Its value may differ from core
/// to core, and jumps when a virtual machine migrates.
#[inline]
#[must_use]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, and it touches no memory.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    now_ns()
}

/// Returns [`ticks`] at a point that no load crosses: earlier loads have their values, and later ones have not begun.
/// A call takes 20 to 60 ns.
#[inline]
#[must_use]
pub fn ticks_between_loads() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::_mm_lfence;
        // SAFETY: every x86-64 processor has the instruction.
        unsafe { _mm_lfence() };
        let now = ticks();
        // SAFETY: as above.
        unsafe { _mm_lfence() };
        now
    }
    #[cfg(not(target_arch = "x86_64"))]
    ticks()
}

/// Returns the number of [`ticks`] in a microsecond. The first call measures the tick rate, which takes 20 µs.
#[must_use]
pub fn ticks_per_us() -> u64 {
    static MEASURED_TICKS_PER_US: OnceLock<u64> = OnceLock::new();
    const MEASUREMENT_NS: u64 = 20_000;
    *MEASURED_TICKS_PER_US.get_or_init(|| {
        let (begin, first) = (now_ns(), ticks());
        let mut now = begin;
        while now < begin + MEASUREMENT_NS {
            now = now_ns();
        }
        (ticks().wrapping_sub(first) * 1000 / (now - begin)).max(1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_run_on() {
        let first = ticks();
        let rate = ticks_per_us();
        assert!(rate > 0);
        assert_ne!(ticks(), first);
    }
}
