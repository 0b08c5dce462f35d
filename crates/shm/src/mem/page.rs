//! The page size.

/// Bytes of a normal page.
pub(super) const PAGE: usize = 4096;
