//! An operation that was begun, and its outcome.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::error::Error;
use crate::memory::Tensor;

/// The result of an operation: the requested tensor, or `None` for an operation that gives none.
pub type Outcome = Result<Option<Tensor>, Error>;

/// Called once with the outcome, in the thread that finds it.
pub(crate) type Callback = Box<dyn FnOnce() + Send>;

/// The outcome of an operation, for who waits for it. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct PendingOperation(Arc<OperationInner>);

#[derive(Default)]
struct OperationInner {
    is_done: AtomicBool,
    state: Mutex<OperationState>,
    done_signal: Condvar,
}

#[derive(Default)]
struct OperationState {
    outcome: Option<Outcome>,
    callback: Option<Callback>,
}

impl PendingOperation {
    fn state(&self) -> MutexGuard<'_, OperationState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the operation has an outcome.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.0.is_done.load(Ordering::Acquire)
    }

    /// Sets the outcome, if there is none. Calls the callback: hold no lock.
    pub(crate) fn complete(&self, outcome: Outcome) {
        let mut state = self.state();
        if self.is_done() {
            return;
        }
        state.outcome = Some(outcome);
        self.0.is_done.store(true, Ordering::Release);
        let callback = state.callback.take();
        drop(state);
        self.0.done_signal.notify_all();
        if let Some(callback) = callback {
            callback();
        }
    }

    /// Has this called once there is an outcome; at once if there is one.
    pub(crate) fn on_done(&self, callback: Callback) {
        let mut state = self.state();
        if self.is_done() {
            drop(state);
            callback();
        } else {
            state.callback = Some(callback);
        }
    }

    /// Sleeps until there is an outcome, or until `deadline`.
    pub(crate) fn wait_until_done(&self, deadline: Option<Instant>) {
        let mut state = self.state();
        while !self.is_done() {
            let Some(deadline) = deadline else {
                let woken = self.0.done_signal.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let woken = self.0.done_signal.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes the outcome.
    pub(crate) fn take_outcome(&self) -> Option<Outcome> {
        self.state().outcome.take()
    }
}

impl fmt::Debug for PendingOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending(done: {})", self.is_done())
    }
}
