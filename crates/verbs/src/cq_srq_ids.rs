//! The ids of CQs and SRQs, which a provider carries as their context pointers.

use std::ffi::c_void;

/// Returns an id for a CQ or SRQ. Unlike addresses, ids are never reused.
pub(crate) fn next_cq_or_srq_id() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT_ID: AtomicU64 = AtomicU64::new(1);
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// Returns the context pointer that carries an id through the provider.
pub(crate) fn context_from_id(id: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::try_from(id).unwrap_or(usize::MAX))
}

pub(crate) fn id_from_context(context: *mut c_void) -> u64 {
    context.addr() as u64
}
