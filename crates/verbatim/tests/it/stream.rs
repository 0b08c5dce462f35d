//! `verbatim stream` and `verbatim grpc` with this project's clients, and with a client and a
//! server in Python. The Python sides were written from the description of brpc's protocol, and use
//! `verbatim run` and rdma-core's pyverbs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::{self, ANYWHERE, KillOnDrop, Server};

/// Returns the command of the Python side in a scenario.
fn python(address: &str, scenario: &str) -> Command {
    common::build_libraries();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/brpc_peer.py");
    let (host, port) = address.rsplit_once(':').expect("a port");
    let mut command = common::verbatim(&["run", "--", "/usr/bin/python3", program]);
    command.args([host, port, scenario]);
    command
}

/// Runs the Python client in a scenario, then this project's client on the same server.
fn scenario(name: &str) {
    let server = Server::start("stream", ANYWHERE, &[]);
    let out = python(&server.address, name)
        .output()
        .expect("python3 starts");
    let err = String::from_utf8_lossy(&out.stderr);
    let passed = format!("{name} passed\n");
    assert_eq!(String::from_utf8_lossy(&out.stdout), passed, "{err}");
    let own = common::lines_of(&["stream", "check", &server.address, "--json"]);
    assert_eq!(own[0]["transport"], "RDMA");
}

#[test]
fn a_client_written_from_the_description_is_served() {
    scenario("basics");
}

#[test]
fn queues_of_any_length_are_served() {
    scenario("windows");
}

#[test]
fn handshakes_that_are_none_end_their_connection_and_no_other() {
    scenario("garbage");
}

#[test]
fn clients_that_break_the_protocol_lose_their_connection_and_no_other() {
    scenario("noisy");
}

#[test]
fn the_unix_socket_of_a_server_is_removed_and_that_of_a_killed_one_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let unix = ["--unix", socket.to_str().expect("a path of ASCII")];
    let mut killed = Server::start("stream", ANYWHERE, &unix);
    killed.child.kill().expect("it runs");
    killed.child.wait().expect("it is killed");
    assert!(socket.exists());
    let mut server = Server::start("stream", ANYWHERE, &unix);
    let mut client = UnixStream::connect(&socket).expect("connects");
    client.write_all(b"echo").expect("writes");
    let mut got = [0; 4];
    client.read_exact(&mut got).expect("reads");
    assert_eq!(&got, b"echo");
    drop(server.child.stdin.take());
    server.child.wait().expect("it ends");
    assert!(!socket.exists());
}

#[test]
fn a_server_written_from_the_description_serves_our_client() {
    let child = python(ANYWHERE, "server").stdout(Stdio::piped()).spawn();
    let mut server = KillOnDrop(child.expect("python3 starts"));
    let mut lines = BufReader::new(server.0.stdout.take().expect("its output"));
    let mut port = String::new();
    lines.read_line(&mut port).expect("it prints");
    let address = format!("127.0.0.1:{}", port.trim());
    let check = |more: &[&str]| -> Value {
        let check = ["stream", "check", &address, "--bytes", "300000", "--json"];
        let mut lines = common::lines_of(&[&check, more].concat());
        lines.remove(0)
    };
    assert_eq!(check(&[])["transport"], "RDMA");
    assert_eq!(check(&["--v3"])["bytes"], 300_000);
    assert_eq!(check(&["--fall-back"])["transport"], "TCP");
    let mut end = String::new();
    lines.read_to_string(&mut end).expect("it prints");
    assert_eq!(end, "server passed\n");
}

#[test]
fn a_server_that_declines_serves_by_tcp_and_says_so_where_rdma_is_required() {
    let server = Server::start("stream", ANYWHERE, &["--tcp-only"]);
    let fallen = common::lines_of(&["stream", "check", &server.address, "--fall-back", "--json"]);
    assert_eq!(fallen[0]["transport"], "TCP");
    let refused = common::run(&["stream", "check", &server.address]);
    let err = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{err}");
    assert!(err.contains("offers only TCP"), "{err}");
}

#[test]
fn killed_clients_and_servers_end_their_streams() {
    let server = Server::start("stream", ANYWHERE, &[]);
    for _ in 0..6 {
        let mut client = common::verbatim(&["stream", "check", &server.address]);
        let client = client.args(["--bytes", "1000000000000"]).spawn();
        let mut client = client.expect("it starts");
        common::sleep_at_most(std::time::Duration::from_millis(60));
        client.kill().expect("it runs");
        client.wait().expect("it ends");
        let own = common::lines_of(&["stream", "check", &server.address, "--json"]);
        assert_eq!(own[0]["same"], true);
    }
    let mut client = common::verbatim(&["stream", "check", &server.address]);
    let client = client
        .args(["--bytes", "1000000000000"])
        .stderr(Stdio::piped())
        .spawn();
    let client = client.expect("it starts");
    server.wait_for_client();
    common::sleep_at_most(std::time::Duration::from_millis(40));
    drop(server);
    let out = client.wait_with_output().expect("it ends");
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{err}");
}

#[test]
fn a_server_without_descriptors_serves_again_when_it_has_some() {
    let server = Server::start("stream", ANYWHERE, &[]);
    server.limit_descriptors(Some(10));
    let crowd = [(); 30].map(|()| TcpStream::connect(&server.address).expect("it listens"));
    std::thread::sleep(std::time::Duration::from_millis(300));
    drop(crowd);
    let own = common::lines_of(&["stream", "check", &server.address, "--json"]);
    assert_eq!(own[0]["transport"], "RDMA");
    assert_eq!(own[0]["same"], true);
}

#[test]
fn packets_that_are_lost_are_sent_again_and_the_bytes_stay_the_same() {
    let lossy = |command: &mut Command| {
        command
            .env("VERBATIM_PATH", "packets")
            .env("VERBATIM_FAULT", "drop,p=0.01")
            .env("VERBATIM_FAULT_SEED", "1");
    };
    let server = Server::start_with("stream", ANYWHERE, &[], lossy);
    let mut check = common::verbatim(&["stream", "check", &server.address, "--json"]);
    lossy(&mut check);
    let out = check.args(["--bytes", "3000000"]).output();
    let out = out.expect("the program starts");
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{err}");
    let checked = &common::json_lines(&out)[0];
    assert_eq!(checked["transport"], "RDMA");
    assert_eq!(checked["same"], true);
    assert_eq!(checked["bytes"], 3_000_000);
}

#[test]
fn streams_and_calls_are_measured_side_by_side() {
    let _alone = common::alone();
    let args = "stream --json --rounds 2 --duration 20ms --connections 1 --connections 3 --message 300 --message 70000";
    let lines = common::lines_of(&args.split(' ').collect::<Vec<_>>());
    let rows: Vec<_> = lines.iter().filter(|l| l["type"] == "row").collect();
    assert_eq!(rows.len(), 16, "two lengths, two counts, four carriers");
    let args =
        "grpc --json --rounds 2 --duration 20ms --outstanding 1 --outstanding 8 --payload 500";
    let calls = common::lines_of(&args.split(' ').collect::<Vec<_>>());
    let calls: Vec<_> = calls.iter().filter(|l| l["type"] == "row").collect();
    assert_eq!(calls.len(), 2);
    for row in rows.iter().chain(&calls) {
        assert!(row["data"]["verified"].as_u64() > Some(0), "{row}");
    }
}

#[test]
fn the_commands_of_the_guide_run() {
    let _alone = common::alone();
    let folder = tempfile::tempdir().expect("a folder");
    assert!(common::run_the_guide("stream.md", folder.path()) >= 5);
}
