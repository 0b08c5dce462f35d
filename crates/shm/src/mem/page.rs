//! The size of a page.

/// Bytes of a page that is not huge.
pub(super) const PAGE: usize = 4096;
