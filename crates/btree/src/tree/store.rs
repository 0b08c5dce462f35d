//! The trees of one registered memory, and their changes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rpc::RpcError;
use service::worker::lock;
use verbs::{Access, MemoryRegion, PortAndGidIndex, ProtectionDomain, RemoteMemory, VerbError};

use super::memory::{LockTimeout, LockedNode, MAX_TREES, NodeNumber, StoreMemory};
use super::walk::{MovedRange, ReadableTrees, Refusal, WalkPosition, encode_root};

use crate::key_or_value::KeyOrValue;
use crate::node::{NextStep, Node, NodeShape, SIBLING_WORD_INDEX, TREE_WORD_INDEX};

/// Keys with their values, or with the numbers of child nodes.
type Entries<'e, T, P> = &'e [(T, P)];

/// The condition for setting a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutCondition {
    /// Sets the value whether or not the key is present.
    Always,
    /// Sets the value only if the key is absent.
    Absent,
    /// Sets the value only if the key is present.
    Present,
}

/// Returns an error if a leaf is being handed over or belongs to another server.
#[inline]
fn check_changeable<T: KeyOrValue>(leaf: Node<'_, [AtomicU64], T>) -> Result<(), Refusal<T>> {
    if leaf.keys_may_change() {
        return Ok(());
    }
    Err(match leaf.is_owned_elsewhere() {
        true => Refusal::Moved(MovedRange::from_moved_leaf(leaf)),
        // A frozen leaf is refused for a short time only.
        false => Refusal::BusyNodeOrZero(0),
    })
}

/// Largest number of nodes that a change locks to find the right one; more mean that the tree is broken.
const MAX_NODES_LOCKED_PER_CHANGE: u32 = 10_000;

/// Statistics of the trees of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TreeStats {
    /// Levels of the highest tree; a tree that is one leaf has 1.
    pub levels: u64,
    /// Nodes in use, of all trees.
    #[serde(rename = "nodes")]
    pub used_nodes: u64,
    /// Nodes that the memory has room for.
    #[serde(rename = "room")]
    pub node_capacity: u64,
    /// Bytes of the nodes in use.
    #[serde(rename = "bytes")]
    pub used_node_bytes: u64,
    /// Nodes that were split.
    pub splits: u64,
    /// Nodes that were merged into their left siblings.
    pub merges: u64,
}

/// Trees in one registered memory.
#[derive(Debug)]
pub struct Store<T: KeyOrValue = u64> {
    pub(super) readable_trees: ReadableTrees<T>,
    /// Held while a tree gets a new root.
    pub(super) root_change_lock: Mutex<()>,
    splits: AtomicU64,
    merges: AtomicU64,
}

impl<T: KeyOrValue> Store<T> {
    /// Returns the value of a key.
    ///
    /// # Errors
    /// [`Refusal::BusyNodeOrZero`].
    pub fn get(&self, tree: usize, key: T) -> Result<Option<T>, Refusal<T>> {
        let mut walk = self.readable_trees.begin_walk(tree);
        self.readable_trees
            .finish_walk_and_get_value(tree, &key, &mut walk)
    }

    /// Appends entries to `into` in ascending order, beginning at the range's first key, until `into` has `limit`
    /// entries or the range ends. Returns the key at which to continue, or `None` at the end.
    ///
    /// Each leaf is read atomically. An entry that exists during the whole scan is found exactly once.
    ///
    /// # Errors
    /// [`Refusal::BusyNodeOrZero`]; [`Refusal::Moved`] if keys of another server follow and no entry comes before them.
    pub fn scan(
        &self,
        tree: usize,
        range: (T, Option<T>),
        limit: usize,
        into: &mut Vec<(T, T)>,
    ) -> Result<Option<T>, Refusal<T>> {
        self.scan_from_walk(tree, range, (limit, &WalkPosition::default()), into)
    }

