//! Changes of leaves by a client: lock, WRITE, unlock, of which the server's processor knows nothing.
//!
//! 1. The leaf is found as for a lookup. If the change has nothing to do there, it is over.
//! 2. One postlist locks the leaf by a compare-and-swap, and READs it under the lock.
//! 3. One postlist WRITEs a redo entry, WRITEs the leaf, and unlocks it by a compare-and-swap, in this order: who READs
//!    meanwhile finds a node that is not whole, and the server can finish the change of a client that dies in between.
//!
//! The server is asked for what changes more than one node: a leaf that is full or becomes sparse. It is asked, too, when a
//! lock stays taken: it then frees the lock of a client that is gone or has it for longer than the lease.

use rpc::RpcError;
use service::guests::lock_word;
use verbs::{RemoteMemory, time};

use super::request::{Answer, ClientStats, Pending};
use super::walker::{Done, Step, Walker};
use crate::node::{CHECKSUM, HEADER, Next, Node, VERSION, capacity, meta};
use crate::node::{META, Words};
use crate::tree::{When, redo};
use crate::wire::Op;

/// How long a slot waits that found a lock taken, in nanoseconds, before it looks again.
const WAIT_NS: u64 = 5_000;

/// What a change does to a leaf.
enum Plan {
    /// Nothing: the key is there, or not.
    Nothing { found: bool },
    /// This.
    Change { found: bool },
    /// More than one node changes.
    Ask,
}

/// What a change does to this leaf, whose lock may be anybody's.
fn plan<W: Words + ?Sized>(leaf: Node<'_, W>, op: &Op) -> Plan {
    if !leaf.may_change() {
        return Plan::Ask;
    }
    let found = leaf.find(op.key()).is_ok();
    match *op {
        Op::Put { when, .. } => match (when, found) {
            (When::Absent, true) | (When::Present, false) => Plan::Nothing { found },
            (_, false) if leaf.count() >= leaf.capacity() => Plan::Ask,
            _ => Plan::Change { found },
        },
        Op::Delete { .. } if !found => Plan::Nothing { found },
        Op::Delete { .. } if leaf.count() <= leaf.capacity() / 4 => Plan::Ask,
        _ => Plan::Change { found },
    }
}

/// The words of a node after a change, where there is room for it.
fn apply(words: &mut [u64], op: &Op) {
    let room = capacity(words.len());
    let (count, place) = (Node(&*words).count(), Node(&*words).find(op.key()));
    let header = words[META] & !0xffff;
    let (keys, values) = (HEADER, HEADER + room);
    let shift = |words: &mut [u64], by: isize, from: usize| {
        for start in [keys, values] {
            let (from, to) = (start + from, start + count);
            words.copy_within(from..to, from.wrapping_add_signed(by));
        }
    };
    let count = match (*op, place) {
        (Op::Put { value, .. }, Ok(place)) => {
            words[values + place] = value;
            count
        }
        (Op::Put { key, value, .. }, Err(place)) if count < room => {
            shift(words, 1, place);
            words[keys + place] = key;
            words[values + place] = value;
            count + 1
        }
        (Op::Delete { .. }, Ok(place)) => {
            shift(words, -1, place + 1);
            count - 1
        }
        _ => count,
    };
    words[META] = header | meta(0, 0, count);
    words[VERSION] = words[VERSION].wrapping_add(1);
    words[CHECKSUM] = Node(&*words).sum();
}

impl Walker {
    /// Where the result of an atomic is in a slot's buffer, and the redo entry.
    fn result_at(&self) -> usize {
        self.node_bytes
    }

    fn entry_at(&self) -> usize {
        self.node_bytes + 8
    }

    /// A node's memory from a word on.
    fn node_at(&self, slot: u32, word: usize) -> Option<RemoteMemory> {
        let node = self.walks[slot as usize].node;
        let at = node.checked_mul(self.node_bytes as u64)?;
        self.nodes.at(at + 8 * word as u64)
    }

    /// The leaf of a change came, which is whole.
    pub(super) fn leaf_to_change(
        &mut self,
        pending: &Pending,
        slot: u32,
    ) -> Result<Option<Done>, RpcError> {
        let words = self.queue.words(slot, 0, self.node_bytes / 8)?;
        match plan(Node(words), &pending.op) {
            Plan::Nothing { found } => return Ok(Some(Done::Answer(Answer::Changed { found }))),
            Plan::Ask => return Ok(Some(Done::Ask)),
            Plan::Change { .. } => {}
        }
        self.lock(slot)?;
        Ok(None)
    }

