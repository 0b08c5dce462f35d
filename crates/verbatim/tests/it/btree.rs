//! `verbatim btree` as users run it: processes, output, exit status.

use std::io::{BufRead, BufReader, Read};
use std::process::{Output, Stdio};

use serde_json::Value;

use crate::common::{self, ANYWHERE, Server, json_lines, lines_of};

/// The access designs of a tree.
const ACCESSES: [&str; 3] = ["rpc", "read", "auto"];

fn run(args: &[&str]) -> Output {
    common::run(&[&["btree"], args].concat())
}

/// Starts a server with small nodes, so that few keys make several levels.
fn serve(listen: &str, args: &[&str]) -> Server {
    let small = ["--keys", "20000", "--node-size", "256"];
    Server::start("btree", listen, &[&small, args].concat())
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

/// Returns the report of a load that must end with this status.
#[track_caller]
fn report(output: &Output, status: i32) -> Value {
    let err = String::from_utf8_lossy(&output.stderr);
    let mut lines = json_lines(output);
    assert_eq!(code(output), Some(status), "{lines:?}\n{err}");
    let report = lines.pop().expect("a report");
    assert_eq!(report["type"], "report");
    report["data"].clone()
}

/// A lost request is no answer. A load without answers has verified nothing, and its rate is 0.
#[test]
fn a_load_in_another_fabric_verifies_nothing() {
    let server = serve(ANYWHERE, &[]);
    let brief = [
        "--duration",
        "10ms",
        "--window",
        "4",
        "--reconnect",
        "100ms",
        "--json",
    ];
    let out = common::verbatim(&[&["btree", "load", &server.address], &brief[..]].concat())
        .env("VERBATIM_FABRIC", format!("btree_{}", std::process::id()))
        .output()
        .expect("it starts");
    let report = report(&out, 1);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("nothing was verified"), "{said}");
    assert_eq!(
        (&report["operations"], &report["rate"]),
        (&Value::from(0), &Value::from(0.0))
    );
    assert!(report["lost"].as_u64() >= Some(4), "{report}");
}

#[test]
fn all_access_designs_side_by_side_are_verified() {
    let lines = lines_of(&[
        "btree",
        "--keys",
        "2000",
        "--duration",
        "20ms",
        "--rounds",
        "1",
        "--no-peers",
        "--json",
    ]);
    let rows: Vec<&Value> = lines.iter().filter(|l| l["type"] == "row").collect();
    let names: Vec<_> = rows
        .iter()
        .filter_map(|row| row["data"]["name"].as_str())
        .collect();
    let designs = ["rpc", "rpc, no batches", "read", "read, no cache", "auto"];
    assert_eq!(names, designs);
    for row in rows {
        let data = &row["data"];
        assert_eq!(
            (&data["verified"], &data["lost"]),
            (&true.into(), &0.into())
        );
        assert_eq!(data["kind"], "software NIC");
        for rate in ["lookups_per_s", "scanned_per_s", "changes_per_s"] {
            assert!(data[rate]["median"].as_f64() > Some(0.0), "{data}");
        }
    }
}

