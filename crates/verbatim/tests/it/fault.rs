//! `verbatim run --fault`: real processes under fault plans, and the summary of the faults.

use std::path::Path;
use std::time::Duration;

use crate::common;
use crate::program::{Program, ROOT};

const DONE: [&str; 3] = ["recv 0: success", "send 0: success", "done"];

#[test]
fn verbs_are_refused_with_the_errno_of_the_plan() {
    let program = Program::of_the_tests("faulty");
    for (verb, line) in [
        (
            "ibv_open_device",
            "(context = ibv_open_device(list[0])): No space left on device",
        ),
        (
            "ibv_alloc_pd",
            "(pd = ibv_alloc_pd(context)): No space left on device",
        ),
        (
            "ibv_create_cq",
            "(cq = ibv_create_cq(context, 1000, NULL, channel, 0)): No space left on device",
        ),
        (
            "ibv_create_qp",
            "(qp = ibv_create_qp(pd, &init)): No space left on device",
        ),
    ] {
        let ran = program.under(&format!("verb={verb},errno=ENOSPC"), &["1", "0"]);
        ran.printed(&[line]);
        assert_eq!(ran.code, Some(1));
        ran.says(&format!("verb={verb},errno=ENOSPC: struck 1 of 1\n"));
    }
    // Fail the second change of state.
    let ran = program.under("verb=ibv_modify_qp,errno=ETIMEDOUT,after=1", &["1", "0"]);
    assert!(ran.out.contains("Connection timed out"), "{}", ran.out);
    let ran = program.under("verb=ibv_post_recv,errno=ENOMEM,after=1", &["2", "0"]);
    ran.printed(&[
        "recv 0: success",
        "send 0: success",
        "recv 1 refused: Cannot allocate memory",
        "done",
    ]);
    let ran = program.under("verb=ibv_post_send,errno=EAGAIN", &["1", "0"]);
    ran.printed(&[
        "send 0 refused: Resource temporarily unavailable",
        "recv 0: Work Request Flushed Error",
        "done",
    ]);
}

#[test]
fn work_requests_complete_with_the_status_of_the_plan_and_the_queue_pair_fails() {
    let program = Program::of_the_tests("faulty");
    let ran = program.under("status=REM_ACCESS_ERR,after=1", &["3", "0"]);
    let mut lines: Vec<_> = ran.out.lines().collect();
    lines.sort_unstable();
    let flushed = "Work Request Flushed Error";
    let expected = [
        "done".to_owned(),
        "recv 0: success".to_owned(),
        format!("recv 1: {flushed}"),
        format!("recv 2: {flushed}"),
        "send 0: success".to_owned(),
        "send 1: remote access error".to_owned(),
        format!("send 2: {flushed}"),
    ];
    assert_eq!(lines, expected);
    for (status, words) in [("LOC_LEN_ERR", "length"), ("LOC_PROT_ERR", "protection")] {
        let ran = program.under(&format!("status={status},opcode=RECV"), &["1", "0"]);
        let line = format!("recv 0: local {words} error\n");
        assert!(ran.out.contains(&line), "{status}: {}", ran.out);
        assert!(
            !ran.out.contains("send 0: success"),
            "{status}: {}",
            ran.out
        );
    }
}

#[test]
fn a_receiver_is_not_ready_for_a_time_or_for_too_long() {
    let program = Program::of_the_tests("faulty");
    let ran = program.under("rnr=60ms", &["1", "0"]);
    ran.printed(&DONE);
    assert!(ran.took >= Duration::from_millis(60));
    // Six RNR retries of 20.48 ms.
    let ran = program.under("rnr=1h", &["1", "0"]);
    assert!(
        ran.out.contains("send 0: RNR retry counter exceeded"),
        "{}",
        ran.out
    );
    assert!(ran.took >= Duration::from_millis(122));
}

#[test]
fn completions_come_late_and_the_sleeper_is_woken() {
    let ran = Program::of_the_tests("faulty").under("late=150ms,opcode=RECV", &["2", "0"]);
    ran.printed(&[
        "recv 0: success",
        "send 0: success",
        "recv 1: success",
        "send 1: success",
        "done",
    ]);
    assert!(ran.took >= Duration::from_millis(300));
    ran.says("struck 2 of 2");
}

#[test]
fn events_are_raised_by_time_and_by_occasion() {
    let program = Program::of_the_tests("faulty");
    let ran = program.under("link-down=100ms,from=50ms", &["0", "2"]);
    ran.printed(&["event: port error", "event: port active", "done"]);
    assert!(ran.took >= Duration::from_millis(150));
    let ran = program.under("event=GID_CHANGE,verb=ibv_create_qp", &["1", "1"]);
    ran.printed(&[
        "recv 0: success",
        "send 0: success",
        "event: GID table change",
        "done",
    ]);
    let ran = program.under("event=QP_FATAL,from=100ms", &["0", "1"]);
    ran.printed(&["event: local work queue catastrophic error", "done"]);
    let ran = program.under("event=QP_FATAL,opcode=SEND,after=1", &["3", "1"]);
    assert!(
        ran.out.contains("recv 2: Work Request Flushed Error"),
        "{}",
        ran.out
    );
    assert!(
        ran.out
            .contains("event: local work queue catastrophic error"),
        "{}",
        ran.out
    );
}

