//! The bulk load: builds an empty tree from sorted entries, bottom-up, in parallel.

use std::sync::atomic::Ordering;

use service::worker::lock;

use super::memory::NodeNumber;
use super::store::Store;
use super::walk::encode_root;
use crate::key_or_value::private::Sizes;
use crate::key_or_value::{KeyOrValue, TooLongError};

/// The reason why a tree was not loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BulkLoadError {
    /// The memory has too few free nodes.
    #[error("{needed} nodes do not fit: give the server room for more keys")]
    StoreFull {
        /// Nodes that the load needs.
        needed: u64,
    },
    /// The tree already has entries.
    #[error("the tree is not empty: a bulk load fills empty trees only")]
    NotEmpty,
    /// A client holds the lock of the empty root for too long.
    #[error("a client has locked the root of the tree for too long: load before clients connect")]
    RootLocked,
    /// A key or a value is longer than the trees allow.
    #[error(transparent)]
    TooLong(#[from] TooLongError),
    /// Keys are not in ascending order.
    #[error("entry {at} does not have a greater key than the one before it")]
    KeysNotAscending {
        /// The number of the entry.
        at: u64,
    },
}

impl<T: KeyOrValue> Store<T> {
    /// Fills an empty tree with `count` entries. `entry` returns entry number `i`; keys must ascend. `fill`, up to 1,
    /// is the fill factor of the nodes, which leaves room for inserts; inner nodes get at least 2 entries. `threads`
    /// threads share the work.
    ///
    /// Readers see an empty tree until the load is complete. If another thread or a client inserts an entry meanwhile,
    /// the load fails and the entry stays.
    ///
    /// # Errors
    /// [`BulkLoadError`]; the tree is then unchanged.
    pub fn bulk_load(
        &self,
        tree: usize,
        count: u64,
        fill: f64,
        threads: usize,
        entry: impl Fn(u64) -> (T, T) + Sync,
    ) -> Result<(), BulkLoadError> {
        let (old, level) = self.readable_trees.root_and_level(tree);
        let is_empty = level == 0
            && self
                .readable_trees
                .memory
                .read_node_consistently(old, |n| n.entry_count())
                == Ok(0);
        if !is_empty {
            return Err(BulkLoadError::NotEmpty);
        }
        if count == 0 {
            return Ok(());
        }
        let shape = self.readable_trees.memory.node_shape();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a share of a small number"
        )]
        let per_node = |level, least: u64| {
            let room = shape.entry_capacity(level).max(1) as u64;
            ((room as f64 * fill.clamp(0.0, 1.0)) as u64).clamp(least, room.max(least))
        };
        let (per_leaf, per_inner) = (per_node(0, 1), per_node(1, 2));
        // The number of nodes of each level, from the leaves up.
        let mut sizes = vec![count.div_ceil(per_leaf)];
        while let Some(&below) = sizes.last()
            && below > 1
        {
            sizes.push(below.div_ceil(per_inner));
        }
        let needed = sizes.iter().sum();
        let first = self.readable_trees.memory.allocate_consecutive(needed);
        let mut first = first.ok_or(BulkLoadError::StoreFull { needed })?;
        // The first key of each node of the level below.
        let mut lows: Vec<T> = Vec::new();
        for (level, &nodes) in (0u16..).zip(&sizes) {
            let of = LoadingLevel {
                tree,
                level,
                first_node: first,
                node_count: nodes,
                entries_per_node: if level == 0 { per_leaf } else { per_inner },
            };
            lows = if level == 0 {
                self.build_level_returning_low_fences(&of, count, threads, &entry)?
            } else {
                let below = first - sizes[usize::from(level) - 1];
                let entry = |i: u64| {
                    #[expect(clippy::cast_possible_truncation, reason = "an index of a vector")]
                    let low = lows[i as usize];
                    (low, below + i)
                };
                self.build_level_returning_low_fences(&of, lows.len() as u64, threads, entry)?
            };
            first += nodes;
        }
        let top = u16::try_from(sizes.len() - 1).unwrap_or(u16::MAX);
        let replaced = self.replace_empty_root(tree, old, (first - 1, top));
        if replaced.is_err() {
            // No walk has reached these nodes.
            for number in first - needed..first {
                self.readable_trees.memory.free_node(number);
            }
        }
        replaced
    }

    /// Publishes the root of a loaded tree in place of an empty leaf. That leaf becomes dead, so that walks which begin
    /// at it read the root again.
    fn replace_empty_root(
        &self,
        tree: usize,
        old: NodeNumber,
        (new, level): (NodeNumber, u16),
    ) -> Result<(), BulkLoadError> {
        let _one = lock(&self.root_change_lock);
        let memory = &self.readable_trees.memory;
        let mut locked = memory
            .lock_node(old)
            .map_err(|_| BulkLoadError::RootLocked)?;
        let leaf = locked.node();
        let is_empty_root = self.readable_trees.root_and_level(tree) == (old, 0)
            && leaf.entry_count() == 0
            && leaf.key_upper_bound().is_none()
            && leaf.keys_may_change();
        if !is_empty_root {
            return Err(BulkLoadError::NotEmpty);
        }
        let word = memory.root_word(tree);
        word.store(encode_root(new, level), Ordering::Release);
        locked.mark_dead_and_empty();
        drop(locked);
        memory.free_node(old);
        Ok(())
    }

    /// Builds one level and returns the low fences of its nodes.
    fn build_level_returning_low_fences<P: KeyOrValue>(
        &self,
        of: &LoadingLevel,
        count: u64,
        threads: usize,
        entry: impl Fn(u64) -> (T, P) + Sync,
    ) -> Result<Vec<T>, BulkLoadError> {
        let threads = (threads.max(1) as u64)
            .min(of.node_count.div_ceil(64))
            .max(1);
        let share = of.node_count.div_ceil(threads);
        let parts: Vec<_> = std::thread::scope(|scope| {
            let entry = &entry;
            let part = |t: u64| {
                let range = t * share..((t + 1) * share).min(of.node_count);
                scope.spawn(move || {
                    self.build_level_part_returning_low_fences(of, range, count, entry)
                })
            };
            let running: Vec<_> = (0..threads).map(part).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join();
            running.into_iter().map(join).collect()
        });
        let mut lows = Vec::new();
        for part in parts {
            let part = part.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            lows.extend(part?);
        }
        Ok(lows)
    }

    fn build_level_part_returning_low_fences<P: KeyOrValue>(
        &self,
        of: &LoadingLevel,
        nodes: std::ops::Range<u64>,
        count: u64,
        entry: &(impl Fn(u64) -> (T, P) + Sync),
    ) -> Result<Vec<T>, BulkLoadError> {
        let sizes = self.key_and_value_limits();
        let mut lows = Vec::new();
        let mut entries = Vec::new();
        // The first node of a level has no lower bound.
        let low_of = |node: u64| match node {
            0 => T::default(),
            node => entry(node * of.entries_per_node).0,
        };
        for node in nodes {
            let from = node * of.entries_per_node;
            let to = (from + of.entries_per_node).min(count);
            entries.clear();
            entries.extend((from..to).map(entry));
            for (key, payload) in &entries {
                key.check_key(sizes)?;
                payload.check_length("value", sizes.max_bytes().1)?;
            }
            let before = from.checked_sub(1).map(|last| entry(last).0);
            let keys = before.into_iter().chain(entries.iter().map(|e| e.0));
            if let Some(wrong) = first_unsorted_index(keys) {
                let at = from + wrong as u64 - u64::from(before.is_some());
                return Err(BulkLoadError::KeysNotAscending { at });
            }
            if of.level > 0 && node == 0 {
                entries[0].0 = T::default();
            }
            let is_last = node + 1 == of.node_count;
            let number = of.first_node + node;
            let Ok(mut locked) = self.readable_trees.memory.lock_node(number) else {
                return Err(BulkLoadError::NotEmpty);
            };
            let low = low_of(node);
            locked.init(of.tree as u64, of.level, 0, &entries);
            let end = (!is_last).then(|| low_of(node + 1));
            locked.set_fences_and_sibling(low, end, if is_last { 0 } else { number + 1 });
            drop(locked);
            lows.push(low);
        }
        Ok(lows)
    }
}

/// Returns the index of the first key that is not greater than its predecessor.
fn first_unsorted_index<T: Ord + Copy>(keys: impl Iterator<Item = T>) -> Option<usize> {
    let mut last = None;
    for (i, key) in keys.enumerate() {
        if last.is_some_and(|last| last >= key) {
            return Some(i);
        }
        last = Some(key);
    }
    None
}

/// A level that is being built.
struct LoadingLevel {
    tree: usize,
    level: u16,
    first_node: NodeNumber,
    node_count: u64,
    entries_per_node: u64,
}
