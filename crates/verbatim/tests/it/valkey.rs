//! `verbatim kv serve --resp --rdma` with clients of Valkey's RDMA transport: this project's, and
//! one in Python. The latter was written from the description of the protocol, and uses
//! `verbatim run`, rdma-core's pyverbs and `rdma_cm`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{self, ANYWHERE, KillOnDrop, json_lines};

/// A store that serves both transports on one port number.
struct Server(common::Server);

impl Server {
    fn start(more: &[&str]) -> Server {
        let flags = ["--resp", ANYWHERE, "--rdma"];
        Server(common::Server::start(
            "kv",
            ANYWHERE,
            &[&flags, more].concat(),
        ))
    }

    fn rdma(&self) -> &str {
        self.0.said["rdma"].as_str().expect("an address")
    }

    /// Returns the command of the Python client in a scenario.
    fn python(&self, scenario: &str) -> Command {
        common::build_libraries();
        let program = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/programs/valkey_client.py"
        );
        let (host, port) = self.rdma().rsplit_once(':').expect("a port");
        let mut command = common::verbatim(&["run", "--", "/usr/bin/python3", program]);
        command.args([host, port, scenario]);
        command
    }

    /// Runs one command over RDMA.
    fn cli(&self, words: &[&str]) -> Output {
        common::run(&[&["kv", "cli", "--rdma", self.rdma()], words].concat())
    }

    fn answers(&self, words: &[&str], answer: &str) {
        let out = self.cli(words);
        let err = String::from_utf8_lossy(&out.stderr);
        assert_eq!(
            String::from_utf8_lossy(&out.stdout),
            answer,
            "{words:?}: {err}"
        );
    }

    /// Ends the server; returns the statistics of its front end.
    fn stop(self) -> Value {
        self.0.told("resp")
    }
}

