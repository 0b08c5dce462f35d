//! Clients of every access design at one server get right answers while the tree splits and merges.

use std::thread;

use btree::load::{
    self, LoadEnd, NumberStrings, NumberedClient, Popularity, Workload, stable_key, value_of,
};
use btree::{
    AccessDesign, ByteString, Client, ClientConfig, ClientError, PipelinedClient, PutCondition,
    Server, ServerConfig, StringSizes,
};

fn server(keys: u64, node_bytes: usize, workers: usize) -> Server {
    server_with(keys, node_bytes, workers, false)
}

fn server_with(keys: u64, node_bytes: usize, workers: usize, remote_writes: bool) -> Server {
    let config = ServerConfig {
        remote_writes,
        // The scheduler may stop a client thread that holds a lock for longer than a usual lease.
        lock_lease_ms: 20_000,
        key_capacity: 4 * keys + 10_000,
        node_bytes,
        trees: 2,
        workers,
        ..ServerConfig::default()
    };
    let server = Server::start(config).expect("starts");
    let entry = |i| (stable_key(i), value_of(stable_key(i), 0));
    let store = server.service().store();
    store.bulk_load(0, keys, 0.9, 2, entry).expect("loads");
    server
}

fn config(server: &Server, access: AccessDesign) -> ClientConfig {
    ClientConfig {
        server: server.address().to_string(),
        access,
        ..ClientConfig::default()
    }
}

#[test]
fn every_access_design_says_what_is_there() {
    all_say_what_is_there(&server(5000, 256, 2));
    all_say_what_is_there(&server_with(5000, 256, 2, true));
}

fn all_say_what_is_there(server: &Server) {
    for access in AccessDesign::ALL {
        let mut client = Client::connect(config(server, access)).expect("connects");
        for i in [0, 1, 777, 4999] {
            let value = client.get(0, stable_key(i)).expect("answered");
            assert_eq!(value, Some(value_of(stable_key(i), 0)), "{access}");
        }
        assert_eq!(client.get(0, 1).expect("answered"), None);
        assert_eq!(client.get(1, 0).expect("answered"), None, "the other tree");
        assert!(!client.put(1, u64::MAX, 5).expect("answered"));
        assert_eq!(client.get(1, u64::MAX).expect("answered"), Some(5));
        assert!(client.insert_if_absent(1, u64::MAX, 6).expect("answered"));
        assert!(client.update(1, u64::MAX, 7).expect("answered"));
        assert_eq!(
            client.scan(1, 0, None, 10).expect("answered"),
            [(u64::MAX, 7)]
        );
        assert!(client.delete(1, u64::MAX).expect("answered"));
        assert!(!client.update(1, u64::MAX, 8).expect("answered"));
        // A SCAN that is longer than one answer, up to the end of the tree.
        let all = client
            .scan(0, stable_key(100), None, 60_000)
            .expect("answered");
        assert_eq!(all.len(), 4900);
        assert!(
            all.iter()
                .zip(100..)
                .all(|((key, _), i)| *key == stable_key(i))
        );
        let some = client
            .scan(0, stable_key(7) + 1, Some(stable_key(10)), 60_000)
            .expect("answered");
        assert_eq!(
            some.iter().map(|e| e.0).collect::<Vec<_>>(),
            [8, 9].map(stable_key)
        );
        let error = client.get(9, 0).expect_err("no such tree");
        assert!(
            matches!(error, ClientError::NoTree { trees: 2, .. }),
            "{error}"
        );
    }
}

