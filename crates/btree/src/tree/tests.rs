use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use service::lock_recovery::lock_word;
use verbs::{Access, ProtectionDomain};

use super::*;
use crate::key_or_value::{ByteString, KeyOrValue, NumberSizes, StringSizes};
use crate::node::{Node, SIBLING_WORD_INDEX};

fn pd() -> ProtectionDomain {
    let device = verbs::Provider::softnic().device(None);
    let context = device.expect("a device").open().expect("opens");
    context.alloc_pd().expect("a PD")
}

/// A type of keys and values whose order is that of numbers.
trait TestItem: KeyOrValue {
    /// Bytes of a node with room for few entries.
    const NODE_BYTES: usize;
    const SIZES: Self::Sizes;
    fn of(number: u64) -> Self;
    fn number(self) -> u64;
}

impl TestItem for u64 {
    const NODE_BYTES: usize = 256;
    const SIZES: NumberSizes = NumberSizes;

    fn of(number: u64) -> Self {
        number
    }

    fn number(self) -> u64 {
        self
    }
}

/// Strings of several lengths.
impl TestItem for ByteString {
    const NODE_BYTES: usize = 512;
    const SIZES: StringSizes = StringSizes {
        key_bytes: 14,
        value_bytes: 16,
    };

    fn of(number: u64) -> Self {
        let mut bytes = number.to_be_bytes().to_vec();
        bytes.resize(8 + usize::try_from(number % 7).expect("small"), b'x');
        Self::new(&bytes).expect("short")
    }

    fn number(self) -> u64 {
        let bytes = self.to_vec();
        let number = bytes
            .first_chunk::<8>()
            .map_or(0, |b| u64::from_be_bytes(*b));
        assert!(self.is_empty() || self == Self::of(number), "{self}");
        number
    }
}

fn store<T: TestItem>(nodes: u64) -> Store<T> {
    Store::new(
        &pd(),
        (T::NODE_BYTES, T::SIZES),
        (2, nodes),
        Access::REMOTE_READ,
    )
    .expect("memory")
}

/// Returns the numbers of entries.
fn numbers<T: TestItem>(entries: &[(T, T)]) -> Vec<(u64, u64)> {
    let number = |(key, value): &(T, T)| (key.number(), value.number());
    entries.iter().map(number).collect()
}

/// Checks every reachable node of a tree: checksum, key order, fences and sibling links. Returns all entries.
fn check<T: TestItem>(store: &Store<T>, tree: usize) -> Vec<(u64, u64)> {
    let (mut first, top) = store.readable_trees.root_and_level(tree);
    let mut entries = Vec::new();
    for level in (0..=top).rev() {
        let (mut node, mut low) = (first, T::default());
        let mut below = None;
        while node != 0 {
            let words = store.readable_trees.memory.words_of_node(node);
            let n = Node::<_, T>(words, T::SIZES);
            assert!(n.has_valid_checksum() && !n.is_dead(), "node {node}");
            assert_eq!((n.level(), n.key_lower_bound()), (level, low));
            let keys: Vec<T> = (0..n.entry_count()).map(|i| n.key(i)).collect();
            assert!(keys.is_sorted_by(|a, b| a < b), "{keys:?}");
            assert!(
                keys.iter()
                    .all(|k| *k >= low && n.key_upper_bound().is_none_or(|end| *k < end))
            );
            if level > 0 {
                assert_eq!(
                    keys.first(),
                    Some(&low),
                    "an inner node begins with its low fence"
                );
                below.get_or_insert(n.child(0));
            } else if !n.is_owned_elsewhere() {
                entries.extend((0..n.entry_count()).map(|i| (n.key(i), n.value(i))));
            }
            node = words[SIBLING_WORD_INDEX].load(Ordering::Relaxed);
            assert_eq!(n.key_upper_bound().is_none(), node == 0);
            low = n.key_upper_bound().unwrap_or_default();
        }
        first = below.unwrap_or(0);
    }
    numbers(&entries)
}

