//! Records of imported handles.

use std::ffi::c_int;

use super::sizes::PLACES_PER_KIND;

/// The records of imported handles, beside the handles themselves.
#[derive(Default)]
pub(super) struct ImportRecords {
    /// For each place of a region: true if it holds an imported handle.
    pub(super) is_imported_mr: [bool; PLACES_PER_KIND],
    /// For each place of a region: true if the region was destroyed through another handle.
    pub(super) is_mr_destroyed_by_other_handle: [bool; PLACES_PER_KIND],
    /// Kernel handles of domains and device memory that were unimported.
    pub(super) unimported_pds: Vec<u32>,
    pub(super) unimported_dms: Vec<u32>,
}

/// Returns true if a destroying verb's errno means that the object was destroyed through another handle.
pub(super) fn means_destroyed_elsewhere(errno: c_int) -> bool {
    errno == libc::ENOENT
}
