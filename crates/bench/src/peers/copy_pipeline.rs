//! Cost of a pipeline of copies between two cores. One core copies a block into a slot; the other
//! core reads the block and returns the slot. Any transfer between two processes by a copy is at
//! most this fast.
//!
//! Unsafe code: the two threads share each block by raw memory access.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::copy_parameters::{byte_pattern, write_number};
use crate::core_pinning::{CorePair, pin_thread_to_core};

/// A block, and the counter that says whose turn it is with the block.
struct BlockWithTurn {
    turn: TurnCounter,
    block: UnsafeCell<Vec<u8>>,
}

/// Says whose turn it is with the block: the copier's if even, the reader's if odd.
#[repr(align(128))]
struct TurnCounter(AtomicU64);

// SAFETY: only the thread that owns the slot by its `turn` accesses the block, see `BlockWithTurn`.
unsafe impl Sync for BlockWithTurn {}

/// Measures the copies of `block_bytes` bytes per second from one core to the other, through
/// `slots` slots. `block_bytes` must be at least 16. The other core checks the number at the start
/// of each block, and its last byte.
///
/// # Errors
/// When a thread cannot be pinned, or a block is wrong.
pub fn measure_block_copies_per_s(
    cores: CorePair,
    block_bytes: usize,
    slots: usize,
    duration: Duration,
) -> Result<f64> {
    let slot = || BlockWithTurn {
        turn: TurnCounter(AtomicU64::new(0)),
        block: UnsafeCell::new(vec![0; block_bytes]),
    };
    let slots: Vec<BlockWithTurn> = (0..slots).map(|_| slot()).collect();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| check_blocks(cores.responder, &slots, block_bytes, &ended));
        let copier = scope.spawn(|| {
            let rate = measure_copied_blocks_per_s(cores.requester, &slots, block_bytes, duration);
            ended.store(true, Ordering::Release);
            rate
        });
        let read = reader.join().expect("the reader does not panic");
        let rate = copier.join().expect("the copier does not panic");
        read.and(rate)
    })
}

/// Copies until the time is over. Waits for each slot until the reader has returned it.
fn measure_copied_blocks_per_s(
    core: usize,
    slots: &[BlockWithTurn],
    block_bytes: usize,
    duration: Duration,
) -> Result<f64> {
    pin_thread_to_core(core)?;
    let mut sources: Vec<_> = slots.iter().map(|_| byte_pattern(block_bytes)).collect();
    let (mut number, mut begun, mut before) = (0u64, Instant::now(), 0);
    let warm_up = duration / 10;
    let mut warm = false;
    loop {
        for (slot, source) in slots.iter().zip(&mut sources) {
            number += 1;
            write_number(source, number);
            // SYNC POINT: pairs with the reader's Release after it has read the block.
            while !slot.turn.0.load(Ordering::Acquire).is_multiple_of(2) {
                std::hint::spin_loop();
            }
            // SAFETY: it is the copier's turn. The block has `block_bytes` bytes, and no reference
            // to it is live now.
            // JUSTIFICATION: this copy is what the peer measures.
            unsafe {
                let block = (*slot.block.get()).as_mut_ptr();
                std::ptr::copy_nonoverlapping(source.as_ptr(), block, block_bytes);
            }
            slot.turn.0.fetch_add(1, Ordering::Release);
        }
        let elapsed = begun.elapsed();
        if !warm && elapsed >= warm_up {
            (warm, begun, before) = (true, Instant::now(), number);
        } else if warm && elapsed >= duration {
            #[allow(clippy::cast_precision_loss)] // far below 2^52
            return Ok((number - before) as f64 / elapsed.as_secs_f64());
        }
    }
}

/// Checks each block until the copier has ended.
fn check_blocks(
    core: usize,
    slots: &[BlockWithTurn],
    block_bytes: usize,
    ended: &AtomicBool,
) -> Result<()> {
    let pinned = pin_thread_to_core(core);
    let last = byte_pattern(block_bytes).pop();
    let (mut number, mut wrong) = (0u64, 0u64);
    loop {
        for slot in slots {
            while slot.turn.0.load(Ordering::Acquire).is_multiple_of(2) {
                if ended.load(Ordering::Acquire)
                    && slot.turn.0.load(Ordering::Acquire).is_multiple_of(2)
                {
                    ensure!(
                        wrong == 0,
                        "{wrong} of {number} blocks held other bytes than were copied"
                    );
                    return pinned;
                }
                std::hint::spin_loop();
            }
            number += 1;
            // SAFETY: it is the reader's turn. The reference ends before the slot is returned.
            let block = unsafe { &*slot.block.get() };
            let right = block.starts_with(&number.to_le_bytes()) && block.last() == last.as_ref();
            slot.turn.0.fetch_add(1, Ordering::Release);
            wrong += u64::from(!right);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_handed_over_and_checked() {
        let cores = CorePair::first_two().unwrap();
        for (bytes, slots) in [(16, 1), (4096, 3)] {
            let rate =
                measure_block_copies_per_s(cores, bytes, slots, Duration::from_millis(5)).unwrap();
            assert!(rate > 0.0);
        }
    }
}
