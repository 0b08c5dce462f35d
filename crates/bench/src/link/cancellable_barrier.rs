//! A barrier for the threads of one process.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use verbs::Waiter;

use super::consequential_error::ConsequentialError;

/// A barrier at which `threads` threads wait for each other, once.
#[derive(Debug)]
pub(crate) struct CancellableBarrier {
    threads: usize,
    state: Mutex<BarrierState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct BarrierState {
    arrived_threads: usize,
    is_cancelled: bool,
}

impl CancellableBarrier {
    pub(crate) fn new(threads: usize) -> CancellableBarrier {
        CancellableBarrier {
            threads,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Waits until all threads have arrived. On a simulated core, virtual time passes meanwhile.
    ///
    /// # Errors
    /// When one of the threads has given up.
    pub(crate) fn wait(&self) -> Result<()> {
        let mut state = self.lock_state();
        state.arrived_threads += 1;
        self.changed.notify_all();
        let mut waiter = Waiter::new();
        loop {
            if state.is_cancelled {
                return Err(ConsequentialError(
                    "another thread of the benchmark failed".to_owned(),
                )
                .into());
            }
            if state.arrived_threads >= self.threads {
                return Ok(());
            }
            state = if simnic::is_simulated() {
                drop(state);
                waiter.idle();
                self.lock_state()
            } else {
                let waited = self.changed.wait(state);
                waited.unwrap_or_else(PoisonError::into_inner)
            };
        }
    }

    /// Makes all waiting threads fail, because this thread will not arrive.
    pub(crate) fn cancel(&self) {
        self.lock_state().is_cancelled = true;
        self.changed.notify_all();
    }

    fn lock_state(&self) -> MutexGuard<'_, BarrierState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pass_together_or_none() {
        let gate = CancellableBarrier::new(3);
        std::thread::scope(|scope| {
            let threads = [(); 2].map(|()| scope.spawn(|| gate.wait().is_ok()));
            assert!(gate.wait().is_ok());
            assert!(
                threads
                    .map(|t| t.join().unwrap())
                    .iter()
                    .all(|passed| *passed)
            );
        });
        let gate = CancellableBarrier::new(2);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| gate.wait());
            gate.cancel();
            assert!(
                waits
                    .join()
                    .unwrap()
                    .unwrap_err()
                    .is::<ConsequentialError>()
            );
        });
    }
}