/// A client that has READ the empty root finds the entries that are loaded later, and loses no insert.
#[test]
fn a_client_that_knows_the_empty_tree_finds_what_is_loaded_later() {
    for (access, remote_writes) in [
        (AccessDesign::Rpc, false),
        (AccessDesign::Read, false),
        (AccessDesign::Read, true),
    ] {
        let server = server_with(0, 256, 1, remote_writes);
        let mut client = Client::connect(config(&server, access)).expect("connects");
        assert_eq!(client.get(0, stable_key(5)).expect("answered"), None);
        let entry = |i| (stable_key(i), value_of(stable_key(i), 0));
        let loaded = server.service().bulk_load(0, 1000, 0.9, entry);
        loaded.expect("loads");
        for i in [0, 5, 999] {
            let value = client.get(0, stable_key(i)).expect("answered");
            assert_eq!(value, Some(value_of(stable_key(i), 0)), "{access}");
        }
        assert!(!client.put(0, 1, 2).expect("answered"));
        let store = server.service().store();
        assert_eq!(store.get(0, 1), Ok(Some(2)), "{access}, {remote_writes}");
    }
}

/// Clients insert, delete, update, look up and scan at once, on nodes so small that they split and merge all the time.
#[test]
fn answers_are_right_while_the_tree_changes() {
    all_are_right_while_it_changes(&server(300, 256, 2));
}

/// The same, with clients that lock and WRITE leaves beside the workers.
#[test]
fn answers_are_right_while_clients_change_the_tree_themselves() {
    let server = server_with(300, 256, 2, true);
    let changes = all_are_right_while_it_changes(&server);
    let stats = server.stats();
    assert!(stats.changes < changes * 9 / 10, "{changes}, {stats:?}");
    assert_eq!(stats.expelled_clients, 0);
}

/// Returns the number of changes that clients made.
fn all_are_right_while_it_changes(server: &Server) -> u64 {
    let changes = std::sync::atomic::AtomicU64::new(0);
    let counted = &changes;
    thread::scope(|scope| {
        for (seed, access) in (1..).zip([
            AccessDesign::Rpc,
            AccessDesign::Read,
            AccessDesign::Auto,
            AccessDesign::Read,
        ]) {
            scope.spawn(move || {
                let config = ClientConfig {
                    // One client has no cache, the others a cache that is too small for all inner nodes.
                    max_cached_nodes: if seed == 2 { 0 } else { 20 },
                    window: 16,
                    ..config(server, access)
                };
                let mut pipeline = PipelinedClient::connect(config).expect("connects");
                let workload = Workload {
                    keys: 300,
                    popularity: Popularity::Zipf(0.5),
                    update_fraction: 0.1,
                    insert_fraction: 0.4,
                    own_lookup_fraction: 0.2,
                    scan_fraction: 0.1,
                    scan_length: 200,
                    has_random_scan_lengths: true,
                    read_update_fraction: 0.05,
                    ..Workload::default()
                };
                let until = LoadEnd::Count(20_000);
                let report = load::run(&mut pipeline, &workload, until, seed).expect("goes on");
                assert!(report.has_no_wrong_answers(), "{access}: {report:?}");
                assert!(
                    report.checked_answers > 5_000
                        && report.unanswered_requests + report.changes_refused_as_full == 0,
                    "{report:?}"
                );
                counted.fetch_add(report.changes, std::sync::atomic::Ordering::Relaxed);
            });
        }
    });
    let stats = server.stats();
    assert!(
        stats.tree.splits > 20 && stats.tree.merges > 10,
        "{stats:?}"
    );
    assert_eq!(stats.bad_requests, 0);
    changes.into_inner()
}

