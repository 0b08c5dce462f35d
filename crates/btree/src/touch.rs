//! The cache lines that walks touch, told to simulated cores ([`verbs::time`]); real cores find out by themselves.
//!
//! A walk looks at a node a level. Of each it touches the header, then keys by binary search, then one value, which is the
//! child's number or the answer. Step j of the search touches one of 2^j lines of the node, so the lines of its first steps
//! are hot. A line competes for the caches with all lines that are touched as often or more often: its *working set*.
//!
//! A walk alone touches lines one after the other. Walks of a batch are interleaved: a step of one fetches all keys of its
//! next node ahead, and the values of a leaf, so these misses overlap with those of the other walks. What is touched of
//! an inner node's values is not fetched ahead. Levels below the steps that a batch takes together are walked alone.
//!
//! The tree that is told of may be a larger one than the real tree ([`Shape`]): a simulation of 256 million keys needs no
//! memory for them.

use std::time::Duration;

use verbs::time;

use crate::node::capacity;

/// Bytes of a cache line.
const LINE: u64 = 64;

/// Entries of 8 bytes in a line.
const WORDS: u64 = LINE / 8;

/// What a host's core takes for a step of a binary search, in ns, beside what it waits for memory. Fitted together with
/// the latency of memory of `bf2`'s DPU, to local look-ups of a study among 1 M and 256 M keys.
const STEP_NS: u64 = 7;

/// The size of a tree as far as walks cost time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Keys in it.
    pub keys: u64,
    /// Bytes of a node.
    pub node_bytes: usize,
    /// How full its nodes are, up to 1.
    pub fill: f64,
}

impl Shape {
    /// Entries of a node, 2 at the least.
    pub fn entries(&self) -> u64 {
        let room = capacity(self.node_bytes / 8);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a share of a small number"
        )]
        let entries = (room as f64 * self.fill.clamp(0.0, 1.0)) as u64;
        entries.max(2)
    }

    /// Nodes of each level, from the leaves up to the root.
    pub fn levels(&self) -> Vec<u64> {
        let entries = self.entries();
        let mut levels = vec![self.keys.div_ceil(entries).max(1)];
        while let Some(&below) = levels.last()
            && below > 1
        {
            levels.push(below.div_ceil(entries));
        }
        levels
    }

    /// A tree of so few keys for a small memory, in emptier nodes, so that it has as many levels, or as nearly as many as
    /// there is such a tree.
    #[must_use]
    pub fn smaller(&self, keys: u64) -> Self {
        let (room, levels) = (capacity(self.node_bytes / 8), self.levels().len());
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let filled = |entries: usize| Self {
            keys: keys.min(self.keys),
            // Half an entry more, which no rounding takes away.
            fill: (entries as f64 + 0.5) / room as f64,
            ..*self
        };
        let fills = (2..=room).rev().map(filled);
        let nearest = fills.min_by_key(|small| small.levels().len().abs_diff(levels));
        nearest.unwrap_or(*self)
    }
}

/// A kind of lines that every walk touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Touch {
    /// A walk touches each of them once in so many walks.
    one_of: u64,
    /// Lines that no other kind has.
    lines: u64,
    /// Lines that a walk touches.
    touched: u64,
    /// Whether these are fetched ahead.
    ahead: bool,
    /// Bytes of all lines that are touched as often or more often.
    working_set: u64,
}

/// The touches of walks through a tree.
#[derive(Debug, Clone, PartialEq)]
pub struct Touches {
    alone: Vec<Touch>,
    interleaved: Vec<Touch>,
    /// All lines of the tree, in bytes.
    bytes: u64,
    /// What a core compares in a walk.
    work: Duration,
    /// Lines of the keys, or of the values, of a node.
    node_lines: u64,
}

impl Touches {
    /// Of a tree whose walks take the first so many levels together in a batch.
    pub fn of(shape: &Shape, together: usize) -> Self {
        let entries = shape.entries();
        let node_lines = entries.div_ceil(WORDS);
        let levels = shape.levels();
        let (mut alone, mut interleaved) = (Vec::new(), Vec::new());
        for (depth, &nodes) in levels.iter().rev().enumerate() {
            let single = node_alone(nodes, node_lines);
            if depth < together {
                let is_leaf = depth + 1 == levels.len();
                interleaved.extend(node_ahead(nodes, node_lines, is_leaf));
            } else {
                interleaved.extend_from_slice(&single);
            }
            alone.extend(single);
        }
        let steps = u64::from(entries.ilog2() + 1) * levels.len() as u64;
        let work = Duration::from_nanos(STEP_NS * steps);
        let bytes = sum_up(&mut alone);
        sum_up(&mut interleaved);
        Self {
            alone,
            interleaved,
            bytes,
            work,
            node_lines,
        }
    }

    /// The calling core walks from the root to a leaf, for so many requests of a batch.
    pub fn walk(&self, requests: usize) {
        let requests = requests as u64;
        let touches = match requests {
            0 => return,
            1 => &self.alone,
            _ => &self.interleaved,
        };
        for touch in touches {
            let lines = touch.touched * requests;
            match touch.ahead {
                true => time::touch_lines(touch.working_set, 1, lines),
                false => time::touch_lines(touch.working_set, lines, 1),
            }
        }
        let times = u32::try_from(requests).unwrap_or(u32::MAX);
        time::work(self.work.saturating_mul(times));
    }

