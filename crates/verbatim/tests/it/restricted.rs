//! Environments that refuse system calls, as the seccomp filters of container engines do.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common;
use crate::program::{Program, ROOT};

/// The system calls of the software NIC that a filter may refuse.
const REFUSED: [&str; 5] = [
    "process_vm_readv",
    "process_vm_writev",
    "userfaultfd",
    "pidfd_open",
    "membarrier",
];

/// Returns the command wrapped so that these system calls fail with EPERM.
fn without(refuse: &Program, calls: &[&str], command: &Command) -> Command {
    let mut restricted = Command::new(refuse.path());
    restricted.args(calls).arg("--");
    restricted
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => restricted.env(name, value),
            None => restricted.env_remove(name),
        };
    }
    restricted
}

/// Memory that no peer can map is read and written, whichever calls are refused. The program checks
/// each byte of every verb.
#[test]
fn every_verb_works_between_private_memories() {
    common::build_libraries();
    let refuse = Program::of_the_tests("refuse");
    let source = Path::new(ROOT).join("conformance/programs/wire_verbs.c");
    let verbs = Program::compiled(&source, "wire_verbs");
    for calls in [&REFUSED[..2], &REFUSED[..3], &REFUSED[..]] {
        let fabric = tempfile::tempdir_in("/dev/shm").expect("a folder");
        let port = common::free_port().to_string();
        let side = |host: &[&str]| {
            let mut run = common::verbatim(&["run", "--no-view", "--link-layer", "roce", "--"]);
            run.arg(verbs.path())
                .args(["-t", "rc", "-m", "1024", "-p", &port]);
            run.args(host)
                .env("VERBATIM_FABRIC_DIR", fabric.path().join("fabric"))
                .env_remove("VERBATIM_FABRIC");
            let mut run = without(&refuse, calls, &run);
            run.stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            run.spawn().expect("it starts")
        };
        let server = common::KillOnDrop(side(&[]));
        let client = side(&["127.0.0.1"]).wait_with_output().expect("it runs");
        assert!(
            client.status.success(),
            "{calls:?}: {}{}",
            String::from_utf8_lossy(&client.stdout),
            String::from_utf8_lossy(&client.stderr)
        );
        drop(server);
    }
}

fn doctor(refuse: &Program, calls: &[&str]) -> Output {
    let fabric = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let mut doctor = common::verbatim(&["doctor"]);
    doctor
        .env("VERBATIM_FABRIC_DIR", fabric.path().join("fabric"))
        .env_remove("VERBATIM_FABRIC");
    without(refuse, calls, &doctor).output().expect("it runs")
}

/// `verbatim doctor` reports the refused system calls and their cost.
#[test]
fn the_doctor_finds_what_is_refused() {
    let refuse = Program::of_the_tests("refuse");
    for (calls, line) in [
        (&["userfaultfd"][..], "limited  map private memory"),
        (&["process_vm_readv"][..], "limited  copy private memory"),
        (&["pidfd_open"][..], "limited  notice that a peer has died"),
    ] {
        let out = doctor(&refuse, calls);
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(said.contains(line), "{calls:?}: {said}");
        assert!(
            said.contains("Operation not permitted"),
            "{calls:?}: {said}"
        );
        assert!(out.status.success(), "{calls:?}: {said}");
    }
}
