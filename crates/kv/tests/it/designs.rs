//! Servers and clients of every design, in one process on the software NIC.

use std::collections::HashMap;
use std::time::Duration;

use futures::executor::block_on;
use futures::future::{FutureExt, try_join_all};
use kv::store::{FullPolicy, SetCondition};
use kv::{
    AsyncClient, Client, ClientConfig, ClientError, Design, RequestResult, Server, ServerConfig,
};

/// Designs that keep items of any length in logs.
const LOGS: [Design; 2] = [Design::Herd, Design::Reads];

fn server(config: ServerConfig) -> Server {
    Server::start(config).expect("starts")
}

fn small(design: Design) -> ServerConfig {
    ServerConfig {
        design,
        item_capacity: 20_000,
        ..ServerConfig::default()
    }
}

/// Returns a client configuration with long timeouts, so that slow machines cause no retries.
fn config(server: &Server) -> ClientConfig {
    ClientConfig {
        server: server.address().to_string(),
        answer_ms: 60_000,
        deadline_ms: 120_000,
        ..ClientConfig::default()
    }
}

fn client(server: &Server) -> Client {
    Client::connect(config(server)).expect("connects")
}

/// More requests than the window has room for, and some futures that are dropped.
#[test]
fn futures_are_answered_in_any_number_and_may_be_dropped() {
    for design in Design::ALL {
        let server = server(small(design));
        let narrow = ClientConfig {
            window: 8,
            ..config(&server)
        };
        let client = AsyncClient::new(Client::connect(narrow).expect("connects"));
        let keys: Vec<[u8; 8]> = (0..100u64).map(u64::to_le_bytes).collect();
        block_on(async {
            let set = try_join_all(keys.iter().map(|key| client.put(key, key))).await;
            assert_eq!(set.expect("set"), [1; 100]);
            for key in &keys {
                assert!(client.get(key).now_or_never().is_none(), "answered at once");
                assert!(client.put(key, b"another").now_or_never().is_none());
            }
            let gets = keys.iter().map(|key| client.get(key));
            for (value, key) in try_join_all(gets)
                .await
                .expect("answered")
                .iter()
                .zip(&keys)
            {
                // The last of those PUTs may be outstanding at the same time as the GETs.
                let value = value.as_ref().expect("there");
                let seen = (value.bytes.as_slice(), value.version);
                assert!(
                    seen == (&b"another"[..], 2) || seen == (&key[..], 1),
                    "{seen:?}"
                );
            }
            let old = client.compare_and_set(&keys[0], 1, b"a third").await;
            assert!(matches!(
                old,
                Err(ClientError::ConditionNotMet { version: 2 })
            ));
            assert!(client.delete(&keys[0]).await.expect("answered"));
            assert_eq!(client.get(&keys[0]).await.expect("answered"), None);
        });
    }
}

#[test]
fn every_operation_does_what_it_says() {
    Design::ALL
        .into_iter()
        .for_each(every_operation_does_what_it_says_on);
}

fn every_operation_does_what_it_says_on(design: Design) {
    let server = server(ServerConfig {
        workers: 3,
        ..small(design)
    });
    let mut c = client(&server);
    assert_eq!(c.get(b"a").expect("answered"), None);
    assert_eq!(c.put(b"a", b"1").expect("set"), 1);
    assert_eq!(c.put(b"a", b"2").expect("set"), 2);
    let value = c.get(b"a").expect("answered").expect("there");
    assert_eq!((value.bytes.as_slice(), value.version), (&b"2"[..], 2));
    let e = c.compare_and_set(b"a", 1, b"3").expect_err("old");
    assert!(matches!(e, ClientError::ConditionNotMet { version: 2 }));
    assert_eq!(c.compare_and_set(b"a", 2, b"3").expect("set"), 3);
    let e = c
        .put_if(b"a", b"4", SetCondition::Absent, 0)
        .expect_err("there");
    assert!(matches!(e, ClientError::ConditionNotMet { version: 3 }));
    assert!(c.put_if(b"b", b"4", SetCondition::Present, 0).is_err());
    assert!(c.delete(b"a").expect("answered"));
    assert!(!c.delete(b"a").expect("answered"));
    assert_eq!(c.get(b"a").expect("answered"), None);
    // The key gets a higher version when it is set again.
    assert!(c.put(b"a", b"5").expect("set") > 3);
    let stats = server.stop();
    assert_eq!(stats.store.items, 1);
    // The server is asked only for keys that READs do not find.
    let asked = match design {
        Design::Herd => (3, 1),
        Design::Reads => (2, 0),
        Design::Atomics => (0, 0),
    };
    assert_eq!((stats.gets, stats.get_hits), asked);
    assert_eq!(
        (
            stats.bad_requests,
            stats.repeated_changes,
            stats.clients_total
        ),
        (0, 0, 1)
    );
}