#[test]
fn a_command_by_hand_over_rdma_and_over_tcp() {
    let server = Server::start(&[]);
    assert_eq!(server.0.said["resp"], server.0.said["rdma"]);
    server.answers(&["ping"], "PONG\n");
    server.answers(&["set", "colour", "green"], "OK\n");
    server.answers(&["get", "colour"], "green\n");
    server.answers(&["mget", "colour", "none", "colour"], "green\n\ngreen\n");
    let over_tcp = common::run(&["kv", "cli", server.rdma(), "get", "colour"]);
    assert_eq!(over_tcp.stdout, b"green\n");
    let refused = server.cli(&["incr", "colour"]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(
        refused.stdout,
        b"ERR value is not an integer or out of range\n"
    );
    let nobody = common::run(&["kv", "cli", "--rdma", "127.0.0.1:1", "ping"]);
    let err = String::from_utf8_lossy(&nobody.stderr);
    assert_eq!(nobody.status.code(), Some(2), "{err}");
    assert!(err.contains("127.0.0.1:1 refuses the connection"), "{err}");
    let did = server.stop();
    assert_eq!(
        (&did["commands"], &did["errors"]),
        (&6.into(), &1.into()),
        "{did}"
    );
}

#[test]
fn what_cannot_be_served_over_rdma_says_so() {
    for (args, wanted) in [
        (&["--rdma"][..], "--resp"),
        (&["--resp", "./socket", "--rdma"], "HOST:PORT"),
        (
            &["--resp", "127.0.0.1:0", "--rdma", "--rdma-buffer", "1K"],
            "64 KiB",
        ),
    ] {
        let out = common::run(&[&["kv", "serve", "--listen", ANYWHERE], args].concat());
        let err = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{err}");
        assert!(err.contains(wanted), "{err}");
    }
}

/// Runs the Python client in a scenario.
fn scenario(name: &str, flags: &[&str]) {
    let server = Server::start(flags);
    let out = server.python(name).output().expect("python3 starts");
    let err = String::from_utf8_lossy(&out.stderr);
    let passed = format!("{name} passed\n");
    assert_eq!(String::from_utf8_lossy(&out.stdout), passed, "{err}");
    server.answers(&["ping"], "PONG\n");
    server.stop();
}

#[test]
fn a_client_written_from_the_description_is_served() {
    scenario("basics", &[]);
    scenario("pipeline", &[]);
}

#[test]
fn buffers_of_both_ends_fill_to_their_last_byte() {
    scenario("buffers", &["--rdma-buffer", "64K"]);
}

#[test]
fn groups_of_writes_have_one_immediate() {
    scenario("groups", &[]);
}

#[test]
fn more_small_writes_than_receives_are_served() {
    scenario("tiny", &[]);
}

#[test]
fn clients_hear_that_the_server_is_there() {
    scenario("keepalive", &[]);
}

#[test]
fn clients_that_break_the_protocol_lose_their_connection_and_no_other() {
    scenario("bad", &[]);
}

/// Starts a client that sends requests until its connection ends, and waits for its first answer.
fn asks_for_ever(server: &Server) -> (KillOnDrop, impl BufRead + use<>) {
    let child = server.python("forever").stdout(Stdio::piped()).spawn();
    let mut client = KillOnDrop(child.expect("python3 starts"));
    let mut lines = BufReader::new(client.0.stdout.take().expect("its output"));
    let mut line = String::new();
    lines.read_line(&mut line).expect("it prints");
    assert_eq!(line, "asks\n");
    (client, lines)
}

#[test]
fn killed_clients_are_forgotten() {
    let server = Server::start(&[]);
    for _ in 0..5 {
        let others = [(); 2].map(|()| asks_for_ever(&server));
        common::sleep_at_most(Duration::from_millis(40));
        // Kill the clients in whatever state they are.
        drop(others);
        server.answers(&["ping"], "PONG\n");
    }
    let begun = Instant::now();
    loop {
        let out = server.cli(&["info", "clients"]);
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        if text.contains("connected_clients:1\r") {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
    server.stop();
}

#[test]
fn clients_hear_that_the_server_was_killed() {
    for _ in 0..3 {
        let server = Server::start(&[]);
        let (_client, mut lines) = asks_for_ever(&server);
        common::sleep_at_most(Duration::from_millis(40));
        drop(server);
        let mut line = String::new();
        lines.read_line(&mut line).expect("it prints");
        assert_eq!(line, "ended\n");
    }
}

#[test]
fn a_client_that_does_not_read_does_not_grow_the_server() {
    let server = Server::start(&[]);
    let before = most_memory_kib(&server);
    let out = server.python("slow").output().expect("python3 starts");
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(
        String::from_utf8_lossy(&out.stdout),
        "slow passed\n",
        "{err}"
    );
    // The replies have 6 MB, and the connection itself has 5 MB.
    let grown = most_memory_kib(&server) - before;
    assert!(grown < 8 << 10, "{grown} KiB");
    server.stop();
}

/// Returns the most memory that the server had so far.
fn most_memory_kib(server: &Server) -> u64 {
    let status = format!("/proc/{}/status", server.0.child.id());
    let status = std::fs::read_to_string(status).expect("it runs");
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let number = line.and_then(|l| l.split_whitespace().next()?.parse().ok());
    number.expect("Linux has it")
}

#[test]
fn tcp_and_rdma_are_measured_side_by_side() {
    let _alone = common::alone();
    let folder = tempfile::tempdir().expect("a folder");
    let picture = folder.path().join("rates.svg");
    let args = "kv resp --rdma --json --rounds 2 --duration 20ms --keys 500 --threads 1 --threads 2 --connections 1 \
                --connections 3 --pipeline 1 --pipeline 8 --value-size 300 --svg";
    let mut args: Vec<&str> = args.split_whitespace().collect();
    args.push(picture.to_str().expect("text"));
    let out = common::run(&args);
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{err}");
    let lines = json_lines(&out);
    let rows: Vec<&Value> = lines.iter().filter(|l| l["type"] == "row").collect();
    // GET and SET, both pipelines, and three pairs of threads and connections with at least one
    // connection per thread.
    assert_eq!(rows.len(), 2 * 2 * 3);
    for row in rows {
        let row = &row["data"];
        for side in ["tcp", "rdma"] {
            assert!(row[side]["per_s"]["median"].as_f64() > Some(0.0), "{row}");
            assert!(
                row[side]["ns_p50"].as_f64() <= row[side]["ns_p99"].as_f64(),
                "{row}"
            );
        }
        assert!(row["verified"].as_u64() > Some(0), "{row}");
    }
    assert_eq!(
        lines.iter().filter(|l| l["type"] == "round").count(),
        2 * 2 * 2 * 3
    );
    let picture = std::fs::read_to_string(picture).expect("drawn");
    assert!(picture.contains("<svg") && picture.contains("RDMA"));
}

#[test]
fn many_connections_take_one_descriptor_each() {
    let _alone = common::alone();
    let line = "ulimit -n 1200 && exec \"$0\" kv resp --rdma --json --rounds 1 --duration 20ms --keys 500 --threads 1 \
                --connections 500 --rdma-buffer 64K";
    let mut command = Command::new("sh");
    command.args(["-c", line, env!("CARGO_BIN_EXE_verbatim")]);
    command
        .env_remove("VERBATIM_LINK_LAYER")
        .stdin(Stdio::null());
    let out = command.output().expect("sh starts");
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{err}");
    let rows = json_lines(&out);
    assert_eq!(rows.iter().filter(|l| l["type"] == "row").count(), 2);
}

/// A descriptor limits connections by either transport. Connections that end make room for others.
#[test]
fn a_server_without_descriptors_serves_again_when_it_has_some() {
    let server = Server::start(&[]);
    server.answers(&["set", "colour", "green"], "OK\n");
    server.0.limit_descriptors(Some(20));
    let crowd = [(); 40].map(|()| TcpStream::connect(server.rdma()).expect("it listens"));
    std::thread::sleep(Duration::from_millis(300));
    let refused = server.cli(&["get", "colour"]);
    let err = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{err}");
    drop(crowd);
    let begun = Instant::now();
    while !server.cli(&["get", "colour"]).status.success() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "it serves nobody"
        );
    }
    server.answers(&["get", "colour"], "green\n");
    server.stop();
}

#[test]
fn lost_packets_change_no_answer() {
    let args = "kv resp --rdma --json --rounds 1 --duration 300ms --keys 300 --threads 1 --connections 2 --pipeline 8 \
                --value-size 3000";
    let mut command = common::verbatim(&args.split_whitespace().collect::<Vec<_>>());
    command
        .env("VERBATIM_PATH", "packets")
        .env("VERBATIM_FAULT", "drop,p=0.01")
        .env("VERBATIM_FAULT_SEED", "1");
    let out = command.output().expect("it starts");
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{err}");
    let lines = json_lines(&out);
    let rows: Vec<&Value> = lines.iter().filter(|l| l["type"] == "row").collect();
    assert_eq!(rows.len(), 2);
    for row in rows {
        // A wrong answer ends the command with an error.
        assert!(row["data"]["verified"].as_u64() > Some(16), "{row}");
    }
}

#[test]
fn clients_beyond_the_limit_are_refused() {
    let server = Server::start(&["--max-connections", "1"]);
    let address = server.rdma().to_owned();
    let mut first = TcpStream::connect(&address).expect("connects");
    let mut answer = [0; 7];
    first.write_all(b"PING\r\n").expect("writes");
    first.read_exact(&mut answer).expect("reads");
    assert_eq!(&answer, b"+PONG\r\n");
    let second = common::run(&["kv", "cli", &address, "ping"]);
    let said = String::from_utf8_lossy(&second.stdout);
    assert_eq!(said, "ERR max number of clients reached\n");
    server.stop();
}

#[test]
fn the_commands_of_the_guide_run() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(common::run_the_guide("valkey.md", folder.path()) >= 7);
    assert!(folder.path().join("rates.svg").exists());
}
