//! Locking.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks. A panic elsewhere does not make the data unusable: nothing is left half-changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
