//! Lookups and scans: walks from the root to a leaf, in steps, so that the walks of a batch overlap their cache misses.
//!
//! A walk of a large tree has a cache miss per level; walks one after the other would keep a core waiting most of the
//! time. A batch takes one step of each walk in turn, and each step prefetches the node of the next step. So as many
//! misses are outstanding as the core supports. This is group prefetching (Chen, Gibbons, Mowry, SIGMOD 2001).

use std::sync::atomic::Ordering;

use super::memory::{LockTimeout, NodeNumber, StoreMemory};
use crate::key_or_value::{KeyOrValue, TooLongError};
use crate::node::{NextStep, Node, SIBLING_WORD_INDEX, VERSION_WORD_INDEX};
use crate::node_words::NodeWords;

/// The reason why a request was not executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal<T: KeyOrValue = u64> {
    /// The memory has no free node.
    #[error("the store is full: delete something, or give the server room for more keys")]
    StoreFull,
    /// A client holds a node's lock for too long, or the node's keys are being handed over.
    #[error("a node of the tree is locked for long")]
    BusyNodeOrZero(u64),
    /// The key belongs to another server.
    #[error("keys from {} on belong to server {}", .0.first_key, .0.owner.server_number)]
    Moved(MovedRange<T>),
    /// A key or a value is longer than the trees allow.
    #[error(transparent)]
    TooLong(#[from] TooLongError),
}

/// The server that owns a range of keys, and the handover by which it became the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct RangeOwner {
    /// The number of the server.
    #[serde(rename = "server")]
    pub server_number: u16,
    /// Counts the handovers of the range, below 2^48. The greater of two versions is newer.
    pub version: u64,
}

impl RangeOwner {
    pub(crate) fn encode_word(self) -> u64 {
        u64::from(self.server_number) << 48 | self.version & ((1 << 48) - 1)
    }

    pub(crate) fn decode_word(word: u64) -> Self {
        Self {
            server_number: (word >> 48) as u16,
            version: word & ((1 << 48) - 1),
        }
    }
}

/// A range of keys that belong to another server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovedRange<T: KeyOrValue = u64> {
    /// The first key of the range.
    pub first_key: T,
    /// The upper bound of the range, exclusive, if any.
    pub end_key: Option<T>,
    /// The owner of the keys.
    pub owner: RangeOwner,
}

impl<T: KeyOrValue> MovedRange<T> {
    /// Reads the range and the owner from a leaf with the flag `FLAG_MOVED`.
    pub(crate) fn from_moved_leaf<W: NodeWords + ?Sized>(leaf: Node<'_, W, T>) -> Self {
        Self {
            first_key: leaf.key_lower_bound(),
            end_key: leaf.key_upper_bound(),
            owner: RangeOwner::decode_word(leaf.child(0)),
        }
    }
}

impl<T: KeyOrValue> From<LockTimeout> for Refusal<T> {
    fn from(LockTimeout(node): LockTimeout) -> Self {
        Self::BusyNodeOrZero(node)
    }
}

/// Packs a root's node and level into a word.
pub(super) fn encode_root(node: NodeNumber, level: u16) -> u64 {
    node << 16 | u64::from(level)
}

/// Unpacks the node and the level of a root.
#[inline]
pub(crate) fn decode_root(word: u64) -> (NodeNumber, u16) {
    (word >> 16, (word & 0xffff) as u16)
}

/// Largest number of steps of a walk; more mean that the tree is broken, since clients can WRITE arbitrary words into
/// nodes.
const MAX_WALK_STEPS: u32 = 100_000;

/// Counts a step and fails after [`MAX_WALK_STEPS`].
#[inline]
fn count_step(steps: &mut u32, node: NodeNumber) -> Result<(), LockTimeout> {
    *steps += 1;
    if *steps > MAX_WALK_STEPS {
        return Err(LockTimeout(node));
    }
    Ok(())
}

