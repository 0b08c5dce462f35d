//! The page size.

/// Number of bytes in a normal page.
pub(super) const PAGE_BYTES: usize = 4096;
