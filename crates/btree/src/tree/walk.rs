//! Finding keys: walks from the root to a leaf, step by step, so that those of a batch wait for memory together; and SCANs.
//!
//! A walk of a large tree waits for a cache miss a level, and one after the other would keep a core waiting nearly all of
//! its time. A batch takes a step of each walk in turn: each step prefetches the node that the next one looks at, so
//! that as many misses are under way as the core can have. The idea is that of group prefetching (Chen, Gibbons, Mowry,
//! SIGMOD 2001).

use std::sync::atomic::Ordering;

use super::memory::{Busy, Memory, Number};
use crate::node::{LOW, Next, Node, SIBLING, Words};

/// Why a change was not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no memory for another node.
    #[error("the store is full: delete something, or give the server room for more keys")]
    Full,
    /// A node is locked by a client that does not free it, or its keys are being handed over.
    #[error("a node of the tree is locked for long")]
    Busy(u64),
    /// The key belongs to another server.
    #[error("keys from {} on belong to server {}", .0.from, .0.owner.part)]
    Moved(Elsewhere),
}

/// Which server has a range of keys, and since which handover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Owner {
    /// The number of the server.
    pub part: u16,
    /// Counts the handovers of the range: what is said with a greater one is newer. Below 2^48.
    pub version: u64,
}

impl Owner {
    pub(crate) fn word(self) -> u64 {
        u64::from(self.part) << 48 | self.version & ((1 << 48) - 1)
    }

    pub(crate) fn of(word: u64) -> Self {
        Self {
            part: (word >> 48) as u16,
            version: word & ((1 << 48) - 1),
        }
    }
}

/// Keys that belong to another server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elsewhere {
    /// The first of them.
    pub from: u64,
    /// The first key that is not among them, if there is one.
    pub end: Option<u64>,
    /// Who has them.
    pub owner: Owner,
}

impl Elsewhere {
    /// What a leaf says whose keys were moved.
    pub(crate) fn of<W: Words + ?Sized>(leaf: Node<'_, W>) -> Self {
        Self {
            from: leaf.0.word(LOW),
            end: leaf.end(),
            owner: Owner::of(leaf.value(0)),
        }
    }
}

impl From<Busy> for Refusal {
    fn from(Busy(node): Busy) -> Self {
        Self::Busy(node)
    }
}

/// A root's node and level as one word.
pub(super) fn root_word(node: Number, level: u16) -> u64 {
    node << 16 | u64::from(level)
}

/// The node and the level of a root.
#[inline]
pub(crate) fn root_of(word: u64) -> (Number, u16) {
    (word >> 16, (word & 0xffff) as u16)
}

/// Steps of a walk after which the tree must be broken: clients may be allowed to WRITE nodes, and write anything.
const MOST_STEPS: u32 = 100_000;

/// Counts a step.
#[inline]
fn count(steps: &mut u32, node: Number) -> Result<(), Busy> {
    *steps += 1;
    if *steps > MOST_STEPS {
        return Err(Busy(node));
    }
    Ok(())
}

/// The trees of a memory, for those who look for keys.
#[derive(Debug)]
pub(crate) struct Index {
    pub(super) memory: Memory,
    pub(super) trees: usize,
}

/// Where a walk is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Walk {
    node: Number,
    level: u16,
    /// The key's place in the leaf, once it was looked for.
    place: Option<u16>,
}

impl Walk {
    /// Whether it has left for anywhere.
    pub(crate) fn is_begun(&self) -> bool {
        self.node != 0
    }

    fn at(node: Number, level: u16) -> Self {
        Self {
            node,
            level,
            place: None,
        }
    }
}

impl Walk {
    /// The node that it has come to.
    pub(crate) fn node(&self) -> Number {
        self.node
    }
}

impl Index {
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    #[inline]
    pub(crate) fn root(&self, tree: usize) -> (Number, u16) {
        root_of(self.memory.root_word(tree).load(Ordering::Acquire))
    }

    /// A walk at the root of a tree.
    #[inline]
    pub(crate) fn begin(&self, tree: usize) -> Walk {
        let (node, level) = self.root(tree);
        Walk::at(node, level)
    }

    /// Takes a step towards the value of a key, and prefetches where it leads. Nothing left to do is fine.
    #[inline]
    pub(crate) fn step(&self, tree: usize, key: u64, walk: &mut Walk) {
        let level = walk.level;
        if level == 0 {
            if walk.place.is_none() {
                let found = self.memory.read(walk.node, |n| n.find(key).ok());
                if let Ok(Some(place)) = found {
                    walk.place = u16::try_from(place).ok();
                    self.memory.prefetch_value(walk.node, place);
                }
            }
            return;
        }
        match self
            .memory
            .read(walk.node, |n| n.next(key, tree as u64, level))
        {
            Ok(Next::Child(child)) => {
                *walk = Walk::at(child, level - 1);
                self.memory.prefetch(child);
            }
            Ok(Next::Sibling(right)) => walk.node = right,
            // Who finishes the walk starts again.
            _ => *walk = self.begin(tree),
        }
    }