    /// As [`scan`](Self::scan), from a walk for the range's first key, which may have reached a leaf.
    pub(crate) fn scan_from_walk(
        &self,
        tree: usize,
        range: (T, Option<T>),
        (limit, walk): (usize, &WalkPosition),
        into: &mut Vec<(T, T)>,
    ) -> Result<Option<T>, Refusal<T>> {
        self.readable_trees.scan(tree, range, (limit, walk), into)
    }

    /// Prepares for clients that lock and WRITE leaves.
    ///
    /// # Errors
    /// If a verb fails.
    pub fn enable_client_locks(
        &mut self,
        pd: &ProtectionDomain,
        port: PortAndGidIndex,
    ) -> Result<(), RpcError> {
        self.readable_trees.memory.enable_client_locks(pd, port)
    }

    /// Registers the same memory again; this registration can be revoked separately.
    pub(crate) fn register_again(&self, access: Access) -> Result<MemoryRegion, VerbError> {
        self.readable_trees.memory.register_again(access)
    }

    /// Returns the read-only view by which workers find keys.
    pub(crate) fn readable_trees(&self) -> &ReadableTrees<T> {
        &self.readable_trees
    }

    /// Returns the number of nodes for `keys` entries, whatever their order of insertion: split nodes are half full.
    pub fn nodes_needed_for_keys(node_bytes: usize, sizes: T::Sizes, keys: u64) -> u64 {
        let words = node_bytes / 8;
        let shape = NodeShape::<T> {
            words_per_node: words,
            key_and_value_limits: sizes,
        };
        let [leaf, inner] = [0, 1].map(|level| shape.entry_capacity(level).max(1) as u64);
        // Random inserts leave nodes ln 2 full; ascending ones leave them half full.
        let leaves = 2 * keys / leaf;
        leaves + 2 * leaves / inner + 128
    }

    /// Creates empty trees in memory for `nodes` nodes, with this access for peers.
    ///
    /// # Errors
    /// If the memory cannot be allocated.
    pub fn new(
        pd: &ProtectionDomain,
        (node_bytes, sizes): (usize, T::Sizes),
        (trees, nodes): (usize, u64),
        access: Access,
    ) -> Result<Self, VerbError> {
        let trees = trees.clamp(1, MAX_TREES);
        let nodes = nodes + 64;
        let memory = StoreMemory::new(pd, (node_bytes, sizes), nodes, access)?;
        for tree in 0..trees {
            let (root, mut locked) = memory
                .allocate_locked(true)
                .expect("the first nodes of many");
            locked.init::<T>(tree as u64, 0, 0, &[]);
            locked.set_fences_and_sibling(T::default(), None, 0);
            drop(locked);
            let word = memory.root_word(tree);
            word.store(encode_root(root, 0), Ordering::Release);
        }
        Ok(Self {
            readable_trees: ReadableTrees {
                memory,
                tree_count: trees,
            },
            root_change_lock: Mutex::default(),
            splits: AtomicU64::new(0),
            merges: AtomicU64::new(0),
        })
    }

    /// Returns the limits of keys and values.
    pub fn key_and_value_limits(&self) -> T::Sizes {
        self.readable_trees.memory.node_shape().key_and_value_limits
    }

    /// Returns the number of trees.
    pub fn tree_count(&self) -> usize {
        self.readable_trees.tree_count
    }

    /// Returns the address and key by which a peer READs the nodes.
    pub fn remote_memory(&self) -> RemoteMemory {
        self.readable_trees.memory.remote_memory()
    }

    /// Returns the statistics of all trees.
    pub fn stats(&self) -> TreeStats {
        let (nodes, room) = self.readable_trees.memory.nodes_used_and_total();
        let levels = (0..self.readable_trees.tree_count)
            .map(|tree| self.readable_trees.root_and_level(tree).1 + 1)
            .max();
        TreeStats {
            levels: u64::from(levels.unwrap_or(0)),
            used_nodes: nodes,
            node_capacity: room,
            used_node_bytes: nodes
                * self.readable_trees.memory.node_shape().words_per_node as u64
                * 8,
            splits: self.splits.load(Ordering::Relaxed),
            merges: self.merges.load(Ordering::Relaxed),
        }
    }

