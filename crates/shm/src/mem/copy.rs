//! Copies of memory that other processes see, and that programs may have unmapped.

use super::memory_fault::MemoryFault;

/// Number of bytes that [`copy`] stores last, in one move.
pub(super) const LAST_MOVE_BYTES: usize = 8;

/// Copies bytes between memory to which other threads and processes may be writing.
///
/// Up to 16 bytes are copied in as few and as large moves as possible, so that an aligned word is
/// never seen half written. The last bytes are stored last. The specification leaves the order of
/// the bytes open. However, programs poll on the last byte of a peer's WRITE, because adapters
/// write from front to back.
///
/// # Errors
/// Returns [`MemoryFault`] if memory of this process is unmapped or forbids the access. Some of the bytes may have
/// been copied.
///
/// # Safety
/// No reference to the `len` bytes at `dst`, and no mutable reference to those at `src`, exists. The two
/// ranges do not overlap unless they are equal. Memory mapped there may be written or read, respectively.
#[inline(always)]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), MemoryFault> {
    // SAFETY: contract of this function.
    if unsafe { moves::copy(dst, src, len) } {
        Ok(())
    } else {
        Err(MemoryFault)
    }
}

#[cfg(target_arch = "x86_64")]
mod moves {
    use super::super::guarded_access::guarded;
    use super::LAST_MOVE_BYTES;

    /// Loads two words of the same size, at the start and at the end of the source, and then stores
    /// both words.
    macro_rules! ends {
        ($front:literal, $back:literal, $dst:ident, $src:ident, $end:expr) => {
            guarded!(
                [
                    concat!("mov ", $front, ", [{src}]"),
                    concat!("mov ", $back, ", [{src} + {end}]"),
                    concat!("mov [{dst}], ", $front),
                    concat!("mov [{dst} + {end}], ", $back)
                ],
                dst = in(reg) $dst, src = in(reg) $src, end = in(reg) $end, out("rax") _, out("rcx") _,
            )
        };
    }

    /// Copies `len` bytes. Returns false if an access faulted.
    ///
    /// # Safety
    /// The contract of [`copy`](super::copy) applies.
    #[inline(always)]
    pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> bool {
        // SAFETY: contract of this function; the moves stay within `len` bytes.
        unsafe {
            match len {
                8 => copy_word(dst, src),
                0 => true,
                1 => guarded!(
                    ["mov al, [{src}]", "mov [{dst}], al"],
                    dst = in(reg) dst, src = in(reg) src, out("rax") _,
                ),
                2..=3 => ends!("ax", "cx", dst, src, len - 2),
                4..=7 => ends!("eax", "ecx", dst, src, len - 4),
                9..=16 => ends!("rax", "rcx", dst, src, len - 8),
                // 40 bytes are the GRH of a UD message.
                40 => copy_24_to_40(dst, src, 40),
                _ => copy_long(dst, src, len),
            }
        }
    }

    /// Copies 8 bytes.
    ///
    /// # Safety
    /// The contract of [`copy`](super::copy) applies.
    #[inline(always)]
    unsafe fn copy_word(dst: *mut u8, src: *const u8) -> bool {
        // SAFETY: contract of this function.
        unsafe {
            guarded!(
                ["mov rax, [{src}]", "mov [{dst}], rax"],
                dst = in(reg) dst, src = in(reg) src, out("rax") _,
            )
        }
    }

    /// Copies 24 to 40 bytes.
    ///
    /// # Safety
    /// The contract of [`copy`](super::copy) applies.
    #[inline(always)]
    unsafe fn copy_24_to_40(dst: *mut u8, src: *const u8, len: usize) -> bool {
        // SAFETY: contract of this function; the moves stay within `len` bytes.
        unsafe {
            guarded!(
                [
                    "movups xmm0, [{src}]",
                    "movups xmm1, [{src} + {end} - 24]",
                    "mov rax, [{src} + {end} - 8]",
                    "movups [{dst}], xmm0",
                    "movups [{dst} + {end} - 24], xmm1",
                    "mov [{dst} + {end} - 8], rax"
                ],
                dst = in(reg) dst, src = in(reg) src, end = in(reg) len, out("rax") _, out("xmm0") _, out("xmm1") _,
            )
        }
    }