    /// The calling core copies so many entries of leaves, one after the other.
    pub(crate) fn scan(&self, entries: usize) {
        let lines = 2 * (entries as u64).div_ceil(WORDS);
        time::touch_lines(self.bytes, 1, lines);
    }

    /// The calling core changes an entry of the leaf that it has walked to: it moves entries and adds all of them up.
    pub(crate) fn change(&self) {
        time::touch_lines(self.bytes, 1, 2 * self.node_lines);
    }
}

/// A look at one of so many nodes that nothing was fetched of.
fn node_alone(nodes: u64, node_lines: u64) -> Vec<Touch> {
    let touch = |choices: u64, lines: u64| Touch {
        one_of: nodes * choices,
        lines: nodes * lines,
        touched: 1,
        ahead: false,
        working_set: 0,
    };
    let mut touches = vec![touch(1, 1)];
    // From half the keys on, a step is within a line or two of the one before.
    let (mut choices, mut seen) = (1, 0);
    while choices < node_lines {
        touches.push(touch(choices, choices.min(node_lines - seen)));
        seen = (seen + choices).min(node_lines);
        choices *= 2;
    }
    touches.push(touch(node_lines, node_lines - seen));
    // The value.
    touches.push(touch(node_lines, node_lines));
    touches
}

/// A look at one of so many nodes whose header and keys were fetched ahead.
fn node_ahead(nodes: u64, node_lines: u64, is_leaf: bool) -> [Touch; 2] {
    let fetched = 1 + node_lines;
    [
        Touch {
            one_of: nodes,
            lines: nodes * fetched,
            touched: fetched,
            ahead: true,
            working_set: 0,
        },
        Touch {
            one_of: nodes * node_lines,
            lines: nodes * node_lines,
            touched: 1,
            ahead: is_leaf,
            working_set: 0,
        },
    ]
}

/// Sets the working sets; the bytes of all lines.
fn sum_up(touches: &mut [Touch]) -> u64 {
    touches.sort_by_key(|touch| touch.one_of);
    touches.iter_mut().fold(0, |sum, touch| {
        touch.working_set = sum + touch.lines * LINE;
        touch.working_set
    })
}

/// What a client's core takes for a line of a node that it READ, in ns: it copies the node and adds all its words up, which
/// takes 380 ns for 2 KiB that come from the last-level cache (measured on a Xeon).
const READ_LINE_NS: u64 = 12;

/// The calling core, a client's, looks at a node of so many bytes that it READ, as if the node were full.
#[inline]
pub(crate) fn read_node(node_bytes: usize) {
    let lines = (node_bytes as u64).div_ceil(LINE);
    let steps = u64::from(node_bytes.ilog2()).saturating_sub(4);
    time::work(Duration::from_nanos(lines * READ_LINE_NS + steps * STEP_NS));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(keys: u64, node_bytes: usize) -> Shape {
        Shape {
            keys,
            node_bytes,
            fill: 1.0,
        }
    }

    #[test]
    fn levels_are_those_of_a_loaded_tree() {
        assert_eq!(shape(1, 2048).levels(), [1]);
        assert_eq!(shape(1_000_000, 2048).levels(), [8065, 66, 1]);
        // As many READs as in a study of both sizes of nodes.
        assert_eq!(shape(256_000_000, 2048).levels().len(), 5);
        assert_eq!(shape(256_000_000, 512).levels().len(), 6);
    }

    #[test]
    fn a_smaller_tree_has_as_many_levels() {
        for node_bytes in [512, 1024, 2048, 4096] {
            for keys in [1 << 14, 1_000_000, 256_000_000] {
                let (large, keys) = (shape(keys, node_bytes), 1 << 14);
                let small = large.smaller(keys);
                assert_eq!(small.levels().len(), large.levels().len(), "{large:?}");
                assert_eq!(small.keys, keys);
            }
        }
        // 8 levels, which 16 K keys would have with between 3 and 4 entries of a node.
        let large = shape(256_000_000, 256);
        assert_eq!(large.levels().len(), 8);
        assert!((7..=9).contains(&large.smaller(1 << 14).levels().len()));
    }

    /// The lines of a node are its header, keys and values, whichever way they are touched.
    #[test]
    fn every_line_is_of_one_kind() {
        for (keys, node_bytes) in [(100, 512), (1_000_000, 2048), (256_000_000, 4096)] {
            let shape = shape(keys, node_bytes);
            let node = 1 + 2 * shape.entries().div_ceil(WORDS);
            let all = shape.levels().iter().sum::<u64>() * node * LINE;
            for together in [0, 2, 5] {
                let touches = Touches::of(&shape, together);
                let last = |touches: &[Touch]| touches.last().expect("some").working_set;
                assert_eq!(last(&touches.alone), all);
                assert_eq!(last(&touches.interleaved), all);
                assert_eq!(touches.bytes, all);
            }
        }
    }

    #[test]
    fn hot_lines_have_small_working_sets() {
        let touches = Touches::of(&shape(1_000_000, 2048), 5);
        assert_eq!(touches.alone[0].working_set, LINE);
        let ordered = |touches: &[Touch]| touches.is_sorted_by_key(|touch| touch.working_set);
        assert!(ordered(&touches.alone) && ordered(&touches.interleaved));
        // Three levels: the header, five steps among 16 lines of keys, the value.
        assert_eq!(touches.alone.len(), 3 * 7);
    }
}
