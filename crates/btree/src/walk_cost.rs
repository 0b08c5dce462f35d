//! Charges simulated cores ([`verbs::time`]) for the cache lines that walks touch. On real cores this module does
//! nothing.
//!
//! A walk visits one node per level. In each it touches the header, then keys by binary search, then one value: a
//! child's number or the answer. Step j of the search touches one of 2^j lines of the node, so the lines of the first
//! steps are hot. A line competes for the caches with all lines that are touched as often or more often: its *working
//! set*.
//!
//! A single walk touches its lines one after the other. Walks of a batch are interleaved: one walk's step prefetches
//! all keys of its next node, and the values of a leaf. So these cache misses overlap with those of the other walks.
//! The values of inner nodes are not prefetched. Levels beyond the steps that a batch takes together are walked one
//! request at a time.
//!
//! The modelled tree can be larger than the real tree ([`TreeSize`]): a simulation of 256 million keys needs no memory
//! for them.
//!
//! Byte strings have slots of several words, so a node has fewer of them, and its keys and values are more lines. A
//! search reads the first line of a key, and the answer reads all lines of its value.

use std::time::Duration;

use verbs::time;

use crate::key_or_value::private::Sizes;
use crate::key_or_value::{ByteString, KeyOrValue, NumberSizes, StringSizes};
use crate::node::NodeShape;

/// Bytes of a cache line.
const CACHE_LINE_BYTES: u64 = 64;

/// Words of 8 bytes in a cache line.
const WORDS_PER_LINE: u64 = CACHE_LINE_BYTES / 8;

/// Time in ns that a host's core needs for a step of a binary search, without waiting for memory. The value was fitted,
/// together with the memory latency of `bf2`'s DPU, to a study's local look-ups among 1 M and 256 M keys.
const SEARCH_STEP_NS: u64 = 7;

/// The size of a tree, as far as it determines the cost of walks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TreeSize {
    /// Number of keys.
    pub keys: u64,
    /// Bytes of a node.
    pub node_bytes: usize,
    /// The fill factor of nodes, up to 1.
    pub fill: f64,
    /// The limits of keys and values if these are byte strings; otherwise they are 64-bit numbers.
    pub strings: Option<StringSizes>,
}

/// The cache lines of a node.
#[derive(Debug, Clone, Copy)]
struct NodeLines {
    entry_count: u64,
    /// Lines in front of the keys.
    header_lines: u64,
    key_lines: u64,
    /// Values, or numbers of children.
    value_lines: u64,
    /// Lines of one value.
    lines_per_value: u64,
}

impl NodeLines {
    fn of_node<T: KeyOrValue>(node: NodeShape<T>, level: u16, fill: f64) -> Self {
        let room = node.entry_capacity(level);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a share of a small number"
        )]
        let entries = (room as f64 * fill.clamp(0.0, 1.0)) as u64;
        // As after a bulk load.
        let entries = entries.max(if level == 0 { 1 } else { 2 });
        let lines = |words: usize| (entries * words as u64).div_ceil(WORDS_PER_LINE);
        let value_words = node.words_per_payload(level);
        Self {
            entry_count: entries,
            header_lines: (node.first_key_word_index() as u64).div_ceil(WORDS_PER_LINE),
            key_lines: lines(node.key_and_value_limits.key_words()),
            value_lines: lines(value_words),
            lines_per_value: (value_words as u64).div_ceil(WORDS_PER_LINE),
        }
    }

    /// Returns the lines in which a key begins.
    fn lines_where_keys_begin(&self) -> u64 {
        self.key_lines.min(self.entry_count)
    }

    fn total_lines(&self) -> u64 {
        self.header_lines + self.key_lines + self.value_lines
    }
}

impl TreeSize {
    fn node_lines(&self, level: u16) -> NodeLines {
        let words = self.node_bytes / 8;
        match self.strings {
            None => {
                let sizes = NumberSizes;
                NodeLines::of_node(
                    NodeShape::<u64> {
                        words_per_node: words,
                        key_and_value_limits: sizes,
                    },
                    level,
                    self.fill,
                )
            }
            Some(sizes) => NodeLines::of_node(
                NodeShape::<ByteString> {
                    words_per_node: words,
                    key_and_value_limits: sizes,
                },
                level,
                self.fill,
            ),
        }
    }