/// The trees of a memory, as lookups and scans use them.
#[derive(Debug)]
pub(crate) struct ReadableTrees<T: KeyOrValue> {
    pub(super) memory: StoreMemory<T>,
    pub(super) tree_count: usize,
}

/// The memory that the next step of a walk reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum NextRead {
    /// Known to be in the caches.
    #[default]
    Cached,
    /// Header and keys of the node.
    Keys,
    /// The value at this index of the leaf.
    Value(u16),
    /// The values from this index of the leaf on.
    ValuesFrom(u16),
}

/// The position of a walk.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WalkPosition {
    node: NodeNumber,
    level: u16,
    /// The index of the key in the leaf, once it was found there.
    index_in_leaf: Option<u16>,
    /// The version of the leaf that has the key at this index.
    leaf_version: u64,
    /// What [`prefetch_next_reads`](ReadableTrees::prefetch_next_reads) prefetches.
    next_read: NextRead,
    /// True if the leaf of a scan was searched.
    is_scan_begin_found: bool,
}

impl WalkPosition {
    /// Returns true if the walk has begun: it has reached at least the root.
    pub(crate) fn is_begun(&self) -> bool {
        self.node != 0
    }

    fn at(node: NodeNumber, level: u16) -> Self {
        Self {
            node,
            level,
            index_in_leaf: None,
            leaf_version: 0,
            next_read: NextRead::Cached,
            is_scan_begin_found: false,
        }
    }
}

impl WalkPosition {
    /// Returns the node that the walk has reached.
    pub(crate) fn node(&self) -> NodeNumber {
        self.node
    }
}

impl<T: KeyOrValue> ReadableTrees<T> {
    pub(crate) fn memory(&self) -> &StoreMemory<T> {
        &self.memory
    }

    #[inline]
    pub(crate) fn root_and_level(&self, tree: usize) -> (NodeNumber, u16) {
        decode_root(self.memory.root_word(tree).load(Ordering::Acquire))
    }

    /// Begins a walk at the root of a tree.
    #[inline]
    pub(crate) fn begin_walk(&self, tree: usize) -> WalkPosition {
        let (node, level) = self.root_and_level(tree);
        WalkPosition::at(node, level)
    }

    /// Takes one step towards the key of a request. Does nothing if the walk is complete. When all walks of a batch have
    /// taken a step, [`prefetch_next_reads`](Self::prefetch_next_reads) prefetches what their next steps read.
    #[inline]
    pub(crate) fn step_walk(&self, tree: usize, key: &T, is_scan: bool, walk: &mut WalkPosition) {
        let level = walk.level;
        if level == 0 {
            return match is_scan {
                true => self.find_begin_of_scan(key, walk),
                false => self.find_in_leaf(tree, key, walk),
            };
        }
        match self
            .memory
            .read_node_consistently(walk.node, |n| n.next_walk_step(key, tree as u64, level))
        {
            Ok(NextStep::Child(child)) => {
                *walk = WalkPosition::at(child, level - 1);
                walk.next_read = NextRead::Keys;
            }
            Ok(NextStep::Sibling(right)) => *walk = WalkPosition::at(right, level),
            // After an error or a lost walk, [`finish_walk_and_get_value`](Self::finish_walk_and_get_value) continues
            // from the root.
            _ => *walk = self.begin_walk(tree),
        }
    }

    /// Prefetches what the next steps of these walks read.
    ///
    /// The first prefetch of a page waits for the page's translation, and a processor has few instructions in flight
    /// behind it. In a loop without other work these are the prefetches of other walks, so that translations overlap.
    #[inline]
    pub(crate) fn prefetch_next_reads(&self, walks: &mut [WalkPosition]) {
        for walk in walks {
            match std::mem::take(&mut walk.next_read) {
                NextRead::Cached => {}
                NextRead::Keys => self.memory.prefetch_header_and_keys(walk.node, walk.level),
                NextRead::Value(place) => self.memory.prefetch_value(walk.node, place.into()),
                NextRead::ValuesFrom(place) => {
                    self.memory.prefetch_values_from(walk.node, place.into());
                }
            }
        }
    }

