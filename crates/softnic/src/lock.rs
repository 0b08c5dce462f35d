//! Locks of what no panic leaves half changed.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock; that a thread panicked while it had it is no reason not to.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
