//! Atomics on 8 bytes that the program may have unmapped.

use super::memory_fault::MemoryFault;

/// An atomic operation.
#[derive(Clone, Copy, Debug)]
pub enum AtomicOp {
    /// Adds the value to the word.
    FetchAdd(u64),
    /// Stores `swap` if the word equals `expect`.
    CompareSwap {
        /// The value to compare the word with.
        expect: u64,
        /// The value to store if they are equal.
        swap: u64,
    },
    /// Stores the value.
    Store(u64),
}

/// Applies `op` to the word at `ptr`, and returns the old value.
///
/// # Errors
/// Returns [`MemoryFault`] if `ptr` is not mapped writable.
///
/// # Safety
/// `ptr` is aligned to 8 bytes. No reference to memory that may be mapped there exists, and other threads
/// access the same bytes as whole words only.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) unsafe fn apply_atomic(ptr: *mut u64, op: AtomicOp) -> Result<u64, MemoryFault> {
    use super::guarded_access::guarded;
    // Operands and result pass through memory: a guarded block has no register outputs.
    let mut word;
    // SAFETY: contract of this function.
    let done = unsafe {
        match op {
            AtomicOp::FetchAdd(n) => {
                word = n;
                guarded!(
                    ["mov rax, [{word}]", "lock xadd [{ptr}], rax", "mov [{word}], rax"],
                    out("rax") _, ptr = in(reg) ptr, word = in(reg) &raw mut word,
                )
            }
            AtomicOp::Store(new) => {
                word = new;
                guarded!(
                    ["mov rax, [{word}]", "xchg [{ptr}], rax", "mov [{word}], rax"],
                    out("rax") _, ptr = in(reg) ptr, word = in(reg) &raw mut word,
                )
            }
            AtomicOp::CompareSwap { expect, swap } => {
                word = expect;
                guarded!(
                    ["mov rax, [{word}]", "lock cmpxchg [{ptr}], {new}", "mov [{word}], rax"],
                    out("rax") _, ptr = in(reg) ptr, word = in(reg) &raw mut word, new = in(reg) swap,
                )
            }
        }
    };
    if done { Ok(word) } else { Err(MemoryFault) }
}

/// Applies `op` to the word at `ptr`, and returns the old value.
///
/// # Errors
/// Never returns an error: an access to unmapped memory ends the process.
///
/// # Safety
/// `ptr` is aligned to 8 bytes and writable. No reference to the word exists, and other threads access the
/// same bytes as whole words only.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn apply_atomic(ptr: *mut u64, op: AtomicOp) -> Result<u64, MemoryFault> {
    use std::sync::atomic::{AtomicU64, Ordering};
    // SAFETY: contract of this function.
    let word = unsafe { AtomicU64::from_ptr(ptr) };
    Ok(match op {
        AtomicOp::FetchAdd(n) => word.fetch_add(n, Ordering::SeqCst),
        AtomicOp::Store(new) => word.swap(new, Ordering::SeqCst),
        AtomicOp::CompareSwap { expect, swap } => word
            .compare_exchange(expect, swap, Ordering::SeqCst, Ordering::SeqCst)
            .unwrap_or_else(|old| old),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_returns_what_was_there() {
        let mut word = 5;
        let mut change = |op| {
            // SAFETY: the word belongs to this test.
            let old = unsafe { apply_atomic(&raw mut word, op) };
            (old, word)
        };
        assert_eq!(change(AtomicOp::FetchAdd(u64::MAX)), (Ok(5), 4));
        assert_eq!(change(AtomicOp::Store(1 << 40)), (Ok(4), 1 << 40));
        let swap = |expect| AtomicOp::CompareSwap { expect, swap: 9 };
        assert_eq!(change(swap(1)), (Ok(1 << 40), 1 << 40));
        assert_eq!(change(swap(1 << 40)), (Ok(1 << 40), 9));
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn memory_that_is_not_there_is_an_error() {
        super::super::guarded_access::install_fault_handlers();
        let nowhere = std::ptr::without_provenance_mut(64);
        for op in [
            AtomicOp::FetchAdd(1),
            AtomicOp::Store(1),
            AtomicOp::CompareSwap { expect: 0, swap: 1 },
        ] {
            // SAFETY: no memory is ever mapped at this address.
            assert_eq!(unsafe { apply_atomic(nowhere, op) }, Err(MemoryFault));
        }
    }
}
