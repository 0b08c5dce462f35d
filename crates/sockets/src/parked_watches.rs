//! The watches of a connection that epoll instances have parked ([`crate::watched_connections`]).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Increases when a parked connection of this process has changed without a wake byte. Each instance then looks at all
/// connections again.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// The number of epoll instances that have parked a connection. Each of them counts as a sleeper of it, too.
#[derive(Default)]
pub(crate) struct ParkedWatches(AtomicU32);

impl ParkedWatches {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Counts a watch that looks at the connection next: a change from here on makes it active again.
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }

    /// Forgets all watches; called in a forked child.
    pub(crate) fn forget(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    /// Records that this process has changed the connection, so that parked watches of it become active.
    pub(crate) fn unpark(&self) {
        // The watch is counted before it looks at the connection (`add`).
        fence(Ordering::SeqCst);
        if self.count() > 0 {
            CHANGES.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Returns the number of changes of parked connections so far.
pub(crate) fn changes_of_parked_connections() -> u64 {
    CHANGES.load(Ordering::SeqCst)
}
