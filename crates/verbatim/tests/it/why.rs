//! `verbatim run --why`: the check that failed a work request, and a peer in another fabric.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{self, KillOnDrop};
use crate::program::{Program, ROOT, unused_address};

/// Runs `refused WHAT` under `--why`; returns its standard output and standard error.
fn refused(program: &Program, what: &str) -> (String, String) {
    let ran = program.run(&["--why"], &[what]);
    assert_eq!(ran.code, Some(0), "{}", ran.summary);
    (ran.out, ran.summary)
}

#[test]
fn a_failed_work_request_says_which_check_failed_with_its_numbers() {
    let program = Program::of_the_tests("refused");
    for (what, code, reason) in [
        ("range", "0x12", "which has 256 bytes at "),
        ("range", "0x12", "they end 64 bytes behind it"),
        ("rkey", "0x11", "no memory region or window has rkey 0x"),
        ("lkey", "0x1", "no memory region or window has lkey 0x"),
        (
            "access",
            "0x13",
            "was registered without IBV_ACCESS_REMOTE_WRITE",
        ),
        (
            "qp-access",
            "0x17",
            "qp_access_flags of the responder's queue pair lack IBV_ACCESS_REMOTE_WRITE",
        ),
        (
            "psn",
            "0x27",
            "expects the first PSN 0x0 (its rq_psn), and this one sends 0x5 (its sq_psn)",
        ),
        ("unaligned", "0x18", "of an atomic is not a multiple of 8"),
        (
            "short",
            "0x31",
            "the message has 64 bytes, and the receive work request 32",
        ),
        (
            "no-receive",
            "0x25",
            "no receive work request within min_rnr_timer",
        ),
    ] {
        let (printed, said) = refused(&program, what);
        assert!(
            printed.contains(&format!("vendor_err {code}\n")),
            "{what}: {printed}"
        );
        assert!(said.contains(reason), "{what}: {said}");
        assert!(
            said.contains("1 work request of process "),
            "{what}: {said}"
        );
    }
}

#[test]
fn a_refused_verb_says_which_argument() {
    let program = Program::of_the_tests("refused");
    for (what, reason) in [
        (
            "too-many-sges",
            "ibv_create_qp is refused with EINVAL: cap.max_send_sge is 1000, and the device has at most",
        ),
        (
            "no-local-write",
            "ibv_reg_mr is refused with EINVAL: access is 0x2: IBV_ACCESS_REMOTE_WRITE",
        ),
        (
            "no-transition",
            "ibv_modify_qp is refused with EINVAL: RC QP in RESET cannot go to RTS",
        ),
        (
            "inline-read",
            "is refused with EINVAL: IBV_SEND_INLINE is for SENDs and WRITEs",
        ),
        (
            "recv-in-reset",
            "is refused with EINVAL: the queue pair is in RESET",
        ),
        (
            "recv-too-many-sges",
            "is refused with EINVAL: num_sge is 2, and max_recv_sge",
        ),
        (
            "recv-with-srq",
            "is refused with EINVAL: the queue pair has a shared receive queue",
        ),
    ] {
        let (_, said) = refused(&program, what);
        assert!(said.contains(reason), "{what}: {said}");
    }
}

/// Programs read the whole GID table, most of which is empty.
#[test]
fn an_event_that_has_not_come_yet_is_no_refusal() {
    let program = Program::of_the_tests("refused");
    let (printed, said) = refused(&program, "events");
    assert_eq!((printed.as_str(), said.as_str()), ("", ""));
}

/// Errors of a program that fail no work request and refuse no verb.
#[test]
fn an_error_that_no_completion_tells_has_a_line() {
    let program = Program::of_the_tests("refused");
    for (what, line) in [
        (
            "cq-overrun",
            "a completion queue is overrun (IBV_EVENT_CQ_ERR), and its queue pairs fail: it has cqe 2,",
        ),
        (
            "wrong-qkey",
            "its Q_Key is 0x22, and qkey of the receiver is 0x11",
        ),
        (
            "unacknowledged",
            "ibv_destroy_cq waits: the program got 1 event of the object and has not called ibv_ack_cq_events",
        ),
    ] {
        let (_, said) = refused(&program, what);
        assert_eq!(said.matches(line).count(), 1, "{what}: {said}");
    }
}

#[test]
fn a_misaligned_atomic_by_packets_is_described_as_such() {
    let program = Program::of_the_tests("refused");
    let ran = program.by_packets_with(&["--why"], &["unaligned"]);
    ran.says("of an atomic is not a multiple of 8");
}

#[test]
fn psns_that_differ_are_named_by_packets_too() {
    let program = Program::of_the_tests("refused");
    let ran = program.by_packets_with(&["--why"], &["psn"]);
    ran.says("expects the first PSN 0x0 (its rq_psn), and this one sends 0x5 (its sq_psn)");
}

