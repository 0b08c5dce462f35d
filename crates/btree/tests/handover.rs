//! Two servers share a tree: ranges move back and forth under load, and either server may fail midway.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use btree::load::{
    self, LoadEnd, NumberStrings, NumberedClient, Popularity, Workload, stable_key, value_of,
};
use btree::{
    AccessDesign, Answer, ByteString, Client, ClientConfig, ClientError, ExecuteRequests,
    HandoverStep, KeyOrValue, NumberSizes, Operation, PipelinedClient, PutCondition, Router,
    Server, ServerConfig, StringSizes,
};

/// Returns two addresses that are free at the moment.
fn addresses() -> [String; 2] {
    let listeners = [0, 0].map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"));
    listeners.map(|l| l.local_addr().expect("bound").to_string())
}

/// A type of keys and values that stand for numbers.
trait Keys: KeyOrValue {
    const SIZES: Self::Sizes;
    const NODE_BYTES: usize;
    fn key(number: u64) -> Self;
    fn value(number: u64) -> Self;
    fn number(self) -> u64;
    /// Returns a client that executes requests with numbers.
    fn numbered(router: &mut Router<Self>) -> impl ExecuteRequests;
}

impl Keys for u64 {
    const SIZES: NumberSizes = NumberSizes;
    const NODE_BYTES: usize = 256;

    fn key(number: u64) -> Self {
        number
    }

    fn value(number: u64) -> Self {
        number
    }

    fn number(self) -> u64 {
        self
    }

    fn numbered(router: &mut Router) -> impl ExecuteRequests {
        router
    }
}

const STRING_SIZES: StringSizes = StringSizes {
    key_bytes: 40,
    value_bytes: 30,
};

fn strings() -> NumberStrings {
    NumberStrings::new(STRING_SIZES).expect("long enough")
}

impl Keys for ByteString {
    const SIZES: StringSizes = STRING_SIZES;
    const NODE_BYTES: usize = 1024;

    fn key(number: u64) -> Self {
        strings().key(number)
    }

    fn value(number: u64) -> Self {
        strings().value(number)
    }

    /// Returns the number of a counter in a load report.
    fn number(self) -> u64 {
        let bytes = self.to_vec();
        u64::from_be_bytes(bytes.try_into().expect("eight bytes"))
    }

    fn numbered(router: &mut Router<Self>) -> impl ExecuteRequests {
        NumberedClient::new(router, strings())
    }
}

fn server<T: Keys>(
    addresses: &[String; 2],
    server_number: u16,
    keys: u64,
    split: u64,
) -> Server<T> {
    let config = ServerConfig {
        listen: addresses[usize::from(server_number)].clone(),
        key_capacity: 6 * keys + 10_000,
        node_bytes: T::NODE_BYTES,
        key_and_value_limits: T::SIZES,
        splits: vec![T::key(stable_key(split))],
        server_number,
        servers: addresses.to_vec(),
        ..ServerConfig::default()
    };
    let server = Server::<T>::start(config).expect("starts");
    let entry = |i| (T::key(stable_key(i)), T::value(value_of(stable_key(i), 0)));
    server
        .service()
        .bulk_load(0, keys, 0.9, entry)
        .expect("loads");
    server
}

fn router<T: Keys>(addresses: &[String; 2], access: AccessDesign) -> Router<T> {
    let pipelines = addresses.iter().map(|server| {
        let config = ClientConfig {
            server: server.clone(),
            access,
            window: 32,
            ..ClientConfig::default()
        };
        PipelinedClient::connect(config).expect("connects")
    });
    Router::new(pipelines.collect())
}

/// Sends a request and waits for the answer.
fn ask<T: Keys>(pipeline: &mut PipelinedClient<T>, op: Operation<T>) -> String {
    pipeline.refresh_clock();
    assert!(pipeline.submit(0, &op, 0).expect("connected"));
    let mut said = String::new();
    while said.is_empty() {
        pipeline
            .poll(|done| said = format!("{:?}", done.answer))
            .expect("connected");
    }
    said
}

fn take<T: Keys>(pipeline: &mut PipelinedClient<T>, giver: u16, from: u64, end: Option<u64>) {
    let step = HandoverStep::Take { giver };
    let (from, end) = (T::key(from), end.map(T::key));
    let said = ask(pipeline, Operation::Handover { step, from, end });
    assert_eq!(said, "HandoverStepDone { version: 0 }");
}

