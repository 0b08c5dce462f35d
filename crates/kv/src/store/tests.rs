//! Property tests of the storage engine against a map.

use std::cell::Cell;
use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(1) };
}

fn now() -> u64 {
    NOW.get()
}

fn partition(mode: FullPolicy, items: usize, log_bytes: usize) -> Partition {
    let config = PartitionConfig {
        nominal_items: items,
        log_bytes,
        full_policy: mode,
        clock_ms: now,
        hash_seed: 7,
    };
    Partition::new(&config).expect("memory")
}

fn hash(key: &[u8]) -> u64 {
    hash_of(key, 7)
}

fn set(p: &mut Partition, key: &[u8], value: &[u8]) -> Result<u64, Refusal> {
    p.set(hash(key), key, value, SetOptions::default())
}

#[test]
fn versions_grow_also_across_removal() {
    let mut p = partition(FullPolicy::Store, 100, 8192);
    assert_eq!(set(&mut p, b"a", b"1"), Ok(1));
    assert_eq!(set(&mut p, b"a", b"2"), Ok(2));
    assert_eq!(set(&mut p, b"a", b"much longer than before"), Ok(3));
    assert_eq!(
        p.delete(hash(b"a"), b"a", Some(2)),
        Err(Refusal::ConditionNotMetAtVersion(3))
    );
    assert_eq!(p.delete(hash(b"a"), b"a", Some(3)), Ok(3));
    assert_eq!(p.delete(hash(b"a"), b"a", None), Ok(0));
    assert_eq!(set(&mut p, b"a", b"1"), Ok(4));
    p.clear();
    assert!(p.is_empty() && p.get(hash(b"a"), b"a").is_none());
    assert_eq!(set(&mut p, b"a", b"1"), Ok(5));
}

#[test]
fn conditions_hold_or_nothing_changes() {
    let mut p = partition(FullPolicy::Cache, 100, 8192);
    let mut try_set = |value: &[u8], condition| {
        let how = SetOptions {
            condition,
            expiry_time_ms: 0,
        };
        p.set(hash(b"k"), b"k", value, how)
    };
    assert_eq!(
        try_set(b"0", SetCondition::Present),
        Err(Refusal::ConditionNotMetAtVersion(0))
    );
    assert_eq!(
        try_set(b"0", SetCondition::Version(0)),
        Err(Refusal::ConditionNotMetAtVersion(0))
    );
    assert_eq!(try_set(b"1", SetCondition::Absent), Ok(1));
    assert_eq!(
        try_set(b"2", SetCondition::Absent),
        Err(Refusal::ConditionNotMetAtVersion(1))
    );
    assert_eq!(
        try_set(b"2", SetCondition::Version(2)),
        Err(Refusal::ConditionNotMetAtVersion(1))
    );
    assert_eq!(try_set(b"2", SetCondition::Version(1)), Ok(2));
    assert_eq!(try_set(b"3", SetCondition::Present), Ok(3));
    assert_eq!(p.get(hash(b"k"), b"k").map(|e| e.value), Some(&b"3"[..]));
}

#[test]
fn what_expires_is_gone_in_time() {
    NOW.set(1000);
    let mut p = partition(FullPolicy::Store, 100, 8192);
    let how = SetOptions {
        expiry_time_ms: 1500,
        ..SetOptions::default()
    };
    assert_eq!(p.set(hash(b"k"), b"k", b"v", how), Ok(1));
    assert_eq!(
        p.get(hash(b"k"), b"k").map(|e| e.expiry_time_ms),
        Some(1500)
    );
    assert_eq!(p.set_expiry(hash(b"k"), b"k", 1600), Ok(true));
    NOW.set(1599);
    assert!(p.get(hash(b"k"), b"k").is_some());
    NOW.set(1600);
    assert!(p.get(hash(b"k"), b"k").is_none());
    assert_eq!((p.len(), p.stats().expired), (0, 1));
    assert_eq!(p.set_expiry(hash(b"k"), b"k", 9999), Ok(false));
    // A set ignores an expired item.
    assert_eq!(p.set(hash(b"k"), b"k", b"v", how), Ok(3));
    let absent = SetOptions {
        condition: SetCondition::Absent,
        ..SetOptions::default()
    };
    assert_eq!(p.set(hash(b"k"), b"k", b"w", absent), Ok(4));
}