#[test]
fn a_receive_work_request_that_a_rule_fails_has_the_code_of_a_rule() {
    let program = Program::of_the_tests("refused");
    for (status, text) in [
        ("LOC_LEN_ERR", "local length error"),
        ("LOC_PROT_ERR", "local protection error"),
    ] {
        let rule = format!("status={status},opcode=RECV");
        let ran = program.run(&["--why", "--fault", &rule], &["short"]);
        assert!(
            ran.out
                .contains(&format!("wr_id 8: {text}, vendor_err 0x41\n")),
            "{}{}",
            ran.out,
            ran.summary
        );
        ran.says("a rule of --fault made it fail");
    }
}

#[test]
fn a_flushed_receive_work_request_has_no_cause() {
    let program = Program::of_the_tests("refused");
    for ran in [
        program.run(&[], &["flushed"]),
        program.by_packets_with(&[], &["flushed"]),
    ] {
        for line in [
            "wr_id 8: local length error, vendor_err 0x31\n",
            "wr_id 9: Work Request Flushed Error, vendor_err 0x0\n",
        ] {
            assert!(ran.out.contains(line), "{}{}", ran.out, ran.summary);
        }
    }
}

/// Two programs of one fabric, one of which sends packets: the work requests of the client end, and it says why.
#[test]
fn a_peer_on_another_path_is_named() {
    let packets = "sends packets (--path packets, or --pcap)";
    let memory = "uses shared memory";
    for (server, client, line) in [
        (
            "packets",
            "auto",
            format!("{packets}, and this process {memory}"),
        ),
        (
            "auto",
            "packets",
            format!("{memory}, and this process {packets}"),
        ),
    ] {
        let fabric = tempfile::tempdir_in("/dev/shm").expect("a folder");
        let address = unused_address();
        let run = |path: &str| {
            let mut command = common::verbatim(&["run", "--no-view", "--path", path, "--"]);
            command
                .env("VERBATIM_ADDRESS", &address)
                .env("VERBATIM_FABRIC_DIR", fabric.path().join("fabric"))
                .env_remove("VERBATIM_FABRIC");
            command
        };
        let said = said_by_client(run(server), run(client));
        for part in [line.as_str(), "syndrom 0x26"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}

/// Runs `ib_write_bw` under both commands; returns the standard error of the client, which fails.
fn said_by_client(mut server: Command, mut client: Command) -> String {
    common::build_libraries();
    let port = common::free_port().to_string();
    let args = ["ib_write_bw", "-n", "100", "-s", "64", "-p", &port];
    let server = server
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let _server = KillOnDrop(server.spawn().expect("it starts"));
    let deadline = Instant::now() + Duration::from_secs(60);
    client.args(args).arg("127.0.0.1");
    loop {
        let ran = client.output().expect("it runs");
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        // The server may not listen yet.
        if !said.contains("Couldn't connect") || Instant::now() > deadline {
            assert!(!ran.status.success(), "{said}");
            return said;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn without_why_the_end_of_a_process_says_what_failed() {
    let program = Program::of_the_tests("refused");
    let ran = program.run(&[], &["range"]);
    ran.says("1 work request of process ");
    ran.says("they end 64 bytes behind it");
}

/// Two programs in two fabrics: the sender is told that, and which fabric the peer may be in.
#[test]
fn a_peer_in_another_fabric_is_named() {
    let run = |fabric: &str| {
        let fabric = format!("why_{fabric}_{}", std::process::id());
        let mut command = common::verbatim(&["run", "--no-view", "--fabric", &fabric, "--"]);
        command.env_remove("VERBATIM_FABRIC_DIR");
        command
    };
    let said = said_by_client(run("a"), run("b"));
    let (a, b) = (
        format!("fabric \"why_a_{}\" of this user", std::process::id()),
        format!("@why_b_{} has the queue pair", std::process::id()),
    );
    for part in [a.as_str(), b.as_str(), "syndrom 0x22"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// The commands of docs/why.md print what the page shows, except for addresses, keys and process
/// numbers.
#[test]
fn the_guide_shows_what_the_commands_print() {
    let guide = std::fs::read_to_string(format!("{ROOT}/docs/why.md")).expect("the guide");
    let source = Path::new(ROOT).join("crates/verbatim/tests/programs/refused.c");
    let program = Program::compiled(&source, "refused");
    let mut commands = 0;
    for block in guide.split("```console\n").skip(1) {
        let block = block.split("```").next().expect("its end");
        for step in block.split("$ ").skip(1) {
            let (command, expected) = step.split_once('\n').expect("a line");
            let Some((flags, what)) = command
                .strip_prefix("verbatim run ")
                .and_then(|rest| rest.split_once("-- ./refused "))
            else {
                continue;
            };
            commands += 1;
            let flags: Vec<&str> = flags.split_whitespace().collect();
            let ran = program.run(&flags, &[what]);
            assert_eq!(
                without_numbers(&(ran.summary + &ran.out)),
                without_numbers(expected),
                "{command}"
            );
        }
    }
    assert_eq!(commands, 3);
}

fn without_numbers(text: &str) -> String {
    let hex = regex::Regex::new("0x[0-9a-f]{4,}|process [0-9]+").expect("a pattern");
    hex.replace_all(text.trim(), "N").into_owned()
}