#[test]
fn a_client_that_kept_nodes_finds_what_was_inserted_and_removed_behind_its_back() {
    let server = server(2000, 256, 1);
    let mut reader = Client::connect(config(&server, AccessDesign::Read)).expect("connects");
    let check = |reader: &mut Client, n: u64| {
        for i in (0..2000).step_by(17) {
            let key = stable_key(i) + n;
            let expected = (n > 0).then_some(n).or(Some(value_of(stable_key(i), 0)));
            assert_eq!(reader.get(0, key).expect("answered"), expected);
        }
    };
    check(&mut reader, 0);
    let store = server.service().store();
    for n in 1..7 {
        for i in 0..2000 {
            store
                .put(0, stable_key(i) + n, n, PutCondition::Absent)
                .expect("room");
        }
        check(&mut reader, n);
    }
    for n in 1..7 {
        for i in 0..2000 {
            assert_eq!(store.remove(0, stable_key(i) + n), Ok(Some(n)));
        }
    }
    check(&mut reader, 0);
    assert_eq!(reader.get(0, stable_key(5) + 3).expect("answered"), None);
    // All other keys are removed as well: nodes that the reader has cached are reused for another tree.
    for i in 0..2000 {
        store.remove(0, stable_key(i)).expect("not locked");
        store.put(1, i, i, PutCondition::Absent).expect("room");
    }
    for i in (0..2000).step_by(17) {
        assert_eq!(reader.get(0, stable_key(i)).expect("answered"), None);
        assert_eq!(reader.get(1, i).expect("answered"), Some(i));
    }
    let stats = reader.stats();
    assert!(
        stats.walks_at_wrong_node > 0 && stats.requests_begun_by_reads > 0,
        "{stats:?}"
    );
}

#[test]
fn a_full_store_says_so_and_a_server_that_comes_back_is_found() {
    let small = ServerConfig {
        key_capacity: 1000,
        node_bytes: 256,
        ..ServerConfig::default()
    };
    let server = Server::start(small.clone()).expect("starts");
    let mut client = Client::connect(config(&server, AccessDesign::Rpc)).expect("connects");
    let full = (0..100_000).find_map(|key| client.put(0, key, key).err());
    assert!(matches!(full, Some(ClientError::StoreFull)), "{full:?}");
    let address = server.address();
    drop(server);
    let again = ServerConfig {
        listen: address.to_string(),
        ..small
    };
    let server = Server::start(again).expect("the port is free again");
    assert_eq!(
        client.get(0, 5).expect("reconnects"),
        None,
        "it is a new tree"
    );
    assert!(!client.put(0, 5, 6).expect("answered"));
    assert!(client.stats().reconnects > 0);
    drop(server);
}

/// Byte strings by every access design, changed by RPC and by the clients themselves, while leaves split and merge.
#[test]
fn byte_strings_are_right_while_the_tree_changes() {
    for (key_bytes, value_bytes, remote_writes) in
        [(8, 100, false), (24, 9, true), (256, 256, true)]
    {
        let sizes = StringSizes {
            key_bytes,
            value_bytes,
        };
        let strings = NumberStrings::new(sizes).expect("long enough");
        let config = ServerConfig {
            key_and_value_limits: sizes,
            remote_writes,
            lock_lease_ms: 20_000,
            key_capacity: 20_000,
            node_bytes: sizes.suggested_node_bytes(),
            ..ServerConfig::default()
        };
        let server = Server::<ByteString>::start(config).expect("starts");
        let key = |i| {
            (
                strings.key(stable_key(i)),
                strings.value(value_of(stable_key(i), 0)),
            )
        };
        let store = server.service().store();
        store.bulk_load(0, 300, 0.9, 2, key).expect("loads");
        let address = server.address().to_string();
        thread::scope(|scope| {
            for (seed, access) in (1..).zip(AccessDesign::ALL) {
                let server = address.clone();
                scope.spawn(move || {
                    let config = ClientConfig {
                        server,
                        access,
                        window: 16,
                        max_cached_nodes: 20,
                        ..ClientConfig::default()
                    };
                    let pipeline = PipelinedClient::connect(config).expect("connects");
                    let mut client = NumberedClient::new(pipeline, strings);
                    let workload = Workload {
                        keys: 300,
                        update_fraction: 0.1,
                        insert_fraction: 0.4,
                        own_lookup_fraction: 0.2,
                        scan_fraction: 0.05,
                        scan_length: 150,
                        has_random_scan_lengths: true,
                        ..Workload::default()
                    };
                    let until = LoadEnd::Count(8_000);
                    let report = load::run(&mut client, &workload, until, seed).expect("goes on");
                    assert!(report.has_no_wrong_answers(), "{access}: {report:?}");
                    assert!(
                        report.checked_answers > 2_000
                            && report.unanswered_requests + report.changes_refused_as_full == 0,
                        "{report:?}"
                    );
                });
            }
        });
        let stats = server.stats();
        // Nodes for the longest strings have room for so few that they hardly ever become sparse.
        let merges = u64::from(key_bytes < 256);
        assert!(
            stats.tree.splits > 20 && stats.tree.merges >= merges,
            "{stats:?}"
        );
        assert_eq!((stats.bad_requests, stats.expelled_clients), (0, 0));
    }
}

