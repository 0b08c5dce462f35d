//! A server that is killed and restarted with its state file never gives a number twice.

use std::time::Duration;

use sequencer::{Client, ClientConfig, Design, NumberChecker, RunLimit, Server, ServerConfig};

use crate::common::{Process, client_of};

#[test]
fn kill_9_again_and_again() {
    for design in Design::ALL {
        let dir = tempfile::tempdir().expect("a directory");
        let state = Some(dir.path().join("state"));
        let config = ServerConfig {
            design,
            state_path: state,
            reserve: 20_000,
            ..ServerConfig::default()
        };
        let (mut server, address) = Process::server(&config);
        let config = ServerConfig {
            listen: address.clone(),
            ..config
        };
        let client = ClientConfig {
            answer_timeout_ms: 100,
            ..client_of(&address)
        };
        let clients: Vec<_> = (0..2)
            .map(|_| Process::client(&client, RunLimit::DurationMs(1_000)))
            .collect();
        let mut checker = NumberChecker::new(0);
        for pause in [90, 10, 130, 40, 70] {
            std::thread::sleep(Duration::from_millis(pause));
            server.kill();
            checker.record_server_restart();
            server = Process::server(&config).0;
        }
        let reports: Vec<_> = clients.into_iter().map(Process::report).collect();
        let stats = server.stop();
        for (i, r) in reports.iter().enumerate() {
            assert!(
                r.failures.end_reason.is_none(),
                "{design}: {:?}",
                r.failures
            );
            assert!(r.received_number_count > 0);
            checker.add_report(&format!("client {i}"), r);
        }
        let reconnects: u64 = reports.iter().map(|r| r.failures.reconnects).sum();
        let verdict = checker.verdict(Some(stats.next_number));
        println!("{design}: {verdict}; {reconnects} reconnects");
        assert!(verdict.ok, "{design}: {verdict}");
        assert!(reconnects > 0, "{design}: the clients noticed nothing");
    }
}

#[test]
fn a_restart_goes_on_above_and_reservations_keep_up() {
    for design in Design::ALL {
        let dir = tempfile::tempdir().expect("a directory");
        let config = ServerConfig {
            design,
            state_path: Some(dir.path().join("state")),
            reserve: 2_000,
            start: 77,
            ..ServerConfig::default()
        };
        let mut above = 77;
        for _ in 0..3 {
            let server = Server::start(config.clone()).expect("starts");
            let mut client =
                Client::connect(client_of(&server.address().to_string())).expect("connects");
            // Far more numbers than one reservation.
            let mut numbers = client.take_numbers(10_000).expect("numbers");
            if design == Design::RpcBatchMq {
                // Answers on different queue pairs may overtake each other.
                numbers.sort_unstable();
            }
            assert!(
                numbers[0] >= above,
                "{design}: {} after {above}",
                numbers[0]
            );
            assert!(numbers.is_sorted_by(|a, b| a < b), "{design}");
            above = numbers[9_999] + 1;
        }
    }
}

#[test]
fn a_server_that_forgot_is_refused_by_its_clients() {
    let server = Server::start(ServerConfig::default()).expect("starts");
    let listen = server.address().to_string();
    let mut client = Client::connect(ClientConfig {
        answer_timeout_ms: 100,
        ..client_of(&listen)
    })
    .expect("connects");
    assert_eq!(client.take_numbers(1_000).expect("numbers").len(), 1_000);
    server.stop();
    let _again = Server::start(ServerConfig {
        listen,
        ..ServerConfig::default()
    })
    .expect("starts");
    let e = client.take_numbers(1).expect_err("refused");
    assert!(e.to_string().contains("without its state file"), "{e}");
}

#[test]
fn a_foreign_or_damaged_state_file_stops_the_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("state");
    std::fs::write(&path, "my shopping list\n").expect("writes");
    let config = ServerConfig {
        state_path: Some(path.clone()),
        ..ServerConfig::default()
    };
    let e = Server::start(config).expect_err("refused");
    assert!(e.to_string().contains("no usable state file"), "{e}");
    assert_eq!(
        std::fs::read_to_string(&path).expect("untouched"),
        "my shopping list\n"
    );
}
