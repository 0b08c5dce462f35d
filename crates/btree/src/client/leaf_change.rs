//! Changes of leaves by a client: lock, WRITE and unlock, without work for the server's processor.
//!
//! 1. The client finds the leaf as for a lookup. If the change's condition does not hold, the request is complete.
//! 2. One postlist locks the leaf by a compare-and-swap, and READs it under the lock.
//! 3. One postlist WRITEs a redo entry, WRITEs the leaf, and unlocks it by a compare-and-swap, in this order. A
//!    concurrent READ finds a wrong checksum. If the client dies in between, the server can finish the change.
//!
//! The server executes changes of more than one node: those of a leaf that is full or becomes sparse. The client also
//! asks the server if a lock stays taken. The server then frees the lock if its owner is gone or has exceeded the
//! lease.

use rpc::RpcError;
use service::lock_recovery::lock_word;
use verbs::{RemoteMemory, time};

use super::request::{Answer, ClientStats, RequestSlot};
use super::walker::{AwaitedCompletion, WalkOutcome, WalkingClient};
use crate::key_or_value::KeyOrValue;
use crate::key_or_value::private::Sizes;
use crate::node::LEVEL_FLAGS_COUNT_INDEX;
use crate::node::{
    CHECKSUM_WORD_INDEX, NextStep, Node, VERSION_WORD_INDEX, encode_level_flags_count,
};
use crate::node_words::NodeWords;
use crate::tree::{PutCondition, redo};
use crate::wire::Operation;

/// Nanoseconds that a slot waits after it found a lock taken.
const LOCK_RETRY_DELAY_NS: u64 = 5_000;

/// The effect of a change on a leaf.
enum ChangePlan {
    /// The change's condition does not hold.
    NoChange { found: bool },
    /// The leaf alone changes.
    ChangeLeaf { found: bool },
    /// More than one node changes, or the leaf is frozen or moved: the server must execute the change.
    AskServer,
}

/// Returns the effect of a change on this leaf, which may be locked by any client.
fn plan_leaf_change<W: NodeWords + ?Sized, T: KeyOrValue>(
    leaf: Node<'_, W, T>,
    op: &Operation<T>,
) -> ChangePlan {
    if !leaf.keys_may_change() {
        return ChangePlan::AskServer;
    }
    let found = leaf.find(&op.key()).is_ok();
    match *op {
        Operation::Put { when, .. } => match (when, found) {
            (PutCondition::Absent, true) | (PutCondition::Present, false) => {
                ChangePlan::NoChange { found }
            }
            (_, false) if leaf.entry_count() >= leaf.entry_capacity() => ChangePlan::AskServer,
            _ => ChangePlan::ChangeLeaf { found },
        },
        Operation::Delete { .. } if !found => ChangePlan::NoChange { found },
        Operation::Delete { .. } if leaf.entry_count() <= leaf.min_entries() => {
            ChangePlan::AskServer
        }
        _ => ChangePlan::ChangeLeaf { found },
    }
}