    /// Searches the leaf that the walk of a lookup or a change has reached.
    #[inline]
    fn find_in_leaf(&self, tree: usize, key: &T, walk: &mut WalkPosition) {
        if walk.index_in_leaf.is_some() {
            return;
        }
        let found = self.memory.read_node_consistently(walk.node, |n| {
            let is_here =
                n.next_walk_step(key, tree as u64, 0) == NextStep::Leaf && !n.is_owned_elsewhere();
            let place = is_here.then(|| n.find(key).ok()).flatten()?;
            Some((u16::try_from(place).ok()?, n.0.word(VERSION_WORD_INDEX)))
        });
        if let Ok(Some((place, version))) = found {
            walk.index_in_leaf = Some(place);
            walk.leaf_version = version;
            walk.next_read = NextRead::Value(place);
        }
    }

    /// Searches the leaf that the walk of a scan has reached.
    #[inline]
    fn find_begin_of_scan(&self, key: &T, walk: &mut WalkPosition) {
        if std::mem::replace(&mut walk.is_scan_begin_found, true) {
            return;
        }
        let rank = self
            .memory
            .read_node_consistently(walk.node, |n| n.count_keys_up_to(key));
        let place = rank.ok().and_then(|rank| u16::try_from(rank).ok());
        walk.next_read = NextRead::ValuesFrom(place.unwrap_or(0).saturating_sub(1));
    }

    /// Returns the value at the place where a step found the key, if the leaf did not change since.
    #[inline]
    fn value_at_found_place(&self, walk: &WalkPosition) -> Option<T> {
        let place = walk.index_in_leaf?;
        let value = self.memory.read_node_consistently(walk.node, |n| {
            let is_unchanged = n.0.word(VERSION_WORD_INDEX) == walk.leaf_version;
            is_unchanged.then(|| n.value(place.into()))
        });
        value.ok().flatten()
    }

    /// Continues a walk until it is at a leaf.
    pub(crate) fn walk_down_to_leaf(
        &self,
        tree: usize,
        key: &T,
        walk: &mut WalkPosition,
    ) -> Result<(), LockTimeout> {
        let mut steps = 0;
        while walk.level > 0 {
            count_step(&mut steps, walk.node)?;
            let level = walk.level;
            match self
                .memory
                .read_node_consistently(walk.node, |n| n.next_walk_step(key, tree as u64, level))?
            {
                NextStep::Child(child) => {
                    *walk = WalkPosition::at(child, level - 1);
                }
                NextStep::Sibling(right) => walk.node = right,
                NextStep::Leaf | NextStep::Restart => *walk = self.begin_walk(tree),
            }
        }
        Ok(())
    }

    /// Completes a walk and returns the value of the key.
    #[inline]
    pub(crate) fn finish_walk_and_get_value(
        &self,
        tree: usize,
        key: &T,
        walk: &mut WalkPosition,
    ) -> Result<Option<T>, Refusal<T>> {
        if let Some(value) = self.value_at_found_place(walk) {
            return Ok(Some(value));
        }
        let mut steps = 0;
        loop {
            count_step(&mut steps, walk.node)?;
            if walk.level > 0 {
                self.walk_down_to_leaf(tree, key, walk)?;
            }
            let found = self.memory.read_node_consistently(walk.node, |n| {
                let next = n.next_walk_step(key, tree as u64, 0);
                if n.is_owned_elsewhere() && next == NextStep::Leaf {
                    return Err(MovedRange::from_moved_leaf(n));
                }
                let value = match next {
                    NextStep::Leaf => n.find(key).ok().map(|place| n.value(place)),
                    _ => None,
                };
                Ok((next, value))
            })?;
            match found.map_err(Refusal::Moved)? {
                (NextStep::Leaf, value) => return Ok(value),
                (NextStep::Sibling(right), _) => walk.node = right,
                _ => *walk = self.begin_walk(tree),
            }
        }
    }

