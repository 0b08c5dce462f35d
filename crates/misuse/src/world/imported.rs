//! What is known of handles that were imported.

use std::ffi::c_int;

use super::sizes::PLACES;

/// What the world remembers of handles, beside where they are.
#[derive(Default)]
pub(super) struct Imported {
    /// The places of regions that hold imported ones.
    pub(super) mrs: [bool; PLACES],
    /// The places of regions that were destroyed by another handle.
    pub(super) gone: [bool; PLACES],
    /// Handles in the sense of the kernel, of domains and of device memory, that were given back.
    pub(super) pds: Vec<u32>,
    pub(super) dms: Vec<u32>,
}

/// Which verb refused to destroy what: another handle has done so.
pub(super) fn is_gone(errno: c_int) -> bool {
    errno == libc::ENOENT
}
