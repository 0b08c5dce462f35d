//! The page size.

/// Number of bytes in a normal page.
pub(super) const PAGE: usize = 4096;
