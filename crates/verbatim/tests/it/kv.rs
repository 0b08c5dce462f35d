//! `verbatim kv` as users run it: processes, output, exit status.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::common::machine::Machine;
use crate::common::{self, ANYWHERE, Server, json_lines};

fn run(args: &[&str]) -> Output {
    common::run(&[&["kv"], args].concat())
}

fn serve(args: &[&str]) -> Server {
    Server::start("kv", ANYWHERE, args)
}

/// Returns the command `verbatim kv load` for a server.
fn load(server: &Server, args: &[&str]) -> Command {
    common::verbatim(&[&["kv", "load", &server.address, "--json"], args].concat())
}

/// Returns the report of a load that must succeed.
#[track_caller]
fn right(output: &Output) -> Value {
    let err = String::from_utf8_lossy(&output.stderr);
    let mut lines = json_lines(output);
    assert_eq!(output.status.code(), Some(0), "{lines:?}\n{err}");
    let report = lines.pop().expect("a report");
    assert_eq!(report["type"], "report");
    report["data"].clone()
}

#[test]
fn all_designs_side_by_side_are_verified() {
    let args = [
        "--json",
        "--rounds",
        "1",
        "--duration",
        "50ms",
        "--keys",
        "5000",
    ];
    let output = run(&args);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{err}");
    let rows: Vec<Value> = json_lines(&output)
        .into_iter()
        .filter(|l| l["type"] == "row")
        .collect();
    let row = |name: &str| {
        &rows
            .iter()
            .find(|r| r["data"]["name"] == name)
            .expect("a row")["data"]
    };
    for name in [
        "herd",
        "herd, no batches",
        "reads",
        "reads, one READ",
        "atomics",
    ] {
        let row = row(name);
        assert_eq!(
            (&row["verified"], &row["misses"]),
            (&Value::Bool(true), &Value::from(0))
        );
        assert!(row["rate_per_s"]["median"].as_f64() > Some(0.0), "{row}");
        assert!(
            row["ratio_to_redis"]["median"].as_f64() > Some(0.0),
            "{row}"
        );
    }
    assert!(row("redis")["rate_per_s"]["median"].as_f64() > Some(0.0));
}

/// Each value comes in 63 datagrams. A network drops those that find no RECV, and the client then asks for fewer values
/// at once.
#[test]
fn a_window_of_long_values_arrives_over_a_network() {
    let machine = Machine::new();
    machine.succeed(
        "export VERBATIM_PATH=packets
         $BUILT/verbatim kv serve --listen 127.0.0.1:7472 --keys 200 --value-size 65000 --store --json > served &
         until grep -q listening served; do sleep 0.1; done
         $BUILT/verbatim kv load 127.0.0.1:7472 --json --fill --keys 64 --value-size 65000 --puts 0 --duration 2s > report",
    );
    let text = std::fs::read_to_string(machine.file("report")).expect("written");
    let report: Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    assert_eq!(report["data"]["lost"], 0, "{report}");
    assert!(report["data"]["verified"].as_u64() >= Some(64), "{report}");
}

/// PUTs return no values that could be checked, and every answer is right nevertheless.
#[test]
fn puts_alone_are_verified() {
    let puts = ["--puts", "1", "--design", "herd", "--no-peers", "--json"];
    let short = ["--rounds", "1", "--duration", "20ms", "--keys", "1000"];
    let output = run(&[puts, short].concat());
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{err}");
    let lines = json_lines(&output);
    let rows: Vec<&Value> = lines.iter().filter(|l| l["type"] == "row").collect();
    assert_eq!(rows.len(), 2, "{lines:?}");
    for row in rows {
        assert_eq!(row["data"]["verified"], true, "{row}");
    }
}

/// The flags of each design.
const DESIGNS: [&[&str]; 4] = [
    &["--design", "herd"],
    &["--design", "reads"],
    &["--design", "reads", "--read-size", "1K", "--key-size", "16"],
    &["--design", "atomics", "--lease", "50ms"],
];

#[test]
fn by_hand_and_under_load() {
    DESIGNS.iter().for_each(by_hand_on);
}