    /// Copies more than 16 bytes.
    ///
    /// # Safety
    /// The contract of [`copy`](super::copy) applies.
    #[inline(never)]
    unsafe fn copy_long(dst: *mut u8, src: *const u8, len: usize) -> bool {
        debug_assert!(len > 16);
        // SAFETY: contract of this function; the moves stay within `len` bytes.
        unsafe {
            match len {
                17..=24 => guarded!(
                    [
                        "movups xmm0, [{src}]",
                        "mov rax, [{src} + {end} - 8]",
                        "movups [{dst}], xmm0",
                        "mov [{dst} + {end} - 8], rax"
                    ],
                    dst = in(reg) dst, src = in(reg) src, end = in(reg) len, out("rax") _, out("xmm0") _,
                ),
                25..=40 => copy_24_to_40(dst, src, len),
                _ => {
                    let rest = len - LAST_MOVE_BYTES;
                    let done = if rest < MIN_AVX_COPY_BYTES
                        || !std::arch::is_x86_feature_detected!("avx")
                    {
                        copy_sse(dst, src, rest)
                    } else if rest < MIN_STREAMED_COPY_BYTES {
                        copy_avx(dst, src, rest)
                    } else {
                        copy_streamed(dst, src, rest)
                    };
                    done && copy_word(dst.wrapping_add(rest), src.wrapping_add(rest))
                }
            }
        }
    }

    /// Copies 32 bytes or more in unspecified order.
    ///
    /// # Safety
    /// The contract of [`copy`](super::copy) applies.
    #[inline]
    unsafe fn copy_sse(dst: *mut u8, src: *const u8, len: usize) -> bool {
        debug_assert!(len >= 32);
        // SAFETY: contract of this function; the moves stay within `len` bytes, and the last moves may copy
        // some bytes twice.
        unsafe {
            guarded!(
                [
                    "mov r8, {dst}",
                    "mov r9, {src}",
                    "mov r10, {len}",
                    "jmp 6f",
                    "5:",
                    "movups xmm0, [r9]",
                    "movups xmm1, [r9 + 16]",
                    "movups [r8], xmm0",
                    "movups [r8 + 16], xmm1",
                    "add r9, 32",
                    "add r8, 32",
                    "sub r10, 32",
                    "6:",
                    "cmp r10, 32",
                    "ja 5b",
                    "movups xmm0, [r9 + r10 - 32]",
                    "movups xmm1, [r9 + r10 - 16]",
                    "movups [r8 + r10 - 32], xmm0",
                    "movups [r8 + r10 - 16], xmm1"
                ],
                dst = in(reg) dst, src = in(reg) src, len = in(reg) len,
                out("r8") _, out("r9") _, out("r10") _, out("xmm0") _, out("xmm1") _,
            )
        }
    }

    /// Length in bytes from which [`copy_avx`] is faster than [`copy_sse`].
    const MIN_AVX_COPY_BYTES: usize = 160;

    /// Length in bytes from which [`copy_streamed`] is faster than [`copy_avx`], also if a program reads
    /// the destination afterwards (`docs/design/memory.md`).
    pub(super) const MIN_STREAMED_COPY_BYTES: usize = 8 << 20;