    /// Locks the node of a level that covers a key. The search begins at `from`, a node that covered the key earlier.
    pub(super) fn lock_covering_node(
        &self,
        tree: usize,
        key: &T,
        level: u16,
        from: NodeNumber,
    ) -> Result<(NodeNumber, LockedNode<'_, T>), LockTimeout> {
        let mut node = from;
        for _ in 0..MAX_NODES_LOCKED_PER_CHANGE {
            let locked = self.readable_trees.memory.lock_node(node)?;
            match locked.node().next_walk_step(key, tree as u64, level) {
                NextStep::Leaf | NextStep::Child(_) => return Ok((node, locked)),
                NextStep::Sibling(right) => node = right,
                NextStep::Restart => {
                    drop(locked);
                    node = self.readable_trees.find_covering_node(tree, key, level)?;
                }
            }
        }
        Err(LockTimeout(node))
    }

    /// Sets the value of a key if `when` holds, and returns the previous value.
    ///
    /// # Errors
    /// [`Refusal`]; the tree is then unchanged.
    pub fn put(
        &self,
        tree: usize,
        key: T,
        value: T,
        when: PutCondition,
    ) -> Result<Option<T>, Refusal<T>> {
        key.check_key(self.key_and_value_limits())?;
        value.check_value(self.key_and_value_limits())?;
        let mut walk = self.readable_trees.begin_walk(tree);
        self.put_from_walk(tree, (key, value), when, &mut walk)
    }

    /// Does the same as [`put`](Self::put), but continues a walk.
    pub(crate) fn put_from_walk(
        &self,
        tree: usize,
        (key, value): (T, T),
        when: PutCondition,
        walk: &mut WalkPosition,
    ) -> Result<Option<T>, Refusal<T>> {
        self.readable_trees.walk_down_to_leaf(tree, &key, walk)?;
        let (_, mut leaf) = self.lock_covering_node(tree, &key, 0, walk.node())?;
        let node = leaf.node();
        check_changeable(node)?;
        match node.find(&key) {
            Ok(place) => {
                let before = node.value(place);
                if when != PutCondition::Absent {
                    leaf.update_payload(place, &value);
                }
                Ok(Some(before))
            }
            Err(_) if when == PutCondition::Present => Ok(None),
            Err(place) if node.entry_count() < node.entry_capacity() => {
                leaf.insert(place, &key, &value);
                Ok(None)
            }
            Err(_) => {
                let (at, right) = self.split_and_insert(leaf, (key, value), tree, 0)?;
                // The entry is inserted. If the parent has no entry for the new leaf, walks reach it by the old leaf's
                // link.
                let _ = self.insert_into_parent(tree, 1, (at, right));
                Ok(None)
            }
        }
    }

    /// Splits a locked full node and inserts an entry. Returns the first key and the number of the new right node.
    fn split_and_insert<P: KeyOrValue>(
        &self,
        left: LockedNode<'_, T>,
        entry: (T, P),
        tree: usize,
        level: u16,
    ) -> Result<(T, NodeNumber), Refusal<T>> {
        let entries = left.entries_with_inserted(Some(entry));
        // Inserts in ascending order leave full nodes behind.
        let ascends = left.node().key_upper_bound().is_none() && entries.last() == Some(&entry);
        let middle = if ascends {
            entries.len() - 1
        } else {
            entries.len() / 2
        };
        let (low, high) = entries.split_at(middle);
        let number = self.divide_node(left, (low, high), (tree, level), high[0].0)?;
        Ok((high[0].0, number))
    }