fn by_hand_on(design: &&[&str]) {
    let server = serve(&[&["--store", "--keys", "3000"], *design].concat());
    let address = &server.address;
    let put = run(&["put", address, "colour", "green"]);
    assert_eq!(put.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&put.stdout), "version 1\n");
    let old = run(&["put", address, "colour", "red", "--if-version", "7"]);
    assert_eq!(old.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&old.stderr).contains("the version there is 1"));
    let get = run(&["get", address, "colour"]);
    assert_eq!(
        String::from_utf8_lossy(&get.stdout),
        "colour = green (version 1)\n"
    );
    let json = |args: &[&str], status: i32| {
        let out = run(&[args, &["--json"]].concat());
        assert_eq!(out.status.code(), Some(status), "{args:?}");
        String::from_utf8(out.stdout).expect("JSON is text")
    };
    assert_eq!(
        json(&["get", address, "colour", "size"], 1),
        "{\"type\":\"value\",\"data\":{\"key\":\"colour\",\"version\":1,\"value\":\"green\"}}\n\
         {\"type\":\"value\",\"data\":{\"key\":\"size\",\"version\":0,\"value\":null}}\n"
    );
    let refused = json(&["put", address, "colour", "red", "--if-version", "7"], 1);
    assert!(refused.contains("the version there is 1"), "{refused}");
    assert_eq!(
        json(&["put", address, "colour"], 0),
        "{\"type\":\"put\",\"data\":{\"key\":\"colour\",\"version\":1}}\n"
    );
    let gone = run(&["get", address, "colour"]);
    assert_eq!(gone.status.code(), Some(1));

    let short = ["--keys", "2000", "--duration", "50ms", "--ycsb", "A"];
    // The store is empty, so keys are missing: exit status 1.
    let empty = load(&server, &short).output().expect("it starts");
    assert_eq!(empty.status.code(), Some(1));
    let filled = load(&server, &short).arg("--fill").output();
    let report = right(&filled.expect("it starts"));
    assert_eq!(report["misses"], 0);
    assert!(report["verified"].as_u64() > Some(0));
}

/// A server is killed under load and restarted at its address: clients continue, and every answer
/// is right.
#[test]
fn a_server_that_is_killed_under_load_may_come_back() {
    DESIGNS.iter().for_each(killed_under_load);
}

fn killed_under_load(design: &&[&str]) {
    let flags = [&["--keys", "3000"], *design].concat();
    let server = serve(&flags);
    let address = server.address.clone();
    let half = ["--keys", "2000", "--duration", "1s", "--puts", "0.5"];
    let goes_on = ["--fill", "--allow-misses", "--reconnect", "60s"];
    let mut load = load(&server, &[&half[..], &goes_on].concat())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut said = BufReader::new(load.stdout.take().expect("piped"));
    let mut filled = String::new();
    said.read_line(&mut filled).expect("it speaks");
    assert!(filled.contains("filled"), "{filled}");
    std::thread::sleep(Duration::from_millis(100));
    drop(server);
    let _again = Server::start("kv", &address, &flags);
    let mut stdout = Vec::new();
    said.read_to_end(&mut stdout).expect("it speaks");
    let report = right(&Output {
        stdout,
        ..load.wait_with_output().expect("it ends")
    });
    assert!(
        report["trouble"]["reconnects"].as_u64() >= Some(1),
        "{report}"
    );
    assert!(report["verified"].as_u64() > Some(0), "{report}");
}

/// A lost request is no answer. A load without answers has verified nothing, and its rate is 0.
#[test]
fn a_load_in_another_fabric_verifies_nothing() {
    let server = serve(&[]);
    let fabric = format!("kv_{}", std::process::id());
    let brief = [
        "--duration",
        "10ms",
        "--window",
        "4",
        "--reconnect",
        "100ms",
    ];
    let load = load(&server, &brief)
        .env("VERBATIM_FABRIC", fabric)
        .output();
    let out = load.expect("it starts");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("nothing was verified"), "{said}");
    let lines = json_lines(&out);
    let report = &lines.last().expect("a report")["data"];
    assert_eq!(
        (&report["operations"], &report["rate"]),
        (&Value::from(0), &Value::from(0.0))
    );
    assert!(report["lost"].as_u64() >= Some(4), "{report}");
}

/// Processes that read and write the same few keys concurrently see only complete values of those
/// keys.
#[test]
fn processes_change_what_others_read() {
    for design in DESIGNS {
        let flags = ["--store", "--keys", "3000", "--value-size", "500"];
        let server = serve(&[&flags[..], design].concat());
        let few = |more: &[&str]| {
            let few = ["--keys", "64", "--value-size", "500"];
            load(&server, &[&few[..], more].concat())
        };
        let filled = few(&["--fill-only"]).output().expect("it starts");
        assert_eq!(filled.status.code(), Some(0));
        let running = [("2", "0"), ("3", "0.5"), ("4", "1")].map(|(seed, puts)| {
            few(&["--seed", seed, "--puts", puts, "--duration", "300ms"])
                .stdout(Stdio::piped())
                .spawn()
                .expect("it starts")
        });
        for child in running {
            let report = right(&child.wait_with_output().expect("it ends"));
            let operations = report["operations"].as_u64();
            assert!(operations > Some(0), "{design:?}: {report}");
        }
    }
}

