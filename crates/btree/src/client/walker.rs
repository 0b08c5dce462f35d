//! A client that walks the tree itself: it READs nodes from the root to a leaf, without work for the server's
//! processor. If the server permits, the client also changes leaves: see [`super::leaf_change`].
//!
//! The checksum of every node that was READ is verified, and its fences show whether it covers the key. Inner nodes are
//! cached. An outdated node can lead too far left, which fences and sibling links correct. It can also lead to a node
//! that is dead or reused; the walk then restarts at the root. If a walk needs too many READs, the server is asked.

use rpc::RpcError;
use rpc::one_sided::{OneSidedQueue, PreparedOneSidedQueue, RequestSteps};
use verbs::RemoteMemory;

use super::cache::NodeCache;
use super::request::{Answer, ClientStats, RequestSlot};
use crate::key_or_value::KeyOrValue;
use crate::node::{MAX_NODE_BYTES, MIN_NODE_BYTES, NextStep, Node, NodeShape, SIBLING_WORD_INDEX};
use crate::node_words::NodeWords;
use crate::rendezvous::{LeafWriteParameters, RemoteNodes};
use crate::tree::{FIRST_ROOT_WORD_INDEX, MAX_TREES, decode_root, redo};
use crate::walk_cost;
use crate::wire::Operation;

/// Largest number of READs for a lookup, or for a leaf of a SCAN, before the server is asked.
const MAX_READS_PER_WALK: u8 = 40;

/// Largest number of steps to the right among cached nodes, before the next node is READ.
const MAX_CACHED_RIGHT_STEPS: u32 = 16;

/// The result of a walk.
pub(super) enum WalkOutcome<T: KeyOrValue> {
    /// The request is complete.
    Answer(Answer<'static, T>),
    /// Entries of a SCAN, and the key at which to continue.
    Entries(Vec<(T, T)>, Option<T>),
    /// The request must be sent to the server.
    AskServer,
}

/// The completion that a slot's walk waits for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum AwaitedCompletion {
    /// A node is being READ.
    #[default]
    Read,
    /// A leaf is being locked and READ.
    LockAndRead,
    /// A leaf is being written and unlocked: the change is then complete. `found` is true if the key was present
    /// before.
    WriteAndUnlock { found: bool },
    /// A leaf is being unlocked without a change; the walk then restarts.
    UnlockAndRestart,
    /// A leaf is being unlocked without a change; the request is then complete, since its condition does not hold.
    UnlockAndComplete { found: bool },
    /// A leaf is being unlocked without a change; the server is then asked.
    UnlockAndAskServer,
}

/// The state of a slot's walk.
#[derive(Debug, Clone, Default)]
pub(super) struct WalkState<T: KeyOrValue> {
    /// The number of the node that is being READ, 0 for the header.
    pub(super) current_node: u64,
    level: u16,
    /// The inner node from the cache that led to `node`.
    cached_parent: u64,
    /// The key of the walk; in a SCAN, the first key that was not yet read.
    pub(super) key: T,
    reads_so_far: u8,
    pub(super) awaited_completion: AwaitedCompletion,
    /// The lock word with which this walk locked a leaf.
    pub(super) held_lock_word: u64,
    entries: Vec<(T, T)>,
}

/// The queue pair, buffers and state of a walking client.
#[derive(Debug)]
pub(super) struct WalkingClient<T: KeyOrValue> {
    pub(super) one_sided_queue: OneSidedQueue,
    pub(super) remote_node_memory: RemoteMemory,
    pub(super) node_bytes: usize,
    pub(super) key_and_value_limits: T::Sizes,
    /// The parameters for changing leaves, if the client may change them.
    pub(super) write_parameters: Option<LeafWriteParameters>,
    /// The number of the last lock acquisition.
    pub(super) last_lock_acquisition_number: u32,
    /// Slots that found a lock taken, with the time in ns at which each tries again.
    pub(super) slots_and_lock_retry_times_ns: Vec<(u32, u64)>,
    cache: NodeCache<T>,
    /// True if inner nodes are cached.
    caches_nodes: bool,
    pub(super) walks: Box<[WalkState<T>]>,
}