    /// Copies [`MIN_AVX_COPY_BYTES`] bytes or more in unspecified order, on a processor with AVX.
    ///
    /// The function is at least as fast as the C library's `memcpy` at any length (`docs/design/dropin.md`).
    ///
    /// # Safety
    /// The contract of [`copy`](super::copy) applies.
    #[inline]
    unsafe fn copy_avx(dst: *mut u8, src: *const u8, len: usize) -> bool {
        debug_assert!(len >= MIN_AVX_COPY_BYTES);
        // The loop's stores are aligned and so cross no cache line; the bytes before the first
        // aligned address are copied before the loop.
        let skip = 32 - dst.addr() % 32;
        // SAFETY: contract of this function; the moves stay within `len` bytes, of which at least 128 are
        // behind `skip`. The last moves may copy some bytes twice.
        unsafe {
            guarded!(
                [
                    "vmovups ymm0, [{src}]",
                    "vmovups [{dst}], ymm0",
                    "lea r8, [{dst} + {skip}]",
                    "lea r9, [{src} + {skip}]",
                    "mov r10, {len}",
                    "sub r10, {skip}",
                    "jmp 6f",
                    "5:",
                    "vmovups ymm0, [r9]",
                    "vmovups ymm1, [r9 + 32]",
                    "vmovups ymm2, [r9 + 64]",
                    "vmovups ymm3, [r9 + 96]",
                    "vmovaps [r8], ymm0",
                    "vmovaps [r8 + 32], ymm1",
                    "vmovaps [r8 + 64], ymm2",
                    "vmovaps [r8 + 96], ymm3",
                    // -128 fits into a byte.
                    "sub r9, -128",
                    "sub r8, -128",
                    "add r10, -128",
                    "6:",
                    "cmp r10, 128",
                    "ja 5b",
                    "vmovups ymm0, [r9 + r10 - 128]",
                    "vmovups ymm1, [r9 + r10 - 96]",
                    "vmovups ymm2, [r9 + r10 - 64]",
                    "vmovups ymm3, [r9 + r10 - 32]",
                    "vmovups [r8 + r10 - 128], ymm0",
                    "vmovups [r8 + r10 - 96], ymm1",
                    "vmovups [r8 + r10 - 64], ymm2",
                    "vmovups [r8 + r10 - 32], ymm3",
                    "vzeroupper"
                ],
                dst = in(reg) dst, src = in(reg) src, len = in(reg) len, skip = in(reg) skip,
                out("r8") _, out("r9") _, out("r10") _,
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
            )
        }
    }

