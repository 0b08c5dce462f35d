//! Microbenchmarks with the two sides as two commands, and every knob on the command line.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::common::{alone, lines_of, verbatim};

fn bench(args: &[&str]) -> Command {
    verbatim(&[&["bench"], args].concat())
}

fn run(args: &[&str]) -> Output {
    bench(args).output().expect("the program starts")
}

/// Runs a command that must succeed, and returns its JSON lines.
#[track_caller]
fn lines(args: &[&str]) -> Vec<Value> {
    lines_of(&[&["bench"], args, &["--json"]].concat())
}

/// The listening side, killed when dropped.
struct Listener {
    child: Child,
    address: String,
    messages: BufReader<std::process::ChildStderr>,
}

impl Listener {
    fn start(args: &[&str]) -> Listener {
        let mut child = bench(&[args, &["--listen", "127.0.0.1:0"]].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut messages = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        messages
            .read_line(&mut line)
            .expect("it says where it listens");
        let address = line
            .trim()
            .strip_prefix("listening on ")
            .expect(&line)
            .to_owned();
        Listener {
            child,
            address,
            messages,
        }
    }

    /// Waits for the end; returns the exit status and the messages.
    fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().expect("it ends");
        let mut text = String::new();
        while self.messages.read_line(&mut text).expect("text") > 0 {}
        (status.code(), text)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn one_listens_and_the_other_connects() {
    let _alone = alone();
    let short = ["--duration", "10ms"];
    for args in [
        &["rc-write", "--payload", "64", "--window", "16"][..],
        &["ud-recv", "--threads", "2", "--queue-pairs", "2"],
        &[
            "rc-read",
            "--direction",
            "inbound",
            "--threads",
            "3",
            "--processes",
            "2",
        ],
        &["atomics", "--addresses", "9", "--spacing", "64"],
        &["latency", "--verb", "ud-send"],
        &["sweep", "rc-send", "--over", "threads", "--values", "1,2"],
    ] {
        let args = [args, &short].concat();
        let listener = Listener::start(&args);
        let connect = ["--rounds", "2", "--connect", &listener.address];
        let lines = lines(&[&args[..], &connect].concat());
        let last = &lines.last().expect("a result")["data"];
        assert!(last["verified_ops"].as_u64() > Some(0), "{args:?}: {last}");
        let (status, messages) = listener.end();
        assert_eq!(status, Some(0), "{args:?}: {messages}");
    }
    let probe = ["write-visible", "--payload", "16,64", "--writes", "50"];
    let listener = Listener::start(&probe);
    let lines = lines(&[&probe[..], &["--connect", &listener.address]].concat());
    assert_eq!(lines.last().expect("a result")["data"]["looks"], 50);
    assert_eq!(listener.end().0, Some(0));
}

#[test]
fn sides_that_were_started_differently_both_say_so() {
    let _alone = alone();
    let listener = Listener::start(&["rc-write", "--payload", "64"]);
    let out = run(&[
        "rc-write",
        "--payload",
        "16",
        "--connect",
        &listener.address,
    ]);
    assert_eq!(out.status.code(), Some(2));
    let here = String::from_utf8_lossy(&out.stderr);
    assert!(
        here.contains("payload_bytes is 16 here and 64 there"),
        "{here}"
    );
    let (status, there) = listener.end();
    assert_eq!(status, Some(2));
    assert!(
        there.contains("payload_bytes is 64 here and 16 there"),
        "{there}"
    );
}

#[test]
fn a_side_that_is_gone_is_an_error_of_the_other() {
    let _alone = alone();
    let long = ["rc-send", "--duration", "1min"];
    let listener = Listener::start(&long);
    let mut command = bench(&[&long[..], &["--connect", &listener.address]].concat());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let connected = command.spawn().expect("the program starts");
    // The listener starts its worker once the two sides are connected.
    let children = format!("/proc/{0}/task/{0}/children", listener.child.id());
    let worker = loop {
        let pids = std::fs::read_to_string(&children).expect("the listener runs");
        if let Some(pid) = pids.split_whitespace().next() {
            break pid.to_owned();
        }
        std::thread::yield_now();
    };
    let killed = Command::new("kill").args(["-9", &worker]).status();
    assert!(killed.expect("kill starts").success());
    let out = connected.wait_with_output().expect("it ends");
    let messages = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{messages}");
    assert!(messages.contains("error"), "{messages}");
    let (status, messages) = listener.end();
    assert_eq!(status, Some(2));
    assert!(
        messages.contains("a process of the measurement failed"),
        "{messages}"
    );
}

#[test]
fn huge_pages_are_used_or_asked_for() {
    let _alone = alone();
    let info = std::fs::read_to_string("/proc/meminfo").expect("readable");
    let free = info
        .lines()
        .find_map(|line| line.strip_prefix("HugePages_Free:"));
    let free: u32 = free.map_or(0, |free| free.trim().parse().expect("a number"));
    let args = [
        "rc-write",
        "--rounds",
        "1",
        "--duration",
        "10ms",
        "--no-inline",
        "--pages",
    ];
    let out = run(&[&args[..], &["huge"]].concat());
    let messages = String::from_utf8_lossy(&out.stderr);
    if free >= 8 {
        assert!(out.status.success(), "{messages}");
    } else if free == 0 {
        assert_eq!(out.status.code(), Some(2), "{messages}");
        assert!(messages.contains("sysctl vm.nr_hugepages"), "{messages}");
    }
    lines(&[&args[..], &["small"]].concat());
}

#[test]
fn knobs_reach_simulated_machines() {
    let of = |args: &[&str]| -> f64 {
        let lines = lines(&[args, &["--nic", "cib"]].concat());
        let last = &lines.last().expect("a result")["data"];
        assert!(
            last["task"]["stream"]["threads"].as_u64() == Some(14),
            "{last}"
        );
        last["outcome"]["rate"]["rate_mops"]
            .as_f64()
            .expect("a rate")
    };
    // Table 5 of the paper: 122 and 82 M/s. With one queue pair per core the senders are a little
    // slower.
    let header_only = of(&["ud-recv", "--header-only", "--queue-pairs", "4"]);
    let regular = of(&["ud-recv", "--queue-pairs", "4"]);
    assert!((119.0..125.0).contains(&header_only), "{header_only}");
    assert!((80.0..84.0).contains(&regular), "{regular}");
    let outbound = run(&["ud-recv", "--direction", "outbound", "--nic", "cib"]);
    let message = String::from_utf8_lossy(&outbound.stderr).into_owned();
    assert!(message.contains("take ud-send"), "{message}");
}

#[test]
fn windows_of_reads_miss_the_wqe_cache_and_writes_never() {
    let folder = tempfile::tempdir().expect("a folder");
    let (csv, svg) = (folder.path().join("w.csv"), folder.path().join("w.svg"));
    let (csv, svg) = (csv.to_str().expect("text"), svg.to_str().expect("text"));
    let args = [
        "wqe-cache",
        "--nic",
        "cib",
        "--window",
        "1024,512",
        "--csv",
        csv,
        "--svg",
        svg,
    ];
    let lines = lines(&args);
    let windows: Vec<&Value> = lines
        .iter()
        .filter(|line| line["type"] == "window")
        .collect();
    assert_eq!(windows.len(), 4);
    for line in windows {
        let point = &line["data"];
        let [expected, counted, missed] = [
            "expected_reads_mops",
            "counted_reads_mops",
            "wqe_cache_misses_mops",
        ]
        .map(|key| point[key].as_f64().expect("a number"));
        let misses = point["verb"] == "rc-read" && point["window"] == 1024;
        assert_eq!(missed > 1.0, misses, "{point}");
        assert_eq!(missed > 0.0, misses, "{point}");
        // The WQE of a READ is one cache line.
        assert!((counted - expected - missed).abs() < 1e-6, "{point}");
    }
    let text = std::fs::read_to_string(csv).expect("written");
    assert_eq!(text.lines().count(), 5);
    assert!(
        std::fs::read_to_string(svg)
            .expect("drawn")
            .contains("WQE cache misses")
    );
    // The software NIC has no counters, and a note says so.
    let _alone = alone();
    let measured = run(&[
        "wqe-cache",
        "--window",
        "16",
        "--rounds",
        "1",
        "--duration",
        "10ms",
    ]);
    assert!(measured.status.success());
    let note = String::from_utf8_lossy(&measured.stderr).into_owned();
    assert!(note.contains("no PCIe device"), "{note}");
}