#[test]
fn what_expires_is_gone() {
    LOGS.into_iter().for_each(what_expires_is_gone_on);
}

fn what_expires_is_gone_on(design: Design) {
    let server = server(small(design));
    let mut c = client(&server);
    c.put_if(b"a", b"short", SetCondition::Always, 1)
        .expect("set");
    c.put_if(b"b", b"long", SetCondition::Always, 3_600_000)
        .expect("set");
    let gone = verbs::poll_until(Duration::from_secs(20), || {
        c.get(b"a").expect("answered").is_none().then_some(())
    });
    assert!(gone.is_some());
    assert!(c.get(b"b").expect("answered").is_some());
}

/// Values of any length, shorter and longer than slots, messages and inline data.
#[test]
fn values_of_every_length_come_back() {
    LOGS.into_iter()
        .for_each(values_of_every_length_come_back_on);
}

fn values_of_every_length_come_back_on(design: Design) {
    let server = server(ServerConfig {
        log_bytes: Some(16 << 20),
        ..small(design)
    });
    for window in [1, 64] {
        let mut c = Client::connect(ClientConfig {
            window,
            ..config(&server)
        })
        .expect("connects");
        let lengths = [
            0, 1, 7, 8, 31, 32, 33, 40, 180, 181, 1000, 1064, 1065, 4000, 4096, 65_535,
        ];
        for len in lengths {
            let value: Vec<u8> = (0..len)
                .map(|i: u32| (i * 7 + len).to_le_bytes()[0])
                .collect();
            let key = [len.to_le_bytes().to_vec(), vec![9; len as usize % 250]].concat();
            c.put(&key, &value).unwrap_or_else(|e| panic!("{len}: {e}"));
            let there = c.get(&key).expect("answered").expect("there");
            assert!(there.bytes == value, "{len}");
        }
        // Many long values at the same time, between short ones.
        let tickets: Vec<_> = (0..200u32)
            .map(|i| {
                let len = if i % 3 == 0 { 20_000 } else { 10 };
                c.start_put(&i.to_le_bytes(), &vec![i.to_le_bytes()[0]; len])
                    .expect("started")
            })
            .collect();
        for ticket in tickets {
            assert!(matches!(
                c.wait(ticket),
                Ok(RequestResult::ChangedWithVersion(_))
            ));
        }
        let keys: Vec<[u8; 4]> = (0..200u32).map(u32::to_le_bytes).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
        let values = c.multi_get(&keys).expect("answered");
        for (i, value) in (0u32..).zip(values) {
            let value = value.expect("there").bytes;
            assert_eq!(value.len(), if i % 3 == 0 { 20_000 } else { 10 });
            assert!(value.iter().all(|b| *b == i.to_le_bytes()[0]));
        }
        assert_eq!((c.stats().discarded_answers, c.stats().reconnects), (0, 0));
    }
}

#[test]
fn too_long_is_said_and_nothing_breaks() {
    LOGS.into_iter()
        .for_each(too_long_is_said_and_nothing_breaks_on);
}

fn too_long_is_said_and_nothing_breaks_on(design: Design) {
    let server = server(ServerConfig {
        log_bytes: Some(128 << 10),
        ..small(design)
    });
    let mut c = client(&server);
    assert!(matches!(c.put(&[1; 256], b""), Err(ClientError::TooLong)));
    assert!(matches!(
        c.put(b"", &[1; 65_536]),
        Err(ClientError::TooLong)
    ));
    // In a log of 128 KiB an item may have 4 KiB.
    assert!(matches!(
        c.put(b"k", &[1; 5_000]),
        Err(ClientError::TooLong)
    ));
    c.put(b"k", &[1; 3_000]).expect("short enough");
    // A client with small messages cannot receive long values, and returns an error.
    let mut small = Client::connect(ClientConfig {
        max_single_message_value_bytes: 32,
        ..config(&server)
    })
    .expect("connects");
    assert!(matches!(small.get(b"k"), Err(ClientError::TooLong)));
    c.put(b"k", &[2; 1_000]).expect("short enough");
    assert_eq!(
        small.get(b"k").expect("answered").expect("there").bytes,
        [2; 1_000]
    );
}

