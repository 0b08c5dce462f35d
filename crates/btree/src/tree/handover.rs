//! Ranges of keys that go from one server to another, while clients go on.
//!
//! Which server has a key is in the tree itself: a leaf whose keys belong to another server is flagged as moved, has no
//! keys, and says who has them. So readers find out where they look anyway, and no key ever has two owners: giving a leaf
//! away is a change of that leaf under its lock. A handover has these steps:
//!
//! 1. The giver [freezes](Store::freeze) the range: its keys may be read, and not changed.
//! 2. The taker copies the entries, and [takes memory](Store::stage) for them.
//! 3. The giver [cedes](Store::cede) the range. From now on nobody has it.
//! 4. The taker [adopts](Store::adopt) it: leaf by leaf the entries appear, all entries of a leaf at one moment.
//!
//! If the taker goes away before step 3, the giver [thaws](Store::thaw) the range and keeps it.

use std::sync::atomic::Ordering;

use super::memory::{Locked, Number};
use super::store::Store;
use super::walk::{Owner, Refusal};
use crate::node::{FROZEN, LOW, MOVED, SIBLING};

/// Nodes for entries that will be adopted.
#[derive(Debug, Default)]
pub struct Staged {
    nodes: Vec<Number>,
}

/// A range of keys: from a first one on, and below an end if there is one.
type Range = (u64, Option<u64>);

impl Store {
    /// Makes a leaf begin at this key.
    fn ensure_boundary(&self, tree: usize, key: u64) -> Result<(), Refusal> {
        let from = self.index.descend(tree, key, 0)?;
        let (_, leaf) = self.lock_for(tree, key, 0, from)?;
        let low = leaf.node().0[LOW].load(Ordering::Relaxed);
        if low == key {
            return Ok(());
        }
        let mut entries = leaf.entries_with(None);
        if leaf.node().is_moved() {
            // Both parts say who has their keys.
            let owner = leaf.node().value(0);
            entries.push((key, owner));
        }
        let middle = entries.partition_point(|entry| entry.0 < key);
        let halves = entries.split_at(middle);
        let right = self.part(leaf, halves, (tree, 0), key)?;
        // Without its parent's entry the new leaf is found by the link of the old one.
        let _ = self.tell_parent(tree, 1, (key, right));
        Ok(())
    }