#[derive(Debug, Clone)]
enum Step {
    Put(u64, u64),
    Insert(u64, u64),
    Update(u64, u64),
    Remove(u64),
    Get(u64),
    Scan(u64, Option<u64>, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = prop_oneof![0u64..200, Just(u64::MAX), Just(0)];
    let step = prop_oneof![
        4 => (key.clone(), any::<u64>()).prop_map(|(k, v)| Step::Put(k, v)),
        1 => (key.clone(), any::<u64>()).prop_map(|(k, v)| Step::Insert(k, v)),
        1 => (key.clone(), any::<u64>()).prop_map(|(k, v)| Step::Update(k, v)),
        4 => key.clone().prop_map(Step::Remove),
        1 => key.clone().prop_map(Step::Get),
        1 => (key, proptest::option::of(0u64..220), 0usize..40).prop_map(|(k, e, n)| Step::Scan(k, e, n)),
    ];
    proptest::collection::vec(step, 0..600)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_tree_is_a_sorted_map(steps in steps(), loaded in 0u64..120) {
        compare_with_map::<u64>(&steps, loaded);
        compare_with_map::<ByteString>(&steps, loaded);
    }
}

/// Takes the steps in a tree and in a sorted map, and compares every result.
fn compare_with_map<T: TestItem>(steps: &[Step], loaded: u64) {
    let store = store::<T>(800);
    let mut model: BTreeMap<u64, u64> = (0..loaded).map(|i| (2 * i, i)).collect();
    let load = |i| (T::of(2 * i), T::of(i));
    store.bulk_load(1, loaded, 0.8, 2, load).expect("loads");
    let put = |k, v, when| {
        let before = store.put(1, T::of(k), T::of(v), when).expect("room");
        before.map(T::number)
    };
    for step in steps {
        match *step {
            Step::Put(k, v) => {
                assert_eq!(put(k, v, PutCondition::Always), model.insert(k, v));
            }
            Step::Insert(k, v) => {
                let before = model.get(&k).copied();
                model.entry(k).or_insert(v);
                assert_eq!(put(k, v, PutCondition::Absent), before);
            }
            Step::Update(k, v) => {
                let before = model.get(&k).copied();
                model.entry(k).and_modify(|there| *there = v);
                assert_eq!(put(k, v, PutCondition::Present), before);
            }
            Step::Remove(k) => {
                let before = store.remove(1, T::of(k)).expect("not locked");
                assert_eq!(before.map(T::number), model.remove(&k));
            }
            Step::Get(k) => {
                let value = store.get(1, T::of(k)).expect("not locked");
                assert_eq!(value.map(T::number), model.get(&k).copied());
            }
            Step::Scan(from, end, limit) => {
                let mut found = Vec::new();
                let range = (T::of(from), end.map(T::of));
                let next = store.scan(1, range, limit, &mut found).expect("not locked");
                let range = model.range(from..);
                let range = range.filter(|(k, _)| end.is_none_or(|end| **k < end));
                let mut expected: Vec<_> = range.map(|(k, v)| (*k, *v)).take(limit + 1).collect();
                let more = (expected.len() > limit).then(|| expected.pop()).flatten();
                assert_eq!(numbers(&found), expected);
                assert!(more.is_none_or(|(key, _)| next.is_some_and(|next| next <= T::of(key))));
                let is_last = |next: T| !model.keys().any(|key| T::of(*key) >= next);
                assert!(more.is_some() || next.is_none_or(is_last));
            }
        }
    }
    assert_eq!(check(&store, 1), model.into_iter().collect::<Vec<_>>());
    assert_eq!(check(&store, 0), vec![], "the other tree is empty");
}

/// Nodes with the longest keys and values still split, merge and divide.
#[test]
fn the_longest_strings_fit() {
    let longest = |number: u64| {
        let mut bytes = vec![b'k'; ByteString::MAX_BYTES - 8];
        bytes.extend(number.to_be_bytes());
        ByteString::new(&bytes).expect("short enough")
    };
    let sizes = StringSizes {
        key_bytes: ByteString::MAX_BYTES,
        value_bytes: ByteString::MAX_BYTES,
    };
    let store: Store<ByteString> =
        Store::new(&pd(), (4096, sizes), (1, 400), Access::REMOTE_READ).expect("memory");
    let value = |i: u64| longest(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for i in (0..600).map(|i| i * 7 % 600) {
        let put = store.put(0, longest(i), value(i), PutCondition::Absent);
        assert_eq!(put, Ok(None));
    }
    let mut found = Vec::new();
    let next = store.scan(0, (ByteString::default(), None), usize::MAX, &mut found);
    assert_eq!(next, Ok(None));
    let expected: Vec<_> = (0..600).map(|i| (longest(i), value(i))).collect();
    assert_eq!(found, expected);
    for i in 0..600 {
        assert_eq!(store.remove(0, longest(i)), Ok(Some(value(i))));
    }
    assert!(store.stats().merges > 0 && store.stats().levels > 2);
}

#[test]
fn longer_strings_than_the_tree_allows_are_refused() {
    let store = store::<ByteString>(40);
    let long = ByteString::new(&[b'x'; 15]).expect("short enough for a string");
    let short = ByteString::of(5);
    let refused = |found| matches!(found, Err(Refusal::TooLong(e)) if e.length > e.max_length);
    assert!(refused(
        store.put(0, long, short, PutCondition::Always).map(|_| ())
    ));
    let value = ByteString::new(&[b'x'; 17]).expect("short enough for a string");
    assert!(refused(
        store.put(0, short, value, PutCondition::Always).map(|_| ())
    ));
    let loaded = store.bulk_load(0, 1, 1.0, 1, |_| (long, short));
    assert!(
        matches!(loaded, Err(BulkLoadError::TooLong(_))),
        "{loaded:?}"
    );
    let mut reserved = store.reserve_nodes(1).expect("room");
    let range = (ByteString::default(), None);
    assert!(refused(store.adopt(
        0,
        range,
        &[(short, value)],
        &mut reserved
    )));
    assert_eq!(check(&store, 0), []);
}

#[test]
fn loads_refuse_what_is_wrong() {
    let store = store::<u64>(40);
    assert_eq!(
        store.bulk_load(0, 100, 1.0, 1, |i| (i / 2, i)),
        Err(BulkLoadError::KeysNotAscending { at: 1 })
    );
    assert!(matches!(
        store.bulk_load(0, 10_000, 1.0, 1, |i| (i, i)),
        Err(BulkLoadError::StoreFull { .. })
    ));
    store.bulk_load(0, 100, 1.0, 3, |i| (i, i)).expect("loads");
    assert_eq!(
        store.bulk_load(0, 1, 1.0, 1, |i| (i, i)),
        Err(BulkLoadError::NotEmpty)
    );
    assert_eq!(check(&store, 0).len(), 100);
}

#[test]
fn an_insert_during_a_load_is_kept_and_the_load_refused() {
    let store = store::<u64>(100);
    let free = |store: &Store<u64>| store.stats().node_capacity - store.stats().used_nodes;
    let before = free(&store);
    let loaded = store.bulk_load(0, 100, 1.0, 1, |i| {
        store.put(0, 1000, 7, PutCondition::Always).expect("room");
        (i, i)
    });
    assert_eq!(loaded, Err(BulkLoadError::NotEmpty));
    assert_eq!(check(&store, 0), [(1000, 7)]);
    assert_eq!(free(&store), before, "the nodes of the load are free again");
}

#[test]
fn a_root_that_a_client_has_locked_is_not_replaced() {
    let store = store::<u64>(100);
    let root = store.readable_trees.root_and_level(0).0;
    let word = store.readable_trees.memory.node_lock_word(root);
    let word = word.expect("a node");
    let load = || {
        store.bulk_load(0, 100, 1.0, 1, |i| {
            word.store(lock_word(7, 9, 1), Ordering::Release);
            (i, i)
        })
    };
    assert_eq!(load(), Err(BulkLoadError::RootLocked));
    word.store(0, Ordering::Release);
    assert_eq!(check(&store, 0), []);
    store.bulk_load(0, 100, 1.0, 1, |i| (i, i)).expect("loads");
    assert_eq!(check(&store, 0).len(), 100);
}

#[test]
fn a_full_store_refuses_and_keeps_what_it_has() {
    let store = store::<u64>(20);
    let mut there = 0;
    let full = (0..100_000u64).find(|k| {
        let put = store.put(0, *k, *k, PutCondition::Always);
        there += u64::from(put.is_ok());
        put == Err(Refusal::StoreFull)
    });
    assert!(full.is_some() && there > 200);
    assert_eq!(check(&store, 0).len() as u64, there);
    // Removals free memory.
    for k in 0..there {
        assert_eq!(store.remove(0, k), Ok(Some(k)));
    }
    assert!(store.put(0, 5, 5, PutCondition::Always).is_ok());
}

/// Runs writers of disjoint keys and readers on small nodes that split and merge all the time. Keys that are never
/// removed must be found by every lookup, every scan, and every copy of nodes without locks.
#[test]
fn threads_see_one_tree() {
    see_one_tree_in_threads::<u64>();
    see_one_tree_in_threads::<ByteString>();
}

fn see_one_tree_in_threads<T: TestItem>() {
    let store = store::<T>(9000);
    for key in (0..6000).step_by(3) {
        store
            .put(0, T::of(key), T::of(key + 1), PutCondition::Always)
            .expect("room");
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 1..3u64 {
            let (store, stop) = (&store, &stop);
            scope.spawn(move || {
                for round in 0..20u64 {
                    for key in (writer..6000).step_by(3) {
                        let put = store.put(0, T::of(key), T::of(round), PutCondition::Absent);
                        assert_eq!(put, Ok(None));
                    }
                    for key in (writer..6000).step_by(3) {
                        assert_eq!(store.remove(0, T::of(key)), Ok(Some(T::of(round))));
                    }
                }
                stop.store(true, Ordering::Relaxed);
            });
        }
        let (store, stop) = (&store, &stop);
        scope.spawn(move || {
            let mut all = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                for key in (0..6000).step_by(300) {
                    assert_eq!(store.get(0, T::of(key)), Ok(Some(T::of(key + 1))));
                }
                all.clear();
                store
                    .scan(0, (T::default(), None), usize::MAX, &mut all)
                    .expect("not locked");
                assert!(all.is_sorted_by(|a, b| a.0 < b.0));
                let stayed = numbers(&all)
                    .iter()
                    .filter(|(k, v)| k % 3 == 0 && *v == k + 1)
                    .count();
                assert_eq!(stayed, 2000);
            }
        });
        scope.spawn(move || {
            let mut words = vec![0u64; store.readable_trees.memory.node_shape().words_per_node];
            let mut whole = 0u64;
            while !stop.load(Ordering::Relaxed) {
                for number in 1..400 {
                    for (to, from) in words
                        .iter_mut()
                        .zip(store.readable_trees.memory.words_of_node(number))
                    {
                        *to = from.load(Ordering::Relaxed);
                    }
                    let node = Node::<_, T>(&words[..], T::SIZES);
                    if node.has_valid_checksum() {
                        whole += 1;
                        let keys: Vec<T> = (0..node.entry_count()).map(|i| node.key(i)).collect();
                        assert!(keys.is_sorted_by(|a, b| a < b), "{keys:?}");
                    }
                }
            }
            assert!(whole > 0);
        });
    });
    let left = check(&store, 0);
    assert_eq!(left.len(), 2000);
    assert!(store.stats().splits > 0 && store.stats().merges > 0);
}

