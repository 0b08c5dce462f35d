//! The B+tree at the server: lookups, scans and changes by any number of threads, on nodes that clients may READ.
//!
//! It is a B-link tree (Lehman and Yao, TODS 1981): each node has a high fence and a link to its right sibling, so a reader
//! that comes to a node which was split meanwhile goes right, and no reader ever locks. A writer locks one node at a time:
//! a split makes the new node, links it, unlocks, and only then tells the parent. Merges lock three nodes, but only if
//! nobody has any of them, so they cannot deadlock; a dead node says so, and its readers start again from the root.
//!
//! `memory` is nodes and their locks, `load` the bulk load, `walk` the interleaved walks of a batch.

mod load;
mod memory;
#[cfg(test)]
mod tests;
mod walk;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use service::worker::lock;
use verbs::{Access, ProtectionDomain, RemoteMemory, VerbError};

pub use load::LoadError;
pub use memory::MAX_TREES;
pub(crate) use memory::{Busy, Number};
pub(crate) use walk::Walk;

use crate::node::{LOW, Next, Node, SIBLING, TREE, capacity};
use memory::{Locked, Memory};

/// Why a change was not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no memory for another node.
    #[error("the store is full: delete something, or give the server room for more keys")]
    Full,
    /// A node is locked by somebody who does not free it.
    #[error("a node of the tree is locked for long")]
    Busy(u64),
}

impl From<Busy> for Refusal {
    fn from(Busy(node): Busy) -> Self {
        Self::Busy(node)
    }
}

/// When a value is to be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Whether the key is there or not.
    Always,
    /// If it is not there.
    Absent,
    /// If it is.
    Present,
}

/// What there is of a tree.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TreeStats {
    /// Levels; a tree that is one leaf has 1.
    pub levels: u64,
    /// Nodes in use, of all trees.
    pub nodes: u64,
    /// Nodes that there is room for.
    pub room: u64,
    /// Bytes of the nodes in use.
    pub bytes: u64,
    /// Nodes that were split.
    pub splits: u64,
    /// Nodes that were merged into their left siblings.
    pub merges: u64,
}

/// Trees in one registered memory. Keys and values are 64-bit numbers.
#[derive(Debug)]
pub struct Store {
    memory: Memory,
    trees: usize,
    /// Held while a tree gets a new root.
    growing: Mutex<()>,
    splits: AtomicU64,
    merges: AtomicU64,
}

/// A root's node and level as one word.
fn root_word(node: Number, level: u16) -> u64 {
    node << 16 | u64::from(level)
}

/// The node and the level of a root.
#[inline]
pub(crate) fn root_of(word: u64) -> (Number, u16) {
    (word >> 16, (word & 0xffff) as u16)
}

impl Store {
    /// Nodes for so many entries of each tree's share, also after they came in the worst order: split nodes are half full.
    pub fn nodes_for(node_bytes: usize, keys: u64) -> u64 {
        let room = capacity(node_bytes / 8) as u64;
        // Random inserts leave nodes ln 2 full; ascending ones leave them half full.
        let leaves = 2 * keys / room;
        leaves + 2 * leaves / room + 128
    }

    /// Empty trees in memory for so many nodes, with this access for peers.
    ///
    /// # Errors
    /// When there is not so much memory.
    pub fn new(
        pd: &ProtectionDomain,
        node_bytes: usize,
        (trees, nodes): (usize, u64),
        access: Access,
    ) -> Result<Self, VerbError> {
        let trees = trees.clamp(1, MAX_TREES);
        let nodes = nodes + 64;
        let memory = Memory::new(pd, node_bytes, nodes, access)?;
        for tree in 0..trees {
            let (root, mut locked) = memory.allocate(true).expect("the first nodes of many");
            locked.form(tree as u64, 0, 0, &[]);
            locked.set_fences(0, None, 0);
            drop(locked);
            let word = memory.root_word(tree);
            word.store(root_word(root, 0), Ordering::Release);
        }
        Ok(Self {
            memory,
            trees,
            growing: Mutex::default(),
            splits: AtomicU64::new(0),
            merges: AtomicU64::new(0),
        })
    }

