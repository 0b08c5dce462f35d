//! The examples, run as their comments say.

use std::process::Command;

/// Runs an example; returns what it prints.
fn run(example: &str) -> String {
    let tests = std::env::current_exe().expect("this program's file");
    let target = tests.ancestors().nth(3).expect("the folder of all builds");
    let out = Command::new(env!("CARGO"))
        .args([
            "run",
            "--quiet",
            "--package",
            env!("CARGO_PKG_NAME"),
            "--example",
            example,
            "--target-dir",
        ])
        .arg(target)
        .output()
        .expect("cargo starts");
    assert!(out.status.success(), "{out:?}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[test]
fn latency() {
    let printed = run("latency");
    let ns = |line: &str| -> u64 {
        let (_, rest) = line.split_once(" takes ").expect("a time");
        let (ns, _) = rest.split_once(" ns").expect("its unit");
        ns.parse().expect("a number")
    };
    let times: Vec<u64> = printed.lines().map(ns).collect();
    assert_eq!(times.len(), 6, "{printed}");
    // A longer READ takes longer; none is faster than the wires, or slower than a disk.
    for by_payload in times.chunks(3) {
        assert!(by_payload.is_sorted_by(|a, b| a < b), "{printed}");
        assert!(
            by_payload.iter().all(|ns| (500..100_000).contains(ns)),
            "{printed}"
        );
    }
    assert_eq!(
        run("latency"),
        printed,
        "the same seed gives the same times"
    );
}

#[test]
fn completion_events() {
    let printed = run("completion_events");
    for line in printed.lines() {
        let times: Vec<f64> = line
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        let [_bytes, polling, sleeping] = times[..] else {
            panic!("{line}");
        };
        // A server that sleeps answers later, by about the time of an event.
        let difference_us = sleeping - polling;
        assert!((2.0..6.0).contains(&difference_us), "{line}");
    }
    assert_eq!(printed.lines().count(), 2, "{printed}");
}