/// Returns the number of ranges that a server is taking.
fn taking<T: Keys>(pipeline: &mut PipelinedClient<T>) -> u64 {
    pipeline.refresh_clock();
    assert!(
        pipeline
            .submit(0, &Operation::ReadServerLoad, 0)
            .expect("connected")
    );
    let mut taking = None;
    while taking.is_none() {
        pipeline
            .poll(|done| {
                let Answer::Entries { entries, .. } = done.answer else {
                    panic!("{:?}", done.answer);
                };
                taking = Some(entries[1].1.number());
            })
            .expect("connected");
    }
    taking.expect("just now")
}

#[test]
fn ranges_move_under_load_and_no_key_is_lost_or_has_two_owners() {
    move_ranges_under_load::<u64>();
    move_ranges_under_load::<ByteString>();
}

fn move_ranges_under_load<T: Keys>() {
    const KEYS: u64 = 4000;
    let addresses = addresses();
    let servers = [0, 1].map(|number| server::<T>(&addresses, number, KEYS, KEYS / 2));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (addresses, stop) = (&addresses, &stop);
        let clients: Vec<_> = (1..)
            .zip([AccessDesign::Rpc, AccessDesign::Read])
            .map(|(seed, access)| {
                scope.spawn(move || {
                    let mut router = router::<T>(addresses, access);
                    let workload = Workload {
                        keys: KEYS,
                        popularity: Popularity::Uniform,
                        update_fraction: 0.1,
                        insert_fraction: 0.3,
                        own_lookup_fraction: 0.2,
                        scan_fraction: 0.1,
                        scan_length: 300,
                        has_random_scan_lengths: true,
                        ..Workload::default()
                    };
                    let mut rounds = 0;
                    while rounds < 2 || !stop.load(Ordering::Relaxed) {
                        let until = LoadEnd::Count(5_000);
                        let seed = seed + 10 * rounds;
                        let mut client = T::numbered(&mut router);
                        let report = load::run(&mut client, &workload, until, seed);
                        let report = report.expect("goes on");
                        drop(client);
                        assert!(report.has_no_wrong_answers(), "{access}: {report:?}");
                        assert_eq!(
                            report.unanswered_requests + report.changes_refused_as_full,
                            0,
                            "{report:?}"
                        );
                        rounds += 1;
                    }
                    router.redirected_requests()
                })
            })
            .collect();
        let mut control = router::<T>(addresses, AccessDesign::Rpc);
        for round in 0..12u64 {
            // The boundary moves from the middle to a quarter of the keys, and back.
            let from = stable_key(KEYS / 4 + (round - round % 2) * 7);
            let to = stable_key(KEYS / 2);
            let (taker, giver) = if round % 2 == 0 { (1, 0) } else { (0, 1) };
            take(&mut control.servers()[taker], giver, from, Some(to));
            while taking(&mut control.servers()[taker]) > 0 {
                thread::sleep(Duration::from_millis(1));
            }
        }
        stop.store(true, Ordering::Relaxed);
        let redirected: u64 = clients.into_iter().map(|c| c.join().expect("right")).sum();
        assert!(redirected > 0);
    });
    let taken: u64 = servers
        .iter()
        .map(|server| server.stats().taken_entries)
        .sum();
    assert!(taken > 2 * KEYS, "{taken}");
    // Every key is at exactly one server.
    for i in 0..KEYS {
        let owners = servers
            .iter()
            .filter(|s| s.service().store().get(0, T::key(stable_key(i))).is_ok());
        assert_eq!(owners.count(), 1, "{i}");
    }
}

/// A SCAN and a take that begin between the last key of a server and the first key of the next server.
#[test]
fn a_range_that_begins_without_keys_below_a_boundary_continues_at_the_next_server() {
    range_begins_below_a_boundary::<u64>();
    range_begins_below_a_boundary::<ByteString>();
}

