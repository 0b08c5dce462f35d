//! `--ledger` and `--trace` of unmodified programs and of this project's commands.

use std::process::{Output, Stdio};

use serde_json::Value;
use tap::Ledger;

use crate::common;

/// Runs `verbatim` with these arguments, with the libraries for programs built beside it.
fn verbatim(args: &[&str]) -> Output {
    common::build_libraries();
    common::verbatim(args)
        .stdin(Stdio::null())
        .output()
        .expect("the program starts")
}

/// Runs a command that must succeed, and returns its ledger.
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
    let port = common::free_port();
    let script = format!(
        "ibv_rc_pingpong -p {port} -n 500 & sleep 0.3; \
         until ibv_rc_pingpong -p {port} -n 500 127.0.0.1; do sleep 0.1; done; wait"
    );
    let run = [
        "run",
        "--ledger",
        "FILE",
        "--link-layer",
        "ib",
        "--fabric",
        "ledger_1",
    ];
    let ledger = ledger(&[&run[..], &["--", "sh", "-c", &script]].concat());
    let worked: Vec<_> = ledger
        .processes
        .iter()
        .filter(|process| process.posted_operations() > 0)
        .collect();
    assert_eq!(worked.len(), 2, "{ledger:?}");
    for process in worked {
        assert_eq!((process.posted_operations(), process.peer_count), (500, 1));
        assert!(process.complete && process.program.contains("ibv_rc_pingpong"));
        let qp = process.posting_queue_pairs().next().expect("it sent");
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
    let sent: Vec<_> = ledger
        .processes
        .iter()
        .map(|p| p.posted_operations())
        .collect();
    assert!(
        sent.iter().filter(|sent| **sent > 0).count() >= 2,
        "{sent:?}"
    );
    assert_eq!(ledger.provider, "softnic");
}

/// Returns shell commands that start `$server` and `$client` of an endless ping-pong and wait until
/// both are connected. Both are killed if that takes more than a minute.
fn endless() -> String {
    let port = common::free_port();
    let within_a_minute = |seen: &str| {
        format!(
            "for _ in $(seq 600); do {seen} && break; sleep 0.1; done; \
             {seen} || {{ kill -KILL $server $client; exit 1; }}"
        )
    };
    let listens = within_a_minute(&format!(
        "grep -q ':{port:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6"
    ));
    // Both print the remote address once they are connected, just before the ping-pong.
    let connected = within_a_minute("[ $(grep -l 'remote address' $out/* | wc -l) = 2 ]");
    let program = format!("stdbuf -oL ibv_rc_pingpong -p {port} -n 100000000");
    format!(
        "out=$(mktemp -d); trap 'rm -r $out' EXIT; {program} > $out/server & server=$!; {listens}; \
         {program} 127.0.0.1 > $out/client & client=$!; {connected}; sleep 1"
    )
}

#[test]
fn a_program_that_is_killed_leaves_its_ledger_and_its_status() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("l.json");
    let script = format!("{}; kill -KILL $client $server; exit 9", endless());
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
        &script,
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
        (&tap::LEDGER_VERSION.into(), &"true".into())
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
        // perf may or may not be allowed to read the counters.
        assert!(
            out.status.success() || message.contains("perf"),
            "{message}"
        );
    } else {
        assert_eq!(out.status.code(), Some(2), "{message}");
        assert!(message.contains("no Intel uncore counters"), "{message}");
    }
}

/// Returns the lines of a script's trace, as process, thread and verb. Each line must be complete.
#[track_caller]
fn trace(fabric: &str, script: &str) -> Vec<(u32, u32, String)> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace");
    let path = file.to_str().expect("text");
    let run = ["run", "--trace", path, "--link-layer", "ib", "--fabric"];
    let out = verbatim(&[&run[..], &[fabric, "--", "sh", "-c", script]].concat());
    let messages = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{messages}");
    let text = std::fs::read_to_string(file).expect("it was written");
    assert!(text.starts_with("# verbatim trace of: sh -c"), "{text}");
    assert!(text.contains("# One line a verb: "), "{text}");
    assert!(text.ends_with('\n'), "{text}");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let mut seen = Vec::new();
    for line in lines {
        let whole = || -> Option<(u32, u32, String)> {
            let (time, rest) = line.split_once(' ')?;
            let (seconds, nanos) = time.split_once('.')?;
            seconds.parse::<u64>().ok()?;
            nanos.parse::<u32>().ok().filter(|_| nanos.len() == 9)?;
            let (process, what) = rest.split_once(' ')?;
            let (pid, tid) = process.split_once('/')?;
            Some((pid.parse().ok()?, tid.parse().ok()?, what.to_owned()))
        };
        seen.push(whole().unwrap_or_else(|| panic!("{line:?}")));
    }
    seen
}

/// Counts the lines that begin with `what`.
fn count(lines: &[(u32, u32, String)], what: &str) -> usize {
    let of = |(_, _, line): &&(u32, u32, String)| line.starts_with(what);
    lines.iter().filter(of).count()
}

