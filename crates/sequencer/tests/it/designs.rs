//! Every design on the software NIC: threads, processes, wraps, and the end of the numbers.

use std::time::Duration;

use sequencer::{
    Client, ClientConfig, ClientReport, Design, NumberChecker, RequestsPerClient, RunLimit, Server,
    ServerConfig, WindowPolicy,
};

use crate::common::{Process, client_of, eventually};

fn server(config: ServerConfig) -> (Server, String) {
    let server = Server::start(config).expect("starts");
    let address = server.address().to_string();
    (server, address)
}

fn run(config: ClientConfig, count: u64) -> ClientReport {
    Client::connect(config)
        .expect("connects")
        .run(RunLimit::Count(count))
}

/// Runs clients as threads against a server of this process and checks every number.
fn threads(config: ServerConfig, clients: usize, count: u64, window: usize) -> Vec<ClientReport> {
    let design = config.design;
    let (server, address) = server(config);
    let reports: Vec<_> = std::thread::scope(|s| {
        let client = || {
            run(
                ClientConfig {
                    window,
                    ..client_of(&address)
                },
                count,
            )
        };
        let threads: Vec<_> = (0..clients).map(|_| s.spawn(client)).collect();
        threads
            .into_iter()
            .map(|t| t.join().expect("no panic"))
            .collect()
    });
    let stats = server.stop();
    let mut checker = NumberChecker::new(stats.first_number);
    for (i, report) in reports.iter().enumerate() {
        assert_eq!(
            report.received_number_count, count,
            "{design} client {i}: {:?}",
            report.failures
        );
        checker.add_report(&format!("client {i}"), report);
    }
    let verdict = checker.verdict(Some(stats.next_number));
    println!("{design}: {verdict}; {stats:?}");
    assert!(verdict.ok, "{design}: {verdict}");
    assert_eq!(stats.requests, clients as u64 * count, "{design}");
    reports
}

#[test]
fn one_thread_gets_all_numbers() {
    for design in Design::ALL {
        threads(
            ServerConfig {
                design,
                ..ServerConfig::default()
            },
            1,
            20_000,
            64,
        );
    }
}

#[test]
fn many_threads_and_workers_share_the_numbers() {
    for design in Design::ALL {
        threads(
            ServerConfig {
                design,
                workers: 2,
                ..ServerConfig::default()
            },
            5,
            5_000,
            32,
        );
    }
}

#[test]
fn windows_and_batches_of_every_size_work() {
    for design in Design::ALL {
        for (window, batch) in [(1, 1), (3, 2), (64, 64), (1000, 16)] {
            let (server, address) = server(ServerConfig {
                design,
                batch: 7,
                ..ServerConfig::default()
            });
            let report = run(
                ClientConfig {
                    window,
                    batch,
                    ..client_of(&address)
                },
                3_000,
            );
            assert_eq!(
                report.received_number_count, 3_000,
                "{design} {window} {batch}: {:?}",
                report.failures
            );
            let stats = server.stop();
            let mut checker = NumberChecker::new(0);
            checker.add_report("client", &report);
            let verdict = checker.verdict(Some(stats.next_number));
            assert!(verdict.ok, "{design} {window} {batch}: {verdict}");
        }
    }
}