fn range_begins_below_a_boundary<T: Keys>() {
    let addresses = addresses();
    let servers = [0, 1].map(|number| server::<T>(&addresses, number, 100, 50));
    let from = T::key(stable_key(49) + 1);
    for access in AccessDesign::ALL {
        for end in [None, Some(T::key(stable_key(80)))] {
            let mut router = router::<T>(&addresses, access);
            let limit = 20;
            let scan = Operation::Scan { from, end, limit };
            assert!(router.submit(0, &scan, 0).expect("connected"));
            let mut found = None;
            while router.outstanding() > 0 {
                router
                    .poll(|done| match done.answer {
                        Answer::Entries { entries, .. } => found = Some(entries.to_vec()),
                        other => panic!("{access}: {other:?}"),
                    })
                    .expect("connected");
            }
            let expected =
                (50..70).map(|i| (T::key(stable_key(i)), T::value(value_of(stable_key(i), 0))));
            assert_eq!(found, Some(expected.collect()), "{access}");
        }
        // A client of one server gets the entries of that server.
        let config = ClientConfig {
            server: addresses[0].clone(),
            access,
            ..ClientConfig::default()
        };
        let mut client = Client::<T>::connect(config).expect("connects");
        assert_eq!(client.scan(0, from, None, 10).expect("answered"), []);
        let moved = client.scan(0, T::key(stable_key(50)), None, 10);
        assert!(
            matches!(moved, Err(ClientError::Moved { server: 1, .. })),
            "{moved:?}"
        );
    }
    let mut control = router::<T>(&addresses, AccessDesign::Rpc);
    let taker = &mut control.servers()[1];
    take(taker, 0, stable_key(49) + 1, Some(stable_key(60)));
    while taking(taker) > 0 {
        thread::sleep(Duration::from_millis(1));
    }
    let [giver, taker] = servers.each_ref().map(|s| s.service().store().get(0, from));
    assert!(giver.is_err() && taker == Ok(None), "{giver:?}, {taker:?}");
}

#[test]
fn a_taker_that_goes_away_leaves_the_range_where_it_was() {
    let addresses = addresses();
    let giver = server::<u64>(&addresses, 0, 1000, 900);
    let connect = || {
        let config = ClientConfig {
            server: addresses[0].clone(),
            ..ClientConfig::default()
        };
        PipelinedClient::connect(config).expect("connects")
    };
    let (from, end) = (stable_key(100), Some(stable_key(200)));
    let handover = |step| Operation::Handover { step, from, end };
    let mut taker = connect();
    assert_eq!(
        ask(&mut taker, handover(HandoverStep::Freeze)),
        "HandoverStepDone { version: 0 }"
    );
    let mut other = connect();
    // Another client can neither freeze nor cede the range.
    assert_eq!(
        ask(&mut other, handover(HandoverStep::Freeze)),
        "HandoverStepRefused"
    );
    assert_eq!(
        ask(&mut other, handover(HandoverStep::Cede { to: 1 })),
        "HandoverStepRefused"
    );
    let get = Operation::Get {
        key: stable_key(150),
    };
    let value = format!("Value(Some({}))", value_of(stable_key(150), 0));
    assert_eq!(ask(&mut other, get), value, "it is read all the time");
    drop(taker);
    let put = Operation::Put {
        key: stable_key(150),
        value: 1,
        when: PutCondition::Always,
    };
    assert_eq!(ask(&mut other, put), "Changed { found: true }");
    // A late taker is refused: its copy may be outdated.
    assert_eq!(
        ask(&mut other, handover(HandoverStep::Cede { to: 1 })),
        "HandoverStepRefused"
    );
    drop(giver);
}

#[test]
fn a_take_that_the_giver_refuses_for_a_moment_is_tried_again() {
    let addresses = addresses();
    let servers = [0, 1].map(|number| server::<u64>(&addresses, number, 1000, 900));
    let mut control = router::<u64>(&addresses, AccessDesign::Rpc);
    let (from, end) = (stable_key(800), Some(stable_key(900)));
    let config = ClientConfig {
        server: addresses[0].clone(),
        ..ClientConfig::default()
    };
    let mut other = PipelinedClient::connect(config).expect("connects");
    let step = HandoverStep::Freeze;
    let said = ask(&mut other, Operation::Handover { step, from, end });
    assert_eq!(said, "HandoverStepDone { version: 0 }");
    let taker = &mut control.servers()[1];
    take(taker, 0, from, end);
    thread::sleep(Duration::from_millis(30));
    drop(other);
    while taking(taker) > 0 {
        thread::sleep(Duration::from_millis(1));
    }
    for i in 800..900 {
        let found = servers[1].service().store().get(0, stable_key(i));
        assert_eq!(found, Ok(Some(value_of(stable_key(i), 0))), "{i}");
    }
    // The same take again: the taker has a part of the range, and gets the rest.
    take(taker, 0, stable_key(700), end);
    while taking(taker) > 0 {
        thread::sleep(Duration::from_millis(1));
    }
    take(taker, 0, stable_key(800), Some(stable_key(950)));
    take(taker, 0, stable_key(600), end);
    while taking(taker) > 0 {
        thread::sleep(Duration::from_millis(1));
    }
    let taken = servers[1].stats().taken_entries;
    assert_eq!(taken, 300);
}