#[test]
fn a_full_store_says_so_and_loses_nothing() {
    LOGS.into_iter()
        .for_each(a_full_store_says_so_and_loses_nothing_on);
}

fn a_full_store_says_so_and_loses_nothing_on(design: Design) {
    let server = server(ServerConfig {
        full_policy: FullPolicy::Store,
        log_bytes: Some(64 << 10),
        ..small(design)
    });
    let mut c = client(&server);
    let mut there = HashMap::new();
    for i in 0u32.. {
        match c.put(&i.to_le_bytes(), &[i.to_le_bytes()[0]; 30]) {
            Ok(version) => there.insert(i, version),
            Err(ClientError::StoreFull) => break,
            Err(e) => panic!("{e}"),
        };
    }
    assert!(there.len() > 1_000);
    for (i, version) in there {
        let value = c.get(&i.to_le_bytes()).expect("answered").expect("there");
        assert_eq!(
            (value.bytes, value.version),
            (vec![i.to_le_bytes()[0]; 30], version)
        );
    }
    assert_eq!(server.stats().store.refused_full, 1);
}

#[test]
fn clients_of_several_threads_count_to_the_same_sum() {
    Design::ALL
        .into_iter()
        .for_each(clients_of_several_threads_count_to_the_same_sum_on);
}

fn clients_of_several_threads_count_to_the_same_sum_on(design: Design) {
    const EACH: u64 = 60;
    let server = server(ServerConfig {
        workers: 2,
        ..small(design)
    });
    client(&server)
        .put(b"sum", &0u64.to_le_bytes())
        .expect("set");
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut c = client(&server);
                for _ in 0..EACH {
                    loop {
                        let old = c.get(b"sum").expect("answered").expect("there");
                        let sum = u64::from_le_bytes(old.bytes.try_into().expect("eight"));
                        match c.compare_and_set(b"sum", old.version, &(sum + 1).to_le_bytes()) {
                            Ok(_) => break,
                            Err(ClientError::ConditionNotMet { .. }) => {}
                            Err(e) => panic!("{e}"),
                        }
                    }
                }
            });
        }
    });
    let sum = client(&server)
        .get(b"sum")
        .expect("answered")
        .expect("there");
    assert_eq!(sum.bytes, (3 * EACH).to_le_bytes());
    assert_eq!(sum.version, 1 + 3 * EACH);
}

/// Other front ends use the store beside the workers.
#[test]
fn another_front_sees_the_same_data() {
    LOGS.into_iter()
        .for_each(another_front_sees_the_same_data_on);
}

fn another_front_sees_the_same_data_on(design: Design) {
    let server = server(small(design));
    let mut c = client(&server);
    c.put(b"from a client", b"1").expect("set");
    let (hash, mut partition) = server
        .service()
        .store()
        .hash_and_lock_partition(b"from a client");
    let entry = partition.get(hash, b"from a client").expect("there");
    assert_eq!(entry.value, b"1");
    drop(partition);
    let (hash, mut partition) = server
        .service()
        .store()
        .hash_and_lock_partition(b"from the front");
    partition
        .set(hash, b"from the front", b"2", Default::default())
        .expect("room");
    drop(partition);
    assert_eq!(
        c.get(b"from the front")
            .expect("answered")
            .expect("there")
            .bytes,
        b"2"
    );
    server.service().store().clear();
    assert_eq!(c.get(b"from a client").expect("answered"), None);
}

#[test]
fn places_are_freed_and_refusals_have_reasons() {
    Design::ALL
        .into_iter()
        .for_each(places_are_freed_and_refusals_have_reasons_on);
}

fn places_are_freed_and_refusals_have_reasons_on(design: Design) {
    let server = server(ServerConfig {
        max_clients: 1,
        max_window: 16,
        ..small(design)
    });
    // A busy server needs some time for its refusal.
    let config = ClientConfig {
        window: 16,
        deadline_ms: 2_000,
        ..config(&server)
    };
    let patient = ClientConfig {
        deadline_ms: 20_000,
        ..config.clone()
    };
    let too_large = ClientConfig {
        window: 17,
        ..config.clone()
    };
    let e = Client::connect(too_large).expect_err("refused").to_string();
    assert!(e.contains("its largest window is 16"), "{e}");
    let first = Client::connect(patient.clone()).expect("connects");
    let e = Client::connect(config).expect_err("full").to_string();
    assert!(e.contains("this server has its 1 clients already"), "{e}");
    drop(first);
    for _ in 0..5 {
        let mut c = Client::connect(patient.clone()).expect("the place is free again");
        c.put(b"k", b"v").expect("set");
    }
    assert_eq!(server.stats().clients_total, 6);
    let e = Client::connect(ClientConfig::default())
        .expect_err("no address")
        .to_string();
    assert!(e.contains("cannot reach a key-value store"), "{e}");
}