    /// Prepares to lock the leaf that a slot is at, and to READ it under the lock.
    fn lock(&mut self, slot: u32) -> Result<(), RpcError> {
        let Some(writes) = self.writes else {
            return Ok(());
        };
        self.acquisition = self.acquisition.wrapping_add(1);
        let word = lock_word(writes.owner, writes.lease_ms, self.acquisition);
        let walk = &mut self.walks[slot as usize];
        (walk.step, walk.word) = (Step::Lock, word);
        self.queue.make_room(2);
        let (result, lock) = ((slot, self.result_at()), self.node_at(slot, 0));
        self.queue
            .compare_and_swap(result, lock, (0, word), false)?;
        let bytes = self.node_bytes;
        let from = self.node_at(slot, 0);
        self.queue.read((slot, 0), bytes, from)
    }

    /// Prepares to unlock the leaf; its completion covers what was prepared before.
    fn unlock(&mut self, slot: u32, then: Step) -> Result<(), RpcError> {
        let walk = &mut self.walks[slot as usize];
        walk.step = then;
        let word = walk.word;
        self.queue.make_room(1);
        let (result, lock) = ((slot, self.result_at()), self.node_at(slot, 0));
        self.queue.compare_and_swap(result, lock, (word, 0), true)
    }

    /// What a change waited for has come.
    pub(super) fn changed(
        &mut self,
        pending: &Pending,
        slot: u32,
        stats: &mut ClientStats,
        step: Step,
    ) -> Result<Option<Done>, RpcError> {
        match step {
            Step::Lock => self.locked(pending, slot, stats),
            Step::Write { found } | Step::Leave { found } => {
                self.walks[slot as usize].step = Step::Read;
                Ok(Some(Done::Answer(Answer::Changed { found })))
            }
            Step::GiveUp => {
                self.walks[slot as usize].step = Step::Read;
                Ok(Some(Done::Ask))
            }
            Step::Unlock => {
                self.start(slot, pending.tree)?;
                Ok(None)
            }
            Step::Read => Ok(None),
        }
    }

    /// Whether the leaf is locked has come, and the leaf.
    fn locked(
        &mut self,
        pending: &Pending,
        slot: u32,
        stats: &mut ClientStats,
    ) -> Result<Option<Done>, RpcError> {
        if self.queue.word(slot, self.result_at())? != 0 {
            stats.contended += 1;
            let lease = self.writes.map_or(0, |writes| u64::from(writes.lease_ms));
            let waited = time::now().duration_since(pending.sent);
            if waited.as_millis() > u128::from(lease / 2) {
                return Ok(Some(Done::Ask));
            }
            self.walks[slot as usize].step = Step::Read;
            self.waiting.push((slot, time::now_ns() + WAIT_NS));
            return Ok(None);
        }
        let words = self.queue.words(slot, 0, self.node_bytes / 8)?;
        let leaf = Node(words);
        if !leaf.is_whole() || leaf.next(pending.op.key(), pending.tree.into(), 0) != Next::Here {
            // It was split or merged before the lock came.
            stats.stale += 1;
            self.unlock(slot, Step::Unlock)?;
            return Ok(None);
        }
        let found = match plan(leaf, &pending.op) {
            Plan::Nothing { found } => {
                self.unlock(slot, Step::Leave { found })?;
                return Ok(None);
            }
            Plan::Ask => {
                self.unlock(slot, Step::GiveUp)?;
                return Ok(None);
            }
            Plan::Change { found } => found,
        };
        self.write(slot, &pending.op, found)?;
        Ok(None)
    }

    /// Prepares the WRITEs of a change of the locked leaf in the slot's buffer, and its unlocking, in one postlist.
    fn write(&mut self, slot: u32, op: &Op, found: bool) -> Result<(), RpcError> {
        let node_words = self.node_bytes / 8;
        let (node, word) = {
            let walk = &self.walks[slot as usize];
            (walk.node, walk.word)
        };
        let mut entry = vec![0; node_words + 2];
        // Words 1 and following of the node are words 2 and following of the entry: the node begins at word 1.
        let leaf = &mut entry[redo::BODY - 1..=node_words];
        for (to, from) in leaf.iter_mut().zip(self.queue.words(slot, 0, node_words)?) {
            *to = from.load(std::sync::atomic::Ordering::Relaxed);
        }
        apply(leaf, op);
        redo::seal(&mut entry, node, word);
        let bytes: Vec<u8> = entry.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let at = self.entry_at();
        self.queue.make_room(3);
        self.queue.fill(slot, at, &bytes)?;
        let place = u64::from(slot) * bytes.len() as u64;
        let redo_entry = self.writes.and_then(|writes| writes.redo.at(place));
        self.queue.write((slot, at), bytes.len(), redo_entry)?;
        let body = (slot, at + 8 * redo::BODY);
        let to = self.node_at(slot, VERSION);
        self.queue.write(body, self.node_bytes - 8, to)?;
        self.unlock(slot, Step::Write { found })
    }

