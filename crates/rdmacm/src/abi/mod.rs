//! librdmacm's entry points, as C functions under their own names.
//!
//! Each checks the pointers that C may leave NULL, calls, and converts back. Where the man page says nothing
//! else, they return 0, or -1 with errno. Nothing here unwinds: the functions called return errors.
//!
//! # Safety
//! As for the C functions: handles are NULL or live, pointers to arguments are NULL or valid for what the man
//! page says, strings end. Calls that change the same id are ordered by the program.
#![allow(
    clippy::missing_safety_doc,
    reason = "the module says it for all of them, and the man page for each"
)]

pub(crate) mod addresses;
mod addrinfo;
mod endpoints;
pub(crate) mod events;
pub(crate) mod ids;
mod multicast;
mod options;
mod qps;
mod rsockets;

use std::ffi::c_int;

pub use addresses::*;
pub use addrinfo::*;
pub use endpoints::*;
pub use events::*;
pub use ids::*;
pub use multicast::*;
pub use options::*;
pub use qps::*;
pub use rsockets::*;

use crate::channel::Channel;
use crate::errno::{Errno, Result};
use crate::id::{ChannelHandle, CmId};
use std::sync::Arc;
use verbs_abi::rdma_cm_id;

/// Sets errno.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: glibc's errno of this thread.
    unsafe { *libc::__errno_location() = errno };
}

/// 0, or -1 with errno.
pub(crate) fn or_minus_one(result: Result) -> c_int {
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
unsafe fn with_id(handle: *mut rdma_cm_id, work: impl FnOnce(&CmId) -> Result) -> c_int {
    // SAFETY: contract of this function.
    or_minus_one(unsafe { CmId::borrow(handle) }.and_then(work))
}

/// The channel of an id.
fn channel_of(id: &CmId) -> Result<Arc<Channel>> {
    // SAFETY: a live id's channel is live.
    unsafe { ChannelHandle::channel((*id.abi()).channel) }
}