    /// Copies [`MIN_AVX_COPY_BYTES`] bytes or more by non-temporal stores, on a processor with AVX. Later
    /// stores become visible after the copied bytes.
    ///
    /// A store to a line that is in no cache first reads the line from memory. A non-temporal store does
    /// not, so a copy that is larger than the caches moves two bytes over the memory bus for each byte
    /// instead of three.
    ///
    /// # Safety
    /// The contract of [`copy`](super::copy) applies.
    #[inline]
    unsafe fn copy_streamed(dst: *mut u8, src: *const u8, len: usize) -> bool {
        debug_assert!(len >= MIN_AVX_COPY_BYTES);
        // Non-temporal stores have to be aligned.
        let skip = 32 - dst.addr() % 32;
        // SAFETY: as for `copy_avx`. A prefetch of memory that is not there does nothing.
        unsafe {
            guarded!(
                [
                    "vmovups ymm0, [{src}]",
                    "vmovups [{dst}], ymm0",
                    "lea r8, [{dst} + {skip}]",
                    "lea r9, [{src} + {skip}]",
                    "mov r10, {len}",
                    "sub r10, {skip}",
                    "jmp 6f",
                    "5:",
                    "prefetchnta [r9 + 1024]",
                    "prefetchnta [r9 + 1088]",
                    "vmovups ymm0, [r9]",
                    "vmovups ymm1, [r9 + 32]",
                    "vmovups ymm2, [r9 + 64]",
                    "vmovups ymm3, [r9 + 96]",
                    "vmovntdq [r8], ymm0",
                    "vmovntdq [r8 + 32], ymm1",
                    "vmovntdq [r8 + 64], ymm2",
                    "vmovntdq [r8 + 96], ymm3",
                    "sub r9, -128",
                    "sub r8, -128",
                    "add r10, -128",
                    "6:",
                    "cmp r10, 128",
                    "ja 5b",
                    "vmovups ymm0, [r9 + r10 - 128]",
                    "vmovups ymm1, [r9 + r10 - 96]",
                    "vmovups ymm2, [r9 + r10 - 64]",
                    "vmovups ymm3, [r9 + r10 - 32]",
                    "vmovups [r8 + r10 - 128], ymm0",
                    "vmovups [r8 + r10 - 96], ymm1",
                    "vmovups [r8 + r10 - 64], ymm2",
                    "vmovups [r8 + r10 - 32], ymm3",
                    "sfence",
                    "vzeroupper"
                ],
                dst = in(reg) dst, src = in(reg) src, len = in(reg) len, skip = in(reg) skip,
                out("r8") _, out("r9") _, out("r10") _,
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
            )
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod moves {
    use std::sync::atomic::{Ordering, fence};

    use super::LAST_MOVE_BYTES;

    /// Copies `len` bytes and returns true; an access to unmapped memory ends the process.
    ///
    /// # Safety
    /// The contract of [`copy`](super::copy) applies, and all bytes are mapped.
    #[inline(always)]
    pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> bool {
        // SAFETY: contract of this function; the parts stay within `len` bytes.
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
                _ => {
                    // `memcpy` may store the end before the middle, and does.
                    let rest = len - LAST_MOVE_BYTES;
                    std::ptr::copy(src, dst, rest);
                    fence(Ordering::Release);
                    dst.add(rest).cast::<u64>().write_unaligned(part(src, rest));
                }
            }
        }
        true
    }

    /// Reads a `T` at `offset`.
    ///
    /// # Safety
    /// The bytes are readable, and any of their values is a valid `T`.
    #[inline]
    unsafe fn part<T>(src: *const u8, offset: usize) -> T {
        // SAFETY: contract of this function.
        unsafe { src.add(offset).cast::<T>().read_unaligned() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

    use super::*;

    /// A program that polls the last byte of a peer's WRITE uses the other bytes once the last byte
    /// is new.
    #[test]
    fn the_last_byte_comes_last() {
        for len in [17, 33, 64, 100, 200, 500, 3000, 9000, 65536] {
            the_last_byte_comes_last_of(len, 300);
        }
        the_last_byte_comes_last_of(LONG, 10);
    }

    fn the_last_byte_comes_last_of(len: usize, rounds: u64) {
        let memory: Vec<AtomicU8> = (0..len).map(|_| AtomicU8::new(0)).collect();
        let seen = AtomicU64::new(0);
        let mut early = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=rounds {
                    let new = vec![(round % 251) as u8; len];
                    let dst = memory.as_ptr().cast_mut().cast::<u8>();
                    // SAFETY: both ranges have `len` bytes; other threads only read `memory`, as atomics.
                    unsafe { copy(dst, new.as_ptr(), len) }.unwrap();
                    while seen.load(Ordering::Acquire) < round {
                        std::thread::yield_now();
                    }
                }
            });
            for round in 1..=rounds {
                let new = (round % 251) as u8;
                while memory[len - 1].load(Ordering::Acquire) != new {
                    std::hint::spin_loop();
                }
                // Load these bytes without delay: the time between the first store and the last
                // is short.
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

    #[test]
    fn every_length_is_copied_exactly() {
        for len in 0..300usize {
            let src: Vec<u8> = (0..len).map(|i| (i % 251) as u8 + 1).collect();
            let mut dst = vec![0xa5u8; len + 2];
            // SAFETY: both vectors are long enough.
            unsafe { copy(dst.as_mut_ptr().add(1), src.as_ptr(), len) }.unwrap();
            assert_eq!(&dst[1..=len], &src[..]);
            assert_eq!((dst[0], dst[len + 1]), (0xa5, 0xa5));
        }
    }

    /// Two pages, of which the second is unmapped.
    struct Edge(*mut u8);

    impl Edge {
        fn new() -> Self {
            super::super::guarded_access::install_fault_handlers();
            // SAFETY: maps new pages, and unmaps one of them at once.
            unsafe {
                let at = rustix::mm::mmap_anonymous(
                    std::ptr::null_mut(),
                    2 * PAGE,
                    rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                    rustix::mm::MapFlags::PRIVATE,
                )
                .unwrap();
                rustix::mm::munmap(at.byte_add(PAGE), PAGE).unwrap();
                Self(at.cast())
            }
        }

        /// Returns the address `bytes` bytes before the end of the mapped page.
        fn before(&self, bytes: usize) -> *mut u8 {
            self.0.wrapping_add(PAGE - bytes)
        }
    }

    impl Drop for Edge {
        fn drop(&mut self) {
            // SAFETY: mapped by `new`, and no other code knows the address.
            unsafe { rustix::mm::munmap(self.0.cast(), PAGE) }.unwrap();
        }
    }

    const PAGE: usize = 4096;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn memory_that_is_not_there_is_an_error() {
        let edge = Edge::new();
        let there = Edge::new();
        for len in (1..200).chain([1000, 4000, PAGE]) {
            // The loop covers every case from all bytes mapped to no byte mapped.
            for present in (0..=len).rev().step_by(if len < 80 { 1 } else { 13 }) {
                let expected = if present == len {
                    Ok(())
                } else {
                    Err(MemoryFault)
                };
                let (at, good) = (edge.before(present), there.before(len));
                // SAFETY: the pages belong to this test, and no reference to them exists.
                let (read, written) = unsafe { (copy(good, at, len), copy(at, good, len)) };
                assert_eq!((read, written), (expected, expected), "{present} of {len}");
            }
        }
    }

    /// A length that is copied by non-temporal stores, where there are some.
    const LONG: usize = (8 << 20) + 100;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn long_copies_of_memory_that_is_not_there_are_errors() {
        let edge = Edge::new();
        let mut bytes = vec![7u8; LONG];
        // Only the first page of the copy, or only its last bytes, are there.
        let first = edge.before(PAGE);
        // SAFETY: the pages belong to this test, and no reference to them exists while they are copied.
        let (read, written) = unsafe {
            (
                copy(bytes.as_mut_ptr(), first, LONG),
                copy(first, bytes.as_ptr(), LONG),
            )
        };
        assert_eq!((read, written), (Err(MemoryFault), Err(MemoryFault)));
    }

    #[test]
    fn long_copies_are_exact() {
        let src: Vec<u8> = (0..LONG + 64).map(|i| (i % 251) as u8 + 1).collect();
        let mut dst = vec![0; LONG + 128];
        for (to, from, len) in [(0, 0, LONG), (1, 0, LONG - 92), (16, 33, LONG - 1)] {
            dst.fill(0);
            // SAFETY: both vectors are long enough.
            unsafe { copy(dst.as_mut_ptr().add(to), src.as_ptr().add(from), len) }.unwrap();
            assert!(dst[to..to + len] == src[from..from + len], "{to} {from}");
            let mut beyond = dst[..to].iter().chain(&dst[to + len..]);
            assert!(beyond.all(|&byte| byte == 0), "{to} {from}");
        }
    }

    #[test]
    fn a_copy_changes_nothing_beyond_its_bytes() {
        // Lengths copied by the loops, at several alignments.
        for len in (300..700).chain([4095, 4096, 4103, 4104, 5000, 70_000]) {
            let src: Vec<u8> = (0..len + 64).map(|i| (i % 251) as u8 + 1).collect();
            for (to, from) in [(0, 0), (1, 0), (0, 7), (16, 31), (33, 63)] {
                let mut dst = vec![0; len + 128];
                // SAFETY: both vectors are long enough.
                unsafe { copy(dst.as_mut_ptr().add(to), src.as_ptr().add(from), len) }.unwrap();
                assert_eq!(dst[to..to + len], src[from..from + len]);
                let beyond = dst[..to].iter().chain(&dst[to + len..]);
                assert!(
                    beyond.into_iter().all(|&byte| byte == 0),
                    "{len} {to} {from}"
                );
            }
        }
    }
}