    /// Divides a locked node at a key into two nodes with these entries. Returns the number of the new right node.
    pub(super) fn divide_node<P: KeyOrValue>(
        &self,
        mut left: LockedNode<'_, T>,
        (low, high): (Entries<'_, T, P>, Entries<'_, T, P>),
        (tree, level): (usize, u16),
        at: T,
    ) -> Result<NodeNumber, Refusal<T>> {
        let is_inner = level > 0;
        let (number, mut right) = self
            .readable_trees
            .memory
            .allocate_locked(is_inner)
            .ok_or(Refusal::StoreFull)?;
        let node = left.node();
        let end = node.key_upper_bound();
        right.init(tree as u64, level, node.flags(), high);
        right.set_fences_and_sibling(at, end, node.0[SIBLING_WORD_INDEX].load(Ordering::Relaxed));
        left.replace_entries(low);
        left.set_high_fence_and_sibling(Some(at), number);
        // A walk that has known the new node's number for long may change the node as soon as it is unlocked. The left
        // node's checksum is outdated by then, so no walk misses that change there.
        drop(right);
        self.splits.fetch_add(1, Ordering::Relaxed);
        Ok(number)
    }

    /// Inserts the entry for a node that a split made into the level above: keys from `at` on are in `right`.
    pub(super) fn insert_into_parent(
        &self,
        tree: usize,
        level: u16,
        (at, right): (T, NodeNumber),
    ) -> Result<(), Refusal<T>> {
        if self.readable_trees.root_and_level(tree).1 < level
            && self.add_root_level_unless_done(tree, level, (at, right))?
        {
            return Ok(());
        }
        let from = self.readable_trees.find_covering_node(tree, &at, level)?;
        let (_, mut parent) = self.lock_covering_node(tree, &at, level, from)?;
        let node = parent.node();
        match node.find(&at) {
            // A merge and a split happened at the same key.
            Ok(place) => parent.update_payload(place, &right),
            Err(place) if node.entry_count() < node.entry_capacity() => {
                parent.insert(place, &at, &right)
            }
            Err(_) => {
                let (at, right) = self.split_and_insert(parent, (at, right), tree, level)?;
                self.insert_into_parent(tree, level + 1, (at, right))?;
            }
        }
        Ok(())
    }

    /// Gives the tree a root of this level, unless another thread did so meanwhile. Returns true if this call made the
    /// root.
    fn add_root_level_unless_done(
        &self,
        tree: usize,
        level: u16,
        (at, right): (T, NodeNumber),
    ) -> Result<bool, Refusal<T>> {
        let _one = lock(&self.root_change_lock);
        let (root, top) = self.readable_trees.root_and_level(tree);
        if top >= level {
            return Ok(false);
        }
        let (number, mut new) = self
            .readable_trees
            .memory
            .allocate_locked(true)
            .ok_or(Refusal::StoreFull)?;
        // Other threads may also have split nodes of this level: they add their entries to the new root.
        new.init(tree as u64, level, 0, &[(T::default(), root), (at, right)]);
        new.set_fences_and_sibling(T::default(), None, 0);
        drop(new);
        let word = self.readable_trees.memory.root_word(tree);
        word.store(encode_root(number, level), Ordering::Release);
        Ok(true)
    }

    /// Removes a key and returns its value.
    ///
    /// # Errors
    /// [`Refusal::BusyNodeOrZero`], or [`Refusal::Moved`] if the key belongs to another server; the tree is then
    /// unchanged.
    pub fn remove(&self, tree: usize, key: T) -> Result<Option<T>, Refusal<T>> {
        let mut walk = self.readable_trees.begin_walk(tree);
        self.remove_from_walk(tree, &key, &mut walk)
    }