    /// Calls `change` for each leaf of a range whose bounds are those of leaves, locked.
    fn each_leaf(
        &self,
        tree: usize,
        (from, end): Range,
        mut change: impl FnMut(Number, &mut Locked<'_>) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let mut key = from;
        let mut node = self.index.descend(tree, key, 0)?;
        loop {
            let (number, mut leaf) = self.lock_for(tree, key, 0, node)?;
            change(number, &mut leaf)?;
            let next = leaf.node().end();
            match next.filter(|next| end.is_none_or(|end| *next < end)) {
                None => return Ok(()),
                Some(next) => {
                    node = leaf.node().0[SIBLING].load(Ordering::Relaxed);
                    key = next;
                }
            }
        }
    }

    fn bound(&self, tree: usize, (from, end): Range) -> Result<(), Refusal> {
        self.ensure_boundary(tree, from)?;
        end.map_or(Ok(()), |end| self.ensure_boundary(tree, end))
    }

    /// Step 1 of a handover: from now on the keys of a range are not changed.
    ///
    /// # Errors
    /// [`Refusal::Moved`] if some of them belong to another server; the range is as it was then.
    pub fn freeze(&self, tree: usize, range: (u64, Option<u64>)) -> Result<(), Refusal> {
        self.bound(tree, range)?;
        let frozen = self.each_leaf(tree, range, |_, leaf| {
            if leaf.node().is_moved() {
                return Err(Refusal::Moved(super::Elsewhere::of(leaf.node())));
            }
            leaf.set_flags(FROZEN, 0);
            Ok(())
        });
        if frozen.is_err() {
            self.thaw(tree, range)?;
        }
        frozen
    }

    /// The keys of a range may be changed again, as far as they are still here.
    ///
    /// # Errors
    /// [`Refusal::Busy`].
    pub fn thaw(&self, tree: usize, range: (u64, Option<u64>)) -> Result<(), Refusal> {
        self.each_leaf(tree, range, |_, leaf| {
            leaf.set_flags(0, FROZEN);
            Ok(())
        })
    }

    /// Step 3 of a handover: the range belongs to another server.
    ///
    /// # Errors
    /// [`Refusal::Busy`] if the range is not frozen: it was thawed meanwhile, and stays here.
    pub fn cede(
        &self,
        tree: usize,
        range: (u64, Option<u64>),
        owner: Owner,
    ) -> Result<(), Refusal> {
        self.each_leaf(tree, range, |_, leaf| {
            if leaf.node().may_change() {
                return Err(Refusal::Busy(0));
            }
            Ok(())
        })?;
        self.disown(tree, range, owner)
    }

    /// Says that a range belongs to another server, whatever is in it: for a server that begins.
    ///
    /// # Errors
    /// [`Refusal::Full`], [`Refusal::Busy`].
    pub fn disown(
        &self,
        tree: usize,
        range: (u64, Option<u64>),
        owner: Owner,
    ) -> Result<(), Refusal> {
        self.bound(tree, range)?;
        let mut first = None;
        self.each_leaf(tree, range, |number, leaf| {
            let low = leaf.node().0[LOW].load(Ordering::Relaxed);
            leaf.fill(&[(low, owner.word())]);
            leaf.set_flags(MOVED, FROZEN);
            first.get_or_insert((low, number));
            Ok(())
        })?;
        // What is not merged stays as more than one leaf, and takes memory.
        let mut at = first;
        while let Some((low, number)) = at {
            while self.merge(tree, low, 0, number).is_some() {}
            at = self.index.memory.read(number, |leaf| {
                let sibling = leaf.0[SIBLING].load(Ordering::Relaxed);
                let next = leaf
                    .end()
                    .filter(|next| range.1.is_none_or(|end| *next < end));
                next.map(|next| (next, sibling))
            })?;
        }
        Ok(())
    }

    /// Step 2 of a handover: memory for so many entries.
    ///
    /// # Errors
    /// [`Refusal::Full`].
    pub fn stage(&self, entries: usize) -> Result<Staged, Refusal> {
        let mut staged = Staged::default();
        let each = self.leaf_fill();
        // One more for each leaf of the range: few, as they are merged.
        for _ in 0..entries.div_ceil(each) + 1 {
            match self.index.memory.allocate(false) {
                Some((number, _)) => staged.nodes.push(number),
                None => {
                    self.unstage(staged);
                    return Err(Refusal::Full);
                }
            }
        }
        Ok(staged)
    }

    /// Gives back memory that was not used.
    pub fn unstage(&self, staged: Staged) {
        for number in staged.nodes {
            self.index.memory.release(number);
        }
    }

    /// Entries of an adopted leaf: a tenth is free for inserts.
    fn leaf_fill(&self) -> usize {
        let room = crate::node::capacity(self.index.memory.node_words());
        (room * 9 / 10).max(1)
    }

    /// Step 4 of a handover: the range, which the giver has ceded, has these entries and belongs to this server.
    ///
    /// # Errors
    /// [`Refusal::Full`] if the range has so many leaves that staged memory does not do; [`Refusal::Busy`]. What was adopted
    /// until then is served, and the same call goes on with the rest.
    pub fn adopt(
        &self,
        tree: usize,
        range: (u64, Option<u64>),
        entries: &[(u64, u64)],
        staged: &mut Staged,
    ) -> Result<(), Refusal> {
        self.bound(tree, range)?;
        let mut made = Vec::new();
        let adopted = self.each_leaf(tree, range, |_, leaf| {
            // Adopted before, by a call that did not come to its end.
            if leaf.node().is_moved() {
                self.splice(tree, leaf, entries, (staged, &mut made))?;
            }
            Ok(())
        });
        for (low, number) in made {
            // A leaf without its parent's entry is found by the link of the one before.
            let _ = self.tell_parent(tree, 1, (low, number));
        }
        adopted
    }

    /// Puts a chain of leaves in the place of one that belonged to another server: at one moment, when that leaf is
    /// unlocked.
    fn splice(
        &self,
        tree: usize,
        leaf: &mut Locked<'_>,
        entries: &[(u64, u64)],
        (staged, made): (&mut Staged, &mut Vec<(u64, Number)>),
    ) -> Result<(), Refusal> {
        let node = leaf.node();
        let (low, end) = (node.0[LOW].load(Ordering::Relaxed), node.end());
        let from = entries.partition_point(|entry| entry.0 < low);
        let to = end.map_or(entries.len(), |end| {
            entries.partition_point(|entry| entry.0 < end)
        });
        let chunks: Vec<_> = entries[from..to.max(from)]
            .chunks(self.leaf_fill())
            .collect();
        let mut sibling = node.0[SIBLING].load(Ordering::Relaxed);
        let mut after = end;
        while staged.nodes.len() + 1 < chunks.len() {
            let more = self.index.memory.allocate(true).ok_or(Refusal::Full)?;
            staged.nodes.push(more.0);
        }
        // From the right: each leaf leads to one that is whole.
        for chunk in chunks.iter().skip(1).rev() {
            let number = staged.nodes.pop().ok_or(Refusal::Full)?;
            let mut locked = self.index.memory.lock(number)?;
            locked.form(tree as u64, 0, 0, chunk);
            locked.set_fences(chunk[0].0, after, sibling);
            drop(locked);
            made.push((chunk[0].0, number));
            (sibling, after) = (number, Some(chunk[0].0));
        }
        leaf.fill(chunks.first().copied().unwrap_or_default());
        leaf.set_flags(0, MOVED | FROZEN);
        leaf.set_end(after, sibling);
        Ok(())
    }
}