#[test]
fn a_trace_has_a_line_for_each_verb_of_each_process() {
    let port = common::free_port();
    let lines = trace(
        "trace_1",
        &format!(
            "ibv_rc_pingpong -p {port} -n 50 -s 64 & sleep 0.3; \
             until ibv_rc_pingpong -p {port} -n 50 -s 64 127.0.0.1; do sleep 0.1; done; wait"
        ),
    );
    let mut processes: Vec<u32> = lines.iter().map(|(pid, ..)| *pid).collect();
    processes.sort_unstable();
    processes.dedup();
    assert!(processes.len() >= 2, "{lines:?}");
    for (what, at_least) in [
        ("ibv_open_device(device=\"softnic0\") = context1", 2),
        ("ibv_reg_mr(pd=pd1, ", 2),
        ("ibv_modify_qp(qp=qp1, RTR, to {dlid 0x1}, path_mtu ", 2),
        ("post_send qp1 1/1 wr_id=2 SEND 64 B SIGNALED", 100),
        ("post_recv qp1 1/1 wr_id=1 64 B in 1 SGEs", 1000),
        ("ibv_destroy_qp(qp=qp1) = 0", 2),
    ] {
        let found = count(&lines, what);
        assert!(found >= at_least, "{found} x {what:?}: {lines:#?}");
    }
    let completions = lines
        .iter()
        .filter(|(_, _, line)| line.starts_with("poll_cq cq1 ") && line.contains(" SUCCESS "))
        .count();
    assert_eq!(completions, 200, "{lines:#?}");
}

#[test]
fn a_trace_tells_connections_and_calls_handles_alike_in_both_libraries() {
    let lines = trace(
        "trace_2",
        "rping -s -a 127.0.0.1 -p 18580 -C 2 & sleep 0.5; rping -c -a 127.0.0.1 -p 18580 -C 2; wait",
    );
    for what in [
        "rdma_listen(id=id1, backlog=3) = 0",
        "rdma_get_cm_event(channel=channel1, event=&) = 0, event: CONNECT_REQUEST, id2 of id1",
        "rdma_get_cm_event(channel=channel1, event=&) = 0, event: ESTABLISHED, id1",
        "rdma_get_cm_event(channel=channel1, event=&) = 0, event: DISCONNECTED, id",
        "rdma_disconnect(id=id",
        "ibv_get_cq_event(channel=comp_channel1, cq=&, cq_context=&) = 0, cq: cq1",
        "rdma_create_qp(id=id1, pd=pd2, qp_init_attr=&ibv_qp_init_attr{RC, send_cq cq1, ",
    ] {
        assert!(count(&lines, what) > 0, "no {what:?}: {lines:#?}");
    }
}

#[test]
fn a_trace_tells_what_sockets_over_rdma_do() {
    let port = common::free_port();
    let lines = trace(
        "trace_5",
        &format!(
            "rstream -b 127.0.0.1 -p {port} -S 64 -I 10 -C 2 & sleep 0.5; \
             until rstream -s 127.0.0.1 -p {port} -S 64 -I 10 -C 2; do sleep 0.1; done; wait"
        ),
    );
    for what in [
        "rsocket(",
        "rlisten(",
        "raccept(",
        "rconnect(",
        "rsend(",
        "rrecv(",
        "rclose(",
    ] {
        assert!(count(&lines, what) > 0, "no {what:?}: {lines:#?}");
    }
}

#[test]
fn programs_with_xrc_are_counted_and_traced() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("l.json");
    let port = common::free_port();
    let program = format!("ibv_xsrq_pingpong -p {port} -n 20 -c 1");
    let script =
        format!("{program} & sleep 0.3; until {program} 127.0.0.1; do sleep 0.1; done; wait");
    let trace = folder.path().join("trace");
    let [file, trace] = [&file, &trace].map(|path| path.to_str().expect("text"));
    let run = [
        "run",
        "--ledger",
        file,
        "--trace",
        trace,
        "--link-layer",
        "ib",
        "--fabric",
        "ledger_3",
    ];
    let out = verbatim(&[&run[..], &["--", "sh", "-c", &script]].concat());
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let lines = std::fs::read_to_string(trace).expect("a trace");
    for what in [" ibv_open_xrcd(", " post_send qp", " post_srq_recv srq"] {
        assert!(lines.contains(what), "no {what:?}: {lines}");
    }
    let text = std::fs::read_to_string(file).expect("it was written");
    let ledger = Ledger::parse(&text).expect("a ledger");
    let told = |note: &String| note.contains("transport that the model does not have");
    let worked = ledger
        .processes
        .iter()
        .filter(|process| process.notes.iter().any(told));
    assert_eq!(worked.count(), 2, "{ledger:?}");
}

#[test]
fn a_trace_of_a_killed_program_is_whole_up_to_its_end() {
    let lines = trace(
        "trace_3",
        &format!("{}; kill -KILL $client $server; true", endless()),
    );
    assert!(count(&lines, "post_send qp1 1/1 ") > 10, "{lines:#?}");
    assert_eq!(count(&lines, "ibv_destroy_qp"), 0);
}

#[test]
fn a_trace_tells_new_posts_and_polls_and_what_was_refused() {
    let port = common::free_port();
    let lines = trace(
        "trace_4",
        &format!(
            "ibv_rc_pingpong -N -t -p {port} -n 20 & sleep 0.3; \
             until ibv_rc_pingpong -N -t -p {port} -n 20 127.0.0.1; do sleep 0.1; done; wait; \
             ibv_rc_pingpong -r 100000 -p {port}; true"
        ),
    );
    for (what, times) in [
        ("wr_complete qp1 1/1 wr_id=2 SEND 4096 B SIGNALED", 40),
        ("start_poll cq1 1/1 wr_id=", 20),
    ] {
        assert!(count(&lines, what) >= times, "{what:?}: {lines:#?}");
    }
    let refused = lines
        .iter()
        .any(|(_, _, line)| line.ends_with("= NULL (Invalid argument)"));
    assert!(refused, "{lines:#?}");
}

#[test]
fn a_trace_that_cannot_be_written_stops_before_the_program_runs() {
    let out = verbatim(&["run", "--trace", "/nonexistent/trace", "--", "echo", "ran"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(out.stdout.is_empty());
    let message = String::from_utf8_lossy(&out.stderr);
    assert!(
        message.contains("cannot write the trace /nonexistent/trace"),
        "{message}"
    );
}
