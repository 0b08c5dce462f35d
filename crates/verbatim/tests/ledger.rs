//! `--ledger`: what unmodified programs and this project's own did, as a document.

mod common;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Once;

use serde_json::Value;
use tap::Ledger;

/// `verbatim` with these arguments, and the libraries for programs built beside it.
fn verbatim(args: &[&str]) -> Output {
    static BUILD: Once = Once::new();
    let program = Path::new(env!("CARGO_BIN_EXE_verbatim"));
    BUILD.call_once(|| {
        let profile = program.parent().expect("target/PROFILE");
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .args([
                "build",
                "--quiet",
                "-p",
                "dropin",
                "-p",
                "dropin-rdmacm",
                "--target-dir",
            ])
            .arg(profile.parent().expect("target"));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo starts").success());
    });
    common::verbatim(args)
        .stdin(Stdio::null())
        .output()
        .expect("the program starts")
}

/// The ledger of a command that must succeed.
#[track_caller]
fn ledger(args: &[&str]) -> Ledger {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("l.json");
    let file = file.to_str().expect("text");
    let with: Vec<_> = args
        .iter()
        .map(|arg| if *arg == "FILE" { file } else { arg })
        .collect();
    let out = verbatim(&with);
    let messages = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{args:?}: {messages}");
    let text = std::fs::read_to_string(file).expect("it was written");
    Ledger::parse(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn server_and_client_of_an_unmodified_program_are_one_ledger() {
    let script = "ibv_rc_pingpong -p 18577 -n 500 & sleep 0.3; \
                  until ibv_rc_pingpong -p 18577 -n 500 127.0.0.1; do sleep 0.1; done; wait";
    let run = [
        "run",
        "--ledger",
        "FILE",
        "--link-layer",
        "ib",
        "--fabric",
        "ledger_1",
    ];
    let ledger = ledger(&[&run[..], &["--", "sh", "-c", script]].concat());
    let worked: Vec<_> = ledger
        .processes
        .iter()
        .filter(|process| process.operations() > 0)
        .collect();
    assert_eq!(worked.len(), 2, "{ledger:?}");
    for process in worked {
        assert_eq!((process.operations(), process.peers), (500, 1));
        assert!(process.complete && process.program.contains("ibv_rc_pingpong"));
        let qp = process.active().next().expect("it sent");
        assert_eq!(qp.sent[0].operation.payload_bytes, 4096);
        assert_eq!(qp.received[0].count, 500);
    }
}

#[test]
fn the_projects_own_programs_are_counted_with_all_their_processes() {
    let ledger = ledger(&[
        "sequencer",
        "--ledger",
        "FILE",
        "--design",
        "spec-s0",
        "--clients",
        "1",
        "--duration",
        "200ms",
        "--json",
    ]);
    let sent: Vec<_> = ledger.processes.iter().map(|p| p.operations()).collect();
    assert!(
        sent.iter().filter(|sent| **sent > 0).count() >= 2,
        "{sent:?}"
    );
    assert_eq!(ledger.provider, "softnic");
}

#[test]
fn a_program_that_is_killed_leaves_its_ledger_and_its_status() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("l.json");
    let script = "ibv_rc_pingpong -p 18578 -n 100000000 & server=$!; sleep 0.3; \
                  ibv_rc_pingpong -p 18578 -n 100000000 127.0.0.1 & client=$!; \
                  sleep 1; kill -KILL $client $server; exit 9";
    let out = verbatim(&[
        "run",
        "--ledger",
        file.to_str().expect("text"),
        "--link-layer",
        "ib",
        "--fabric",
        "ledger_2",
        "--",
        "sh",
        "-c",
        script,
    ]);
    assert_eq!(out.status.code(), Some(9));
    let text = std::fs::read_to_string(file).expect("it was written");
    let ledger = Ledger::parse(&text).expect("a ledger");
    assert_eq!(ledger.processes.len(), 2);
    assert!(ledger.processes.iter().all(|process| !process.complete));
}

#[test]
fn a_ledger_is_plain_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("l.json");
    let out = verbatim(&[
        "run",
        "--ledger",
        file.to_str().expect("text"),
        "--",
        "true",
    ]);
    assert!(out.status.success());
    let note = String::from_utf8_lossy(&out.stderr);
    assert!(note.contains("no process of it opened"), "{note}");
    let text = std::fs::read_to_string(file).expect("it was written");
    let value: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        (&value["version"], &value["command"]),
        (&1.into(), &"true".into())
    );
}

#[test]
fn without_uncore_counters_it_says_so() {
    let units = std::fs::read_dir("/sys/bus/event_source/devices")
        .into_iter()
        .flatten()
        .flatten();
    let has_counters = units.into_iter().any(|unit| {
        let name = unit.file_name();
        let name = name.to_string_lossy();
        name.starts_with("uncore_cha") || name.starts_with("uncore_cbox")
    });
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("l.json");
    let out = verbatim(&[
        "run",
        "--ledger",
        file.to_str().expect("text"),
        "--pcie-counters",
        "--",
        "true",
    ]);
    let message = String::from_utf8_lossy(&out.stderr);
    if has_counters {
        // Whether perf may read them is the machine's business.
        assert!(
            out.status.success() || message.contains("perf"),
            "{message}"
        );
    } else {
        assert_eq!(out.status.code(), Some(2), "{message}");
        assert!(message.contains("no Intel uncore counters"), "{message}");
    }
}