#[test]
fn by_hand_over_processes() {
    let server = serve(ANYWHERE, &["--trees", "2", "--load", "2000"]);
    let address = &server.address;
    for access in ACCESSES {
        let there = |args: &[&str]| {
            let place = [&args[..1], &[address.as_str()], &args[1..]].concat();
            run(&[&place[..], &["--access", access, "--tree", "1"]].concat())
        };
        let said = |args: &[&str], status: i32| {
            let output = there(args);
            assert_eq!(code(&output), Some(status), "{access} {args:?}: {output:?}");
            String::from_utf8(output.stdout).expect("text")
        };
        assert_eq!(said(&["put", "7", "700"], 0), "7 was not there before\n");
        let refused = said(&["put", "7", "701", "--insert"], 1);
        assert_eq!(refused, "7 was there before\n");
        said(&["put", "7", "702", "--update"], 0);
        said(&["put", "8", "800", "--update"], 1);
        said(&["put", "0xff", "1", "--insert"], 0);
        assert_eq!(said(&["get", "7"], 0), "7 = 702\n");
        let missing = there(&["get", "7", "8"]);
        assert_eq!(code(&missing), Some(1));
        assert!(String::from_utf8_lossy(&missing.stderr).contains("8 is not there"));
        assert_eq!(
            said(&["get", "8", "--json"], 1),
            "{\"type\":\"entry\",\"data\":{\"key\":8,\"value\":null}}\n"
        );
        assert_eq!(said(&["scan"], 0), "7 = 702\n255 = 1\n");
        assert_eq!(said(&["scan", "--from", "8", "--end", "255"], 0), "");
        assert_eq!(said(&["scan", "--limit", "1"], 0), "7 = 702\n");
        assert_eq!(
            said(&["put", "7", "--json"], 0),
            "{\"type\":\"changed\",\"data\":{\"key\":7,\"was_there\":true}}\n"
        );
        said(&["put", "7"], 1);
        said(&["put", "255"], 0);
        assert_eq!(said(&["scan"], 0), "");
        // The second tree has other content, longer than one answer.
        let all = ["scan", address, "--limit", "65535", "--access", access];
        let all = run(&[&all[..], &["--json"]].concat());
        let keys: Vec<u64> = json_lines(&all)
            .iter()
            .filter_map(|line| line["data"]["key"].as_u64())
            .collect();
        assert_eq!(keys, (0..2000).map(|i| i * 256).collect::<Vec<_>>());
    }
    let stats = server.stop();
    assert_eq!(stats["bad_requests"], 0, "{stats}");
}

#[test]
fn byte_strings_by_hand_and_under_load() {
    let sizes = ["--key-size", "24", "--value-size", "100"];
    let empty = Server::start(
        "btree",
        ANYWHERE,
        &[&sizes[..], &["--keys", "2000"]].concat(),
    );
    for access in ACCESSES {
        let there = |args: &[&str]| {
            let place = [&args[..1], &[empty.address.as_str()], &args[1..]].concat();
            run(&[&place[..], &["--access", access]].concat())
        };
        let said = |args: &[&str], status: i32| {
            let output = there(args);
            assert_eq!(code(&output), Some(status), "{access} {args:?}: {output:?}");
            String::from_utf8(output.stdout).expect("text")
        };
        said(&["put", "apple", "red or green"], 0);
        said(&["put", "7", "seven"], 0);
        assert_eq!(said(&["get", "apple"], 0), "apple = red or green\n");
        assert_eq!(
            said(&["scan"], 0),
            "7 = seven\napple = red or green\n",
            "in the order of the bytes"
        );
        assert_eq!(
            said(&["scan", "--from", "a", "--end", "b", "--json"], 0),
            "{\"type\":\"entry\",\"data\":{\"key\":\"apple\",\"value\":\"red or green\"}}\n"
        );
        let long = there(&["get", "a key of twenty-five bytes"]);
        let err = String::from_utf8_lossy(&long.stderr);
        assert_eq!(code(&long), Some(2), "{err}");
        assert_eq!(err.matches("too long").count(), 1, "{err}");
        said(&["put", "apple"], 0);
        said(&["put", "7"], 0);
        assert_eq!(said(&["get", "apple"], 1), "");
    }
    let load = ["--keys", "20000", "--load", "1000", "--node-size", "1024"];
    let server = Server::start("btree", ANYWHERE, &[&sizes[..], &load].concat());
    for access in ACCESSES {
        for letter in ["A", "D", "E"] {
            let load = ["load", &server.address, "--json", "--keys", "1000"];
            let more = ["--access", access, "--ycsb", letter, "--duration", "40ms"];
            let report = report(&run(&[&load[..], &more].concat()), 0);
            assert!(
                report["verified"].as_u64() > Some(0),
                "{access} {letter}: {report}"
            );
            assert_eq!((&report["lost"], &report["full"]), (&0.into(), &0.into()));
        }
    }
    assert_eq!(server.stop()["bad_requests"], 0);
}