    /// Returns the number of entries of a node of this level; leaves are level 0.
    pub fn entries_per_node(&self, level: u16) -> u64 {
        self.node_lines(level).entry_count
    }

    /// Returns the number of nodes of each level, from the leaves up to the root.
    pub fn nodes_per_level(&self) -> Vec<u64> {
        let mut levels = vec![self.keys.div_ceil(self.entries_per_node(0)).max(1)];
        let per_inner_node = self.entries_per_node(1);
        while let Some(&below) = levels.last()
            && below > 1
        {
            levels.push(below.div_ceil(per_inner_node));
        }
        levels
    }

    /// Returns a tree with only `keys` keys for a small memory. Its nodes are emptier, so that its number of levels is
    /// the same or as close as possible.
    #[must_use]
    pub fn with_keys_same_levels(&self, keys: u64) -> Self {
        let full = Self { fill: 1.0, ..*self };
        let room = full.entries_per_node(0).max(full.entries_per_node(1));
        let levels = self.nodes_per_level().len();
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let filled = |entries: u64| Self {
            keys: keys.min(self.keys),
            // The extra half entry keeps rounding from removing an entry.
            fill: (entries as f64 + 0.5) / room as f64,
            ..*self
        };
        let fills = (2..=room).rev().map(filled);
        let nearest = fills.min_by_key(|small| small.nodes_per_level().len().abs_diff(levels));
        nearest.unwrap_or(*self)
    }
}

/// A group of cache lines that every walk touches equally often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CacheLineGroup {
    /// A walk touches a given line of the group once in so many walks.
    walks_per_touch: u64,
    /// Number of lines in this group; no other group has them.
    line_count: u64,
    /// Number of lines of the group that one walk touches.
    lines_per_walk: u64,
    /// True if the lines are prefetched.
    is_prefetched: bool,
    /// Bytes of all lines that are touched as often or more often than these.
    working_set_bytes: u64,
}

/// The simulated cost of walks through a tree: the cache lines that they touch, and the work of the core.
#[derive(Debug, Clone)]
pub struct WalkCost {
    lines_of_sequential_walks: Vec<CacheLineGroup>,
    lines_of_interleaved_walks: Vec<CacheLineGroup>,
    /// Bytes of all lines of the tree.
    tree_bytes: u64,
    /// Time of a walk's comparisons on the core.
    comparison_time_per_walk: Duration,
    /// The lines of a leaf.
    leaf_lines: NodeLines,
}

impl WalkCost {
    /// Computes the cost for a tree. Walks of a batch are interleaved in the first `interleaved_levels` levels.
    pub fn of_tree(shape: &TreeSize, interleaved_levels: usize) -> Self {
        let levels = shape.nodes_per_level();
        let (mut sequential, mut interleaved) = (Vec::new(), Vec::new());
        let (mut all_lines, mut steps) = (0, 0);
        for (depth, &nodes) in levels.iter().rev().enumerate() {
            let is_leaf = depth + 1 == levels.len();
            let node = shape.node_lines(if is_leaf { 0 } else { 1 });
            let single = lines_without_prefetch(nodes, node);
            if depth < interleaved_levels {
                interleaved.extend(lines_with_prefetch(nodes, node, is_leaf));
            } else {
                interleaved.extend_from_slice(&single);
            }
            sequential.extend(single);
            all_lines += nodes * node.total_lines();
            steps += u64::from(node.entry_count.ilog2() + 1);
        }
        set_working_sets(&mut sequential);
        set_working_sets(&mut interleaved);
        Self {
            lines_of_sequential_walks: sequential,
            lines_of_interleaved_walks: interleaved,
            tree_bytes: all_lines * CACHE_LINE_BYTES,
            comparison_time_per_walk: Duration::from_nanos(SEARCH_STEP_NS * steps),
            leaf_lines: shape.node_lines(0),
        }
    }

    /// Charges the calling core for the walks from the root to a leaf of a batch of `requests` requests.
    pub fn charge_walks(&self, requests: usize) {
        let requests = requests as u64;
        let groups = match requests {
            0 => return,
            1 => &self.lines_of_sequential_walks,
            _ => &self.lines_of_interleaved_walks,
        };
        for group in groups {
            let lines = group.lines_per_walk * requests;
            match group.is_prefetched {
                true => time::charge_cache_lines(group.working_set_bytes, 1, lines),
                false => time::charge_cache_lines(group.working_set_bytes, lines, 1),
            }
        }
        let times = u32::try_from(requests).unwrap_or(u32::MAX);
        time::charge_time(self.comparison_time_per_walk.saturating_mul(times));
    }

