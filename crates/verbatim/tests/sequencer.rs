//! The sequencer as separate processes: every design, both link layers, restarts, kills.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

fn verbatim(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbatim"));
    command
        .args(args)
        .env_remove("VERBATIM_LINK_LAYER")
        .stdin(Stdio::null());
    command
}

/// The JSON lines of a command that must succeed.
#[track_caller]
fn lines_of(args: &[&str]) -> Vec<Value> {
    let out = verbatim(args).output().expect("the program starts");
    let messages = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{args:?}: {messages}");
    String::from_utf8(out.stdout)
        .expect("text")
        .lines()
        .map(|line| serde_json::from_str(line).expect("one JSON object per line"))
        .collect()
}

/// A server that is killed when the test ends.
struct Server {
    child: Child,
    lines: BufReader<ChildStdout>,
    address: String,
    next: u64,
}

impl Server {
    fn start(args: &[&str]) -> Server {
        let serve = ["sequencer", "serve", "--json", "--until-eof"];
        let mut child = verbatim(&[&serve, args].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut lines = BufReader::new(child.stdout.take().expect("its output"));
        let first = read(&mut lines);
        assert_eq!(first["type"], "listening");
        Server {
            child,
            lines,
            address: first["data"]["address"]
                .as_str()
                .expect("an address")
                .to_owned(),
            next: first["data"]["next"].as_u64().expect("a number"),
        }
    }

    /// Ends it by the end of its input; its statistics.
    fn stop(mut self) -> Value {
        drop(self.child.stdin.take());
        let stats = read(&mut self.lines);
        assert_eq!(stats["type"], "stats");
        assert!(self.child.wait().expect("it ends").success());
        stats["data"].clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(lines: &mut BufReader<ChildStdout>) -> Value {
    let mut line = String::new();
    lines.read_line(&mut line).expect("a line");
    serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line:?}"))
}

/// What `count` numbers from `server` look like: the client's report and verdict.
fn ask(address: &str, count: &str) -> (Value, Value) {
    let lines = lines_of(&["sequencer", "client", address, "--count", count, "--json"]);
    assert_eq!(lines[0]["type"], "report");
    assert_eq!(lines[1]["type"], "verdict");
    (lines[0]["data"].clone(), lines[1]["data"].clone())
}

#[test]
fn every_design_is_verified() {
    let lines = lines_of(&[
        "sequencer",
        "--rounds",
        "1",
        "--duration",
        "50ms",
        "--window",
        "64",
        "--json",
    ]);
    let rows: Vec<&Value> = lines.iter().filter(|l| l["type"] == "design").collect();
    let names: Vec<_> = rows
        .iter()
        .map(|l| l["data"]["design"].as_str().unwrap_or(""))
        .collect();
    assert_eq!(
        names,
        ["atomics", "rpc", "rpc-batch", "rpc-batch-mq", "spec-s0"]
    );
    for row in rows {
        let data = &row["data"];
        assert_eq!(data["verified"], true, "{data}");
        assert_eq!(data["kind"], "software NIC");
        assert!(data["rate_per_s"]["median"].as_f64() > Some(0.0));
        assert!(
            data["requests_per_doorbell"].as_f64() >= Some(1.0),
            "{data}"
        );
    }
}

#[test]
fn several_clients_workers_and_an_infiniband_port() {
    let lines = lines_of(&[
        "sequencer",
        "--rounds",
        "1",
        "--duration",
        "50ms",
        "--design",
        "spec-s0",
        "--design",
        "rpc-batch-mq",
        "--design",
        "atomics",
        "--clients",
        "2",
        "--threads",
        "2",
        "--workers",
        "2",
        "--link-layer",
        "ib",
        "--json",
    ]);
    let rounds: Vec<&Value> = lines.iter().filter(|l| l["type"] == "round").collect();
    assert_eq!(rounds.len(), 3);
    for round in rounds {
        let verdict = &round["data"]["verdict"];
        assert_eq!(verdict["ok"], true, "{verdict}");
        assert_eq!(verdict["clients"], 4);
    }
}

#[test]
fn the_table_is_for_people() {
    let out = verbatim(&[
        "sequencer",
        "--rounds",
        "1",
        "--duration",
        "50ms",
        "--design",
        "rpc",
        "--design",
        "rpc-batch",
    ])
    .output()
    .expect("the program starts");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let text = String::from_utf8(out.stdout).expect("text");
    for word in [
        "software NIC",
        "requests/s",
        "p99",
        "yes",
        "Doorbell batching",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn a_wrong_guess_and_the_wrap_of_the_lower_half() {
    for start in ["0xfffffc00", "0x1fffffc00"] {
        let server = Server::start(&["--listen", "127.0.0.1:0", "--start", start]);
        assert_eq!(
            Some(server.next),
            start
                .strip_prefix("0x")
                .and_then(|s| u64::from_str_radix(s, 16).ok())
        );
        let (report, verdict) = ask(&server.address, "5000");
        assert_eq!(verdict["ok"], true, "{verdict}");
        assert_eq!(verdict["numbers"], 5000);
        assert!(report["wrong_guesses"].as_u64() >= Some(1), "{report}");
        server.stop();
    }
}

#[test]
fn the_last_numbers_end_with_a_refusal_not_a_wrap() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "--start", "0xfffffffffffff000"]);
    let out = verbatim(&[
        "sequencer",
        "client",
        &server.address,
        "--count",
        "1000000",
        "--json",
    ])
    .output()
    .expect("the program starts");
    assert_eq!(out.status.code(), Some(1), "the answer is no");
    let text = String::from_utf8(out.stdout).expect("text");
    let verdict: Value =
        serde_json::from_str(text.lines().last().expect("a verdict")).expect("JSON");
    assert_eq!(verdict["data"]["duplicates"], 0);
    assert!(verdict["data"]["numbers"].as_u64() <= Some(0x1000));
    assert!(String::from_utf8_lossy(&out.stderr).contains("ended early"));
}

#[test]
fn a_killed_server_gives_no_number_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    let state = state.to_str().expect("a name in ASCII");
    let mut begun = BTreeSet::new();
    let mut last = 0;
    for _ in 0..4 {
        let mut server = Server::start(&["--listen", "127.0.0.1:0", "--state", state]);
        assert!(server.next >= last, "{} after {last}", server.next);
        let (report, verdict) = ask(&server.address, "20000");
        assert_eq!(verdict["duplicates"], 0);
        assert_eq!(report["requests"], 20000);
        assert!(begun.insert(server.next), "the same first number again");
        // The client has numbers from `next` on, one after the other.
        last = server.next + 20000;
        server.child.kill().expect("killed");
    }
}

#[test]
fn a_client_outlives_its_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    let state = state.to_str().expect("a name in ASCII");
    let mut server = Server::start(&["--listen", "127.0.0.1:0", "--state", state]);
    let address = server.address.clone();
    let client = verbatim(&[
        "sequencer",
        "client",
        &address,
        "--duration",
        "3s",
        "--json",
    ])
    .stdout(Stdio::piped())
    .spawn()
    .expect("the client starts");
    std::thread::sleep(std::time::Duration::from_millis(700));
    server.child.kill().expect("killed");
    server.child.wait().expect("gone");
    let again = Server::start(&["--listen", &address, "--state", state]);
    let out = client.wait_with_output().expect("the client ends");
    assert!(out.status.success(), "{:?}", out.status);
    let text = String::from_utf8(out.stdout).expect("text");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert!(
        lines[0]["data"]["failures"]["reconnects"].as_u64() >= Some(1),
        "{}",
        lines[0]["data"]["failures"]
    );
    assert_eq!(lines[1]["data"]["duplicates"], 0);
    assert_eq!(lines[1]["data"]["not_increasing"], 0);
    again.stop();
}
