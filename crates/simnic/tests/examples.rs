//! The example, run as its comment says.

use std::process::Command;

/// Runs the example; returns what it prints.
fn run() -> String {
    let tests = std::env::current_exe().expect("this program's file");
    let target = tests.ancestors().nth(3).expect("the folder of all builds");
    let out = Command::new(env!("CARGO"))
        .args([
            "run",
            "--quiet",
            "--package",
            env!("CARGO_PKG_NAME"),
            "--example",
            "latency",
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
    let printed = run();
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
    assert_eq!(run(), printed, "the same seed gives the same times");
}