#[test]
fn a_device_that_is_removed_fails_its_verbs_and_lets_go_of_its_objects() {
    let program = Program::of_the_tests("faulty");
    let ran = program.under("event=DEVICE_FATAL,from=100ms", &["0", "1"]);
    ran.printed(&["event: local catastrophic error", "done"]);
    let ran = program.under("event=DEVICE_FATAL,verb=ibv_create_qp", &["1", "0"]);
    ran.printed(&["(qp = ibv_create_qp(pd, &init)): Input/output error"]);
}

#[test]
fn a_process_pauses_and_goes_on() {
    let ran = Program::of_the_tests("faulty").under("pause=400ms,verb=ibv_create_qp", &["1", "0"]);
    ran.printed(&DONE);
    assert!(ran.took >= Duration::from_millis(400));
}

/// RC delivers each message once and in order despite packet faults, so the program sees no
/// difference.
#[test]
fn packets_are_lost_late_twice_damaged_and_marked_and_reliable_connections_do_not_mind() {
    let program = Program::of_the_tests("faulty");
    for plan in [
        "drop,p=0.15",
        "drop,opcode=ACK,every=3; drop,opcode=SEND,every=5,direction=receive",
        "corrupt,p=0.2",
        "corrupt,p=0.2,direction=receive",
        "duplicate; reorder=1ms..3ms,p=0.3",
        "delay=2ms..4ms,qp=1",
        "ecn; rate=1Mbit",
    ] {
        let ran = program.by_packets(plan, &["30", "0"]);
        let sent = ran.out.matches(": success").count();
        assert_eq!(sent, 60, "{plan}: {}{}", ran.out, ran.summary);
        assert!(
            !ran.summary.contains("never struck"),
            "{plan}: {}",
            ran.summary
        );
    }
    let all = program.by_packets("drop", &["2", "0"]);
    assert!(
        all.out
            .starts_with("send 0: transport retry counter exceeded\n"),
        "{}",
        all.out
    );
}

#[test]
fn a_pulled_cable_stops_packets_for_its_time() {
    let program = Program::of_the_tests("faulty");
    let ran = program.by_packets("link-down=300ms,verb=ibv_create_qp", &["1", "2"]);
    ran.printed(&[
        "recv 0: success",
        "send 0: success",
        "event: port error",
        "event: port active",
        "done",
    ]);
    assert!(ran.took >= Duration::from_millis(300));
    let ran = program.by_packets("link-down,opcode=SEND,after=2", &["9", "1"]);
    assert!(
        ran.out.contains("transport retry counter exceeded"),
        "{}",
        ran.out
    );
}

#[test]
fn the_summary_warns_of_rules_that_never_struck() {
    let program = Program::of_the_tests("faulty");
    let plan = "drop; verb=ibv_create_ah,errno=EIO; verb=ibv_create_qp,errno=EIO,after=3; verb=ibv_reg_mr,errno=EPERM";
    let ran = program.under(plan, &["1", "0"]);
    assert_eq!(ran.code, Some(1));
    ran.says("repeat with --fault-seed 5");
    ran.says("4: verb=ibv_reg_mr,errno=EPERM: struck 1 of 1\n");
    ran.says("warning: rule 1 never struck: no packet was like that");
    ran.says("warning: rule 2 never struck: nothing was like that");
    assert!(!ran.summary.contains("rule 4 never"), "{}", ran.summary);
    let ran = program.under("drp", &["1", "0"]);
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (Some(2), ""),
        "it does not run"
    );
    ran.says("\"drp\" is no action");
}

#[test]
fn the_same_seed_has_the_same_faults_and_the_trace_shows_them() {
    let program = Program::of_the_tests("faulty");
    let file = program.folder.path().join("t.txt");
    let run = |seed: u32| {
        let flags = [
            "--fault",
            "status=REM_OP_ERR,p=0.1; verb=ibv_poll_cq,errno=EIO,after=1000000",
            "--fault-seed",
        ];
        let seed = seed.to_string();
        let trace = ["--trace", file.to_str().expect("a path")];
        let ran = program.run(&[&flags[..], &[&seed], &trace].concat(), &["40", "0"]);
        let trace = std::fs::read_to_string(&file).expect("a trace");
        let lines = trace.lines().filter(|line| !line.starts_with('#'));
        let struck = lines.filter(|line| line.contains(" fault 1 ("));
        let struck: Vec<_> = struck
            .filter_map(|line| line.split("): ").nth(1)?.split(" (QPN").next())
            .map(str::to_owned)
            .collect();
        assert_eq!(
            struck.len(),
            ran.out.matches("remote operation error").count(),
            "{}",
            ran.out
        );
        struck
    };
    let all: Vec<_> = (1..=4).map(run).collect();
    assert_eq!(all, (1..=4).map(run).collect::<Vec<_>>());
    assert!(all.iter().any(|struck| *struck != all[0]), "{all:?}");
    assert!(
        all.iter()
            .flatten()
            .any(|what| what.starts_with("SEND wr_id=")),
        "{all:?}"
    );
}