#[test]
fn a_full_store_says_so_and_keeps_everything() {
    NOW.set(1);
    let mut p = partition(FullPolicy::Store, 10_000, 64 << 10);
    let mut there = Vec::new();
    for i in 0u32.. {
        let key = i.to_le_bytes();
        match set(&mut p, &key, &[7; 40]) {
            Ok(_) => there.push(key),
            Err(e) => {
                assert_eq!(e, Refusal::StoreFull);
                break;
            }
        }
    }
    // The items have 56 bytes each and fill fifteen sixteenths of the log.
    assert_eq!(there.len(), (60 << 10) / 56);
    for key in &there {
        assert_eq!(p.get(hash(key), key).map(|e| e.value), Some(&[7; 40][..]));
        // Updates of the same size always work.
        assert!(set(&mut p, key, &[8; 40]).is_ok());
    }
    assert_eq!(set(&mut p, b"one more", b""), Err(Refusal::StoreFull));
    assert_eq!(p.stats().refused_full, 2);
    assert_eq!(p.delete(hash(&there[3]), &there[3], None), Ok(2));
    assert!(set(&mut p, b"one more", b"").is_ok());
}

#[test]
fn a_full_store_finds_what_is_over() {
    NOW.set(5_000);
    let mut p = partition(FullPolicy::Store, 10_000, 64 << 10);
    let how = SetOptions {
        expiry_time_ms: 6_000,
        ..SetOptions::default()
    };
    for i in 0u32.. {
        let key = i.to_le_bytes();
        if p.set(hash(&key), &key, &[7; 40], how).is_err() {
            break;
        }
    }
    NOW.set(6_000);
    assert!(set(&mut p, b"k", b"v").is_ok());
    assert_eq!(p.len(), 1);
}

#[test]
fn a_cache_evicts_the_oldest_and_what_is_set_again_stays() {
    let mut p = partition(FullPolicy::Cache, 10_000, 64 << 10);
    set(&mut p, b"hot", b"value").expect("room");
    for i in 0..10_000u32 {
        set(&mut p, &i.to_le_bytes(), &[1; 40]).expect("a cache always has room");
        assert!(set(&mut p, b"hot", b"value").is_ok());
        assert!(p.get(hash(b"hot"), b"hot").is_some(), "{i}");
        assert!(p.get(hash(&i.to_le_bytes()), &i.to_le_bytes()).is_some());
    }
    assert!(
        p.stats().evictions > 8_000 && p.len() > 900,
        "{:?}",
        p.stats()
    );
}

#[test]
fn lengths_have_limits() {
    let mut p = partition(FullPolicy::Cache, 10, 8 << 20);
    assert!(set(&mut p, &[1; MAX_KEY_BYTES], &[2; MAX_VALUE_BYTES]).is_ok());
    assert_eq!(
        set(&mut p, &[1; MAX_KEY_BYTES + 1], b""),
        Err(Refusal::TooLong)
    );
    assert_eq!(
        set(&mut p, b"", &[2; MAX_VALUE_BYTES + 1]),
        Err(Refusal::TooLong)
    );
    assert!(set(&mut p, b"", b"").is_ok());
    let mut small = partition(FullPolicy::Cache, 10, 6400);
    assert_eq!(set(&mut small, b"k", &[0; 200]), Err(Refusal::TooLong));
}

/// The figure in the documentation: 48 bytes of data take at most 1.5 times as much memory.
#[test]
fn memory_of_many_items_is_little_more_than_the_data() {
    let items = 200_000u64;
    let store = Store::new(&StoreConfig::for_items(1, 200_000, 16, 32)).expect("memory");
    for i in 0..items {
        let key = u128::from(i).to_le_bytes();
        let (hash, mut p) = store.hash_and_lock_partition(&key);
        p.set(hash, &key, &[3; 32], SetOptions::default())
            .expect("room");
    }
    let stats = store.stats();
    assert_eq!((stats.items, stats.evictions), (items, 0));
    assert_eq!(stats.data_bytes, items * 48);
    assert!(
        stats.memory_bytes * 100 <= stats.data_bytes * 140,
        "{stats:?}"
    );
}

#[derive(Debug, Clone)]
enum Step {
    Get(u8),
    Set(u8, usize, bool),
    Cas(u8, usize, bool),
    Delete(u8),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0u8..80;
    let len = prop_oneof![4 => 0usize..40, 1 => 0usize..400];
    prop_oneof![
        4 => key.clone().prop_map(Step::Get),
        6 => (key.clone(), len.clone(), prop::bool::weighted(0.2)).prop_map(|(k, l, e)| Step::Set(k, l, e)),
        1 => (key.clone(), len, any::<bool>()).prop_map(|(k, l, good)| Step::Cas(k, l, good)),
        2 => key.prop_map(Step::Delete),
        1 => (0u64..50).prop_map(Step::Wait),
    ]
}