/// The load balancer moves byte strings between a fast server and one that is slowed down, under load.
#[test]
fn ranges_of_byte_strings_move_under_load() {
    let ports = [0, 1].map(|_| {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        socket.local_addr().expect("bound").to_string()
    });
    let all = ports.join(",");
    let serve = |part: usize, slow: &str| {
        let number = part.to_string();
        let shared = ["--parts", &all, "--splits", "2000", "--part", &number];
        let strings = ["--key-size", "24", "--value-size", "100", "--load", "4000"];
        let slow = ["--slow-by", slow, "--keys", "20000"];
        Server::start(
            "btree",
            &ports[part],
            &[&shared[..], &strings, &slow].concat(),
        )
    };
    let servers = [serve(0, "0"), serve(1, "20000")];
    let load = ["btree", "load", &all, "--json", "--keys", "4000"];
    let load = common::verbatim(&[&load[..], &["--duration", "3s", "--updates", "0.1"]].concat())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let balance = ["balance", &all, "--splits", "2000", "--every", "50ms"];
    let output = run(&[&balance[..], &["--duration", "2s", "--json"]].concat());
    let lines = json_lines(&output);
    assert_eq!(code(&output), Some(0), "{output:?}");
    let moved = lines.iter().filter(|line| !line["data"]["moved"].is_null());
    assert!(moved.count() > 0, "{lines:?}");
    let report = report(&load.wait_with_output().expect("it ends"), 0);
    assert_eq!(report["lost"], 0, "{report}");
    for named in [format!("{},{}", ports[1], ports[0]), ports[0].clone()] {
        let refused = run(&["load", &named, "--keys", "4000"]);
        let message = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(code(&refused), Some(2), "{message}");
        assert!(message.contains("in the order of their parts"), "{message}");
    }
    for server in servers {
        server.stop();
    }
}

#[test]
fn workloads_of_ycsb_find_what_they_must() {
    let server = serve(ANYWHERE, &["--load", "2000", "--workers", "2"]);
    let load = |args: &[&str]| {
        let load = ["load", &server.address, "--json", "--keys", "2000"];
        run(&[&load, args].concat())
    };
    for access in ACCESSES {
        for letter in ["A", "B", "C", "D", "E", "F"] {
            let args = ["--access", access, "--ycsb", letter, "--threads", "2"];
            let output = load(&[&args[..], &["--duration", "40ms"]].concat());
            let report = report(&output, 0);
            let count = |name: &str| report[name].as_u64().expect("a count");
            assert!(count("verified") > 0, "{access} {letter}: {report}");
            assert_eq!(count("lost") + count("full"), 0, "{report}");
            let changes = letter != "C";
            assert_eq!(count("changes") > 0, changes, "{letter}: {report}");
            assert_eq!(count("scans") > 0, letter == "E", "{report}");
        }
    }
    // The other clients have deleted what they inserted, so the tree is as it was loaded.
    let stats = server.stop();
    assert!(stats["tree"]["levels"].as_u64() > Some(2), "{stats}");
}

#[test]
fn a_tree_that_nobody_filled_lacks_its_keys() {
    for access in ACCESSES {
        let server = serve(ANYWHERE, &[]);
        let load = |args: &[&str]| {
            let load = ["load", &server.address, "--json", "--access", access];
            let short = ["--keys", "500", "--duration", "20ms"];
            run(&[&load[..], &short, args].concat())
        };
        let empty = report(&load(&[]), 1);
        assert_eq!(empty["missing"], empty["lookups"], "{empty}");
        let filled = report(&load(&["--fill", "--updates", "0.2"]), 0);
        assert_eq!(filled["missing"], 0);
    }
}

