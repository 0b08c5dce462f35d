//! Locks for remote atomics on memory that no CPU atomic reaches.

use std::sync::atomic::{AtomicU64, Ordering};

use super::memory_fault::MemoryFault;

/// A lock that survives the death of its holder. The lock word holds the holder's pid, and a
/// waiting thread checks that this process still runs.
pub(super) struct HeldRemoteAtomicsLock<'a>(&'a AtomicU64);

impl<'a> HeldRemoteAtomicsLock<'a> {
    pub(super) fn take(word: &'a AtomicU64) -> Result<Self, MemoryFault> {
        let me = u64::from(std::process::id());
        for spins in 0u64.. {
            match word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(Self(word)),
                Err(holder) if spins % 1024 == 1023 => {
                    // A holder keeps the lock for microseconds. If the word's pid is dead or
                    // invalid, this thread takes the lock over.
                    let alive = holder == me || is_running(holder);
                    if !alive
                        && word
                            .compare_exchange(holder, me, Ordering::Acquire, Ordering::Relaxed)
                            .is_ok()
                    {
                        return Ok(Self(word));
                    }
                    std::thread::yield_now();
                }
                Err(_) => std::hint::spin_loop(),
            }
        }
        Err(MemoryFault)
    }
}

/// Returns true if a process runs, also if that cannot be determined.
fn is_running(pid: u64) -> bool {
    !matches!(liveness::start_time_ticks(pid), Ok(None))
}

impl Drop for HeldRemoteAtomicsLock<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_of_a_dead_holder_is_taken_over() {
        let word = AtomicU64::new(u64::from(u32::MAX));
        let held = HeldRemoteAtomicsLock::take(&word).unwrap();
        drop(held);
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_lock_of_a_holder_whose_parent_does_not_wait_is_taken_over() {
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        let word = AtomicU64::new(u64::from(ended.id()));
        let held = HeldRemoteAtomicsLock::take(&word).unwrap();
        drop(held);
        assert_eq!(word.load(Ordering::Relaxed), 0);
        ended.wait().unwrap();
    }
}
