//! How functions of C tell what they come to.

use std::ffi::c_int;

use verbs_abi::rdma_cm_id;

use crate::errno::{Errno, Result};
use crate::id::CmId;

/// Sets errno.
pub fn set_errno(errno: c_int) {
    // SAFETY: glibc's errno of this thread.
    unsafe { *libc::__errno_location() = errno };
}

/// 0, or -1 with errno.
#[must_use]
pub fn or_minus_one(result: Result) -> c_int {
    match result {
        Ok(()) => 0,
        Err(Errno(errno)) => {
            set_errno(errno);
            -1
        }
    }
}

/// Calls `work` with the id behind `handle`.
///
/// # Safety
/// `handle` is NULL or a live id.
pub(super) unsafe fn with_id(handle: *mut rdma_cm_id, work: impl FnOnce(&CmId) -> Result) -> c_int {
    // SAFETY: contract of this function.
    or_minus_one(unsafe { CmId::borrow(handle) }.and_then(work))
}
