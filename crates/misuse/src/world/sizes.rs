//! Numbers and sizes of the objects.

/// Number of objects of each kind.
pub(super) const PLACES_PER_KIND: usize = 4;
/// Number of queue pairs.
pub(super) const QP_PLACES: usize = 6;
/// Bytes of the memory from which regions are registered.
pub(super) const ARENA_BYTES: usize = 1 << 15;
/// Maximum number of completions of one poll.
pub(super) const MAX_POLL_COMPLETIONS: usize = 8;
/// Maximum number of WRs in one list.
pub(super) const MAX_LIST_WRS: usize = 5;
