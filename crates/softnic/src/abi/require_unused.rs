//! The check for objects in use, which may not be destroyed.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns `EBUSY` while an object has users.
pub(super) fn require_unused(uses: &AtomicUsize) -> Result<(), c_int> {
    if uses.load(Ordering::Relaxed) == 0 {
        Ok(())
    } else {
        Err(libc::EBUSY)
    }
}