/// Applies a change to the words of a leaf that has room for it.
fn apply_op_to_words<T: KeyOrValue>(words: &mut [u64], sizes: T::Sizes, op: &Operation<T>) {
    let leaf = Node::<_, T>(&*words, sizes);
    let (shape, count, place) = (leaf.shape(), leaf.entry_count(), leaf.find(&op.key()));
    let header = words[LEVEL_FLAGS_COUNT_INDEX] & !0xffff;
    let move_entries = |words: &mut [u64], from: usize, to: usize| {
        words.copy_within(
            shape.key_word_index(from)..shape.key_word_index(count),
            shape.key_word_index(to),
        );
        let values = shape.payload_word_index(0, from)..shape.payload_word_index(0, count);
        words.copy_within(values, shape.payload_word_index(0, to));
    };
    let set = |words: &mut [u64], index: usize, contents: T, slot_words: usize| {
        for (i, word) in words[index..index + slot_words].iter_mut().enumerate() {
            *word = contents.slot_word(i);
        }
    };
    let count = match (*op, place) {
        (Operation::Put { value, .. }, Ok(place)) => {
            set(
                words,
                shape.payload_word_index(0, place),
                value,
                sizes.value_words(),
            );
            count
        }
        (Operation::Put { key, value, .. }, Err(place)) if count < shape.entry_capacity(0) => {
            move_entries(words, place, place + 1);
            set(words, shape.key_word_index(place), key, sizes.key_words());
            set(
                words,
                shape.payload_word_index(0, place),
                value,
                sizes.value_words(),
            );
            count + 1
        }
        (Operation::Delete { .. }, Ok(place)) => {
            move_entries(words, place + 1, place);
            count - 1
        }
        _ => count,
    };
    words[LEVEL_FLAGS_COUNT_INDEX] = header | encode_level_flags_count(0, 0, count);
    words[VERSION_WORD_INDEX] = words[VERSION_WORD_INDEX].wrapping_add(1);
    words[CHECKSUM_WORD_INDEX] = Node::<_, T>(&*words, sizes).checksum_of_words();
}

impl<T: KeyOrValue> WalkingClient<T> {
    /// Returns the offset of an atomic's result in a slot's buffer; the redo entry follows.
    fn atomic_result_offset(&self) -> usize {
        self.node_bytes
    }

    fn redo_entry_offset(&self) -> usize {
        self.node_bytes + 8
    }

    /// Returns the remote memory of the slot's current node, from word `word` on.
    fn remote_memory_from_node_word(&self, slot: u32, word: usize) -> Option<RemoteMemory> {
        let node = self.walks[slot as usize].current_node;
        let at = node.checked_mul(self.node_bytes as u64)?;
        self.remote_node_memory.starting_at(at + 8 * word as u64)
    }

    /// Processes the intact leaf of a change.
    pub(super) fn plan_change_and_prepare_leaf_lock(
        &mut self,
        pending: &RequestSlot<T>,
        slot: u32,
    ) -> Result<Option<WalkOutcome<T>>, RpcError> {
        let words = self
            .one_sided_queue
            .buffer_words(slot, 0, self.node_bytes / 8)?;
        match plan_leaf_change(Node(words, self.key_and_value_limits), &pending.op) {
            ChangePlan::NoChange { found } => {
                return Ok(Some(WalkOutcome::Answer(Answer::Changed { found })));
            }
            ChangePlan::AskServer => return Ok(Some(WalkOutcome::AskServer)),
            ChangePlan::ChangeLeaf { .. } => {}
        }
        self.prepare_lock_and_read(slot)?;
        Ok(None)
    }

    /// Prepares the lock of the slot's leaf, and a READ under the lock.
    fn prepare_lock_and_read(&mut self, slot: u32) -> Result<(), RpcError> {
        let Some(writes) = self.write_parameters else {
            return Ok(());
        };
        self.last_lock_acquisition_number = self.last_lock_acquisition_number.wrapping_add(1);
        let word = lock_word(
            writes.lock_owner,
            writes.lease_ms,
            self.last_lock_acquisition_number,
        );
        let walk = &mut self.walks[slot as usize];
        (walk.awaited_completion, walk.held_lock_word) = (AwaitedCompletion::LockAndRead, word);
        self.one_sided_queue.flush_unless_postlist_has_room(2);
        let (result, lock) = (
            (slot, self.atomic_result_offset()),
            self.remote_memory_from_node_word(slot, 0),
        );
        self.one_sided_queue
            .prepare_compare_and_swap(result, lock, (0, word), false)?;
        let bytes = self.node_bytes;
        let from = self.remote_memory_from_node_word(slot, 0);
        self.one_sided_queue.prepare_read((slot, 0), bytes, from)
    }

