//! How many objects there are, and how large they are.

/// Objects of each kind.
pub(super) const PLACES: usize = 4;
/// Queue pairs.
pub(super) const QPS: usize = 6;
/// Bytes that regions are made of.
pub(super) const ARENA: usize = 1 << 15;
/// Completions of one poll.
pub(super) const POLL: usize = 8;
/// WRs of one list, at most.
pub(super) const LIST: usize = 5;