    /// Trees in it.
    pub fn trees(&self) -> usize {
        self.trees
    }

    /// What a peer needs to READ it.
    pub fn remote(&self) -> RemoteMemory {
        self.memory.remote()
    }

    /// What there is.
    pub fn stats(&self) -> TreeStats {
        let (nodes, room) = self.memory.usage();
        let levels = (0..self.trees).map(|tree| self.root(tree).1 + 1).max();
        TreeStats {
            levels: u64::from(levels.unwrap_or(0)),
            nodes,
            room,
            bytes: nodes * self.memory.node_words() as u64 * 8,
            splits: self.splits.load(Ordering::Relaxed),
            merges: self.merges.load(Ordering::Relaxed),
        }
    }

    #[inline]
    pub(crate) fn root(&self, tree: usize) -> (Number, u16) {
        root_of(self.memory.root_word(tree).load(Ordering::Acquire))
    }

    /// The node of a level where the keys of `key` are, as far as one looks at one moment.
    fn descend(&self, tree: usize, key: u64, to: u16) -> Result<Number, Busy> {
        'again: loop {
            let (mut node, mut level) = self.root(tree);
            loop {
                let next = self
                    .memory
                    .read(node, |n| n.next(key, tree as u64, level))?;
                match next {
                    Next::Lost => continue 'again,
                    Next::Sibling(right) => node = right,
                    _ if level == to => return Ok(node),
                    Next::Here => continue 'again,
                    Next::Child(child) => (node, level) = (child, level - 1),
                }
            }
        }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`Refusal::Busy`].
    pub fn get(&self, tree: usize, key: u64) -> Result<Option<u64>, Refusal> {
        let mut walk = self.begin(tree);
        self.finish(tree, key, &mut walk)
    }

    /// Locks the node of a level where a key belongs, found from `from` on: a node that had it.
    fn lock_for(
        &self,
        tree: usize,
        key: u64,
        level: u16,
        from: Number,
    ) -> Result<(Number, Locked<'_>), Busy> {
        let mut node = from;
        loop {
            let locked = self.memory.lock(node)?;
            match locked.node().next(key, tree as u64, level) {
                Next::Here | Next::Child(_) => return Ok((node, locked)),
                Next::Sibling(right) => node = right,
                Next::Lost => {
                    drop(locked);
                    node = self.descend(tree, key, level)?;
                }
            }
        }
    }

    /// Sets the value of a key, when it is to be set. What was there before.
    ///
    /// # Errors
    /// [`Refusal`]; nothing was changed then.
    pub fn put(
        &self,
        tree: usize,
        key: u64,
        value: u64,
        when: When,
    ) -> Result<Option<u64>, Refusal> {
        let mut walk = self.begin(tree);
        self.put_at(tree, (key, value), when, &mut walk)
    }

    /// The same from where a walk has come to.
    pub(crate) fn put_at(
        &self,
        tree: usize,
        (key, value): (u64, u64),
        when: When,
        walk: &mut Walk,
    ) -> Result<Option<u64>, Refusal> {
        self.walk_down(tree, key, walk)?;
        let (_, mut leaf) = self.lock_for(tree, key, 0, walk.node())?;
        let node = leaf.node();
        match node.find(key) {
            Ok(place) => {
                let before = node.value(place);
                if when != When::Absent {
                    leaf.update(place, value);
                }
                Ok(Some(before))
            }
            Err(_) if when == When::Present => Ok(None),
            Err(place) if node.count() < node.capacity() => {
                leaf.insert(place, key, value);
                Ok(None)
            }
            Err(_) => {
                let (at, right) = self.split(leaf, (key, value), tree, 0)?;
                // The entry is in. Without its parent's entry the new leaf is found by the link of the old one.
                let _ = self.tell_parent(tree, 1, (at, right));
                Ok(None)
            }
        }
    }

    /// Splits a locked node that is full, with one more entry. The first key of the new right node, and its number.
    fn split(
        &self,
        mut left: Locked<'_>,
        entry: (u64, u64),
        tree: usize,
        level: u16,
    ) -> Result<(u64, Number), Refusal> {
        let (number, mut right) = self.memory.allocate(level > 0).ok_or(Refusal::Full)?;
        let node = left.node();
        let entries = left.entries_with(Some(entry));
        let end = node.end();
        // Who inserts in ascending order leaves full nodes behind.
        let ascends = end.is_none() && entries.last() == Some(&entry);
        let middle = if ascends {
            entries.len() - 1
        } else {
            entries.len() / 2
        };
        let (low, high) = entries.split_at(middle);
        let at = high[0].0;
        right.form(tree as u64, level, 0, high);
        right.set_fences(at, end, left.node().0[SIBLING].load(Ordering::Relaxed));
        // The new node is whole and unlocked before anything leads to it.
        drop(right);
        left.fill(low);
        left.set_end(Some(at), number);
        self.splits.fetch_add(1, Ordering::Relaxed);
        Ok((at, number))
    }

    /// Tells the level above of a node that a split made: from `at` on, keys are in `right`.
    fn tell_parent(
        &self,
        tree: usize,
        level: u16,
        (at, right): (u64, Number),
    ) -> Result<(), Refusal> {
        if self.root(tree).1 < level && self.grow(tree, level, (at, right))? {
            return Ok(());
        }
        let from = self.descend(tree, at, level)?;
        let (_, mut parent) = self.lock_for(tree, at, level, from)?;
        let node = parent.node();
        match node.find(at) {
            // A merge and a split came to the same key.
            Ok(place) => parent.update(place, right),
            Err(place) if node.count() < node.capacity() => parent.insert(place, at, right),
            Err(_) => {
                let (at, right) = self.split(parent, (at, right), tree, level)?;
                self.tell_parent(tree, level + 1, (at, right))?;
            }
        }
        Ok(())
    }

    /// Gives the tree a root of this level, unless it has one meanwhile.
    fn grow(&self, tree: usize, level: u16, (at, right): (u64, Number)) -> Result<bool, Refusal> {
        let _one = lock(&self.growing);
        let (root, top) = self.root(tree);
        if top >= level {
            return Ok(false);
        }
        let (number, mut new) = self.memory.allocate(true).ok_or(Refusal::Full)?;
        // Others may have split nodes of this level, too: they tell the new root.
        new.form(tree as u64, level, 0, &[(0, root), (at, right)]);
        new.set_fences(0, None, 0);
        drop(new);
        let word = self.memory.root_word(tree);
        word.store(root_word(number, level), Ordering::Release);
        Ok(true)
    }

    /// Removes a key; what was there.
    ///
    /// # Errors
    /// [`Refusal::Busy`]; nothing was changed then.
    pub fn remove(&self, tree: usize, key: u64) -> Result<Option<u64>, Refusal> {
        let mut walk = self.begin(tree);
        self.remove_at(tree, key, &mut walk)
    }

    /// The same from where a walk has come to.
    pub(crate) fn remove_at(
        &self,
        tree: usize,
        key: u64,
        walk: &mut Walk,
    ) -> Result<Option<u64>, Refusal> {
        self.walk_down(tree, key, walk)?;
        let (number, mut leaf) = self.lock_for(tree, key, 0, walk.node())?;
        let node = leaf.node();
        let Ok(place) = node.find(key) else {
            return Ok(None);
        };
        let before = node.value(place);
        leaf.remove(place);
        let sparse = node.count() < node.capacity() / 4;
        drop(leaf);
        if sparse {
            self.merge(tree, key, 0, number);
        }
        Ok(Some(before))
    }

    /// Merges the right sibling into a node that is sparse, if both fit into one, have one parent, and nobody has a lock of
    /// them. If not, the node stays sparse until the next removal.
    fn merge(&self, tree: usize, key: u64, level: u16, left: Number) -> Option<()> {
        if self.root(tree).1 <= level {
            return None;
        }
        let parent = self.descend(tree, key, level + 1).ok()?;
        let mut above = self.memory.try_lock(parent)?;
        let mut locked = self.memory.try_lock(left)?;
        let right = locked.node().0[SIBLING].load(Ordering::Relaxed);
        let mut other = self.memory.try_lock(right).filter(|_| right != 0)?;
        let (a, b) = (locked.node(), other.node());
        let place = above
            .node()
            .find(b.0[LOW].load(Ordering::Relaxed))
            .ok()
            .filter(|&place| place > 0)?;
        let children = (above.node().value(place - 1), above.node().value(place));
        let fits = a.count() + b.count() <= a.capacity() * 3 / 4;
        let same = |n: Node<'_, [AtomicU64]>, level| {
            n.level() == level && n.0[TREE].load(Ordering::Relaxed) == tree as u64 && !n.is_dead()
        };
        let sound = same(above.node(), level + 1) && same(a, level) && same(b, level);
        if children != (left, right) || !fits || !sound {
            return None;
        }
        // In this order, so that every walk finds every key at every moment: the parent leads left, where the link still
        // leads right; then the left node has it all.
        above.remove(place);
        let sparse = above.node().count() < above.node().capacity() / 4;
        drop(above);
        let mut all = locked.entries_with(None);
        all.extend(other.entries_with(None));
        locked.fill(&all);
        locked.set_end(b.end(), b.0[SIBLING].load(Ordering::Relaxed));
        drop(locked);
        other.kill();
        drop(other);
        self.memory.release(right);
        self.merges.fetch_add(1, Ordering::Relaxed);
        if sparse {
            self.merge(tree, key, level + 1, parent);
        }
        Some(())
    }

    /// Appends entries from a key on, in ascending order, until `into` has `limit` of them or the keys reach `end`. The key
    /// to go on from; `None` if there are no more.
    ///
    /// Each leaf is seen at one moment: what is there all the time is found, once.
    ///
    /// # Errors
    /// [`Refusal::Busy`].
    pub fn scan(
        &self,
        tree: usize,
        (mut from, end): (u64, Option<u64>),
        limit: usize,
        into: &mut Vec<(u64, u64)>,
    ) -> Result<Option<u64>, Refusal> {
        let mut known: Option<Number> = None;
        loop {
            let node = match known.take() {
                Some(sibling) => sibling,
                None => self.descend(tree, from, 0)?,
            };
            let kept = into.len();
            let found = self.memory.read(node, |n| {
                into.truncate(kept);
                match n.next(from, tree as u64, 0) {
                    Next::Here => {}
                    Next::Sibling(right) => return Some((Some(from), right, false)),
                    _ => return None,
                }
                let first = n.rank(from);
                let first = match first.checked_sub(1) {
                    Some(place) if n.key(place) == from => place,
                    _ => first,
                };
                for i in first..n.count() {
                    if end.is_some_and(|end| n.key(i) >= end) {
                        return Some((None, 0, true));
                    }
                    if into.len() == limit {
                        return Some((Some(n.key(i)), 0, true));
                    }
                    into.push((n.key(i), n.value(i)));
                }
                Some((n.end(), n.0[SIBLING].load(Ordering::Relaxed), false))
            })?;
            match found {
                // The leaf was merged away: found again from the root.
                None => {}
                Some((next, _, true)) => return Ok(next),
                Some((None, _, false)) => return Ok(None),
                Some((Some(next), sibling, false)) => {
                    if end.is_some_and(|end| next >= end) {
                        return Ok(None);
                    }
                    from = next;
                    known = Some(sibling).filter(|s| *s != 0);
                    self.memory.prefetch(sibling);
                }
            }
        }
    }
}