/// Value, version and expiry time.
type Model = HashMap<u8, (Vec<u8>, u64, u64)>;

/// Executes steps on a partition and on a model. Both must agree, except that a cache may evict items and a full store
/// may refuse them.
fn run(mode: FullPolicy, steps: Vec<Step>) -> Result<(), TestCaseError> {
    NOW.set(10);
    // At most about 13 KiB of data are in a log of 16 KiB: the log wraps around often, and is full at times.
    let mut p = partition(mode, 60, 16 << 10);
    let mut model = Model::new();
    let mut last_version = HashMap::new();
    for (n, step) in steps.into_iter().enumerate() {
        let now = NOW.get();
        model.retain(|_, (_, _, over)| *over == 0 || *over > now);
        let value =
            |len: usize| -> Vec<u8> { (0..len).map(|i| (n * 31 + i).to_le_bytes()[0]).collect() };
        match step {
            Step::Wait(ms) => NOW.set(now + ms),
            Step::Get(k) => {
                let key = vec![k; usize::from(k % 37)];
                let key = [&key[..], &[k]].concat();
                let found = p.get(hash(&key), &key);
                let found = found.map(|e| (e.value.to_vec(), e.version, e.expiry_time_ms));
                if found.is_none() && mode == FullPolicy::Cache {
                    model.remove(&k);
                }
                prop_assert_eq!(found, model.get(&k).cloned());
            }
            Step::Set(k, len, expires) => {
                let key = vec![k; usize::from(k % 37)];
                let key = [&key[..], &[k]].concat();
                let over = if expires { now + 20 } else { 0 };
                let how = SetOptions {
                    condition: SetCondition::Always,
                    expiry_time_ms: over,
                };
                match p.set(hash(&key), &key, &value(len), how) {
                    Ok(version) => {
                        let before = last_version.insert(k, version).unwrap_or(0);
                        prop_assert!(version > before);
                        model.insert(k, (value(len), version, over));
                    }
                    Err(e) => {
                        prop_assert_eq!(e, Refusal::StoreFull);
                        prop_assert_eq!(mode, FullPolicy::Store);
                    }
                }
            }
            Step::Cas(k, len, good) => {
                let key = vec![k; usize::from(k % 37)];
                let key = [&key[..], &[k]].concat();
                let there = p.get(hash(&key), &key).map_or(0, |e| e.version);
                let how = SetOptions {
                    condition: SetCondition::Version(there + u64::from(!good)),
                    expiry_time_ms: 0,
                };
                match p.set(hash(&key), &key, &value(len), how) {
                    Ok(version) => {
                        prop_assert!(good && there > 0);
                        last_version.insert(k, version);
                        model.insert(k, (value(len), version, 0));
                    }
                    Err(Refusal::ConditionNotMetAtVersion(v)) => {
                        prop_assert!(v == there && (!good || there == 0))
                    }
                    Err(e) => prop_assert_eq!((e, mode), (Refusal::StoreFull, FullPolicy::Store)),
                }
            }
            Step::Delete(k) => {
                let key = vec![k; usize::from(k % 37)];
                let key = [&key[..], &[k]].concat();
                let version = p.delete(hash(&key), &key, None).expect("no condition");
                if mode == FullPolicy::Store {
                    prop_assert_eq!(version, model.get(&k).map_or(0, |m| m.1));
                }
                model.remove(&k);
            }
        }
        prop_assert!(mode == FullPolicy::Cache || p.len() >= model.len() as u64);
    }
    let mut left = 0u64;
    let now = NOW.get();
    model.retain(|_, (_, _, over)| *over == 0 || *over > now);
    let mut wrong = None;
    p.for_each(|key, entry| {
        left += 1;
        let k = key[key.len() - 1];
        match model.get(&k) {
            Some(m) if m.0 == entry.value && m.1 == entry.version => {}
            other => wrong = Some((k, other.cloned())),
        }
    });
    prop_assert_eq!(wrong, None);
    prop_assert!(mode == FullPolicy::Cache || left == model.len() as u64);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_store_is_a_map(steps in prop::collection::vec(step(), 1..1_500)) {
        run(FullPolicy::Store, steps)?;
    }

    #[test]
    fn a_cache_is_a_map_that_forgets(steps in prop::collection::vec(step(), 1..1_500)) {
        run(FullPolicy::Cache, steps)?;
    }
}
