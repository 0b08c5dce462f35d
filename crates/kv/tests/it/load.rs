//! The load generator against a server: right answers pass its checks, and wrong ones are detected.

use kv::load::{self, LoadEnd, Popularity, Workload, Ycsb, write_key_bytes, write_value_bytes};
use kv::store::{FullPolicy, SetOptions};
use kv::{ClientConfig, Design, PipelinedClient, Server, ServerConfig};

fn start(design: Design, (workers, batch): (usize, usize)) -> (Server, PipelinedClient) {
    start_with(ServerConfig {
        design,
        workers,
        batch,
        ..ServerConfig::default()
    })
}

fn start_with(config: ServerConfig) -> (Server, PipelinedClient) {
    let server = Server::start(ServerConfig {
        ud_qps_per_worker: 2,
        full_policy: FullPolicy::Store,
        item_capacity: 5_000,
        ..config
    })
    .expect("starts");
    let pipeline = connect(&server);
    (server, pipeline)
}

fn connect(server: &Server) -> PipelinedClient {
    connect_with(server, ClientConfig::default())
}

fn connect_with(server: &Server, config: ClientConfig) -> PipelinedClient {
    PipelinedClient::connect(ClientConfig {
        server: server.address().to_string(),
        max_single_message_value_bytes: 32,
        // Long timeouts, so that slow machines cause no retries.
        answer_ms: 60_000,
        deadline_ms: 120_000,
        ..config
    })
    .expect("connects")
}

fn workload() -> Workload {
    Workload {
        keys: 5_000,
        ..Workload::default()
    }
}

#[test]
fn a_load_finds_every_key_and_every_value_right() {
    let runs = Design::ALL.map(|design| [(1, 1), (1, 64), (3, 16)].map(|(w, b)| (design, w, b)));
    for (design, workers, batch) in runs.into_iter().flatten() {
        let (server, mut pipeline) = start(design, (workers, batch));
        let filled =
            load::put_every_nth_key_once(&mut pipeline, &workload(), (0, 1)).expect("filled");
        assert_eq!((filled.changes, filled.operations), (5_000, 5_000));
        let letters = [Ycsb::A, Ycsb::B, Ycsb::C, Ycsb::D, Ycsb::F];
        let all = letters.map(|letter| workload().ycsb(letter));
        for workload in all.iter().chain([&workload()]) {
            let report = load::run(&mut pipeline, workload, LoadEnd::AfterOperations(20_000), 7)
                .expect("ran");
            assert!(report.all_checks_passed(), "{report:?}");
            assert_eq!(
                (
                    report.misses,
                    report.changes_refused_as_full,
                    report.unanswered_requests
                ),
                (0, 0, 0),
                "{report:?}"
            );
            let updates = report.operations - 20_000;
            assert_eq!(
                updates > 0,
                workload.read_modify_write_fraction > 0.0,
                "{report:?}"
            );
            assert_eq!(
                report.operations,
                report.gets + report.changes + report.conflicts
            );
            assert_eq!(report.checked_values, report.gets);
            let share = (report.changes - updates.min(report.changes)) as f64 / 20_000.0;
            let bound = 0.01 + report.conflicts as f64;
            assert!((share - workload.put_fraction).abs() < bound, "{report:?}");
        }
        let stats = server.stop();
        assert_eq!(
            (
                stats.bad_requests,
                stats.repeated_changes,
                stats.store.items
            ),
            (0, 0, 5_000)
        );
    }
}