impl<T: KeyOrValue> WalkingClient<T> {
    /// Connects to the server's nodes of `node_bytes` bytes, with a cache of `cache_nodes` nodes.
    pub(super) fn new(
        prepared: PreparedOneSidedQueue,
        memory: &RemoteNodes,
        (node_bytes, sizes): (usize, T::Sizes),
        (cache_nodes, trees): (usize, usize),
    ) -> Result<Self, RpcError> {
        if !(MIN_NODE_BYTES..=MAX_NODE_BYTES).contains(&node_bytes) || !node_bytes.is_multiple_of(8)
        {
            let what = format!("the server says that its nodes have {node_bytes} bytes");
            return Err(RpcError::Config(what));
        }
        let window = prepared.window();
        let entry = redo::redo_entry_bytes(node_bytes / 8);
        if memory
            .write_parameters
            .is_some_and(|w| w.redo_entries.len < (window * entry) as u64)
        {
            let what = "the server has less room for redo entries than the window needs";
            return Err(RpcError::Config(what.to_owned()));
        }
        let room = match memory.write_parameters {
            None => node_bytes,
            // The buffer holds the node, the result of an atomic and a redo entry.
            Some(_) => node_bytes + 8 + entry,
        };
        Ok(Self {
            walks: vec![WalkState::default(); window].into(),
            one_sided_queue: prepared.connect(&memory.server_rc_qp, room.next_multiple_of(64))?,
            remote_node_memory: memory.nodes,
            node_bytes,
            key_and_value_limits: sizes,
            write_parameters: memory.write_parameters,
            last_lock_acquisition_number: 0,
            slots_and_lock_retry_times_ns: Vec::new(),
            cache: NodeCache::new(
                cache_nodes,
                NodeShape {
                    words_per_node: node_bytes / 8,
                    key_and_value_limits: sizes,
                },
                trees,
            ),
            caches_nodes: cache_nodes > 0,
        })
    }

    /// Returns the number of doorbells so far.
    pub(super) fn doorbells(&self) -> u64 {
        self.one_sided_queue.posted_doorbells()
    }

    /// Returns true if this client changes leaves itself.
    pub(super) fn changes_leaves(&self) -> bool {
        self.write_parameters.is_some()
    }

    /// Returns true if the slot's request may have changed a leaf by now.
    pub(super) fn may_have_changed_leaf(&self, slot: u32) -> bool {
        matches!(
            self.walks[slot as usize].awaited_completion,
            AwaitedCompletion::WriteAndUnlock { .. }
        )
    }

    /// Begins a request in a slot of the window.
    #[inline]
    pub(super) fn begin_request_walk(&mut self, slot: u32, tree: u8, op: &Operation<T>) {
        let walk = &mut self.walks[slot as usize];
        walk.key = op.key();
        walk.reads_so_far = 0;
        walk.awaited_completion = AwaitedCompletion::Read;
        walk.entries.clear();
        let begun = self.start_walk_at_root(slot, tree);
        self.one_sided_queue.record_error(begun);
    }

    /// Starts a walk at the root.
    #[inline]
    pub(super) fn start_walk_at_root(&mut self, slot: u32, tree: u8) -> Result<(), RpcError> {
        match self.cache.root_and_level(tree) {
            Some((node, level)) => {
                self.descend_through_cache_and_read(slot, tree, (node, level), 0)
            }
            None => {
                self.walks[slot as usize].current_node = 0;
                self.prepare_node_read(slot)
            }
        }
    }

