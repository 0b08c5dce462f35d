//! Walks from the root to a leaf, step by step, so that those of a batch wait for memory together.
//!
//! A walk of a large tree waits for a cache miss a level, and one after the other would keep a core waiting nearly all of
//! its time. A batch takes a step of each walk in turn: each step prefetches the node that the next one looks at, so
//! that as many misses are under way as the core can have. The idea is that of group prefetching (Chen, Gibbons, Mowry,
//! SIGMOD 2001).

use super::{Busy, Number, Refusal, Store};
use crate::node::Next;

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

impl Store {
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
        while walk.level > 0 {
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
        loop {
            if walk.level > 0 {
                self.walk_down(tree, key, walk)?;
            }
            let found = self.memory.read(walk.node, |n| {
                let next = n.next(key, tree as u64, 0);
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
                (next, value)
            })?;
            match found {
                (Next::Here, value) => return Ok(value),
                (Next::Sibling(right), _) => walk.node = right,
                _ => *walk = self.begin(tree),
            }
        }
    }
}