/// The commands of docs/test-error-paths.md print what the page shows.
#[test]
fn the_guide_finds_the_leak() {
    let guide =
        std::fs::read_to_string(format!("{ROOT}/docs/test-error-paths.md")).expect("the guide");
    let leaky = Program::compiled(
        &Path::new(ROOT).join("conformance/programs/leaky.c"),
        "leaky",
    );
    let mut commands = 0;
    for block in guide.split("```console\n").skip(1) {
        let block = block.split("```").next().expect("its end");
        for step in block.split("$ ").skip(1) {
            let (command, expected) = step.split_once('\n').expect("a line");
            let Some(rest) = command.strip_prefix("verbatim run ") else {
                continue;
            };
            commands += 1;
            let (flags, program) = rest.split_once("-- ./leaky").expect("it runs the program");
            let file = leaky.folder.path().join("t.txt");
            let flags = flags.replace("t.txt", file.to_str().expect("a path"));
            let flags: Vec<_> = flags
                .split(' ')
                .map(|flag| flag.trim_matches('\''))
                .filter(|flag| !flag.is_empty())
                .collect();
            let args: Vec<_> = program.split_whitespace().collect();
            let ran = leaky.run(&flags, &args);
            assert_eq!(ran.code, Some(0), "{}", ran.summary);
            if flags.contains(&"--trace") {
                let trace = std::fs::read_to_string(&file).expect("a trace");
                let lines: Vec<_> = trace
                    .lines()
                    .filter(|line| !line.starts_with('#'))
                    .collect();
                let of = |verb: &str| lines.iter().filter(|line| line.contains(verb)).count();
                assert_eq!(
                    (
                        of("ibv_create_cq("),
                        of("ibv_destroy_cq("),
                        of(" fault 1 (")
                    ),
                    (2, 1, 1)
                );
                continue;
            }
            let said = ran.out + &ran.summary;
            let pid = said
                .split("process ")
                .nth(1)
                .and_then(|rest| rest.split(' ').next());
            let said = pid.map_or(said.clone(), |pid| said.replace(pid, "PID"));
            assert_eq!(said.trim_end(), expected.trim_end(), "{command}");
        }
    }
    assert_eq!(commands, 4);
}

/// Runs `verbatim bench rc-write` with 64 KiB on a simulated NIC under a plan.
fn simulated_write_under(plan: &str) -> std::process::Output {
    common::build_libraries();
    let verbatim = common::verbatim(&[]);
    let mut start = common::verbatim(&["run", "--no-view", "--fault", plan, "--fault-seed", "3"]);
    start.arg("--").arg(verbatim.get_program());
    start.args(["bench", "rc-write", "--nic", "cib", "--payload", "64K"]);
    start.arg("--json").output().expect("the program starts")
}

#[test]
fn simulated_networks_lose_packets_by_the_plan() {
    let gbps = |out: &std::process::Output| {
        let json = serde_json::from_slice::<serde_json::Value>(&out.stdout);
        let json = json.unwrap_or_else(|error| panic!("{error}: {out:?}"));
        json.pointer("/data/outcome/rate/bandwidth_gbytes_per_s")
            .and_then(serde_json::Value::as_f64)
            .expect("a rate")
    };
    let rare = simulated_write_under("drop,p=0.0001");
    let frequent = simulated_write_under("drop,p=0.1");
    // The port carries 6.8 GB/s; each loss costs a round trip and what was sent meanwhile.
    let (rare_gbps, frequent_gbps) = (gbps(&rare), gbps(&frequent));
    assert!((6.0..6.8).contains(&rare_gbps), "{rare_gbps}");
    assert!((1.0..5.5).contains(&frequent_gbps), "{frequent_gbps}");
    let summary = String::from_utf8_lossy(&frequent.stderr);
    assert!(summary.contains("drop,p=0.1: struck "), "{summary}");
    assert!(!summary.contains("never struck"), "{summary}");
}

#[test]
fn simulated_networks_refuse_rules_that_are_not_for_packets() {
    let out = simulated_write_under("verb=ibv_reg_mr,errno=ENOMEM");
    assert!(!out.status.success());
    let text = String::from_utf8_lossy(&out.stderr);
    let reason = "a simulated network has no rule \"verb=ibv_reg_mr,errno=ENOMEM\"";
    assert!(text.contains(reason), "{text}");
}