    /// Descends from a node through cached nodes, and READs the first node that is not cached.
    #[inline]
    fn descend_through_cache_and_read(
        &mut self,
        slot: u32,
        tree: u8,
        (mut node, mut level): (u64, u16),
        mut parent: u64,
    ) -> Result<(), RpcError> {
        let key = self.walks[slot as usize].key;
        // Nodes that were cached at different times can form a cycle.
        let mut right_steps = 0;
        while level > 0 {
            let Some(cached) = self
                .cache
                .get(node)
                .filter(|_| right_steps < MAX_CACHED_RIGHT_STEPS)
            else {
                break;
            };
            match cached.next_walk_step(&key, tree.into(), level) {
                NextStep::Child(child) => {
                    parent = node;
                    (node, level) = (child, level - 1);
                }
                NextStep::Sibling(right) => {
                    // The node that led here is outdated.
                    self.drop_cached_parent(tree, parent);
                    node = right;
                    right_steps += 1;
                }
                NextStep::Leaf | NextStep::Restart => {
                    self.cache.remove(node);
                    self.drop_cached_parent(tree, parent);
                    break;
                }
            }
        }
        let walk = &mut self.walks[slot as usize];
        (walk.current_node, walk.level, walk.cached_parent) = (node, level, parent);
        self.prepare_node_read(slot)
    }

    /// Drops the cached inner node, or the root if `parent` is 0, that led to a wrong node.
    fn drop_cached_parent(&mut self, tree: u8, parent: u64) {
        match parent {
            0 => self.cache.set_root(tree, None),
            parent => self.cache.remove(parent),
        }
    }

    /// Prepares the READ of the slot's present node.
    #[inline]
    pub(super) fn prepare_node_read(&mut self, slot: u32) -> Result<(), RpcError> {
        let walk = &mut self.walks[slot as usize];
        walk.awaited_completion = AwaitedCompletion::Read;
        walk.reads_so_far = walk.reads_so_far.saturating_add(1);
        let bytes = match walk.current_node {
            0 => 8 * (FIRST_ROOT_WORD_INDEX + MAX_TREES),
            _ => self.node_bytes,
        };
        let at = walk.current_node.checked_mul(self.node_bytes as u64);
        let from = at.and_then(|at| self.remote_node_memory.starting_at(at));
        let from = from.filter(|from| from.len >= bytes as u64);
        self.one_sided_queue.prepare_read((slot, 0), bytes, from)
    }

    /// Restarts a walk at a root that is READ again.
    fn restart_at_reread_root(
        &mut self,
        slot: u32,
        tree: u8,
    ) -> Result<Option<WalkOutcome<T>>, RpcError> {
        if self.walks[slot as usize].reads_so_far >= MAX_READS_PER_WALK {
            return Ok(Some(WalkOutcome::AskServer));
        }
        self.cache.set_root(tree, None);
        self.start_walk_at_root(slot, tree)?;
        Ok(None)
    }

    /// Processes a leaf that arrived with a right checksum.
    #[inline]
    fn process_leaf(
        &mut self,
        pending: &RequestSlot<T>,
        slot: u32,
    ) -> Result<Option<WalkOutcome<T>>, RpcError> {
        let words = self
            .one_sided_queue
            .buffer_words(slot, 0, self.node_bytes / 8)?;
        let leaf = Node::<_, T>(words, self.key_and_value_limits);
        if leaf.is_owned_elsewhere() {
            // The server's answer tells who owns the keys.
            return Ok(Some(WalkOutcome::AskServer));
        }
        let walk = &mut self.walks[slot as usize];
        let (end, limit) = match pending.op {
            Operation::Scan { end, limit, .. } => (end, limit as usize),
            Operation::Get { key } => {
                let value = leaf.find(&key).ok().map(|place| leaf.value(place));
                return Ok(Some(WalkOutcome::Answer(Answer::Value(value))));
            }
            Operation::Put { .. } | Operation::Delete { .. } => {
                return self.plan_change_and_prepare_leaf_lock(pending, slot);
            }
            Operation::Handover { .. } | Operation::ReadServerLoad => {
                return Ok(Some(WalkOutcome::AskServer));
            }
        };
        let first = leaf.find(&walk.key).unwrap_or_else(|place| place);
        for i in first..leaf.entry_count() {
            let key = leaf.key(i);
            if end.is_some_and(|end| key >= end) {
                let entries = std::mem::take(&mut walk.entries);
                return Ok(Some(WalkOutcome::Entries(entries, None)));
            }
            if walk.entries.len() == limit {
                let entries = std::mem::take(&mut walk.entries);
                return Ok(Some(WalkOutcome::Entries(entries, Some(key))));
            }
            walk.entries.push((key, leaf.value(i)));
        }
        let next = leaf
            .key_upper_bound()
            .filter(|next| end.is_none_or(|end| *next < end));
        let sibling = words.word(SIBLING_WORD_INDEX);
        let Some(next) = next else {
            let entries = std::mem::take(&mut walk.entries);
            return Ok(Some(WalkOutcome::Entries(entries, None)));
        };
        if walk.entries.len() == limit {
            let entries = std::mem::take(&mut walk.entries);
            return Ok(Some(WalkOutcome::Entries(entries, Some(next))));
        }
        walk.key = next;
        walk.reads_so_far = 0;
        walk.current_node = sibling;
        walk.cached_parent = 0;
        self.prepare_node_read(slot)?;
        Ok(None)
    }
}