    /// Returns the node of level `to` that covers a key at one moment.
    pub(super) fn find_covering_node(
        &self,
        tree: usize,
        key: &T,
        to: u16,
    ) -> Result<NodeNumber, LockTimeout> {
        let mut steps = 0;
        'restart: loop {
            let (mut node, mut level) = self.root_and_level(tree);
            loop {
                count_step(&mut steps, node)?;
                let next = self
                    .memory
                    .read_node_consistently(node, |n| n.next_walk_step(key, tree as u64, level))?;
                match next {
                    NextStep::Restart => continue 'restart,
                    NextStep::Sibling(right) => node = right,
                    _ if level == to => return Ok(node),
                    NextStep::Leaf => continue 'restart,
                    NextStep::Child(child) => (node, level) = (child, level - 1),
                }
            }
        }
    }

    /// Appends entries to `into` in ascending order, beginning at `from`, until `into` has `limit` entries or the keys
    /// reach `end`. Returns the key at which to continue, or `None` at the end. `walk` is a walk for `from`, which may
    /// have reached a leaf.
    ///
    /// Each leaf is read atomically. An entry that exists during the whole scan is found exactly once.
    ///
    /// # Errors
    /// [`Refusal::BusyNodeOrZero`]; [`Refusal::Moved`] if keys of another server follow and no entry comes before them.
    /// That range begins above `from` if this server owns `from`.
    pub(super) fn scan(
        &self,
        tree: usize,
        (mut from, end): (T, Option<T>),
        (limit, walk): (usize, &WalkPosition),
        into: &mut Vec<(T, T)>,
    ) -> Result<Option<T>, Refusal<T>> {
        let mut known = (walk.is_begun() && walk.level == 0).then_some(walk.node);
        let mut steps = 0;
        loop {
            // Only steps without progress are counted: the scan of a whole tree has many steps.
            let before = (from, into.len());
            let node = match known.take() {
                Some(sibling) => sibling,
                None => self.find_covering_node(tree, &from, 0)?,
            };
            let kept = into.len();
            let mut moved = None;
            let found = self.memory.read_node_consistently(node, |n| {
                into.truncate(kept);
                moved = None;
                match n.next_walk_step(&from, tree as u64, 0) {
                    NextStep::Leaf => {}
                    NextStep::Sibling(right) => return Some((Some(from), right, false)),
                    _ => return None,
                }
                if n.is_owned_elsewhere() {
                    moved = Some(MovedRange::from_moved_leaf(n));
                    return Some((Some(from), 0, true));
                }
                let sibling = n.0.word(SIBLING_WORD_INDEX);
                let first = n.count_keys_below(&from);
                let count = n.entry_count();
                let stop = end.map_or(count, |end| n.count_keys_below(&end));
                if count - first.min(count) < limit.saturating_sub(kept) {
                    self.memory.prefetch_all_lines(sibling);
                }
                let copied_end = stop.min(first.saturating_add(limit.saturating_sub(kept)));
                into.extend((first..copied_end).map(|i| (n.key(i), n.value(i))));
                if copied_end < stop {
                    return Some((Some(n.key(copied_end)), 0, true));
                }
                if stop < count {
                    return Some((None, 0, true));
                }
                Some((n.key_upper_bound(), sibling, false))
            })?;
            if let Some(moved) = moved.filter(|_| into.is_empty()) {
                return Err(Refusal::Moved(moved));
            }
            match found {
                // The leaf was merged away: the next descent begins at the root.
                None => count_step(&mut steps, node)?,
                Some((next, _, true)) => return Ok(next),
                Some((None, _, false)) => return Ok(None),
                Some((Some(next), sibling, false)) => {
                    if end.is_some_and(|end| next >= end) {
                        return Ok(None);
                    }
                    from = next;
                    if before == (from, into.len()) {
                        count_step(&mut steps, node)?;
                    }
                    known = Some(sibling).filter(|s| *s != 0);
                }
            }
        }
    }
}