/// Clients of the atomics-based design are killed under load, and stopped for longer than a lease.
/// The others continue without errors. The time of a kill is random, so the test repeats until a
/// dead client's lock was recovered.
#[test]
fn clients_that_die_or_stop_with_locks_hurt_nobody() {
    assert!((0..24).any(|_| recovered_from_the_dead() > 0));
}

/// Returns the locks that the server recovered from killed or stopped clients.
fn recovered_from_the_dead() -> u64 {
    let server = serve(&["--keys", "3000", "--design", "atomics", "--lease", "50ms"]);
    let few = |args: &[&str]| {
        let few = ["--keys", "64", "--reconnect", "60s", "--puts", "0.8"];
        let mut load = load(&server, &[&few[..], args].concat());
        load.stdout(Stdio::piped());
        load
    };
    let filled = few(&["--fill-only"]).output().expect("it starts");
    assert_eq!(filled.status.code(), Some(0));
    for round in 0..2 {
        let of = |seed: &str, time: &str| few(&["--seed", seed, "--duration", time]).spawn();
        let mut dying = of("2", "60s").expect("it starts");
        let stopped = of("3", "500ms").expect("it starts");
        std::thread::sleep(Duration::from_millis(150 + 13 * round));
        let signal = |signal: &str, child: &Child| {
            let sent = Command::new("kill")
                .args([signal, &child.id().to_string()])
                .status();
            assert!(sent.expect("kill").success());
        };
        signal("-STOP", &stopped);
        dying.kill().expect("it runs");
        dying.wait().expect("it ran");
        // A new client finds locks of both. It gets all locks; that of a process stopped in the
        // middle of a WRITE once that process continues.
        let witness = of("4", "200ms").expect("it starts");
        std::thread::sleep(Duration::from_millis(200));
        signal("-CONT", &stopped);
        let report = right(&witness.wait_with_output().expect("it ends"));
        assert!(report["changes"].as_u64() > Some(0), "{report}");
        // The stopped client's time may be over when it continues.
        right(&stopped.wait_with_output().expect("it ends"));
    }
    let stats = server.stop();
    let recovered = &stats["recovered_locks"];
    recovered.as_u64().unwrap_or_else(|| panic!("{stats}"))
}

#[test]
fn the_simulation_gives_the_same_twice() {
    let args = ["--nic", "cib", "--cores", "2", "--clients", "8"];
    let first = run(&args);
    assert_eq!(
        first.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&first.stderr)
    );
    let second = run(&args);
    assert_eq!(first.stdout, second.stdout);
}

/// The profile `cx3` has no costs of cores, so only the clients' designs run.
#[test]
fn a_nic_without_costs_of_cores_runs_the_atomics_based_store() {
    let output = run(&["--nic", "cx3", "--clients", "4", "--puts", "0.1", "--json"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{message}");
    assert!(message.contains("not run: herd"), "{message}");
    let row: Value = serde_json::from_slice(&output.stdout).expect("one row");
    assert_eq!(row["data"]["design"], "atomics");
}

#[test]
fn mistakes_are_named() {
    for (args, words) in [
        (&["--ycsb", "E"][..], "scans"),
        (
            &["--zipf", "1"],
            "an exponent is a number from 0.01 to 0.999",
        ),
        (&["--puts", "2"], "a share is a number from 0 to 1"),
        (
            &["--design", "hred"],
            "the designs are herd, reads, atomics",
        ),
        (&["--cores", "2"], "--nic"),
        (&["serve", "--locks", "everywhere"], "spread, record"),
        (
            &[
                "serve",
                "--design",
                "atomics",
                "--record-align",
                "100",
                "--listen",
                "127.0.0.1:0",
            ],
            "it must be a power of two",
        ),
        (
            &["serve", "--design", "atomics", "--resp", "127.0.0.1:0"],
            "the Redis protocol needs a store of items of any length",
        ),
        (&["get", "127.0.0.1:1", "key"], "is the server running?"),
    ] {
        let output = run(args);
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {err}");
        assert!(err.contains(words), "{args:?}: {err}");
    }
}
