//! The words of a node, wherever they are.

use std::sync::atomic::{AtomicU64, Ordering};

/// The words of a node: shared memory at the server, a private copy at a client.
pub trait NodeWords {
    /// Returns the number of words.
    fn len(&self) -> usize;
    /// Returns the word at `index`, or 0 if `index` is out of bounds.
    fn word(&self, index: usize) -> u64;
}

impl NodeWords for [AtomicU64] {
    #[inline]
    fn len(&self) -> usize {
        <[AtomicU64]>::len(self)
    }

    #[inline]
    fn word(&self, index: usize) -> u64 {
        self.get(index).map_or(0, |w| w.load(Ordering::Relaxed))
    }
}

impl NodeWords for [u64] {
    #[inline]
    fn len(&self) -> usize {
        <[u64]>::len(self)
    }

    #[inline]
    fn word(&self, index: usize) -> u64 {
        self.get(index).copied().unwrap_or(0)
    }
}
