//! Copies in and out of memory that the NIC and peers may access at the same time.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// From so many bytes on, a copy goes by vector instructions.
const MIN_VECTOR_COPY_BYTES: usize = 256;

/// Copies by the vector instructions of the software NIC. Returns false if this program or processor lacks them.
///
/// They are not part of Rust's memory model: an `asm!` block may race with other processes and with atomics. A vector
/// access that crosses a cache line is made as one access a line, so an aligned word of 8 bytes is never torn.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, and the two do not overlap.
#[cfg(all(feature = "softnic", target_arch = "x86_64"))]
unsafe fn try_vector_copy(to: *mut u8, from: *const u8, len: usize) -> bool {
    // Memory that is not there is left to the loops of the callers, which fault on it.
    // SAFETY: contract of this function.
    unsafe { softnic::copy_shared(to, from, len) }.is_ok()
}

/// Copies nothing.
///
/// # Safety
/// None is needed; the other version of this function has requirements.
#[cfg(not(all(feature = "softnic", target_arch = "x86_64")))]
unsafe fn try_vector_copy(_to: *mut u8, _from: *const u8, _len: usize) -> bool {
    false
}

/// Copies `into.len()` bytes out of memory that others may write.
///
/// # Safety
/// `from` is valid for reads of `into.len()` bytes.
pub(crate) unsafe fn copy_from_shared(from: *mut u8, into: &mut [u8]) {
    let (to, len) = (into.as_mut_ptr(), into.len());
    // SAFETY: within the caller's range; `into` is nobody else's.
    if len >= MIN_VECTOR_COPY_BYTES && unsafe { try_vector_copy(to, from, len) } {
        return;
    }
    let head = from.align_offset(8).min(into.len());
    let (edge, rest) = into.split_at_mut(head);
    let mut p = from;
    for b in edge {
        // SAFETY: within the caller's range.
        (*b, p) = unsafe { (AtomicU8::from_ptr(p).load(Ordering::Relaxed), p.add(1)) };
    }
    let (words, tail) = rest.as_chunks_mut::<8>();
    for w in words {
        // SAFETY: within the caller's range, aligned after the edge.
        let (value, next) = unsafe {
            (
                AtomicU64::from_ptr(p.cast()).load(Ordering::Relaxed),
                p.add(8),
            )
        };
        *w = value.to_ne_bytes();
        p = next;
    }
    for b in tail {
        // SAFETY: within the caller's range.
        (*b, p) = unsafe { (AtomicU8::from_ptr(p).load(Ordering::Relaxed), p.add(1)) };
    }
}

/// Copies bytes into memory that others may read and write.
///
/// # Safety
/// `to` is valid for writes of `from.len()` bytes.
pub(crate) unsafe fn copy_to_shared(to: *mut u8, from: &[u8]) {
    let len = from.len();
    // SAFETY: within the caller's range.
    if len >= MIN_VECTOR_COPY_BYTES && unsafe { try_vector_copy(to, from.as_ptr(), len) } {
        return;
    }
    let head = to.align_offset(8).min(from.len());
    let (edge, rest) = from.split_at(head);
    let mut p = to;
    for &b in edge {
        // SAFETY: within the caller's range.
        p = unsafe {
            AtomicU8::from_ptr(p).store(b, Ordering::Relaxed);
            p.add(1)
        };
    }
    let (words, tail) = rest.as_chunks::<8>();
    for w in words {
        // SAFETY: within the caller's range, aligned after the edge.
        p = unsafe {
            AtomicU64::from_ptr(p.cast()).store(u64::from_ne_bytes(*w), Ordering::Relaxed);
            p.add(8)
        };
    }
    for &b in tail {
        // SAFETY: within the caller's range.
        p = unsafe {
            AtomicU8::from_ptr(p).store(b, Ordering::Relaxed);
            p.add(1)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_at_every_alignment_move_exactly_their_bytes() {
        for start in 0..17 {
            for len in (0..40)
                .chain(MIN_VECTOR_COPY_BYTES - 2..MIN_VECTOR_COPY_BYTES + 40)
                .chain([4103])
            {
                let mut memory = vec![0xa5u8; len + 64];
                let bytes: Vec<u8> = (0..len).map(|i| (i % 251).to_le_bytes()[0]).collect();
                // SAFETY: start < 64.
                unsafe { copy_to_shared(memory.as_mut_ptr().add(start), &bytes) };
                let mut back = vec![0u8; bytes.len()];
                // SAFETY: as above.
                unsafe { copy_from_shared(memory.as_mut_ptr().add(start), &mut back) };
                assert_eq!(back, bytes, "start {start} len {len}");
                assert!(
                    memory[..start]
                        .iter()
                        .chain(&memory[start + bytes.len()..])
                        .all(|&b| b == 0xa5)
                );
            }
        }
    }
}