    /// Looks again at leaves whose locks were taken.
    pub(super) fn try_again(&mut self, pending: &[Pending]) {
        let now = time::now_ns();
        let mut i = 0;
        while let Some(&(slot, until)) = self.waiting.get(i) {
            if now < until {
                i += 1;
                continue;
            }
            self.waiting.swap_remove(i);
            if let Some(pending) = pending.get(slot as usize) {
                let begun = self.start(slot, pending.tree);
                self.queue.note(begun);
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
    use crate::{Access, Client, ClientConfig, Pipeline, Server, ServerConfig};

    fn server() -> Server {
        let config = ServerConfig {
            remote_writes: true,
            lease_ms: 50,
            ..ServerConfig::default()
        };
        Server::start(config).expect("starts")
    }

    fn config(server: &Server, access: Access) -> ClientConfig {
        ClientConfig {
            server: server.address().to_string(),
            access,
            ..ClientConfig::default()
        }
    }

    /// A client that has locked the only leaf for a PUT of 5, and posts the first so many of redo entry, leaf and unlocking.
    fn stopped_at(server: &Server, posted: usize) -> Pipeline {
        let mut pipeline = Pipeline::connect(config(server, Access::Read)).expect("connects");
        let (root, _) = server.service().store().index().root(0);
        let walker = pipeline.walker();
        let wait = |walker: &Walker| {
            let mut wcs = WcBuffer::<1>::new();
            while walker
                .queue
                .cq()
                .poll(&mut wcs)
                .expect("polls")
                .next()
                .is_none()
            {}
        };
        walker.walks[0].node = root;
        walker.lock(0).expect("prepared");
        walker.queue.flush().expect("posted");
        wait(walker);
        assert_eq!(walker.queue.word(0, walker.result_at()).expect("inside"), 0);
        let put = Op::Put {
            key: 5,
            value: 51,
            when: When::Always,
        };
        walker.write(0, &put, true).expect("prepared");
        walker.queue.post_first(posted).expect("posted");
        if posted == 3 {
            wait(walker);
        }
        // What was posted without a completion is carried out in order before this READ.
        walker
            .queue
            .read((1, 0), 8, walker.node_at(0, 0))
            .expect("prepared");
        walker.queue.flush().expect("posted");
        wait(walker);
        pipeline
    }

    #[test]
    fn a_client_that_dies_at_any_step_leaves_a_whole_leaf_and_no_lock() {
        for posted in 0..=3 {
            let server = server();
            let mut other = Client::connect(config(&server, Access::Rpc)).expect("connects");
            other.put(0, 5, 50).expect("answered");
            drop(stopped_at(&server, posted));
            // Without a redo entry nothing was changed.
            let expected = if posted == 0 { 50 } else { 51 };
            // Whoever finds the lock taken has the server finish what is written down, and free it.
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
        for access in [Access::Rpc, Access::Read] {
            let server = server();
            let mut other = Client::connect(config(&server, access)).expect("connects");
            other.put(0, 5, 50).expect("answered");
            let stopped = stopped_at(&server, 1);
            assert_eq!(
                other.get(0, 5).expect("answered"),
                Some(50),
                "the leaf is whole"
            );
            // The change that was written down is finished before this one is made.
            assert!(other.put(0, 6, 60).is_ok_and(|found| !found), "{access}");
            assert_eq!(other.get(0, 5).expect("answered"), Some(51));
            assert_eq!(server.stats().expelled, 1);
            drop(stopped);
        }
    }

    proptest! {
        /// A leaf after changes is what a map says, is whole, and has the fences that it had.
        #[test]
        fn changes_of_a_leaf_are_those_of_a_map(
            steps in proptest::collection::vec((0u64..40, any::<u64>(), any::<bool>()), 0..80),
        ) {
            let mut words = vec![0u64; 64];
            words[META] = crate::node::LAST;
            words[CHECKSUM] = Node(&words[..]).sum();
            let mut model = BTreeMap::new();
            for (key, value, put) in steps {
                let op = if put {
                    Op::Put { key, value, when: When::Always }
                } else {
                    Op::Delete { key }
                };
                let found = match plan(Node(&words[..]), &op) {
                    Plan::Ask => continue,
                    Plan::Nothing { found } => found,
                    Plan::Change { found } => {
                        apply(&mut words, &op);
                        found
                    }
                };
                let before = if put { model.insert(key, value) } else { model.remove(&key) };
                prop_assert_eq!(found, before.is_some());
                let leaf = Node(&words[..]);
                let there: Vec<_> = (0..leaf.count()).map(|i| (leaf.key(i), leaf.value(i))).collect();
                let expected: Vec<_> = model.iter().map(|(k, v)| (*k, *v)).collect();
                prop_assert_eq!(there, expected);
                prop_assert!(leaf.is_whole() && leaf.is_last() && leaf.level() == 0);
            }
        }
    }
}
