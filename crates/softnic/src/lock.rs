//! Locks for state that no panic leaves half changed.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock, even if a thread has panicked while it held the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