/// The window policies of the published benchmarks give the same numbers as the default.
#[test]
fn every_window_policy_scan_and_spread_gets_all_numbers() {
    use WindowPolicy::{AsAnswered, FullPostlists, StopAndGo};
    let designs = [Design::RpcBatch, Design::RpcBatchMq, Design::SpecS0];
    for design in designs {
        let is_rpc = design != Design::SpecS0;
        for (policy, spread, batch) in [
            (StopAndGo, true, 1),
            (FullPostlists, true, 16),
            (StopAndGo, false, 16),
            (AsAnswered, false, 16),
        ] {
            let (server, address) = server(ServerConfig {
                design,
                workers: 3,
                batch: 32,
                ud_qps_per_worker: Some(4),
                rotates_answer_qps: !is_rpc,
                request_region_scan: RequestsPerClient::AtMostOne,
                qps_per_answer_batch: if is_rpc { 2 } else { 1 },
                ..ServerConfig::default()
            });
            let client = || {
                let config = ClientConfig {
                    window: 21,
                    batch,
                    window_policy: policy,
                    requests_rotate_over_workers: spread,
                    ..client_of(&address)
                };
                run(config, 3_000)
            };
            let reports: Vec<_> = std::thread::scope(|s| {
                let threads = [(); 3].map(|()| s.spawn(client));
                threads.map(|t| t.join().expect("no panic")).into()
            });
            let stats = server.stop();
            let mut checker = NumberChecker::new(0);
            for report in &reports {
                let case = format!("{design} {policy:?} {spread}: {:?}", report.failures);
                assert_eq!(report.received_number_count, 3_000, "{case}");
                checker.add_report("client", report);
            }
            let verdict = checker.verdict(Some(stats.next_number));
            assert!(verdict.ok, "{design} {policy:?} {spread}: {verdict}");
        }
    }
}

#[test]
fn processes_share_the_numbers() {
    for design in Design::ALL {
        let (server, address) = Process::server(&ServerConfig {
            design,
            ..ServerConfig::default()
        });
        let clients: Vec<_> = (0..3)
            .map(|_| Process::client(&client_of(&address), RunLimit::Count(20_000)))
            .collect();
        let reports: Vec<_> = clients.into_iter().map(Process::report).collect();
        let stats = server.stop();
        let mut checker = NumberChecker::new(0);
        for (i, r) in reports.iter().enumerate() {
            assert_eq!(
                r.received_number_count, 20_000,
                "{design}: {:?}",
                r.failures
            );
            checker.add_report(&format!("process {i}"), r);
        }
        let verdict = checker.verdict(Some(stats.next_number));
        assert!(verdict.ok, "{design}: {verdict}");
    }
}

#[test]
fn the_lower_half_wraps() {
    for design in Design::ALL {
        let start = (1 << 32) - 3_000;
        let reports = threads(
            ServerConfig {
                design,
                start,
                ..ServerConfig::default()
            },
            2,
            5_000,
            64,
        );
        let wrong: u64 = reports.iter().map(|r| r.wrong_guesses).sum();
        assert_eq!(
            wrong > 0,
            design == Design::SpecS0,
            "{design}: {wrong} wrong guesses"
        );
        // Only requests that were outstanding when the numbers passed 2^32 had a wrong guess.
        assert!(wrong <= 2 * 64, "{wrong}");
    }
}

#[test]
fn numbers_end_and_do_not_start_over() {
    for design in Design::ALL {
        let start = design.end_of_numbers() - 2_500;
        let (server, address) = server(ServerConfig {
            design,
            start,
            ..ServerConfig::default()
        });
        let config = client_of(&address);
        let clients: Vec<_> = (0..3)
            .map(|_| Client::connect(config.clone()).expect("connects"))
            .collect();
        let reports: Vec<_> = std::thread::scope(|s| {
            let run = |mut c: Client| s.spawn(move || c.run(RunLimit::Count(5_000)));
            let threads: Vec<_> = clients.into_iter().map(run).collect();
            threads
                .into_iter()
                .map(|t| t.join().expect("no panic"))
                .collect()
        });
        let late = Client::connect(config).expect_err("nothing is left");
        assert!(late.to_string().contains("used up"), "{design}: {late}");
        let stats = server.stop();
        assert!(
            stats.next_number >= start,
            "{design}: the counter wrapped to {}",
            stats.next_number
        );
        let mut checker = NumberChecker::new(start);
        for (i, r) in reports.iter().enumerate() {
            assert!(
                r.failures
                    .end_reason
                    .as_deref()
                    .is_some_and(|e| e.contains("used up")),
                "{design}: {:?}",
                r.failures
            );
            checker.add_report(&format!("client {i}"), r);
        }
        let verdict = checker.verdict(Some(design.end_of_numbers()));
        assert_eq!(
            (
                verdict.duplicates,
                verdict.out_of_range_numbers,
                verdict.not_increasing_numbers
            ),
            (0, 0, 0),
            "{design}: {verdict}"
        );
        // With atomics a session may end with numbers that it took but could not use.
        assert!(
            verdict.ok && (verdict.checked_numbers == 2_500 || design == Design::Atomics),
            "{design}: {verdict}"
        );
    }
}

