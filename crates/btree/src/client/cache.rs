//! The client's cache of inner nodes. A cached node may be outdated; the walk detects this by the fences of the next
//! node.

use crate::key_or_value::KeyOrValue;
use crate::node::{LEVEL_FLAGS_COUNT_INDEX, Node, NodeShape};
use crate::node_words::NodeWords;

/// A direct-mapped cache of nodes by their numbers.
#[derive(Debug)]
pub(super) struct NodeCache<T: KeyOrValue> {
    node_shape: NodeShape<T>,
    /// The number of the node in each entry; 0 for an empty one.
    cached_node_numbers: Box<[u64]>,
    cached_node_words: Vec<u64>,
    /// The root of each tree with its level, if known.
    roots_with_levels: Vec<Option<(u64, u16)>>,
}

impl<T: KeyOrValue> NodeCache<T> {
    /// Creates a cache of `nodes` nodes, which may be 0.
    pub(super) fn new(nodes: usize, node_shape: NodeShape<T>, trees: usize) -> Self {
        Self {
            node_shape,
            cached_node_numbers: vec![0; nodes].into(),
            // The system provides this memory on first use.
            cached_node_words: vec![0; nodes * node_shape.words_per_node],
            roots_with_levels: vec![None; trees],
        }
    }

    pub(super) fn root_and_level(&self, tree: u8) -> Option<(u64, u16)> {
        self.roots_with_levels
            .get(usize::from(tree))
            .copied()
            .flatten()
    }

    pub(super) fn set_root(&mut self, tree: u8, root: Option<(u64, u16)>) {
        if let Some(place) = self.roots_with_levels.get_mut(usize::from(tree)) {
            *place = root;
        }
    }

    #[inline]
    fn slot_if_cache_enabled(&self, number: u64) -> Option<usize> {
        let nodes = self.cached_node_numbers.len();
        #[expect(clippy::cast_possible_truncation, reason = "below the length")]
        let place = number.checked_rem(nodes as u64)? as usize;
        Some(place)
    }

    /// Returns a node if the cache has it.
    #[inline]
    pub(super) fn get(&self, number: u64) -> Option<Node<'_, [u64], T>> {
        let place = self
            .slot_if_cache_enabled(number)
            .filter(|p| self.cached_node_numbers[*p] == number)?;
        let start = place * self.node_shape.words_per_node;
        Some(Node(
            &self.cached_node_words[start..start + self.node_shape.words_per_node],
            self.node_shape.key_and_value_limits,
        ))
    }

    /// Puts an inner node into the cache.
    pub(super) fn insert<W: NodeWords + ?Sized>(&mut self, number: u64, node: Node<'_, W, T>) {
        let Some(place) = self.slot_if_cache_enabled(number).filter(|_| number != 0) else {
            return;
        };
        self.cached_node_numbers[place] = number;
        let start = place * self.node_shape.words_per_node;
        let into = &mut self.cached_node_words[start..start + self.node_shape.words_per_node];
        for (i, word) in into.iter_mut().enumerate() {
            *word = node.0.word(i);
        }
        debug_assert!(
            into[LEVEL_FLAGS_COUNT_INDEX] >> 32 > 0,
            "leaves change too often to be kept"
        );
    }

    /// Removes a node that is outdated.
    pub(super) fn remove(&mut self, number: u64) {
        if let Some(place) = self
            .slot_if_cache_enabled(number)
            .filter(|p| self.cached_node_numbers[*p] == number)
        {
            self.cached_node_numbers[place] = 0;
        }
    }
}
