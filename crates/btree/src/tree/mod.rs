//! The B+tree at the server: lookups, scans and changes by any number of threads, on nodes that clients can READ.
//!
//! The tree is a B-link tree (Lehman and Yao, TODS 1981): each node has a high fence and a link to its right sibling. A
//! reader that reaches a node after its split goes on to the right sibling. Readers never lock. A writer locks one node
//! at a time: a split makes the new node, links it, unlocks, and then updates the parent. A merge locks three nodes,
//! but only if all three are unlocked, so merges cannot deadlock. A dead node has a flag that sends its readers back to
//! the root.
//!
//! `memory` has nodes and their locks, `prefetch` the prefetches of nodes. `walk` finds keys, also for interleaved
//! batches. [`Store`] changes trees. `load` is the bulk load. `handover` moves key ranges between servers. `redo` is the
//! format of clients' redo entries.

mod bulk_load;
mod handover;
mod memory;
mod prefetch;
pub(crate) mod redo;
mod store;
#[cfg(test)]
mod tests;
mod walk;

pub use bulk_load::BulkLoadError;
pub use handover::ReservedNodes;
pub(crate) use memory::FIRST_ROOT_WORD_INDEX;
pub use memory::MAX_TREES;
pub use store::{PutCondition, Store, TreeStats};
pub use walk::{MovedRange, RangeOwner, Refusal};
pub(crate) use walk::{WalkPosition, decode_root};
