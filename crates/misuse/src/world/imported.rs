//! Records of imported handles.

use std::ffi::c_int;

use super::sizes::PLACES;

/// The records of imported handles, beside the handles themselves.
#[derive(Default)]
pub(super) struct Imported {
    /// For each place of a region: true if it holds an imported handle.
    pub(super) mrs: [bool; PLACES],
    /// For each place of a region: true if the region was destroyed through another handle.
    pub(super) destroyed_elsewhere: [bool; PLACES],
    /// Kernel handles of domains and device memory that were unimported.
    pub(super) pds: Vec<u32>,
    pub(super) dms: Vec<u32>,
}

/// Returns true if a destroying verb's errno means that the object was destroyed through another handle.
pub(super) fn is_gone(errno: c_int) -> bool {
    errno == libc::ENOENT
}
