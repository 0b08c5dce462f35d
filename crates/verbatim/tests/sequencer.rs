//! The sequencer as separate processes: every design, both link layers, restarts, kills.

mod common;

use std::collections::BTreeSet;
use std::process::Stdio;

use common::{Server, ask, lines_of, verbatim};
use serde_json::Value;

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
    server.wait_for_client();
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
