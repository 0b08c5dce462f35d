//! The handover of key ranges from one server to another, while clients continue.
//!
//! The tree itself records which server has a key. A leaf whose keys belong to another server has the flag
//! [`FLAG_MOVED`], no keys, and the owner's number. So a reader learns of the owner from the leaf that it reaches. No
//! key ever has two owners: a leaf is given away by a change of that leaf under its lock. A handover has these steps:
//!
//! 1. The giver [freezes](Store::freeze) the range: its keys can be read but not changed.
//! 2. The taker copies the entries, and [reserves nodes](Store::reserve_nodes) for them.
//! 3. The giver [cedes](Store::cede) the range. From now on no server has it.
//! 4. The taker [adopts](Store::adopt) the range leaf by leaf; all entries of a leaf appear at once.
//!
//! If the taker fails before step 3, the giver [thaws](Store::thaw) the range and keeps it.

use std::sync::atomic::Ordering;

use super::memory::{LockedNode, NodeNumber};
use super::store::Store;
use super::walk::{RangeOwner, Refusal};
use crate::key_or_value::KeyOrValue;
use crate::node::{FLAG_FROZEN, FLAG_MOVED, NextStep, SIBLING_WORD_INDEX};

/// Nodes that are reserved for entries to be adopted.
#[derive(Debug, Default)]
pub struct ReservedNodes {
    pub(super) nodes: Vec<NodeNumber>,
}

/// A range of keys: the first key, and the exclusive end, if any.
type KeyRange<T> = (T, Option<T>);

impl<T: KeyOrValue> Store<T> {
    /// Splits leaves so that one of them begins at `key`.
    fn split_leaves_at_key(&self, tree: usize, key: T) -> Result<(), Refusal<T>> {
        let from = self.readable_trees.find_covering_node(tree, &key, 0)?;
        let (_, leaf) = self.lock_covering_node(tree, &key, 0, from)?;
        let low = leaf.node().key_lower_bound();
        if low == key {
            return Ok(());
        }
        let right = match leaf.node().is_owned_elsewhere() {
            true => {
                // Both leaves record the owner of their keys.
                let owner = leaf.node().child(0);
                self.divide_node(leaf, (&[(low, owner)], &[(key, owner)]), (tree, 0), key)?
            }
            false => {
                let entries = leaf.entries_with_inserted::<T>(None);
                let middle = entries.partition_point(|entry| entry.0 < key);
                self.divide_node(leaf, entries.split_at(middle), (tree, 0), key)?
            }
        };
        // If the parent has no entry for the new leaf, walks reach it by the old leaf's link.
        let _ = self.insert_into_parent(tree, 1, (key, right));
        Ok(())
    }

