//! The B+tree at the server: lookups, scans and changes by any number of threads, on nodes that clients may READ.
//!
//! It is a B-link tree (Lehman and Yao, TODS 1981): each node has a high fence and a link to its right sibling, so a reader
//! that comes to a node which was split meanwhile goes right, and no reader ever locks. A writer locks one node at a time:
//! a split makes the new node, links it, unlocks, and only then tells the parent. Merges lock three nodes, but only if
//! nobody has any of them, so they cannot deadlock; a dead node says so, and its readers start again from the root.
//!
//! `memory` is nodes and their locks, `walk` finds keys, also those of a batch interleaved, [`Store`] changes trees, `load` is the
//! bulk load, `handover` gives ranges of keys to other servers and takes theirs,
//! `redo` what clients write down before they change a leaf.

mod handover;
mod load;
mod memory;
pub(crate) mod redo;
mod store;
#[cfg(test)]
mod tests;
mod walk;

pub use handover::Staged;
pub use load::LoadError;
pub use memory::MAX_TREES;
pub(crate) use memory::ROOTS;
pub use store::{Store, TreeStats, When};
pub use walk::{Elsewhere, Owner, Refusal};
pub(crate) use walk::{Walk, root_of};
