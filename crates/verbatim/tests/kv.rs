//! `verbatim kv` as its users run it: processes, output, exit status.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

fn verbatim() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbatim"));
    command.stdin(Stdio::null()).arg("kv");
    command
}

fn run(args: &[&str]) -> Output {
    verbatim().args(args).output().expect("it starts")
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// A server that ends with its handle.
struct Server(Child, String);

impl Server {
    fn start(args: &[&str]) -> Server {
        Self::at("127.0.0.1:0", args)
    }

    fn at(address: &str, args: &[&str]) -> Server {
        let mut command = verbatim();
        command
            .args(["serve", "--json", "--until-eof", "--listen", address])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut out = BufReader::new(child.stdout.as_mut().expect("piped"));
        let mut line = String::new();
        out.read_line(&mut line).expect("it speaks");
        let line: Value = serde_json::from_str(&line).expect("JSON");
        let address = line["data"]["address"]
            .as_str()
            .expect("an address")
            .to_owned();
        Server(child, address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
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
    let rows: Vec<Value> = lines(&output)
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
    let server = Server::start(&[&["--store", "--keys", "3000"], *design].concat());
    let put = run(&["put", &server.1, "colour", "green"]);
    assert_eq!(put.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&put.stdout), "version 1\n");
    let old = run(&["put", &server.1, "colour", "red", "--if-version", "7"]);
    assert_eq!(old.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&old.stderr).contains("the version there is 1"));
    let get = run(&["get", &server.1, "colour"]);
    assert_eq!(
        String::from_utf8_lossy(&get.stdout),
        "colour = green (version 1)\n"
    );
    assert_eq!(run(&["put", &server.1, "colour"]).status.code(), Some(0));
    let gone = run(&["get", &server.1, "colour"]);
    assert_eq!(gone.status.code(), Some(1));

    let load = [
        "--keys",
        "2000",
        "--json",
        "--duration",
        "50ms",
        "--ycsb",
        "A",
    ];
    // Nothing is there yet: keys are missing, and that is no.
    let empty = verbatim()
        .args(["load", &server.1])
        .args(load)
        .output()
        .expect("it starts");
    assert_eq!(empty.status.code(), Some(1));
    let filled = verbatim()
        .args(["load", &server.1, "--fill"])
        .args(load)
        .output()
        .expect("it starts");
    let err = String::from_utf8_lossy(&filled.stderr);
    assert_eq!(filled.status.code(), Some(0), "{err}");
    let report = &lines(&filled)[1];
    assert_eq!(
        (&report["type"], &report["data"]["misses"]),
        (&"report".into(), &0.into())
    );
    assert!(report["data"]["verified"].as_u64() > Some(0));
}

/// A server is killed under load and another comes to its address: clients go on, and see nothing wrong.
#[test]
fn a_server_that_is_killed_under_load_may_come_back() {
    DESIGNS.iter().for_each(killed_under_load);
}

fn killed_under_load(design: &&[&str]) {
    let flags = [&["--keys", "3000"], *design].concat();
    let server = Server::start(&flags);
    let address = server.1.clone();
    let load = verbatim()
        .args([
            "load",
            &address,
            "--keys",
            "2000",
            "--json",
            "--duration",
            "2s",
            "--puts",
            "0.5",
        ])
        .args(["--allow-misses", "--reconnect", "60s"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    std::thread::sleep(std::time::Duration::from_millis(500));
    drop(server);
    let _again = Server::at(&address, &flags);
    let output = load.wait_with_output().expect("it ends");
    let report = &lines(&output)[0]["data"];
    assert_eq!(output.status.code(), Some(0), "{report}");
    assert!(
        report["trouble"]["reconnects"].as_u64() >= Some(1),
        "{report}"
    );
    assert!(report["verified"].as_u64() > Some(0), "{report}");
}

/// Processes that get and put the same few keys at the same time see whole values of those keys alone.
#[test]
fn processes_change_what_others_read() {
    for design in DESIGNS {
        let flags = ["--store", "--keys", "3000", "--value-size", "500"];
        let server = Server::start(&[&flags[..], design].concat());
        let load = |seed: &str, puts: &str| {
            let mut command = verbatim();
            command.args([
                "load",
                &server.1,
                "--keys",
                "64",
                "--json",
                "--value-size",
                "500",
            ]);
            command.args(["--seed", seed, "--puts", puts, "--duration", "300ms"]);
            command
        };
        let filled = load("1", "0").arg("--fill").output().expect("it starts");
        assert_eq!(filled.status.code(), Some(0));
        let running = [("2", "0"), ("3", "0.5"), ("4", "1")].map(|(seed, puts)| {
            load(seed, puts)
                .stdout(Stdio::piped())
                .spawn()
                .expect("it starts")
        });
        for child in running {
            let output = child.wait_with_output().expect("it ends");
            let report = &lines(&output)[0]["data"];
            assert_eq!(output.status.code(), Some(0), "{design:?}: {report}");
            assert!(report["operations"].as_u64() > Some(0), "{report}");
        }
    }
}

/// Clients of the atomics-based design are killed under load, and stopped for longer than a lease: others go on, and nobody
/// sees anything wrong. When they die is chance: it goes on until locks were found in the hands of dead ones.
#[test]
fn clients_that_die_or_stop_with_locks_hurt_nobody() {
    assert!((0..12).any(|_| recovered_from_the_dead() > 0));
}

/// Locks that a server took from clients that died or stopped.
fn recovered_from_the_dead() -> u64 {
    let mut server = Server::start(
        &[&["--keys", "3000", "--design", "atomics", "--lease", "50ms"][..]].concat(),
    );
    let load = |seed: &str, time: &str| {
        let mut command = verbatim();
        command.args([
            "load",
            &server.1,
            "--keys",
            "64",
            "--json",
            "--reconnect",
            "60s",
        ]);
        command.args(["--seed", seed, "--puts", "0.8", "--duration", time]);
        command.stdout(Stdio::piped());
        command
    };
    let filled = load("1", "20ms").arg("--fill").output().expect("it starts");
    assert_eq!(filled.status.code(), Some(0));
    for round in 0..4 {
        let mut dying = load("2", "60s").spawn().expect("it starts");
        let stopped = load("3", "600ms").spawn().expect("it starts");
        std::thread::sleep(std::time::Duration::from_millis(200 + 13 * round));
        let signal = |signal: &str, child: &Child| {
            let sent = Command::new("kill")
                .args([signal, &child.id().to_string()])
                .status();
            assert!(sent.expect("kill").success());
        };
        signal("-STOP", &stopped);
        dying.kill().expect("it runs");
        dying.wait().expect("it ran");
        // Who comes now finds locks of both. It gets all of them, those of a process that was stopped in the very middle
        // of a WRITE once that goes on.
        let witness = load("4", "300ms").spawn().expect("it starts");
        std::thread::sleep(std::time::Duration::from_millis(300));
        signal("-CONT", &stopped);
        let witness = witness.wait_with_output().expect("it ends");
        let stopped = stopped.wait_with_output().expect("it ends");
        for output in [&witness, &stopped] {
            let report = &lines(output)[0]["data"];
            assert_eq!(output.status.code(), Some(0), "{report}");
        }
        // The other's time may have been over when it went on.
        let report = &lines(&witness)[0]["data"];
        assert!(report["changes"].as_u64() > Some(0), "{report}");
    }
    drop(server.0.stdin.take());
    let mut out = String::new();
    let stdout = server.0.stdout.as_mut().expect("piped");
    std::io::Read::read_to_string(stdout, &mut out).expect("it speaks");
    let stats: Value = serde_json::from_str(out.lines().last().expect("stats")).expect("JSON");
    let recovered = &stats["data"]["recovered_locks"];
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