/// Hands a range over, as servers do.
fn hand_over<T: TestItem>(giver: &Store<T>, taker: &Store<T>, range: (T, Option<T>), version: u64) {
    giver.freeze(0, range).expect("all of it is the giver's");
    let mut entries = Vec::new();
    assert_eq!(giver.scan(0, range, usize::MAX, &mut entries), Ok(None));
    let inside = range.0;
    assert_eq!(
        giver.put(0, inside, T::of(1), PutCondition::Always),
        Err(Refusal::BusyNodeOrZero(0))
    );
    let mut reserved = taker.reserve_nodes(entries.len()).expect("room");
    let owner = RangeOwner {
        server_number: 1,
        version,
    };
    giver.cede(0, range, owner).expect("it is frozen");
    let is_refused_as_moved = |found| matches!(found, Err(Refusal::Moved(e)) if e.owner == owner);
    assert!(is_refused_as_moved(giver.get(0, inside).map(|_| ())));
    assert!(is_refused_as_moved(
        giver
            .put(0, inside, T::of(1), PutCondition::Always)
            .map(|_| ())
    ));
    assert!(taker.get(0, inside).is_err(), "nobody has it for a moment");
    taker
        .adopt(0, range, &entries, &mut reserved)
        .expect("room");
    taker.release_nodes(reserved);
}