#[test]
fn a_giver_that_goes_away_leaves_what_was_copied() {
    const KEYS: u64 = 20_000;
    let addresses = addresses();
    let giver = server::<u64>(&addresses, 0, KEYS, KEYS);
    let taker = server::<u64>(&addresses, 1, KEYS, KEYS);
    let config = ClientConfig {
        server: addresses[1].clone(),
        ..ClientConfig::default()
    };
    let mut control = PipelinedClient::<u64>::connect(config).expect("connects");
    take(
        &mut control,
        0,
        stable_key(KEYS / 2),
        Some(stable_key(KEYS)),
    );
    while taker.stats().taken_entries == 0 {
        thread::sleep(Duration::from_micros(50));
    }
    drop(giver);
    // The taken chunks are served, and no others.
    let taken = taker.stats().taken_entries;
    let store = taker.service().store();
    let there = (0..KEYS)
        .filter(|i| store.get(0, stable_key(*i)).is_ok())
        .count() as u64;
    assert!(there >= taken.min(2000), "{there}");
    let first = stable_key(KEYS / 2);
    assert_eq!(store.get(0, first), Ok(Some(value_of(first, 0))));
}

#[test]
fn a_router_forgets_requests_that_are_refused() {
    let addresses = addresses();
    let _servers = [0, 1].map(|number| server::<ByteString>(&addresses, number, 100, 50));
    let mut router = router::<ByteString>(&addresses, AccessDesign::Rpc);
    let long = ByteString::new(&[b'x'; 41]).expect("short enough for a string");
    for token in 0..100 {
        let refused = router.submit(0, &Operation::Get { key: long }, token);
        assert!(refused.is_err(), "{refused:?}");
        assert_eq!(router.outstanding(), 0);
    }
    let get = Operation::Get {
        key: ByteString::key(stable_key(70)),
    };
    assert!(router.submit(0, &get, 0).expect("connected"));
    let mut found = None;
    while router.outstanding() > 0 {
        router
            .poll(|done| found = Some(format!("{:?}", done.answer)))
            .expect("connected");
    }
    let value = ByteString::value(value_of(stable_key(70), 0));
    assert_eq!(found, Some(format!("{:?}", Answer::Value(Some(value)))));
}

/// A server does not take keys from one whose values may be longer.
#[test]
fn a_taker_refuses_a_giver_with_other_sizes() {
    let addresses = addresses();
    let giver = server::<ByteString>(&addresses, 0, 200, 150);
    let sizes = StringSizes {
        value_bytes: STRING_SIZES.value_bytes - 1,
        ..STRING_SIZES
    };
    let config = ServerConfig {
        listen: addresses[1].clone(),
        key_and_value_limits: sizes,
        splits: vec![ByteString::key(stable_key(150))],
        server_number: 1,
        servers: addresses.to_vec(),
        ..ServerConfig::default()
    };
    let taker = Server::<ByteString>::start(config).expect("starts");
    let config = ClientConfig {
        server: addresses[1].clone(),
        ..ClientConfig::default()
    };
    let mut control = PipelinedClient::<ByteString>::connect(config).expect("connects");
    take(&mut control, 0, stable_key(100), Some(stable_key(150)));
    while taking(&mut control) > 0 {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(taker.stats().taken_entries, 0);
    let key = ByteString::key(stable_key(120));
    assert!(
        giver
            .service()
            .store()
            .get(0, key)
            .is_ok_and(|v| v.is_some())
    );
}