/// GETs and PUTs of the same keys share postlists and windows of every size; in one design a PUT is several work
/// requests.
#[test]
fn postlists_of_every_length_mix_gets_and_puts() {
    let few = Workload {
        keys: 40,
        ..workload().ycsb(Ycsb::A)
    };
    for design in Design::ALL {
        let (server, mut pipeline) = start(design, (2, 16));
        load::put_every_nth_key_once(&mut pipeline, &few, (0, 1)).expect("filled");
        for (window, batch) in [(1, 1), (3, 64), (64, 1), (64, 5), (64, 64), (256, 64)] {
            let config = ClientConfig {
                window,
                batch,
                ..ClientConfig::default()
            };
            let mut pipeline = connect_with(&server, config);
            let report =
                load::run(&mut pipeline, &few, LoadEnd::AfterOperations(5_000), 7).expect("ran");
            let settings = format!("{design}, window {window}, postlists of {batch}: {report:?}");
            assert!(report.all_checks_passed(), "{settings}");
            assert_eq!(report.gets + report.changes, 5_000, "{settings}");
            assert_eq!(
                (report.misses, report.unanswered_requests),
                (0, 0),
                "{settings}"
            );
        }
    }
}

#[test]
fn a_wrong_value_and_an_old_version_are_found() {
    [Design::Herd, Design::Reads]
        .into_iter()
        .for_each(what_is_wrong_is_found);
}

fn what_is_wrong_is_found(design: Design) {
    let (server, mut pipeline) = start(design, (1, 64));
    let few = Workload {
        keys: 64,
        put_fraction: 0.0,
        popularity: Popularity::Uniform,
        ..workload()
    };
    load::put_every_nth_key_once(&mut pipeline, &few, (0, 1)).expect("filled");
    let run = |pipeline: &mut PipelinedClient| {
        load::run(pipeline, &few, LoadEnd::AfterOperations(5_000), 1).expect("ran")
    };
    assert!(run(&mut pipeline).all_checks_passed());
    // Another key's value.
    let (mut key, mut value) = ([0; 16], [0; 32]);
    write_key_bytes(5, &mut key);
    write_value_bytes(6, 1, &mut value);
    let (hash, mut partition) = server.service().store().hash_and_lock_partition(&key);
    partition
        .set(hash, &key, &value, SetOptions::default())
        .expect("room");
    drop(partition);
    let report = run(&mut pipeline);
    assert!(
        report.wrong_values > 10 && report.wrong_versions == 0,
        "{report:?}"
    );
    // A key that was removed.
    let (hash, mut partition) = server.service().store().hash_and_lock_partition(&key);
    partition.delete(hash, &key, None).expect("there");
    drop(partition);
    let report = run(&mut pipeline);
    assert!(report.misses > 10 && report.wrong_values == 0, "{report:?}");
}

/// Some clients put to few keys, others get the same keys all the time. Values that mix two PUTs are never returned,
/// and versions never decrease.
#[test]
fn what_is_changed_while_it_is_read_is_whole() {
    let inline = (Design::Reads, 2048);
    for (design, read_size) in Design::ALL.map(|d| (d, 0)).into_iter().chain([inline]) {
        let (server, mut pipeline) = start_with(ServerConfig {
            design,
            neighbourhood_read_bytes: read_size,
            expected_value_bytes: 1000,
            ..ServerConfig::default()
        });
        let few = |puts| Workload {
            keys: 64,
            value_bytes: 1000,
            put_fraction: puts,
            ..workload()
        };
        load::put_every_nth_key_once(&mut pipeline, &few(0.0), (0, 1)).expect("filled");
        let reports = std::thread::scope(|scope| {
            let runs = [0.0, 0.5, 1.0].map(|puts| {
                let (few, mut pipeline) = (few(puts), connect(&server));
                scope.spawn(move || {
                    let seed = 7 + u64::from(puts > 0.0) + u64::from(puts > 0.6);
                    load::run(&mut pipeline, &few, LoadEnd::AfterOperations(10_000), seed)
                        .expect("ran")
                })
            });
            runs.map(|run| run.join().expect("ran"))
        });
        for report in reports {
            assert!(report.all_checks_passed(), "{design}: {report:?}");
            let counts = (report.misses, report.unanswered_requests, report.operations);
            assert_eq!(counts, (0, 0, 10_000), "{design}: {report:?}");
        }
    }
}