    /// Prepares the unlock of the leaf. Its completion also covers the work requests prepared before.
    fn prepare_unlock(&mut self, slot: u32, then: AwaitedCompletion) -> Result<(), RpcError> {
        let walk = &mut self.walks[slot as usize];
        walk.awaited_completion = then;
        let word = walk.held_lock_word;
        self.one_sided_queue.flush_unless_postlist_has_room(1);
        let (result, lock) = (
            (slot, self.atomic_result_offset()),
            self.remote_memory_from_node_word(slot, 0),
        );
        self.one_sided_queue
            .prepare_compare_and_swap(result, lock, (word, 0), true)
    }

    /// Processes the completion of a step of a change.
    pub(super) fn process_step_completion(
        &mut self,
        pending: &RequestSlot<T>,
        slot: u32,
        stats: &mut ClientStats,
        step: AwaitedCompletion,
    ) -> Result<Option<WalkOutcome<T>>, RpcError> {
        match step {
            AwaitedCompletion::LockAndRead => self.process_lock_completion(pending, slot, stats),
            AwaitedCompletion::WriteAndUnlock { found }
            | AwaitedCompletion::UnlockAndComplete { found } => {
                self.walks[slot as usize].awaited_completion = AwaitedCompletion::Read;
                Ok(Some(WalkOutcome::Answer(Answer::Changed { found })))
            }
            AwaitedCompletion::UnlockAndAskServer => {
                self.walks[slot as usize].awaited_completion = AwaitedCompletion::Read;
                Ok(Some(WalkOutcome::AskServer))
            }
            AwaitedCompletion::UnlockAndRestart => {
                self.start_walk_at_root(slot, pending.tree)?;
                Ok(None)
            }
            AwaitedCompletion::Read => Ok(None),
        }
    }

    /// Processes the result of the lock attempt and the leaf.
    fn process_lock_completion(
        &mut self,
        pending: &RequestSlot<T>,
        slot: u32,
        stats: &mut ClientStats,
    ) -> Result<Option<WalkOutcome<T>>, RpcError> {
        if self
            .one_sided_queue
            .buffer_word(slot, self.atomic_result_offset())?
            != 0
        {
            stats.failed_lock_attempts += 1;
            let lease = self
                .write_parameters
                .map_or(0, |writes| u64::from(writes.lease_ms));
            let waited = time::now().duration_since(pending.submitted_at);
            if waited.as_millis() > u128::from(lease / 2) {
                return Ok(Some(WalkOutcome::AskServer));
            }
            self.walks[slot as usize].awaited_completion = AwaitedCompletion::Read;
            self.slots_and_lock_retry_times_ns
                .push((slot, time::now_ns() + LOCK_RETRY_DELAY_NS));
            return Ok(None);
        }
        let words = self
            .one_sided_queue
            .buffer_words(slot, 0, self.node_bytes / 8)?;
        let leaf = Node(words, self.key_and_value_limits);
        if !leaf.has_valid_checksum()
            || leaf.next_walk_step(&pending.op.key(), pending.tree.into(), 0) != NextStep::Leaf
        {
            // The leaf was split or merged before the lock was acquired.
            stats.walks_at_wrong_node += 1;
            self.prepare_unlock(slot, AwaitedCompletion::UnlockAndRestart)?;
            return Ok(None);
        }
        let found = match plan_leaf_change(leaf, &pending.op) {
            ChangePlan::NoChange { found } => {
                self.prepare_unlock(slot, AwaitedCompletion::UnlockAndComplete { found })?;
                return Ok(None);
            }
            ChangePlan::AskServer => {
                self.prepare_unlock(slot, AwaitedCompletion::UnlockAndAskServer)?;
                return Ok(None);
            }
            ChangePlan::ChangeLeaf { found } => found,
        };
        self.prepare_change_writes_and_unlock(slot, &pending.op, found)?;
        Ok(None)
    }