#[test]
fn strings_of_any_length_are_stored_and_longer_ones_refused() {
    let sizes = StringSizes {
        key_bytes: 10,
        value_bytes: 20,
    };
    let server = Server::<ByteString>::start(ServerConfig {
        key_and_value_limits: sizes,
        ..ServerConfig::default()
    })
    .expect("starts");
    let string = |text: &str| text.parse::<ByteString>().expect("short enough");
    let config = |access| ClientConfig {
        server: server.address().to_string(),
        access,
        ..ClientConfig::default()
    };
    for access in AccessDesign::ALL {
        let mut client = Client::connect(config(access)).expect("connects");
        let words = ["", "a", "a\0", "ab", "apple", "b", "zebra cros"];
        for word in words {
            client
                .put(0, string(word), string(&word.repeat(2)))
                .expect("answered");
        }
        for word in words {
            let value = client.get(0, string(word)).expect("answered");
            assert_eq!(value, Some(string(&word.repeat(2))), "{access}: {word:?}");
        }
        assert_eq!(client.get(0, string("c")).expect("answered"), None);
        let found = client.scan(0, string(""), None, 100).expect("answered");
        let keys: Vec<ByteString> = found.into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, words.map(string), "{access}");
        let found = client.scan(0, string("a\0"), Some(string("b")), 2);
        let found = found.expect("answered");
        assert_eq!(found.len(), 2);
        let long = client
            .put(0, string("zebra cross"), string(""))
            .expect_err("too long");
        assert!(matches!(long, ClientError::TooLong(_)), "{long}");
        let long = client
            .put(0, string("x"), string(&"y".repeat(21)))
            .expect_err("too long");
        assert_eq!(
            long.to_string(),
            "a value of 21 bytes is too long: at most 20 bytes; the limits are the server's --key-size and --value-size"
        );
        for word in words {
            assert!(
                client.delete(0, string(word)).expect("answered"),
                "{access}"
            );
        }
    }
    let other = Client::<u64>::connect(config(AccessDesign::Rpc)).expect_err("other keys");
    assert!(
        matches!(other, ClientError::OtherKeyType(Some(s)) if s == sizes),
        "{other}"
    );
    let numbers = Server::<u64>::start(ServerConfig::default()).expect("starts");
    let config = ClientConfig {
        server: numbers.address().to_string(),
        ..ClientConfig::default()
    };
    let other = Client::<ByteString>::connect(config).expect_err("other keys");
    assert!(matches!(other, ClientError::OtherKeyType(None)), "{other}");
}

#[test]
fn nodes_that_are_too_small_for_their_strings_are_refused() {
    let sizes = StringSizes {
        key_bytes: 256,
        value_bytes: 256,
    };
    let config = ServerConfig {
        key_and_value_limits: sizes,
        node_bytes: 2048,
        ..ServerConfig::default()
    };
    let refused = Server::<ByteString>::start(config)
        .map(|_| ())
        .expect_err("refused");
    assert!(
        refused
            .to_string()
            .contains("give it more with --node-size"),
        "{refused}"
    );
}