impl<T: KeyOrValue> RequestSteps for WalkingClient<T> {
    type Pending = RequestSlot<T>;
    type Stats = ClientStats;
    type FinishedResult<'b> = WalkOutcome<T>;

    #[inline]
    fn queue(&mut self) -> &mut OneSidedQueue {
        &mut self.one_sided_queue
    }

    #[inline]
    fn handle_completion(
        &mut self,
        pending: &RequestSlot<T>,
        slot: u32,
        stats: &mut ClientStats,
        _bytes: &mut [u8],
    ) -> Result<Option<WalkOutcome<T>>, RpcError> {
        let step = self.walks[slot as usize].awaited_completion;
        if step != AwaitedCompletion::Read {
            return self.process_step_completion(pending, slot, stats, step);
        }
        stats.node_reads += 1;
        let tree = pending.tree;
        let (node, level, parent, key, reads) = {
            let walk = &self.walks[slot as usize];
            (
                walk.current_node,
                walk.level,
                walk.cached_parent,
                walk.key,
                walk.reads_so_far,
            )
        };
        if node == 0 {
            let word = self
                .one_sided_queue
                .buffer_word(slot, 8 * (FIRST_ROOT_WORD_INDEX + usize::from(tree)))?;
            let root = decode_root(word);
            if root.0 == 0 {
                return Ok(Some(WalkOutcome::AskServer));
            }
            self.cache.set_root(tree, Some(root));
            self.descend_through_cache_and_read(slot, tree, root, 0)?;
            return Ok(None);
        }
        if reads >= MAX_READS_PER_WALK {
            return Ok(Some(WalkOutcome::AskServer));
        }
        walk_cost::charge_search_of_read_node(self.node_bytes);
        let words = self
            .one_sided_queue
            .buffer_words(slot, 0, self.node_bytes / 8)?;
        let arrived = Node::<_, T>(words, self.key_and_value_limits);
        if !arrived.has_valid_checksum() {
            stats.torn_node_reads += 1;
            self.prepare_node_read(slot)?;
            return Ok(None);
        }
        match arrived.next_walk_step(&key, tree.into(), level) {
            NextStep::Leaf => self.process_leaf(pending, slot),
            NextStep::Child(child) => {
                if self.caches_nodes {
                    self.cache.insert(node, arrived);
                }
                self.descend_through_cache_and_read(slot, tree, (child, level - 1), node)?;
                Ok(None)
            }
            NextStep::Sibling(right) => {
                stats.walks_at_wrong_node += 1;
                self.drop_cached_parent(tree, parent);
                self.descend_through_cache_and_read(slot, tree, (right, level), 0)?;
                Ok(None)
            }
            NextStep::Restart => {
                stats.walks_at_wrong_node += 1;
                self.drop_cached_parent(tree, parent);
                self.restart_at_reread_root(slot, tree)
            }
        }
    }
}