/// Returns the leaves of a tree in order, each with its first key and number.
fn leaves(store: &Store<u64>, tree: usize) -> Vec<(u64, u64)> {
    let from = store.readable_trees.find_covering_node(tree, &0, 0);
    let mut node = from.expect("not locked");
    let mut found = Vec::new();
    while node != 0 {
        let words = store.readable_trees.memory.words_of_node(node);
        found.push((Node::<_, u64>(words, NumberSizes).key_lower_bound(), node));
        node = words[SIBLING_WORD_INDEX].load(Ordering::Relaxed);
    }
    found
}

#[test]
fn a_range_with_a_locked_leaf_is_not_ceded_in_part() {
    let store = store::<u64>(100);
    for key in 0..100 {
        store.put(0, key, key, PutCondition::Always).expect("room");
    }
    let leaves = leaves(&store, 0);
    let range = (0, Some(leaves[3].0));
    store.freeze(0, range).expect("all of it is the store's");
    let owner = RangeOwner {
        server_number: 1,
        version: 1,
    };
    let locked = store.readable_trees.memory.node_lock_word(leaves[1].1);
    let locked = locked.expect("a node");
    locked.store(lock_word(7, 9, 1), Ordering::Release);
    let refused = store.cede(0, range, owner);
    assert_eq!(refused, Err(Refusal::BusyNodeOrZero(leaves[1].1)));
    for key in [0, leaves[1].0, leaves[2].0] {
        assert_eq!(store.get(0, key), Ok(Some(key)));
    }
    locked.store(0, Ordering::Release);
    store.cede(0, range, owner).expect("it is frozen");
    for key in [0, leaves[1].0, leaves[2].0] {
        assert!(matches!(store.get(0, key), Err(Refusal::Moved(_))));
    }
    assert_eq!(store.get(0, leaves[3].0), Ok(Some(leaves[3].0)));
}