    /// Charges the calling core for copying `entries` entries of leaves, one leaf after the other.
    pub(crate) fn charge_scan(&self, entries: usize) {
        let leaf = &self.leaf_lines;
        let lines = |of_leaf: u64| (entries as u64 * of_leaf).div_ceil(leaf.entry_count);
        let lines = lines(leaf.key_lines) + lines(leaf.value_lines);
        time::charge_cache_lines(self.tree_bytes, 1, lines);
    }

    /// Charges the calling core for changing an entry of the leaf that its walk reached: it moves entries and
    /// recomputes the checksum.
    pub(crate) fn charge_change(&self) {
        time::charge_cache_lines(
            self.tree_bytes,
            1,
            self.leaf_lines.key_lines + self.leaf_lines.value_lines,
        );
    }
}

/// Returns the lines of one visit to a level of `nodes` nodes, of which nothing was prefetched.
fn lines_without_prefetch(nodes: u64, node: NodeLines) -> Vec<CacheLineGroup> {
    let group = |choices: u64, lines: u64, lines_per_walk: u64| CacheLineGroup {
        walks_per_touch: nodes * choices,
        line_count: nodes * lines,
        lines_per_walk,
        is_prefetched: false,
        working_set_bytes: 0,
    };
    let mut groups = vec![group(1, node.header_lines, node.header_lines)];
    // When half of the keys are left, consecutive search steps are within a line or two of each other.
    let searched = node.lines_where_keys_begin();
    let (mut choices, mut counted) = (1, 0);
    while choices < searched {
        groups.push(group(choices, choices.min(searched - counted), 1));
        counted = (counted + choices).min(searched);
        choices *= 2;
    }
    groups.push(group(searched, searched - counted, 1));
    let values = node.value_lines.div_ceil(node.lines_per_value);
    groups.push(group(values, node.value_lines, node.lines_per_value));
    groups
}

/// Returns the lines of one visit to a level of `nodes` nodes whose header and keys were prefetched.
fn lines_with_prefetch(nodes: u64, node: NodeLines, is_leaf: bool) -> [CacheLineGroup; 2] {
    let fetched = node.header_lines + node.key_lines;
    [
        CacheLineGroup {
            walks_per_touch: nodes,
            line_count: nodes * fetched,
            lines_per_walk: fetched,
            is_prefetched: true,
            working_set_bytes: 0,
        },
        CacheLineGroup {
            walks_per_touch: nodes * node.value_lines.div_ceil(node.lines_per_value),
            line_count: nodes * node.value_lines,
            lines_per_walk: node.lines_per_value,
            is_prefetched: is_leaf,
            working_set_bytes: 0,
        },
    ]
}

/// Sets each cache-line group's working set: the bytes of the groups that walks touch as often or more often.
fn set_working_sets(groups: &mut [CacheLineGroup]) {
    groups.sort_by_key(|group| group.walks_per_touch);
    let mut bytes = 0;
    for group in groups {
        bytes += group.line_count * CACHE_LINE_BYTES;
        group.working_set_bytes = bytes;
    }
}

/// Time in ns that a client's core needs for a line of a node that it READ: it copies the node and sums all its words.
/// Measured on a Xeon: 380 ns for 2 KiB that come from the last-level cache.
const COPY_AND_SUM_LINE_NS: u64 = 12;