/// A server stops, and another starts at its address: clients reconnect by themselves.
#[test]
fn clients_find_a_server_that_comes_back() {
    Design::ALL
        .into_iter()
        .for_each(clients_find_a_server_that_comes_back_on);
}

fn clients_find_a_server_that_comes_back_on(design: Design) {
    let first = server(small(design));
    let address = first.address().to_string();
    let mut c = Client::connect(ClientConfig {
        answer_ms: 50,
        deadline_ms: 60_000,
        ..config(&first)
    })
    .expect("connects");
    c.put(b"k", b"v").expect("set");
    first.stop();
    let again = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        let config = ServerConfig {
            listen: address,
            ..small(design)
        };
        Server::start(config).expect("the address is free again")
    });
    // The new server is empty: a cache may drop items.
    assert_eq!(c.get(b"k").expect("answered"), None);
    c.put(b"k", b"w").expect("set");
    assert_eq!(c.get(b"k").expect("answered").expect("there").bytes, b"w");
    assert!(c.stats().reconnects >= 1);
    drop(c);
    again.join().expect("served");
}

#[test]
fn a_server_of_another_design_at_the_same_address_is_refused() {
    let first = server(small(Design::Herd));
    let config = ClientConfig {
        answer_ms: 50,
        ..config(&first)
    };
    let listen = config.server.clone();
    let mut c = Client::connect(config).expect("connects");
    c.put(b"k", b"v").expect("set");
    first.stop();
    let _other = server(ServerConfig {
        listen,
        ..small(Design::Atomics)
    });
    let e = c.put(b"k", b"w").expect_err("refused").to_string();
    assert!(
        e.contains("came back with design atomics instead of herd"),
        "{e}"
    );
    // When no request is outstanding any more, the client accepts the other server.
    c.put(b"k", b"w").expect("set");
}

/// Stores of records: `reads` with a single READ, and `atomics`.
fn records() -> [ServerConfig; 2] {
    let inline = ServerConfig {
        neighbourhood_read_bytes: 512,
        ..small(Design::Reads)
    };
    [inline, small(Design::Atomics)]
}

#[test]
fn records_have_a_size_and_no_time() {
    for config_of in records() {
        let server = server(ServerConfig {
            item_capacity: 10,
            expected_value_bytes: 100,
            ..config_of
        });
        let mut c = client(&server);
        for len in [0u8, 1, 7, 8, 99, 100] {
            let (key, value) = (vec![len; 16 - usize::from(len / 10)], vec![len; len.into()]);
            c.put(&key, &value).expect("short enough");
            assert_eq!(c.get(&key).expect("answered").expect("there").bytes, value);
        }
        assert!(matches!(c.put(b"k", &[1; 105]), Err(ClientError::TooLong)));
        assert!(matches!(c.put(&[1; 17], b"v"), Err(ClientError::TooLong)));
        let e = c
            .put_if(b"k", b"v", SetCondition::Always, 1000)
            .expect_err("no time");
        assert!(e.to_string().contains("keeps no times to live"), "{e}");
        assert_eq!(c.get(b"k").expect("answered"), None);
    }
}

#[test]
fn full_records_are_said_and_nothing_is_lost() {
    for config_of in records() {
        let server = server(ServerConfig {
            item_capacity: 100,
            ..config_of
        });
        let mut c = client(&server);
        let mut there = HashMap::new();
        for i in 0..1000u32 {
            match c.put(&i.to_le_bytes(), &[i.to_le_bytes()[0]; 30]) {
                Ok(version) => drop(there.insert(i, version)),
                Err(ClientError::StoreFull) => {}
                Err(e) => panic!("{e}"),
            }
        }
        assert!((100..900).contains(&there.len()), "{}", there.len());
        // Another client, which has not cached any record numbers.
        let mut other = client(&server);
        for (i, version) in &there {
            let value = other
                .get(&i.to_le_bytes())
                .expect("answered")
                .expect("there");
            let first = i.to_le_bytes()[0];
            assert_eq!((value.bytes, value.version), (vec![first; 30], *version));
        }
        let stats = server.stats().store;
        assert_eq!(stats.items, there.len() as u64);
        assert_eq!(stats.refused_full, 1000 - there.len() as u64);
    }
}