    /// Locks each leaf of a range in turn and calls `change`. The range must begin and end at leaf boundaries.
    fn for_each_locked_leaf(
        &self,
        tree: usize,
        (from, end): KeyRange<T>,
        mut change: impl FnMut(NodeNumber, &mut LockedNode<'_, T>) -> Result<(), Refusal<T>>,
    ) -> Result<(), Refusal<T>> {
        let mut key = from;
        let mut node = self.readable_trees.find_covering_node(tree, &key, 0)?;
        loop {
            let (number, mut leaf) = self.lock_covering_node(tree, &key, 0, node)?;
            change(number, &mut leaf)?;
            let next = leaf.node().key_upper_bound();
            match next.filter(|next| end.is_none_or(|end| *next < end)) {
                None => return Ok(()),
                Some(next) => {
                    node = leaf.node().0[SIBLING_WORD_INDEX].load(Ordering::Relaxed);
                    key = next;
                }
            }
        }
    }

    /// Locks all leaves of a range from the left, which must begin and end at leaf boundaries. No lock is held after an
    /// error.
    fn lock_all_leaves(
        &self,
        tree: usize,
        (from, end): KeyRange<T>,
    ) -> Result<Vec<(NodeNumber, LockedNode<'_, T>)>, Refusal<T>> {
        let node = self.readable_trees.find_covering_node(tree, &from, 0)?;
        let mut leaves = vec![self.lock_covering_node(tree, &from, 0, node)?];
        while let Some((_, leaf)) = leaves.last()
            && let Some(key) = leaf.node().key_upper_bound()
            && end.is_none_or(|end| key < end)
        {
            // The sibling stays the next leaf: a merge would need the lock of this one. Clients can WRITE leaves, so
            // links may be wrong.
            let next = leaf.node().0[SIBLING_WORD_INDEX].load(Ordering::Relaxed);
            if leaves.iter().any(|(held, _)| *held == next) {
                return Err(Refusal::BusyNodeOrZero(0));
            }
            let locked = self.readable_trees.memory.lock_node(next)?;
            if !matches!(
                locked.node().next_walk_step(&key, tree as u64, 0),
                NextStep::Leaf
            ) {
                return Err(Refusal::BusyNodeOrZero(0));
            }
            leaves.push((next, locked));
        }
        Ok(leaves)
    }

    fn split_leaves_at_range_ends(
        &self,
        tree: usize,
        (from, end): KeyRange<T>,
    ) -> Result<(), Refusal<T>> {
        self.split_leaves_at_key(tree, from)?;
        end.map_or(Ok(()), |end| self.split_leaves_at_key(tree, end))
    }

    /// Executes step 1 of a handover: makes the keys of a range read-only.
    ///
    /// # Errors
    /// [`Refusal::Moved`] if another server owns some of the keys; the range is then unchanged.
    pub fn freeze(&self, tree: usize, key_range: (T, Option<T>)) -> Result<(), Refusal<T>> {
        self.split_leaves_at_range_ends(tree, key_range)?;
        let frozen = self.for_each_locked_leaf(tree, key_range, |_, leaf| {
            if leaf.node().is_owned_elsewhere() {
                return Err(Refusal::Moved(super::MovedRange::from_moved_leaf(
                    leaf.node(),
                )));
            }
            leaf.set_and_clear_flags(FLAG_FROZEN, 0);
            Ok(())
        });
        if frozen.is_err() {
            self.thaw(tree, key_range)?;
        }
        frozen
    }

    /// Allows changes of a frozen range again, in the leaves that still belong to this server.
    ///
    /// # Errors
    /// [`Refusal::BusyNodeOrZero`].
    pub fn thaw(&self, tree: usize, key_range: (T, Option<T>)) -> Result<(), Refusal<T>> {
        self.for_each_locked_leaf(tree, key_range, |_, leaf| {
            leaf.set_and_clear_flags(0, FLAG_FROZEN);
            Ok(())
        })
    }

    /// Executes step 3 of a handover: assigns the range to another server.
    ///
    /// # Errors
    /// [`Refusal::BusyNodeOrZero`] if a leaf is locked for too long, or if the range is not frozen because it was
    /// thawed meanwhile. The whole range then stays here.
    pub fn cede(
        &self,
        tree: usize,
        key_range: (T, Option<T>),
        owner: RangeOwner,
    ) -> Result<(), Refusal<T>> {
        self.assign_range_if(tree, key_range, owner, |leaf| {
            !leaf.node().keys_may_change()
        })
    }

    /// Assigns a range to another server and drops its entries. A starting server calls this for the ranges of others.
    ///
    /// # Errors
    /// [`Refusal::StoreFull`], [`Refusal::BusyNodeOrZero`]; the whole range then stays here.
    pub fn assign_range_to_other(
        &self,
        tree: usize,
        key_range: (T, Option<T>),
        owner: RangeOwner,
    ) -> Result<(), Refusal<T>> {
        self.assign_range_if(tree, key_range, owner, |_| true)
    }

    /// Assigns all leaves of a range to another server, or none: `may_assign` must hold for each.
    fn assign_range_if(
        &self,
        tree: usize,
        key_range: KeyRange<T>,
        owner: RangeOwner,
        may_assign: impl Fn(&LockedNode<'_, T>) -> bool,
    ) -> Result<(), Refusal<T>> {
        self.split_leaves_at_range_ends(tree, key_range)?;
        let mut leaves = self.lock_all_leaves(tree, key_range)?;
        if !leaves.iter().all(|(_, leaf)| may_assign(leaf)) {
            return Err(Refusal::BusyNodeOrZero(0));
        }
        for (_, leaf) in &mut leaves {
            let low = leaf.node().key_lower_bound();
            leaf.replace_entries(&[(low, owner.encode_word())]);
            leaf.set_and_clear_flags(FLAG_MOVED, FLAG_FROZEN);
        }
        let mut at = leaves
            .first()
            .map(|(number, leaf)| (leaf.node().key_lower_bound(), *number));
        drop(leaves);
        // Leaves that cannot be merged stay separate and use memory.
        while let Some((low, number)) = at {
            while self
                .try_merge_right_sibling(tree, &low, 0, number)
                .is_some()
            {}
            let next = self
                .readable_trees
                .memory
                .read_node_consistently(number, |leaf| {
                    let sibling = leaf.0[SIBLING_WORD_INDEX].load(Ordering::Relaxed);
                    let next = leaf
                        .key_upper_bound()
                        .filter(|next| key_range.1.is_none_or(|end| *next < end));
                    next.map(|next| (next, sibling))
                });
            at = next.unwrap_or(None);
        }
        Ok(())
    }

    /// Executes step 2 of a handover: reserves nodes for `entries` entries.
    ///
    /// # Errors
    /// [`Refusal::StoreFull`].
    pub fn reserve_nodes(&self, entries: usize) -> Result<ReservedNodes, Refusal<T>> {
        let mut reserved = ReservedNodes::default();
        let each = self.entries_per_adopted_leaf();
        // One node more for the leaves of the range itself: few, because moved leaves are merged.
        for _ in 0..entries.div_ceil(each) + 1 {
            match self.readable_trees.memory.allocate_locked(false) {
                Some((number, _)) => reserved.nodes.push(number),
                None => {
                    self.release_nodes(reserved);
                    return Err(Refusal::StoreFull);
                }
            }
        }
        Ok(reserved)
    }

    /// Frees reserved nodes that were not used.
    pub fn release_nodes(&self, reserved: ReservedNodes) {
        for number in reserved.nodes {
            self.readable_trees.memory.free_node(number);
        }
    }

    /// Returns the number of entries of an adopted leaf: a tenth stays free for inserts.
    fn entries_per_adopted_leaf(&self) -> usize {
        let room = self.readable_trees.memory.node_shape().entry_capacity(0);
        (room * 9 / 10).max(1)
    }

    /// Executes step 4 of a handover: this server takes the range, which the giver has ceded, with these entries.
    ///
    /// # Errors
    /// [`Refusal::TooLong`]; [`Refusal::StoreFull`] if the range has more leaves than the reserved nodes suffice for;
    /// [`Refusal::BusyNodeOrZero`]. Leaves that were adopted before the error are served, and another call with the
    /// same arguments continues with the rest.
    pub fn adopt(
        &self,
        tree: usize,
        key_range: (T, Option<T>),
        entries: &[(T, T)],
        reserved: &mut ReservedNodes,
    ) -> Result<(), Refusal<T>> {
        for (key, value) in entries {
            key.check_key(self.key_and_value_limits())?;
            value.check_value(self.key_and_value_limits())?;
        }
        self.split_leaves_at_range_ends(tree, key_range)?;
        let mut made = Vec::new();
        let adopted = self.for_each_locked_leaf(tree, key_range, |_, leaf| {
            // Other leaves were adopted by an earlier call that failed midway.
            if leaf.node().is_owned_elsewhere() {
                self.replace_moved_leaf(tree, leaf, entries, (reserved, &mut made))?;
            }
            Ok(())
        });
        for (low, number) in made {
            // If the parent has no entry for a leaf, walks reach it by the previous leaf's link.
            let _ = self.insert_into_parent(tree, 1, (low, number));
        }
        adopted
    }

    /// Replaces a leaf that belonged to another server by a chain of leaves. The change takes effect when that leaf is
    /// unlocked.
    fn replace_moved_leaf(
        &self,
        tree: usize,
        leaf: &mut LockedNode<'_, T>,
        entries: &[(T, T)],
        (reserved, made): (&mut ReservedNodes, &mut Vec<(T, NodeNumber)>),
    ) -> Result<(), Refusal<T>> {
        let node = leaf.node();
        let (low, end) = (node.key_lower_bound(), node.key_upper_bound());
        let from = entries.partition_point(|entry| entry.0 < low);
        let to = end.map_or(entries.len(), |end| {
            entries.partition_point(|entry| entry.0 < end)
        });
        let chunks: Vec<_> = entries[from..to.max(from)]
            .chunks(self.entries_per_adopted_leaf())
            .collect();
        let mut sibling = node.0[SIBLING_WORD_INDEX].load(Ordering::Relaxed);
        let mut after = end;
        while reserved.nodes.len() + 1 < chunks.len() {
            let more = self
                .readable_trees
                .memory
                .allocate_locked(true)
                .ok_or(Refusal::StoreFull)?;
            reserved.nodes.push(more.0);
        }
        // All nodes are locked before one is changed: a chain without its first leaf must not be reachable.
        let mut locked_nodes = Vec::new();
        for _ in 1..chunks.len() {
            let number = reserved.nodes.pop().ok_or(Refusal::StoreFull)?;
            match self.readable_trees.memory.lock_node(number) {
                Ok(locked) => locked_nodes.push((number, locked)),
                Err(busy) => {
                    // The next call tries other nodes first.
                    reserved.nodes.insert(0, number);
                    let unused = locked_nodes.into_iter().map(|(number, _)| number);
                    reserved.nodes.extend(unused);
                    return Err(busy.into());
                }
            }
        }
        // The chain is built from the right, so that each leaf links to a complete one.
        for (chunk, (number, mut locked)) in chunks.iter().skip(1).rev().zip(locked_nodes) {
            locked.init(tree as u64, 0, 0, chunk);
            locked.set_fences_and_sibling(chunk[0].0, after, sibling);
            drop(locked);
            made.push((chunk[0].0, number));
            (sibling, after) = (number, Some(chunk[0].0));
        }
        leaf.replace_entries(chunks.first().copied().unwrap_or_default());
        leaf.set_and_clear_flags(0, FLAG_MOVED | FLAG_FROZEN);
        leaf.set_high_fence_and_sibling(after, sibling);
        Ok(())
    }
}