    /// Does the same as [`remove`](Self::remove), but continues a walk.
    pub(crate) fn remove_from_walk(
        &self,
        tree: usize,
        key: &T,
        walk: &mut WalkPosition,
    ) -> Result<Option<T>, Refusal<T>> {
        self.readable_trees.walk_down_to_leaf(tree, key, walk)?;
        let (number, mut leaf) = self.lock_covering_node(tree, key, 0, walk.node())?;
        let node = leaf.node();
        check_changeable(node)?;
        let Ok(place) = node.find(key) else {
            return Ok(None);
        };
        let before = node.value(place);
        leaf.remove(place);
        let sparse = node.entry_count() < node.min_entries();
        drop(leaf);
        if sparse {
            self.try_merge_right_sibling(tree, key, 0, number);
        }
        Ok(Some(before))
    }

    /// Merges the right sibling into a sparse node if both fit into one, have the same parent, and all three locks are
    /// free. Otherwise the node stays sparse until the next removal.
    pub(super) fn try_merge_right_sibling(
        &self,
        tree: usize,
        key: &T,
        level: u16,
        left: NodeNumber,
    ) -> Option<()> {
        if self.readable_trees.root_and_level(tree).1 <= level {
            return None;
        }
        let parent = self
            .readable_trees
            .find_covering_node(tree, key, level + 1)
            .ok()?;
        let mut above = self.readable_trees.memory.try_lock_node(parent)?;
        let mut locked = self.readable_trees.memory.try_lock_node(left)?;
        let right = locked.node().0[SIBLING_WORD_INDEX].load(Ordering::Relaxed);
        let mut other = self
            .readable_trees
            .memory
            .try_lock_node(right)
            .filter(|_| right != 0)?;
        let (a, b) = (locked.node(), other.node());
        let place = above
            .node()
            .find(&b.key_lower_bound())
            .ok()
            .filter(|&place| place > 0)?;
        let children = (above.node().child(place - 1), above.node().child(place));
        let fits = a.entry_count() + b.entry_count() <= a.entry_capacity() * 3 / 4;
        // Leaves of another server are merged only if they have the same owner word.
        let alike = match (a.is_owned_elsewhere(), b.is_owned_elsewhere()) {
            (true, true) => a.child(0) == b.child(0),
            _ => a.keys_may_change() && b.keys_may_change(),
        };
        let same = |n: Node<'_, [AtomicU64], T>, level| {
            n.level() == level
                && n.0[TREE_WORD_INDEX].load(Ordering::Relaxed) == tree as u64
                && !n.is_dead()
        };
        let sound = same(above.node(), level + 1) && same(a, level) && same(b, level);
        if children != (left, right) || !fits || !sound || !alike {
            return None;
        }
        // This order lets every walk find every key at any time. First the parent leads to the left node, whose link
        // still leads right. Then the left node gets all entries.
        above.remove(place);
        let sparse = above.node().entry_count() < above.node().min_entries();
        drop(above);
        match (level, a.is_owned_elsewhere()) {
            // The left leaf has the owner of both.
            (_, true) => {}
            (0, false) => append_entries::<T, T>(&mut locked, &other),
            (_, false) => append_entries::<T, u64>(&mut locked, &other),
        }
        locked.set_high_fence_and_sibling(
            b.key_upper_bound(),
            b.0[SIBLING_WORD_INDEX].load(Ordering::Relaxed),
        );
        // The right node must not be readable any more when the left one is unlocked. Its checksum is outdated from
        // here on, so a walk that is on its way there waits, and does not miss what is changed in the left node.
        other.mark_dead_and_empty();
        drop(locked);
        drop(other);
        self.readable_trees.memory.free_node(right);
        self.merges.fetch_add(1, Ordering::Relaxed);
        if sparse {
            self.try_merge_right_sibling(tree, key, level + 1, parent);
        }
        Some(())
    }
}

/// Appends the entries of the right sibling, whose values or children have type `P`.
fn append_entries<T: KeyOrValue, P: KeyOrValue>(
    left: &mut LockedNode<'_, T>,
    right: &LockedNode<'_, T>,
) {
    let mut all = left.entries_with_inserted::<P>(None);
    all.extend(right.entries_with_inserted::<P>(None));
    left.replace_entries(&all);
}
