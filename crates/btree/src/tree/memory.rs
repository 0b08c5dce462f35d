//! Nodes in registered memory: allocation, consistent reads, and locks.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};

use rpc::{LoopbackQp, RpcError};
use service::lock_recovery::SERVER_OWNER;
use service::worker::lock;
use verbs::{Access, MemoryRegion, PortAndGidIndex, ProtectionDomain, RemoteMemory, VerbError};

use crate::key_or_value::KeyOrValue;
use crate::key_or_value::private::Sizes;
use crate::node::{
    CHECKSUM_WORD_INDEX, FLAG_DEAD, FLAG_LAST_OF_LEVEL, LEVEL_FLAGS_COUNT_INDEX, LOCK_WORD_INDEX,
    MAX_NODE_BYTES, Node, NodeShape, SIBLING_WORD_INDEX, TREE_WORD_INDEX, VERSION_WORD_INDEX,
    checksum_term, encode_level_flags_count,
};

/// The magic number in word 0 of the memory.
const MAGIC: u64 = u64::from_le_bytes(*b"vbtree01");
/// Index of the header word that holds the first root; the other roots follow.
pub(crate) const FIRST_ROOT_WORD_INDEX: usize = 2;
/// Largest number of trees of a store.
pub const MAX_TREES: usize = 16;
/// Nodes reserved for splits of inner nodes, so that a new node can always be entered into its parent.
const SPLIT_RESERVE_NODES: u64 = 32;
/// The lock word that the server uses.
const SERVER_LOCK_WORD: u64 = (SERVER_OWNER as u64) << 40;

/// A node's number: its index in the memory. Number 0 is the header.
pub(crate) type NodeNumber = u64;

/// The error for a node whose lock is not released in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockTimeout(pub(crate) NodeNumber);

/// The memory of a store.
#[derive(Debug)]
pub(crate) struct StoreMemory<T: KeyOrValue> {
    region: Arc<MemoryRegion>,
    /// The loopback queue pair by which the server takes locks, if clients can lock nodes too.
    loopback_lock_access: Option<Mutex<(LoopbackQp, MemoryRegion)>>,
    node_shape: NodeShape<T>,
    node_capacity: u64,
    free_nodes: Mutex<FreeNodes>,
}

#[derive(Debug)]
struct FreeNodes {
    /// The first node that was never used.
    first_never_used: NodeNumber,
    /// Nodes that were used and are free again.
    reusable_nodes: Vec<NodeNumber>,
}

impl FreeNodes {
    fn free_count(&self, nodes: u64) -> u64 {
        nodes - self.first_never_used + self.reusable_nodes.len() as u64
    }
}

impl<T: KeyOrValue> StoreMemory<T> {
    /// Allocates memory for `nodes` nodes of `node_bytes` bytes.
    pub(crate) fn new(
        pd: &ProtectionDomain,
        (node_bytes, sizes): (usize, T::Sizes),
        nodes: u64,
        access: Access,
    ) -> Result<Self, VerbError> {
        let nodes = nodes.max(1) + 1;
        let bytes = usize::try_from(nodes).map_or(usize::MAX, |n| n.saturating_mul(node_bytes));
        let region = pd.alloc(bytes, access)?;
        let memory = Self {
            region: Arc::new(region),
            loopback_lock_access: None,
            node_shape: NodeShape {
                words_per_node: node_bytes / 8,
                key_and_value_limits: sizes,
            },
            node_capacity: nodes,
            free_nodes: Mutex::new(FreeNodes {
                first_never_used: 1,
                reusable_nodes: Vec::new(),
            }),
        };
        let header = memory.words_of_node(0);
        header[0].store(MAGIC, Ordering::Relaxed);
        header[1].store(node_bytes as u64, Ordering::Relaxed);
        Ok(memory)
    }