/// Charges the calling core, a client's, for searching a node that it READ, as if the node were full.
#[inline]
pub(crate) fn charge_search_of_read_node(node_bytes: usize) {
    let lines = (node_bytes as u64).div_ceil(CACHE_LINE_BYTES);
    let steps = u64::from(node_bytes.ilog2()).saturating_sub(4);
    time::charge_time(Duration::from_nanos(
        lines * COPY_AND_SUM_LINE_NS + steps * SEARCH_STEP_NS,
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(keys: u64, node_bytes: usize) -> TreeSize {
        TreeSize {
            keys,
            node_bytes,
            fill: 1.0,
            strings: None,
        }
    }

    fn shape_of_strings(keys: u64) -> TreeSize {
        let sizes = StringSizes {
            key_bytes: 24,
            value_bytes: 100,
        };
        TreeSize {
            strings: Some(sizes),
            ..shape(keys, 2048)
        }
    }

    #[test]
    fn levels_are_those_of_a_loaded_tree() {
        assert_eq!(shape(1, 2048).nodes_per_level(), [1]);
        assert_eq!(shape(1_000_000, 2048).nodes_per_level(), [8065, 66, 1]);
        // The same number of READs as in a study of both node sizes.
        assert_eq!(shape(256_000_000, 2048).nodes_per_level().len(), 5);
        assert_eq!(shape(256_000_000, 512).nodes_per_level().len(), 6);
    }

    #[test]
    fn a_smaller_tree_has_as_many_levels() {
        for node_bytes in [512, 1024, 2048, 4096] {
            for keys in [1 << 14, 1_000_000, 256_000_000] {
                let (large, keys) = (shape(keys, node_bytes), 1 << 14);
                let small = large.with_keys_same_levels(keys);
                assert_eq!(
                    small.nodes_per_level().len(),
                    large.nodes_per_level().len(),
                    "{large:?}"
                );
                assert_eq!(small.keys, keys);
            }
        }
        let large = shape_of_strings(10_000_000);
        let small = large.with_keys_same_levels(1 << 14);
        assert_eq!(small.nodes_per_level().len(), large.nodes_per_level().len());
        // 8 levels; 16 K keys would have them only with between 3 and 4 entries per node.
        let large = shape(256_000_000, 256);
        assert_eq!(large.nodes_per_level().len(), 8);
        assert!((7..=9).contains(&large.with_keys_same_levels(1 << 14).nodes_per_level().len()));
    }

    /// The lines of a node are its header, keys and values, however they are touched.
    #[test]
    fn every_line_is_of_one_kind() {
        for (keys, node_bytes) in [(100, 512), (1_000_000, 2048), (256_000_000, 4096)] {
            let shape = shape(keys, node_bytes);
            let node = 1 + 2 * shape.entries_per_node(0).div_ceil(WORDS_PER_LINE);
            let all = shape.nodes_per_level().iter().sum::<u64>() * node * CACHE_LINE_BYTES;
            for together in [0, 2, 5] {
                let cost = WalkCost::of_tree(&shape, together);
                let last =
                    |groups: &[CacheLineGroup]| groups.last().expect("some").working_set_bytes;
                assert_eq!(last(&cost.lines_of_sequential_walks), all);
                assert_eq!(last(&cost.lines_of_interleaved_walks), all);
                assert_eq!(cost.tree_bytes, all);
            }
        }
    }

    #[test]
    fn hot_lines_have_small_working_sets() {
        let cost = WalkCost::of_tree(&shape(1_000_000, 2048), 5);
        assert_eq!(
            cost.lines_of_sequential_walks[0].working_set_bytes,
            CACHE_LINE_BYTES
        );
        let ordered =
            |groups: &[CacheLineGroup]| groups.is_sorted_by_key(|group| group.working_set_bytes);
        assert!(
            ordered(&cost.lines_of_sequential_walks) && ordered(&cost.lines_of_interleaved_walks)
        );
        // Each of three levels has the header, five steps among 16 lines of keys, and the value.
        assert_eq!(cost.lines_of_sequential_walks.len(), 3 * 7);
    }

    /// A slot has the length and the bytes: 4 words of a key and 14 of a value. A leaf of 256 words has 8 words of
    /// header and 8 of fences, and so room for 13 entries.
    #[test]
    fn byte_strings_are_more_lines() {
        let shape = shape_of_strings(1_000_000);
        assert_eq!(
            [0, 1].map(|level| shape.entries_per_node(level)),
            [240 / 18, 240 / 5]
        );
        let leaf = shape.node_lines(0);
        assert_eq!(
            (
                leaf.header_lines,
                leaf.key_lines,
                leaf.value_lines,
                leaf.lines_per_value
            ),
            (2, 7, 23, 2)
        );
        let (strings, numbers) = (
            WalkCost::of_tree(&shape, 2),
            WalkCost::of_tree(&self::shape(1_000_000, 2048), 2),
        );
        assert!(strings.tree_bytes > 8 * numbers.tree_bytes);
        let lines = |cost: &WalkCost| -> u64 {
            let groups = cost.lines_of_sequential_walks.iter();
            groups.map(|group| group.lines_per_walk).sum()
        };
        assert!(lines(&strings) > lines(&numbers));
    }
}