    /// Applies a change to the leaf in the slot's buffer. Prepares the WRITEs of redo entry and leaf, and the unlock,
    /// in one postlist.
    fn prepare_change_writes_and_unlock(
        &mut self,
        slot: u32,
        op: &Operation<T>,
        found: bool,
    ) -> Result<(), RpcError> {
        let node_words = self.node_bytes / 8;
        let (node, word) = {
            let walk = &self.walks[slot as usize];
            (walk.current_node, walk.held_lock_word)
        };
        let mut entry = vec![0; node_words + 2];
        // The leaf begins at word 1 of the entry, so word 1 of the leaf is word 2 of the entry.
        let leaf = &mut entry[redo::NODE_WORD_1_INDEX - 1..=node_words];
        for (to, from) in leaf
            .iter_mut()
            .zip(self.one_sided_queue.buffer_words(slot, 0, node_words)?)
        {
            *to = from.load(std::sync::atomic::Ordering::Relaxed);
        }
        apply_op_to_words(leaf, self.key_and_value_limits, op);
        redo::complete_redo_entry(&mut entry, node, word);
        let bytes: Vec<u8> = entry.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let at = self.redo_entry_offset();
        self.one_sided_queue.flush_unless_postlist_has_room(3);
        self.one_sided_queue.write_buffer(slot, at, &bytes)?;
        let place = u64::from(slot) * bytes.len() as u64;
        let redo_entry = self
            .write_parameters
            .and_then(|writes| writes.redo_entries.starting_at(place));
        self.one_sided_queue
            .prepare_write((slot, at), bytes.len(), redo_entry)?;
        let body = (slot, at + 8 * redo::NODE_WORD_1_INDEX);
        let to = self.remote_memory_from_node_word(slot, VERSION_WORD_INDEX);
        self.one_sided_queue
            .prepare_write(body, self.node_bytes - 8, to)?;
        self.prepare_unlock(slot, AwaitedCompletion::WriteAndUnlock { found })
    }

