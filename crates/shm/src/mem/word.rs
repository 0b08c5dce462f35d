//! Atomics on 8 bytes that programs may have unmapped.

use super::fault::Fault;

/// An atomic verb.
#[derive(Clone, Copy, Debug)]
pub enum AtomicOp {
    /// Add to the word.
    FetchAdd(u64),
    /// Swap the word if it is as expected.
    CompareSwap {
        /// The word must have this value.
        expect: u64,
        /// What is stored then.
        swap: u64,
    },
    /// Store the word.
    Store(u64),
}

/// Does `op` on the word at `ptr`, and returns what was there.
///
/// # Errors
/// When there is no memory that may be written.
///
/// # Safety
/// `ptr` is aligned to 8 bytes. Nobody has a reference to what may be mapped there, and others access the same bytes as
/// whole words only.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) unsafe fn change(ptr: *mut u64, op: AtomicOp) -> Result<u64, Fault> {
    use super::guard::guarded;
    // In and out by memory: what can fault has no other result.
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
    if done { Ok(word) } else { Err(Fault) }
}

/// Does `op` on the word at `ptr`, and returns what was there.
///
/// # Errors
/// None: memory that is not there ends the process.
///
/// # Safety
/// `ptr` is aligned to 8 bytes, and may be written. Nobody has a reference to it, and others access the same bytes as
/// whole words only.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn change(ptr: *mut u64, op: AtomicOp) -> Result<u64, Fault> {
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
            // SAFETY: the test's own.
            let old = unsafe { change(&raw mut word, op) };
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
        super::super::guard::install();
        let nowhere = std::ptr::without_provenance_mut(64);
        for op in [
            AtomicOp::FetchAdd(1),
            AtomicOp::Store(1),
            AtomicOp::CompareSwap { expect: 0, swap: 1 },
        ] {
            // SAFETY: nothing is ever mapped there.
            assert_eq!(unsafe { change(nowhere, op) }, Err(Fault));
        }
    }
}
