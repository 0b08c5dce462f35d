use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::TcpStream;

use btree::StringSizes;
use btree::load::NumberStrings;
use service::random::mix_bits;

use super::serve_job::{EntrySizes, KeyOrder};
use super::*;

const SHORT: Duration = Duration::from_millis(30);

const NUMBERS: LmdbEntryKind = LmdbEntryKind::Numbers {
    value_of_key: mix_bits,
};

fn setup(keys: u64) -> LmdbParameters {
    LmdbParameters {
        loaded_key_count: keys,
        entry_kind: NUMBERS,
        window: 64,
        seed: 1,
    }
}

/// Returns the setup with byte strings as keys and values.
fn setup_of_strings(keys: u64) -> LmdbParameters {
    let sizes = StringSizes {
        key_bytes: 32,
        value_bytes: 100,
    };
    let entries = LmdbEntryKind::Strings {
        strings: NumberStrings::new(sizes).expect("long enough"),
        value_of_key: mix_bits,
    };
    LmdbParameters {
        entry_kind: entries,
        ..setup(keys)
    }
}

/// Runs a test with a thread as worker.
fn with_worker(run: impl FnOnce(&mut WorkerLink)) {
    let (mut left, mut right) = WorkerLink::pair().expect("pipes");
    let worker = std::thread::spawn(move || crate::worker::run_jobs(&mut right, None));
    run(&mut left);
    left.send(&Job::Stop).expect("sent");
    worker.join().expect("no panic").expect("served");
}

#[test]
fn all_is_measured_and_checked_and_the_worker_goes_on() {
    with_worker(|link| {
        for setup in [setup(3000), setup(1), setup_of_strings(3000)] {
            let keys = setup.loaded_key_count;
            let mut lmdb = LmdbPeer::start(link, setup).expect("started");
            assert_eq!(lmdb.measure_load().expect("loaded").operations, keys);
            let all = [
                lmdb.measure_lookups(SHORT),
                lmdb.measure_scans(100, SHORT),
                lmdb.measure_scans(0, SHORT),
                lmdb.measure_inserts(SHORT),
                lmdb.measure_lookups(SHORT),
            ];
            for rate in all {
                let rate = rate.expect("right");
                assert!(
                    rate.operations > 0 && rate.requests_per_s() > 0.0,
                    "{rate:?}"
                );
            }
            lmdb.measure_inserts(Duration::from_secs(60))
                .expect("right");
            assert_eq!(lmdb.inserted_key_count, keys, "there are no more new keys");
            assert!(lmdb.measure_scans(1, SHORT).is_err(), "after inserts");
            lmdb.stop().expect("stopped");
        }
    });
}

#[test]
fn wrong_and_missing_values_are_noticed() {
    with_worker(|link| {
        let mut lmdb = LmdbPeer::start(link, setup(100)).expect("started");
        let missing = lmdb.measure_lookups(SHORT).expect_err("there is nothing");
        assert!(missing.to_string().contains("LMDB has None"), "{missing}");
        lmdb.stop().expect("stopped");
        for wrong in [true, false] {
            let mut lmdb = LmdbPeer::start(link, setup(100)).expect("started");
            lmdb.measure_load().expect("loaded");
            // Put a wrong value for a key, or an unexpected key.
            let key = if wrong { 50 } else { 51 };
            let other_values = LmdbEntryKind::Numbers {
                value_of_key: |_| 7,
            };
            let mut put = LmdbPuts {
                key_numbers: std::iter::once(key),
                entries: EntryGenerator::new(other_values),
                is_append: false,
            };
            lmdb.client.run_requests(&mut put, 1, None).expect("put");
            let seen = lmdb.measure_scans(100, Duration::from_secs(60));
            assert!(seen.expect_err("wrong").to_string().contains("in a scan"));
            lmdb.stop().expect("stopped");
        }
    });
}

#[test]
fn two_clients_are_served_and_one_that_speaks_otherwise_is_not() {
    with_worker(|link| {
        let sizes = EntrySizes::OF_INTEGERS;
        link.send(&Job::Lmdb(LmdbServeJob {
            max_keys: 1000,
            sizes,
            key_order: KeyOrder::Integers,
        }))
        .expect("sent");
        let address: SocketAddr = link.recv().expect("an address");
        let connect = || Client::connect(address, sizes).expect("connects");
        let (mut one, mut two) = (connect(), connect());
        let mut stranger = TcpStream::connect(address).expect("connects");
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
        // The server closes or resets the stranger's connection and sends nothing.
        assert!(!matches!(stranger.read(&mut [0; 8]), Ok(1..)));
        let mut puts = LmdbPuts {
            key_numbers: 0..200,
            entries: EntryGenerator::new(NUMBERS),
            is_append: false,
        };
        assert_eq!(
            one.run_requests(&mut puts, 64, None)
                .expect("put")
                .operations,
            200
        );
        let mut lookups = LmdbLookups {
            key_numbers: 0..200,
            entries: EntryGenerator::new(NUMBERS),
        };
        two.run_requests(&mut lookups, 64, None).expect("found");
        link.send(&true).expect("sent");
    });
}

#[test]
fn each_new_key_comes_once() {
    for keys in [1, 2, 10, 1000, 4096] {
        let all: HashSet<u64> = (0..keys).map(|n| inserted_key(n, keys)).collect();
        assert_eq!(all.len() as u64, keys);
        assert!(all.iter().all(|key| key % 2 == 1 && *key < 2 * keys));
    }
}

#[test]
fn setups_that_make_no_sense_are_refused() {
    let (mut left, _right) = WorkerLink::pair().expect("pipes");
    let no_window = LmdbParameters {
        window: 0,
        ..setup(1)
    };
    for setup in [setup(0), setup(u64::MAX), no_window] {
        assert!(LmdbPeer::start(&mut left, setup).is_err());
    }
}