#[test]
fn a_leaf_that_cannot_be_adopted_whole_stays_with_its_owner() {
    let store = store::<u64>(200);
    let range = (0, None);
    let owner = RangeOwner::default();
    store.assign_range_to_other(0, range, owner).expect("room");
    let keys = 4 * store.readable_trees.memory.node_shape().entry_capacity(0) as u64;
    let entries: Vec<_> = (0..keys).map(|key| (key, key)).collect();
    let other_nodes = store.stats().used_nodes - leaves(&store, 0).len() as u64;
    let mut reserved = store.reserve_nodes(entries.len()).expect("room");
    // The chain is built from the right, and its second leaf cannot be locked.
    let second = reserved.nodes[reserved.nodes.len() - 2];
    let locked = store.readable_trees.memory.node_lock_word(second);
    let locked = locked.expect("a node");
    locked.store(lock_word(7, 9, 1), Ordering::Release);
    let before = reserved.nodes.len();
    let refused = store.adopt(0, range, &entries, &mut reserved);
    assert_eq!(refused, Err(Refusal::BusyNodeOrZero(second)));
    for key in [0, keys / 2, keys - 1] {
        assert!(matches!(store.get(0, key), Err(Refusal::Moved(_))), "{key}");
        let put = store.put(0, key, 1, PutCondition::Always);
        assert!(matches!(put, Err(Refusal::Moved(_))), "{key}");
    }
    assert_eq!(reserved.nodes.len(), before);
    locked.store(0, Ordering::Release);
    store
        .adopt(0, range, &entries, &mut reserved)
        .expect("not locked any more");
    store.release_nodes(reserved);
    assert_eq!(check(&store, 0), entries);
    let others_now = store.stats().used_nodes - leaves(&store, 0).len() as u64;
    assert_eq!(others_now, other_nodes + 1, "no node is lost");
}

