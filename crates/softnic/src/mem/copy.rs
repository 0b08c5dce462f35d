//! Copies between memory that other processes see.

use std::sync::atomic::{Ordering, fence};

/// Bytes that [`copy`] stores last, in one move.
pub(super) const LAST: usize = 8;

/// Copies between memory that others may be writing to.
///
/// Up to 16 bytes go in as few and as large moves as there are, so that an aligned word is never seen half
/// written. The last bytes come last: the specification leaves their order open, but programs that
/// poll on the last byte of what a peer WRITEs are as old as RDMA, and adapters, which write from front to back, let
/// them.
///
/// # Safety
/// `dst` is writable and `src` readable for `len` bytes, and they do not overlap unless they are equal.
#[inline(always)]
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: contract of this function; the parts below stay within `len` bytes.
    unsafe {
        match len {
            0 => {}
            1..=3 => {
                for i in 0..len {
                    dst.add(i).write_volatile(src.add(i).read_volatile());
                }
            }
            4..=7 => {
                let (a, b) = (part::<u32>(src, 0), part::<u32>(src, len - 4));
                dst.cast::<u32>().write_unaligned(a);
                dst.add(len - 4).cast::<u32>().write_unaligned(b);
            }
            8 => dst.cast::<u64>().write_unaligned(part(src, 0)),
            9..=16 => {
                let (a, b) = (part::<u64>(src, 0), part::<u64>(src, len - 8));
                dst.cast::<u64>().write_unaligned(a);
                dst.add(len - 8).cast::<u64>().write_unaligned(b);
            }
            // The GRH of every UD message.
            40 => dst.cast::<[u64; 5]>().write_unaligned(part(src, 0)),
            _ => {
                // `memcpy` is free to store the end before the middle, and does.
                let rest = len - LAST;
                std::ptr::copy(src, dst, rest);
                fence(Ordering::Release);
                dst.add(rest).cast::<u64>().write_unaligned(part(src, rest));
            }
        }
    }
}

/// Reads a `T` at `offset`.
///
/// # Safety
/// The bytes are readable and any of them make a `T`.
#[inline]
unsafe fn part<T>(src: *const u8, offset: usize) -> T {
    // SAFETY: contract of this function.
    unsafe { src.add(offset).cast::<T>().read_unaligned() }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

    use super::*;

    /// Who looks at the last byte of what a peer WRITEs and finds it new uses the rest.
    #[test]
    fn the_last_byte_comes_last() {
        const ROUNDS: u64 = 300;
        for len in [17, 33, 64, 100, 200, 500, 3000, 9000, 65536] {
            let memory: Vec<AtomicU8> = (0..len).map(|_| AtomicU8::new(0)).collect();
            let seen = AtomicU64::new(0);
            let mut early = 0;
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for round in 1..=ROUNDS {
                        let new = vec![(round % 251) as u8; len];
                        let dst = memory.as_ptr().cast_mut().cast::<u8>();
                        // SAFETY: both are of that length; others only look at `memory`, as atomics.
                        unsafe { copy(dst, new.as_ptr(), len) };
                        while seen.load(Ordering::Acquire) < round {
                            std::thread::yield_now();
                        }
                    }
                });
                for round in 1..=ROUNDS {
                    let new = (round % 251) as u8;
                    while memory[len - 1].load(Ordering::Acquire) != new {
                        std::hint::spin_loop();
                    }
                    // At once: there is little time between the first byte and the last.
                    let places = [0, len / 4, len / 2, len / 4 * 3, len - 17, len - 9];
                    let is_old = |at: usize| memory[at].load(Ordering::Relaxed) != new;
                    early += u32::from(places.into_iter().any(is_old));
                    seen.store(round, Ordering::Release);
                }
            });
            assert_eq!(
                early, 0,
                "of {len} bytes, times that the last one came early"
            );
        }
    }

    #[test]
    fn every_length_is_copied_exactly() {
        for len in 0..300usize {
            let src: Vec<u8> = (0..len).map(|i| (i % 251) as u8 + 1).collect();
            let mut dst = vec![0xa5u8; len + 2];
            // SAFETY: both are long enough.
            unsafe { copy(dst.as_mut_ptr().add(1), src.as_ptr(), len) };
            assert_eq!(&dst[1..=len], &src[..]);
            assert_eq!((dst[0], dst[len + 1]), (0xa5, 0xa5));
        }
    }
}