/// Returns the report of a load whose server is killed and restarted at the same address with the
/// flags `again`.
fn killed_under_load(access: &str, args: &[&str], again: &[&str], status: i32) -> Value {
    let server = serve(ANYWHERE, &["--load", "1000"]);
    let address = server.address.clone();
    let load = ["btree", "load", &address, "--json", "--access", access];
    let long = ["--keys", "1000", "--duration", "1s", "--reconnect", "60s"];
    // The load prints a line when the tree is filled and the requests begin.
    let mut load = common::verbatim(&[&load[..], &long, &["--fill"], args].concat())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut said = BufReader::new(load.stdout.take().expect("piped"));
    let mut filled = String::new();
    said.read_line(&mut filled).expect("it speaks");
    assert!(filled.contains("filled"), "{filled}");
    std::thread::sleep(std::time::Duration::from_millis(100));
    drop(server);
    let _again = serve(&address, again);
    let mut stdout = Vec::new();
    said.read_to_end(&mut stdout).expect("it speaks");
    let output = load.wait_with_output().expect("it ends");
    let report = report(&Output { stdout, ..output }, status);
    let reconnects = &report["client"]["reconnects"];
    assert!(reconnects.as_u64() >= Some(1), "{report}");
    assert_eq!(report["wrong_values"], 0, "{report}");
    report
}

/// A server that is killed under load loses its tree. Clients continue at its successor, and report
/// missing keys.
#[test]
fn a_server_that_is_killed_under_load_may_come_back() {
    for access in ACCESSES {
        // A successor that loads the same keys: no key is missing, and scans are complete.
        let mixed = ["--updates", "0.2", "--scans", "0.1"];
        let report = killed_under_load(access, &mixed, &["--load", "1000"], 0);
        assert!(report["verified"].as_u64() > Some(0), "{report}");
        assert_eq!(report["lost"], 0, "{report}");
        // An empty successor: each lookup finds its key missing.
        let report = killed_under_load(access, &[], &[], 1);
        assert!(report["missing"].as_u64() > Some(0), "{report}");
        assert_eq!(report["ghosts"], 0, "{report}");
    }
}

/// Clients that insert and delete report the keys that a new server has lost.
#[test]
fn what_was_inserted_is_missed_at_a_server_that_came_anew() {
    let inserts = ["--inserts", "0.5"];
    let report = killed_under_load("read", &inserts, &["--load", "1000"], 1);
    assert!(report["missing"].as_u64() > Some(0), "{report}");
    assert_eq!(report["ghosts"], 0, "{report}");
}

#[test]
fn mistakes_are_named() {
    let server = serve(ANYWHERE, &[]);
    let address = server.address.as_str();
    for (args, words) in [
        (&["--access", "rcp"][..], "rpc, read, auto"),
        (&["get", address, "7", "--tree", "5"], "there is no tree 5"),
        (&["scan", address, "--tree", "16"], "from 0 to 15"),
        (&["get", "127.0.0.1:1", "7"], "is the server running?"),
        (&["get", address, "seven"], "seven"),
        (&["put", address, "7", "--insert"], "VALUE"),
        (
            &["load", address, "--ycsb", "G"],
            "they are A, B, C, D, E and F",
        ),
        (
            &["load", address, "--ycsb", "A", "--scans", "1"],
            "cannot be used with",
        ),
        (
            &["serve", "--node-size", "300", "--listen", ANYWHERE],
            "it must be a power of two",
        ),
        (
            &[
                "serve",
                "--key-size",
                "256",
                "--value-size",
                "256",
                "--node-size",
                "1K",
                "--listen",
                ANYWHERE,
            ],
            "give it more with --node-size",
        ),
        (
            &[
                "serve",
                "--key-size",
                "4",
                "--load",
                "10",
                "--listen",
                ANYWHERE,
            ],
            "8 bytes or more",
        ),
        (
            &["--nic", "cib", "--scan-length", "8"],
            "cannot be used with",
        ),
        (&["--nic", "cib", "--gid-index", "1"], "cannot be used with"),
        (
            &["check", "--keys", "1", "--window", "8"],
            "2 keys or more with --keys",
        ),
        (&["check", "--access", "write"], "rpc, read, auto"),
    ] {
        let output = run(args);
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(code(&output), Some(2), "{args:?}: {err}");
        assert!(err.contains(words), "{args:?}: {err}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

/// Runs the commands of docs/btree.md that need no second terminal.
#[test]
fn the_commands_of_the_guide_run() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(common::run_the_guide("btree.md", folder.path()) >= 4);
    let picture = std::fs::read_to_string(folder.path().join("adapt.svg")).expect("drawn");
    assert!(picture.contains("<svg") && picture.contains("adaptive split"));
}