#[test]
fn a_killed_client_leaves_its_place_to_others() {
    for design in Design::ALL {
        let (server, address) = server(ServerConfig {
            design,
            max_clients: 2,
            ..ServerConfig::default()
        });
        let mut checker = NumberChecker::new(0);
        let steady = Process::client(&client_of(&address), RunLimit::DurationMs(600));
        for _ in 0..3 {
            let victim = Process::client(&client_of(&address), RunLimit::DurationMs(60_000));
            std::thread::sleep(Duration::from_millis(30));
            victim.kill();
            checker.record_client_death();
            eventually("the server frees the client", || {
                server.stats().connected_clients <= 1
            });
        }
        let report = steady.report();
        assert!(
            report.received_number_count > 0 && report.failures.end_reason.is_none(),
            "{design}: {:?}",
            report.failures
        );
        checker.add_report("steady", &report);
        assert!(
            server.failure().is_none(),
            "{design}: {:?}",
            server.failure()
        );
        let stats = server.stop();
        let verdict = checker.verdict(Some(stats.next_number));
        assert!(verdict.ok, "{design}: {verdict}");
        assert_eq!(stats.clients_total, 4);
    }
}

#[test]
fn requests_are_retried_after_a_deadline_and_nothing_comes_twice() {
    // A server freezes for longer than the deadline: sessions end with requests and answers outstanding. After it
    // resumes, it answers to queue pairs that were destroyed.
    for design in Design::ALL {
        let (server, address) = Process::server(&ServerConfig {
            design,
            ..ServerConfig::default()
        });
        let config = ClientConfig {
            // A server that is not frozen answers in time, even while it waits for a core.
            answer_timeout_ms: 60,
            ..client_of(&address)
        };
        let clients: Vec<_> = (0..2)
            .map(|_| Process::client(&config, RunLimit::DurationMs(1_500)))
            .collect();
        // The freezes are frequent and long, because on a busy machine a client is rarely scheduled.
        for _ in 0..6 {
            std::thread::sleep(Duration::from_millis(70));
            server.freeze(Duration::from_millis(200));
        }
        let reports: Vec<_> = clients.into_iter().map(Process::report).collect();
        let stats = server.stop();
        let mut checker = NumberChecker::new(0);
        for (i, r) in reports.iter().enumerate() {
            assert!(
                r.received_number_count > 0 && r.failures.end_reason.is_none(),
                "{design}: {:?}",
                r.failures
            );
            checker.add_report(&format!("client {i}"), r);
        }
        let reconnects: u64 = reports.iter().map(|r| r.failures.reconnects).sum();
        let verdict = checker.verdict(Some(stats.next_number));
        println!("{design}: {verdict}; {reconnects} reconnects");
        assert!(verdict.ok, "{design}: {verdict}");
        // Remote atomics need no thread at the server.
        assert_eq!(reconnects > 0, design != Design::Atomics, "{design}");
    }
}

#[test]
fn an_idle_server_does_not_burn_cpu() {
    let idle = Design::ALL.map(|design| {
        let (server, address) = Process::server(&ServerConfig {
            design,
            ..ServerConfig::default()
        });
        let mut client = Client::connect(client_of(&address)).expect("connects");
        assert_eq!(client.take_numbers(100).expect("numbers").len(), 100);
        (design, server, client)
    });
    std::thread::sleep(Duration::from_millis(300));
    let before = idle.each_ref().map(|(_, server, _)| server.cpu_ticks());
    std::thread::sleep(Duration::from_millis(500));
    for ((design, server, mut client), before) in idle.into_iter().zip(before) {
        let used = server.cpu_ticks() - before;
        // Of 50 ticks: a polling thread uses many of them, even if five share two cores.
        assert!(used <= 2, "{design}: {used} ticks in half a second");
        assert_eq!(client.take_numbers(100).expect("still serves").len(), 100);
        server.stop();
    }
}
