//! Copies between memory that other processes see.

/// Copies between memory that others may be writing to.
///
/// Up to 16 bytes go in as few and as large moves as there are, so that an aligned word is never seen half
/// written; longer copies leave the order of their bytes open, as the specification does.
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
            _ => std::ptr::copy(src, dst, len),
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
    use super::*;

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