    /// Prepares for clients that lock and WRITE nodes through [registrations of their own](Self::register_again). From
    /// now on the server takes locks through its own NIC, because a NIC's atomics need not be atomic with the
    /// processor's.
    pub(crate) fn enable_client_locks(
        &mut self,
        pd: &ProtectionDomain,
        port: PortAndGidIndex,
    ) -> Result<(), RpcError> {
        let own = self.register_again(Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;
        self.loopback_lock_access = Some(Mutex::new((LoopbackQp::new(pd, port)?, own)));
        Ok(())
    }

    /// Registers the same memory again; this registration can be revoked separately.
    pub(crate) fn register_again(&self, access: Access) -> Result<MemoryRegion, VerbError> {
        Ok(self.region.register_again(access)?)
    }

    /// Returns the lock word of a node, or `None` if the node does not exist.
    pub(crate) fn node_lock_word(&self, number: NodeNumber) -> Option<&AtomicU64> {
        (1..self.node_capacity)
            .contains(&number)
            .then(|| &self.words_of_node(number)[LOCK_WORD_INDEX])
    }

    /// Finishes the change of a client that is gone: stores words 1 and following of a node that the client still has
    /// locked.
    pub(crate) fn overwrite_locked_node_body(
        &self,
        number: NodeNumber,
        words: impl Iterator<Item = u64>,
    ) {
        for (word, new) in self.words_of_node(number)[VERSION_WORD_INDEX..]
            .iter()
            .zip(words)
        {
            word.store(new, Ordering::Relaxed);
        }
    }

    /// Returns the address and key by which a peer READs the nodes.
    pub(crate) fn remote_memory(&self) -> RemoteMemory {
        self.region.remote()
    }

    pub(crate) fn node_shape(&self) -> NodeShape<T> {
        self.node_shape
    }

    /// Returns the number of nodes in use, and the number that the memory has room for.
    pub(crate) fn nodes_used_and_total(&self) -> (u64, u64) {
        let left = lock(&self.free_nodes).free_count(self.node_capacity);
        (self.node_capacity - 1 - left, self.node_capacity - 1)
    }

    /// Returns the words of a node; of the header if the node does not exist.
    #[inline]
    pub(crate) fn words_of_node(&self, number: NodeNumber) -> &[AtomicU64] {
        let number = if number < self.node_capacity {
            number
        } else {
            0
        };
        #[expect(clippy::cast_possible_truncation, reason = "in memory")]
        let start = number as usize * self.node_shape.words_per_node * 8;
        let words = self
            .region
            .atomics_u64(start, self.node_shape.words_per_node);
        words.unwrap_or_default()
    }

    /// Returns the word that holds the root of a tree.
    #[inline]
    pub(crate) fn root_word(&self, tree: usize) -> &AtomicU64 {
        &self.words_of_node(0)[FIRST_ROOT_WORD_INDEX + tree]
    }

    /// Reads a node and returns what `visit` finds in one version of it. `visit` may first be called with a mixture of
    /// versions; its result is then discarded. The call waits for a writer on another machine only while that writer's
    /// WRITE is in progress.
    ///
    /// # Errors
    /// [`LockTimeout`] if the node stays a mixture for so long that its writer must be dead or stopped.
    #[inline]
    pub(crate) fn read_node_consistently<R>(
        &self,
        number: NodeNumber,
        mut visit: impl FnMut(Node<'_, [AtomicU64], T>) -> R,
    ) -> Result<R, LockTimeout> {
        match self.try_read_unlocked_node(number, &mut visit) {
            Some(found) => Ok(found),
            None => self.read_changing_node(number, visit),
        }
    }

    #[inline]
    fn try_read_unlocked_node<R>(
        &self,
        number: NodeNumber,
        visit: &mut impl FnMut(Node<'_, [AtomicU64], T>) -> R,
    ) -> Option<R> {
        let words = self.words_of_node(number);
        let version = words[VERSION_WORD_INDEX].load(Ordering::Acquire);
        if words[LOCK_WORD_INDEX].load(Ordering::Acquire) != 0 {
            return None;
        }
        let found = visit(Node(words, self.node_shape.key_and_value_limits));
        // Pairs with the fence in [`try_lock_node`](Self::try_lock_node): a reader that saw a word written under a lock
        // then sees the lock, or a later version.
        fence(Ordering::Acquire);
        let same = words[LOCK_WORD_INDEX].load(Ordering::Relaxed) == 0
            && words[VERSION_WORD_INDEX].load(Ordering::Relaxed) == version;
        same.then_some(found)
    }

    /// Reads a node that is being changed: waits until the lock is free, or uses a copy whose checksum is right.
    #[cold]
    fn read_changing_node<R>(
        &self,
        number: NodeNumber,
        mut visit: impl FnMut(Node<'_, [AtomicU64], T>) -> R,
    ) -> Result<R, LockTimeout> {
        let words = self.words_of_node(number);
        let copy = [const { AtomicU64::new(0) }; MAX_NODE_BYTES / 8];
        let copy = &copy[..self.node_shape.words_per_node];
        let mut attempt = 0;
        while self.may_retry(number, attempt) {
            if let Some(found) = self.try_read_unlocked_node(number, &mut visit) {
                return Ok(found);
            }
            for (to, from) in copy.iter().zip(words) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            if Node::<_, T>(copy, self.node_shape.key_and_value_limits).has_valid_checksum() {
                return Ok(visit(Node(copy, self.node_shape.key_and_value_limits)));
            }
            pause_before_retry(attempt);
            attempt = attempt.saturating_add(1);
        }
        Err(LockTimeout(number))
    }

    /// Locks a node.
    ///
    /// # Errors
    /// [`LockTimeout`] if the lock stays taken for too long.
    pub(crate) fn lock_node(&self, number: NodeNumber) -> Result<LockedNode<'_, T>, LockTimeout> {
        let mut attempt = 0;
        while self.may_retry(number, attempt) {
            if let Some(locked) = self.try_lock_node(number) {
                return Ok(locked);
            }
            pause_before_retry(attempt);
            attempt = attempt.saturating_add(1);
        }
        Err(LockTimeout(number))
    }

    /// Returns true if the caller should try the node again. The server's own threads always release their locks, even
    /// if they are scheduled late.
    fn may_retry(&self, number: NodeNumber, attempt: u32) -> bool {
        attempt < MAX_LOCK_ATTEMPTS
            || matches!(
                self.words_of_node(number)[LOCK_WORD_INDEX].load(Ordering::Relaxed),
                0 | SERVER_LOCK_WORD
            )
    }

    /// Locks a node if its lock is free.
    pub(crate) fn try_lock_node(&self, number: NodeNumber) -> Option<LockedNode<'_, T>> {
        let words = self.words_of_node(number);
        match &self.loopback_lock_access {
            None => {
                let (free, locked) = (0, SERVER_LOCK_WORD);
                words[LOCK_WORD_INDEX]
                    .compare_exchange(free, locked, Ordering::Acquire, Ordering::Relaxed)
                    .ok()?;
            }
            Some(atomics) => {
                let (loopback, own) = &mut *lock(atomics);
                let at = own
                    .remote()
                    .starting_at(number.checked_mul(8 * self.node_shape.words_per_node as u64)?)?;
                // A failed queue pair counts as a lock that is not free.
                let swapped = loopback.compare_and_swap(at, 0, SERVER_LOCK_WORD);
                fence(Ordering::Acquire);
                swapped.ok().filter(|swapped| *swapped)?;
            }
        }
        // Pairs with the fence in `read_node_consistently`: a reader that sees a word written under the lock also sees
        // the lock.
        fence(Ordering::Release);
        Some(LockedNode {
            words,
            key_and_value_limits: self.node_shape.key_and_value_limits,
            checksum_outdated: false,
        })
    }

    /// Allocates a node and locks it. `inner` is true for a split of an inner node, which may use the reserve. Returns
    /// `None` if the memory is full.
    pub(crate) fn allocate_locked(&self, inner: bool) -> Option<(NodeNumber, LockedNode<'_, T>)> {
        let reserve = if inner { 0 } else { SPLIT_RESERVE_NODES };
        // A client may still hold the lock of a node that was merged away. Such a node stays free.
        let mut skipped = Vec::new();
        let mut allocated = None;
        while let Some(number) = self.pop_free_node(reserve, skipped.len() as u64) {
            allocated = self.try_lock_node(number).map(|locked| (number, locked));
            if allocated.is_some() {
                break;
            }
            skipped.push(number);
        }
        // The memory is full except for nodes that are locked now.
        if allocated.is_none()
            && let Some(&number) = skipped.last()
            && let Ok(locked) = self.lock_node(number)
        {
            skipped.pop();
            allocated = Some((number, locked));
        }
        if !skipped.is_empty() {
            lock(&self.free_nodes).reusable_nodes.append(&mut skipped);
        }
        allocated
    }

    /// Takes a free node. Returns `None` if no more than `reserve` nodes are free, including `skipped` ones that the
    /// caller took before.
    fn pop_free_node(&self, reserve: u64, skipped: u64) -> Option<NodeNumber> {
        let mut free = lock(&self.free_nodes);
        let left = free.free_count(self.node_capacity);
        if left == 0 || left + skipped <= reserve {
            return None;
        }
        Some(free.reusable_nodes.pop().unwrap_or_else(|| {
            free.first_never_used += 1;
            free.first_never_used - 1
        }))
    }

    /// Allocates `count` consecutive nodes that were never used, for a bulk load, and returns the first one's number.
    pub(crate) fn allocate_consecutive(&self, count: u64) -> Option<NodeNumber> {
        let mut free = lock(&self.free_nodes);
        let first = free.first_never_used;
        if self.node_capacity - first < count + SPLIT_RESERVE_NODES {
            return None;
        }
        free.first_never_used += count;
        Some(first)
    }

    /// Frees a dead node. A reader that still knows its number finds it dead or with other fences.
    pub(crate) fn free_node(&self, number: NodeNumber) {
        lock(&self.free_nodes).reusable_nodes.push(number);
    }
}

/// Number of attempts, some milliseconds, before a client's lock counts as abandoned.
const MAX_LOCK_ATTEMPTS: u32 = 10_000;

fn pause_before_retry(attempt: u32) {
    if attempt % 64 == 63 {
        // The holder of the lock may need this core.
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// A node that this thread has locked. Dropping the value publishes the changes: version and checksum first, then the
/// unlock.
pub(crate) struct LockedNode<'m, T: KeyOrValue> {
    words: &'m [AtomicU64],
    key_and_value_limits: T::Sizes,
    checksum_outdated: bool,
}

impl<'m, T: KeyOrValue> LockedNode<'m, T> {
    pub(crate) fn node(&self) -> Node<'m, [AtomicU64], T> {
        Node(self.words, self.key_and_value_limits)
    }

    fn set_word(&mut self, index: usize, word: u64) {
        self.words[index].store(word, Ordering::Relaxed);
        self.checksum_outdated = true;
    }

    /// Writes a key, a value or a child's number into its slot.
    fn set_slot<P: KeyOrValue>(&mut self, index: usize, slot_words: usize, contents: &P) {
        for i in 0..slot_words {
            self.set_word(index + i, contents.slot_word(i));
        }
    }

    fn set_key(&mut self, i: usize, key: &T) {
        let shape = self.node().shape();
        self.set_slot(
            shape.key_word_index(i),
            shape.key_and_value_limits.key_words(),
            key,
        );
    }

    fn set_payload<P: KeyOrValue>(&mut self, i: usize, payload: &P) {
        let (shape, level) = (self.node().shape(), self.node().level());
        let (index, words) = (
            shape.payload_word_index(level, i),
            shape.words_per_payload(level),
        );
        self.set_slot(index, words, payload);
    }

    /// Initialises a new node with a level, a tree and its `entries`.
    pub(crate) fn init<P: KeyOrValue>(
        &mut self,
        tree: u64,
        level: u16,
        flags: u64,
        entries: &[(T, P)],
    ) {
        self.set_word(TREE_WORD_INDEX, tree);
        self.set_word(
            LEVEL_FLAGS_COUNT_INDEX,
            encode_level_flags_count(level, flags, 0),
        );
        self.replace_entries(entries);
    }

    /// Replaces all entries.
    pub(crate) fn replace_entries<P: KeyOrValue>(&mut self, entries: &[(T, P)]) {
        let room = self.node().entry_capacity();
        for (i, (key, payload)) in entries.iter().enumerate().take(room) {
            self.set_key(i, key);
            self.set_payload(i, payload);
        }
        self.set_count(entries.len().min(room));
    }

    fn set_count(&mut self, count: usize) {
        let node = self.node();
        let meta = encode_level_flags_count(node.level(), node.flags(), count);
        self.set_word(LEVEL_FLAGS_COUNT_INDEX, meta);
    }

    /// Sets the fences to `low` and `end` (`None`: no upper bound), and the right sibling.
    pub(crate) fn set_fences_and_sibling(&mut self, low: T, end: Option<T>, sibling: NodeNumber) {
        let shape = self.node().shape();
        self.set_slot(
            shape.fence_word_indices().0,
            shape.key_and_value_limits.key_words(),
            &low,
        );
        self.set_high_fence_and_sibling(end, sibling);
    }

    /// Sets the high fence to `end` (`None`: no upper bound), and the right sibling.
    pub(crate) fn set_high_fence_and_sibling(&mut self, end: Option<T>, sibling: NodeNumber) {
        let node = self.node();
        let last = if end.is_none() { FLAG_LAST_OF_LEVEL } else { 0 };
        let flags = node.flags() & !FLAG_LAST_OF_LEVEL | last;
        let meta = encode_level_flags_count(node.level(), flags, node.entry_count());
        self.set_word(LEVEL_FLAGS_COUNT_INDEX, meta);
        let shape = node.shape();
        let end = end.unwrap_or_default();
        self.set_slot(
            shape.fence_word_indices().1,
            shape.key_and_value_limits.key_words(),
            &end,
        );
        self.set_word(SIBLING_WORD_INDEX, sibling);
    }

    /// Sets and clears flags of the node.
    pub(crate) fn set_and_clear_flags(&mut self, set: u64, clear: u64) {
        let node = self.node();
        let meta = encode_level_flags_count(
            node.level(),
            node.flags() & !clear | set,
            node.entry_count(),
        );
        self.set_word(LEVEL_FLAGS_COUNT_INDEX, meta);
    }

    /// Marks the node as dead and empties it.
    pub(crate) fn mark_dead_and_empty(&mut self) {
        let meta = encode_level_flags_count(self.node().level(), FLAG_DEAD, 0);
        self.set_word(LEVEL_FLAGS_COUNT_INDEX, meta);
    }

    /// Inserts an entry at an index; the caller has checked that the node has room.
    pub(crate) fn insert<P: KeyOrValue>(&mut self, place: usize, key: &T, payload: &P) {
        let count = self.node().entry_count();
        for [from, end, words] in self.key_and_payload_word_ranges(place, count) {
            for i in (from..end).rev() {
                self.set_word(i + words, self.words[i].load(Ordering::Relaxed));
            }
        }
        self.set_key(place, key);
        self.set_payload(place, payload);
        self.set_count(count + 1);
    }

    /// Removes the entry at an index.
    pub(crate) fn remove(&mut self, place: usize) {
        let count = self.node().entry_count();
        for [from, end, words] in self.key_and_payload_word_ranges(place + 1, count) {
            for i in from..end {
                self.set_word(i - words, self.words[i].load(Ordering::Relaxed));
            }
        }
        self.set_count(count - 1);
    }

    /// Returns the words of the keys, and of the payloads, of entries `place` to `count`: the first index, the end, and
    /// the words of each slot.
    fn key_and_payload_word_ranges(&self, place: usize, count: usize) -> [[usize; 3]; 2] {
        let (shape, level) = (self.node().shape(), self.node().level());
        [
            [
                shape.key_word_index(place),
                shape.key_word_index(count),
                shape.key_and_value_limits.key_words(),
            ],
            [
                shape.payload_word_index(level, place),
                shape.payload_word_index(level, count),
                shape.words_per_payload(level),
            ],
        ]
    }

    /// Replaces a value or a child's number and updates version and checksum incrementally.
    pub(crate) fn update_payload<P: KeyOrValue>(&mut self, place: usize, payload: &P) {
        let (shape, level) = (self.node().shape(), self.node().level());
        let index = shape.payload_word_index(level, place);
        let words = self.words;
        let version = words[VERSION_WORD_INDEX].load(Ordering::Relaxed);
        let sum = words[CHECKSUM_WORD_INDEX].load(Ordering::Relaxed);
        let mut sum = sum
            .wrapping_sub(checksum_term(VERSION_WORD_INDEX, version))
            .wrapping_add(checksum_term(VERSION_WORD_INDEX, version.wrapping_add(1)));
        for i in 0..shape.words_per_payload(level) {
            let (index, new) = (index + i, payload.slot_word(i));
            let old = words[index].load(Ordering::Relaxed);
            sum = sum
                .wrapping_sub(checksum_term(index, old))
                .wrapping_add(checksum_term(index, new));
            words[index].store(new, Ordering::Relaxed);
        }
        words[VERSION_WORD_INDEX].store(version.wrapping_add(1), Ordering::Relaxed);
        words[CHECKSUM_WORD_INDEX].store(sum, Ordering::Relaxed);
    }

    /// Returns all entries in order, with `more` inserted.
    pub(crate) fn entries_with_inserted<P: KeyOrValue>(&self, more: Option<(T, P)>) -> Vec<(T, P)> {
        let node = self.node();
        let mut all: Vec<_> = (0..node.entry_count())
            .map(|i| (node.key(i), node.payload(i)))
            .collect();
        if let Some(more) = more {
            all.insert(node.count_keys_up_to(&more.0), more);
        }
        all
    }
}

impl<T: KeyOrValue> Drop for LockedNode<'_, T> {
    fn drop(&mut self) {
        if self.checksum_outdated {
            let version = self.words[VERSION_WORD_INDEX]
                .load(Ordering::Relaxed)
                .wrapping_add(1);
            self.words[VERSION_WORD_INDEX].store(version, Ordering::Relaxed);
            let sum = self.node().checksum_of_words();
            self.words[CHECKSUM_WORD_INDEX].store(sum, Ordering::Relaxed);
        }
        self.words[LOCK_WORD_INDEX].store(0, Ordering::Release);
    }
}