    /// Restarts the walks of slots that found a lock taken, after their wait.
    pub(super) fn retry_walks_after_lock_wait(&mut self, pending: &[RequestSlot<T>]) {
        let now = time::now_ns();
        let mut i = 0;
        while let Some(&(slot, until)) = self.slots_and_lock_retry_times_ns.get(i) {
            if now < until {
                i += 1;
                continue;
            }
            self.slots_and_lock_retry_times_ns.swap_remove(i);
            if let Some(pending) = pending.get(slot as usize) {
                let begun = self.start_walk_at_root(slot, pending.tree);
                self.one_sided_queue.record_error(begun);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use verbs::WcBuffer;

    use super::*;
    use crate::key_or_value::NumberSizes;
    use crate::{AccessDesign, Client, ClientConfig, PipelinedClient, Server, ServerConfig};

    fn server() -> Server {
        let config = ServerConfig {
            remote_writes: true,
            lock_lease_ms: 50,
            ..ServerConfig::default()
        };
        Server::start(config).expect("starts")
    }

    fn config(server: &Server, access: AccessDesign) -> ClientConfig {
        ClientConfig {
            server: server.address().to_string(),
            access,
            ..ClientConfig::default()
        }
    }

    /// A client that locked the only leaf for a PUT of 5, and posts the first `posted` of three: redo entry, leaf,
    /// unlock.
    fn stopped_at(server: &Server, posted: usize) -> PipelinedClient {
        let mut pipeline =
            PipelinedClient::connect(config(server, AccessDesign::Read)).expect("connects");
        let (root, _) = server.service().store().readable_trees().root_and_level(0);
        let walker = pipeline.walker();
        let wait = |walker: &WalkingClient<u64>| {
            let mut wcs = WcBuffer::<1>::new();
            while walker
                .one_sided_queue
                .cq()
                .poll(&mut wcs)
                .expect("polls")
                .next()
                .is_none()
            {}
        };
        walker.walks[0].current_node = root;
        walker.prepare_lock_and_read(0).expect("prepared");
        walker.one_sided_queue.flush().expect("posted");
        wait(walker);
        assert_eq!(
            walker
                .one_sided_queue
                .buffer_word(0, walker.atomic_result_offset())
                .expect("inside"),
            0
        );
        let put = Operation::Put {
            key: 5,
            value: 51,
            when: PutCondition::Always,
        };
        walker
            .prepare_change_writes_and_unlock(0, &put, true)
            .expect("prepared");
        walker
            .one_sided_queue
            .post_first_and_drop_rest(posted)
            .expect("posted");
        if posted == 3 {
            wait(walker);
        }
        // The unsignaled work requests are executed before this READ, in order.
        walker
            .one_sided_queue
            .prepare_read((1, 0), 8, walker.remote_memory_from_node_word(0, 0))
            .expect("prepared");
        walker.one_sided_queue.flush().expect("posted");
        wait(walker);
        pipeline
    }

    #[test]
    fn a_client_that_dies_at_any_step_leaves_a_whole_leaf_and_no_lock() {
        for posted in 0..=3 {
            let server = server();
            let mut other = Client::connect(config(&server, AccessDesign::Rpc)).expect("connects");
            other.put(0, 5, 50).expect("answered");
            drop(stopped_at(&server, posted));
            // Without a redo entry nothing was changed.
            let expected = if posted == 0 { 50 } else { 51 };
            // A client that finds the lock taken asks the server, which finishes the recorded change and frees the
            // lock.
            assert!(!other.put(0, 6, 60).expect("answered"), "{posted}");
            assert_eq!(
                other.get(0, 5).expect("answered"),
                Some(expected),
                "{posted}"
            );
            assert_eq!(other.get(0, 6).expect("answered"), Some(60), "{posted}");
            assert!(!other.put(0, 7, 70).expect("answered"));
        }
    }

    #[test]
    fn a_client_that_stops_with_a_lock_loses_it_after_its_lease() {
        for access in [AccessDesign::Rpc, AccessDesign::Read] {
            let server = server();
            let mut other = Client::connect(config(&server, access)).expect("connects");
            other.put(0, 5, 50).expect("answered");
            let stopped = stopped_at(&server, 1);
            assert_eq!(
                other.get(0, 5).expect("answered"),
                Some(50),
                "the leaf is whole"
            );
            // The recorded change is finished before this one is made.
            assert!(other.put(0, 6, 60).is_ok_and(|found| !found), "{access}");
            assert_eq!(other.get(0, 5).expect("answered"), Some(51));
            assert_eq!(server.stats().expelled_clients, 1);
            drop(stopped);
        }
    }

    proptest! {
        /// After each change the leaf equals a map, its checksum is right, and its flags are unchanged.
        #[test]
        fn changes_of_a_leaf_are_those_of_a_map(
            steps in proptest::collection::vec((0u64..40, any::<u64>(), any::<bool>()), 0..80),
        ) {
            let mut words = vec![0u64; 64];
            words[LEVEL_FLAGS_COUNT_INDEX] = crate::node::FLAG_LAST_OF_LEVEL;
            words[CHECKSUM_WORD_INDEX] = Node::<_, u64>(&words[..], NumberSizes).checksum_of_words();
            let mut model = BTreeMap::new();
            for (key, value, put) in steps {
                let op = if put {
                    Operation::Put { key, value, when: PutCondition::Always }
                } else {
                    Operation::Delete { key }
                };
                let found = match plan_leaf_change(Node::<_, u64>(&words[..], NumberSizes), &op) {
                    ChangePlan::AskServer => continue,
                    ChangePlan::NoChange { found } => found,
                    ChangePlan::ChangeLeaf { found } => {
                        apply_op_to_words(&mut words, NumberSizes, &op);
                        found
                    }
                };
                let before = if put { model.insert(key, value) } else { model.remove(&key) };
                prop_assert_eq!(found, before.is_some());
                let leaf = Node::<_, u64>(&words[..], NumberSizes);
                let there: Vec<_> = (0..leaf.entry_count()).map(|i| (leaf.key(i), leaf.value(i))).collect();
                let expected: Vec<_> = model.iter().map(|(k, v)| (*k, *v)).collect();
                prop_assert_eq!(there, expected);
                prop_assert!(leaf.has_valid_checksum() && leaf.is_last_of_level() && leaf.level() == 0);
            }
        }
    }
}