#[test]
fn a_free_node_that_a_client_has_locked_is_skipped() {
    let store = store::<u64>(100);
    let put = |key| store.put(0, key, key, PutCondition::Always);
    let remove_all = |keys: u64| {
        for key in 0..keys {
            assert!(store.remove(0, key).is_ok());
        }
    };
    let used = || store.stats().used_nodes;
    for key in 0..50 {
        assert_eq!(put(key), Ok(None));
    }
    let before: Vec<_> = leaves(&store, 0);
    remove_all(50);
    let start = used();
    // The node that was freed last is the first to be used again.
    let merged = before.iter().map(|leaf| leaf.1);
    let free: Vec<_> = merged
        .filter(|number| !leaves(&store, 0).iter().any(|leaf| leaf.1 == *number))
        .collect();
    assert!(!free.is_empty());
    let word = |number: u64| {
        let word = store.readable_trees.memory.node_lock_word(number);
        word.expect("a node")
    };
    for number in &free {
        word(*number).store(lock_word(7, 9, 1), Ordering::Release);
    }
    for key in 0..50 {
        assert_eq!(put(key), Ok(None));
    }
    assert!(used() > start, "a leaf was split");
    for number in &free {
        word(*number).store(0, Ordering::Release);
    }
    remove_all(50);
    assert_eq!(used(), start);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Moves ranges back and forth between two stores. Together they must equal a map, each key must be in exactly one,
    /// and nodes must not leak.
    #[test]
    fn every_key_has_one_owner(
        moves in proptest::collection::vec((0u64..300, 1u64..150, any::<bool>()), 1..40),
        puts in proptest::collection::vec((0u64..400, any::<u64>(), any::<bool>()), 0..200),
    ) {
        move_and_compare_with_map::<u64>(&moves, &puts);
        move_and_compare_with_map::<ByteString>(&moves, &puts);
    }
}

fn move_and_compare_with_map<T: TestItem>(moves: &[(u64, u64, bool)], puts: &[(u64, u64, bool)]) {
    let stores = [store::<T>(900), store::<T>(900)];
    let load = |i| (T::of(2 * i), T::of(i));
    stores[0].bulk_load(0, 150, 0.9, 1, load).expect("loads");
    stores[1]
        .assign_range_to_other(0, (T::default(), None), RangeOwner::default())
        .expect("room");
    let mut model: BTreeMap<u64, u64> = (0..150).map(|i| (2 * i, i)).collect();
    // The owner of each key that is looked up. The last entry stands for all greater keys.
    let mut owners = [0usize; 401];
    let mut puts = puts.iter();
    for (version, &(from, length, open)) in (1..).zip(moves) {
        let giver = owners[usize::try_from(from).expect("small")];
        let end = (!open || from + length < 300).then_some((from + length).min(400));
        let to = end.map_or(401, |end| usize::try_from(end).expect("small"));
        let keys = usize::try_from(from).expect("small")..to;
        let range = (T::of(from), end.map(T::of));
        if owners[keys.clone()].iter().any(|owner| *owner != giver) {
            let refused = stores[giver].freeze(0, range);
            assert!(matches!(refused, Err(Refusal::Moved(_))));
        } else {
            hand_over(&stores[giver], &stores[1 - giver], range, version);
            owners[keys].fill(1 - giver);
        }
        for &(key, value, put) in puts.by_ref().take(5) {
            let owner = &stores[owners[usize::try_from(key).expect("small")]];
            let (before, made) = match put {
                true => {
                    let made = owner.put(0, T::of(key), T::of(value), PutCondition::Always);
                    (model.insert(key, value), made)
                }
                false => (model.remove(&key), owner.remove(0, T::of(key))),
            };
            assert_eq!(made, Ok(before.map(T::of)));
        }
        for key in 0..400u64 {
            let owner = owners[usize::try_from(key).expect("small")];
            let expected = model.get(&key).copied().map(T::of);
            assert_eq!(stores[owner].get(0, T::of(key)), Ok(expected));
            let refused = stores[1 - owner].get(0, T::of(key));
            assert!(matches!(refused, Err(Refusal::Moved(_))));
        }
    }
    stores.iter().for_each(|store| {
        check(store, 0);
    });
}