    /// Goes on until the walk is at a leaf.
    pub(crate) fn walk_down(&self, tree: usize, key: u64, walk: &mut Walk) -> Result<(), Busy> {
        let mut steps = 0;
        while walk.level > 0 {
            count(&mut steps, walk.node)?;
            let level = walk.level;
            match self
                .memory
                .read(walk.node, |n| n.next(key, tree as u64, level))?
            {
                Next::Child(child) => {
                    *walk = Walk::at(child, level - 1);
                }
                Next::Sibling(right) => walk.node = right,
                Next::Here | Next::Lost => *walk = self.begin(tree),
            }
        }
        Ok(())
    }

    /// Goes on to the leaf; the value there.
    #[inline]
    pub(crate) fn finish(
        &self,
        tree: usize,
        key: u64,
        walk: &mut Walk,
    ) -> Result<Option<u64>, Refusal> {
        let mut steps = 0;
        loop {
            count(&mut steps, walk.node)?;
            if walk.level > 0 {
                self.walk_down(tree, key, walk)?;
            }
            let found = self.memory.read(walk.node, |n| {
                let next = n.next(key, tree as u64, 0);
                if n.is_moved() && next == Next::Here {
                    return Err(Elsewhere::of(n));
                }
                let value = match next {
                    Next::Here => match walk.place.map(usize::from) {
                        // Where it was found before, unless something was moved since.
                        Some(place) if place < n.count() && n.key(place) == key => {
                            Some(n.value(place))
                        }
                        _ => n.find(key).ok().map(|place| n.value(place)),
                    },
                    _ => None,
                };
                Ok((next, value))
            })?;
            match found.map_err(Refusal::Moved)? {
                (Next::Here, value) => return Ok(value),
                (Next::Sibling(right), _) => walk.node = right,
                _ => *walk = self.begin(tree),
            }
        }
    }

    /// The node of a level where the keys of `key` are, as far as one looks at one moment.
    pub(super) fn descend(&self, tree: usize, key: u64, to: u16) -> Result<Number, Busy> {
        let mut steps = 0;
        'again: loop {
            let (mut node, mut level) = self.root(tree);
            loop {
                count(&mut steps, node)?;
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

    /// Appends entries from a key on, in ascending order, until `into` has `limit` of them or the keys reach `end`. The key
    /// to go on from; `None` if there are no more.
    ///
    /// Each leaf is seen at one moment: what is there all the time is found, once.
    ///
    /// # Errors
    /// [`Refusal::Busy`]; [`Refusal::Moved`] if `from` belongs to another server.
    pub(super) fn scan(
        &self,
        tree: usize,
        (mut from, end): (u64, Option<u64>),
        limit: usize,
        into: &mut Vec<(u64, u64)>,
    ) -> Result<Option<u64>, Refusal> {
        let mut known: Option<Number> = None;
        let mut steps = 0;
        loop {
            // A scan of a whole tree has many steps, each of which gets further.
            let before = (from, into.len());
            let node = match known.take() {
                Some(sibling) => sibling,
                None => self.descend(tree, from, 0)?,
            };
            let kept = into.len();
            let mut elsewhere = None;
            let found = self.memory.read(node, |n| {
                into.truncate(kept);
                elsewhere = None;
                match n.next(from, tree as u64, 0) {
                    Next::Here => {}
                    Next::Sibling(right) => return Some((Some(from), right, false)),
                    _ => return None,
                }
                if n.is_moved() {
                    elsewhere = Some(Elsewhere::of(n));
                    return Some((Some(from), 0, true));
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
            if let Some(elsewhere) = elsewhere.filter(|_| into.is_empty()) {
                return Err(Refusal::Moved(elsewhere));
            }
            match found {
                // The leaf was merged away: found again from the root.
                None => count(&mut steps, node)?,
                Some((next, _, true)) => return Ok(next),
                Some((None, _, false)) => return Ok(None),
                Some((Some(next), sibling, false)) => {
                    if end.is_some_and(|end| next >= end) {
                        return Ok(None);
                    }
                    from = next;
                    if before == (from, into.len()) {
                        count(&mut steps, node)?;
                    }
                    known = Some(sibling).filter(|s| *s != 0);
                    self.memory.prefetch(sibling);
                }
            }
        }
    }
}
