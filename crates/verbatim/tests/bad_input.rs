//! Every number, path and name on the command line: a wrong one ends in exit status 2 and a
//! message that says what to do, never in a crash or a hang.

use std::process::{Command, Output, Stdio};

fn verbatim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_verbatim"))
        .args(args)
        .env_remove("VERBATIM_LINK_LAYER")
        .stdin(Stdio::null())
        .output()
        .expect("the program starts")
}

/// `args` must be refused with a message that holds `advice`.
#[track_caller]
fn refused(args: &[&str], advice: &str) {
    let out = verbatim(args);
    let message = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{args:?}: {message}");
    assert!(message.starts_with("error: "), "{args:?}: {message}");
    assert!(message.contains(advice), "{args:?}: {message}");
    assert!(!message.contains("panicked"), "{args:?}: {message}");
    assert!(
        out.stdout.is_empty(),
        "{args:?}: results of a refused command"
    );
}

#[test]
fn unknown_commands_and_flags() {
    refused(&["sequence"], "sequencer");
    refused(&["bench", "peer"], "peers");
    refused(&["devices", "--jason"], "--json");
}

#[test]
fn bench_peers() {
    let peers = |args: &[&'static str]| [&["bench", "peers"], args].concat();
    refused(&peers(&["--rounds", "0"]), "from 1 to 1000");
    refused(&peers(&["--rounds", "many"]), "from 1 to 1000");
    refused(&peers(&["--rounds", "-3"]), "from 1 to 1000");
    refused(&peers(&["--only", "ud"]), "choose among ud-send");
    refused(&peers(&["--cores", "0"]), "such as 0,1");
    refused(&peers(&["--cores", "0,x"]), "such as 0,1");
    refused(&peers(&["--cores", "0,0"]), "two different cores");
    refused(&peers(&["--cores", "0,99999"]), "choose two of");
    refused(&peers(&["--record", "/nonexistent/run.jsonl"]), "mkdir -p");
    refused(&peers(&["--record", "/"]), "name a file in it");
    refused(&peers(&["--provider", "mlx5"]), "softnic");
    refused(&peers(&["--device", "a/b"]), "verbatim devices");
    refused(&peers(&["--device", "nosuch0"]), "softnic0");
    refused(&peers(&["--link-layer", "ethernet"]), "roce");
    refused(
        &peers(&["--provider", "system", "--link-layer", "ib"]),
        "leave out one",
    );
}

#[test]
fn devices() {
    refused(&["devices", "--provider", "mlx5"], "softnic");
    refused(
        &["devices", "--provider", "system", "--link-layer", "ib"],
        "leave out one",
    );
}
