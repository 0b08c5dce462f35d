//! Numbers and sizes of the objects.

/// Number of objects of each kind.
pub(super) const PLACES: usize = 4;
/// Number of queue pairs.
pub(super) const QPS: usize = 6;
/// Bytes of the memory from which regions are registered.
pub(super) const ARENA: usize = 1 << 15;
/// Maximum number of completions of one poll.
pub(super) const POLL: usize = 8;
/// Maximum number of WRs in one list.
pub(super) const LIST: usize = 5;
