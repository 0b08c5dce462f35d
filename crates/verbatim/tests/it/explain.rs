//! `verbatim explain`: advice from a ledger, as text, as JSON, and as a page in a real browser.

use std::path::Path;
use std::process::Command;

use nicmodel::op_profile::{
    CountedOperations, MessageBalance, OperationProfile, PostedRecvs, PostlistsByLength, QueuePair,
    Thread, VERSION,
};
use nicmodel::{Operation, Transport, Verb};
use serde_json::Value;
use tap::{LEDGER_VERSION, Ledger};

use crate::common;

/// A server that answers 60-byte datagrams one by one, though 14 wait on average; and an idle
/// process.
fn ledger() -> Ledger {
    let send = Operation::new(Verb::Send, Transport::Ud, 60)
        .inlined()
        .with_signaled_fraction(1.0);
    let request = Operation::new(Verb::Send, Transport::Ud, 3);
    let count = 142_000;
    let queue_pair = |qpn| QueuePair {
        sent: vec![CountedOperations {
            operation: send,
            count,
        }],
        postlists: count,
        unpolled_postlist_runs: 10_000,
        received: vec![CountedOperations {
            operation: request,
            count,
        }],
        max_outstanding: 64,
        mean_outstanding: 20.0,
        postlist_lengths: vec![PostlistsByLength {
            max_postlist_len: 1,
            count,
        }],
        posted_recvs: PostedRecvs {
            postlists: count,
            count,
            buffer_bytes: count * 64,
        },
        max_send_wr: 128,
        max_inline_data: 64,
        ..QueuePair::new(qpn, Transport::Ud)
    };
    let worker = OperationProfile {
        version: VERSION,
        program: "server --name '<script>alert(1)</script>' & co".to_owned(),
        pid: 4711,
        duration_ns: 1_000_000_000,
        complete: true,
        threads: vec![Thread {
            posts: count,
            recv_posts: count,
            poll_calls: 30_000,
            empty_polls: 10_000,
            completions: 4 * count,
            ..Thread::default()
        }],
        queue_pairs: (0x12..0x16).map(queue_pair).collect(),
        peer_count: 5,
        notes: vec!["3 objects were not counted".to_owned()],
        ..OperationProfile::default()
    };
    let idle = OperationProfile {
        version: VERSION,
        pid: 4712,
        ..OperationProfile::default()
    };
    Ledger {
        format: "verbatim ledger".to_owned(),
        version: LEDGER_VERSION,
        command: "server --name '<script>alert(1)</script>' & co".to_owned(),
        provider: "softnic".to_owned(),
        processes: vec![idle, worker],
        pcie: None,
        notes: Vec::new(),
    }
}

fn stored(ledger: &Ledger, folder: &Path) -> String {
    let file = folder.join("l.json");
    std::fs::write(&file, serde_json::to_string(ledger).expect("JSON")).expect("written");
    file.to_str().expect("text").to_owned()
}

fn explained(ledger: &Ledger, more: &[&str]) -> (String, String, Option<i32>) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = stored(ledger, folder.path());
    let args = [&["explain", &file][..], more].concat();
    let out = common::verbatim(&args).output().expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (text(out.stdout), text(out.stderr), out.status.code())
}

#[test]
fn advice_names_the_queue_pair_the_fix_and_the_gain() {
    let (text, _, status) = explained(&ledger(), &["--nic", "cib"]);
    assert_eq!(status, Some(0));
    let batching = text
        .lines()
        .find(|line| line.contains("doorbell-batching"))
        .unwrap_or_else(|| panic!("{text}"));
    for words in [
        "QP 0x12 (and 3 more) posts 1.0 WRs a doorbell; 14.2 were waiting on average",
        "by one ibv_post_send: 1 MMIO write instead of 28",
        " %",
    ] {
        assert!(batching.contains(words), "{words}: {batching}");
    }
    for words in [
        "UD SEND, 60 B inline",
        "WQEs by MMIO",
        "bottleneck",
        "1 more of its processes",
        "3 objects",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let position = |name: &str| text.find(&format!("[{name}")).unwrap_or(usize::MAX);
    assert!(
        position("unsignaled") != usize::MAX && position("header-only") == usize::MAX,
        "{text}"
    );
}

/// A client that sends one message and waits for its answer, and signals one in 64.
fn closed_loop(program: &str, sent_ahead: u64, received_ahead: u64) -> OperationProfile {
    let send = Operation::new(Verb::Send, Transport::Ud, 8)
        .inlined()
        .with_signaled_fraction(1.0 / 64.0);
    let count = 10_000;
    let counted = |operation| vec![CountedOperations { operation, count }];
    let queue_pair = QueuePair {
        sent: counted(send),
        postlists: count,
        unpolled_postlist_runs: 100,
        received: counted(send),
        max_outstanding: 256,
        mean_outstanding: 128.0,
        ..QueuePair::new(0x12, Transport::Ud)
    };
    OperationProfile {
        version: VERSION,
        program: program.to_owned(),
        complete: true,
        threads: vec![Thread {
            posts: count,
            messages: Some(MessageBalance {
                sent: count,
                received: count,
                max_sent_ahead: sent_ahead,
                max_received_ahead: received_ahead,
            }),
            ..Thread::default()
        }],
        queue_pairs: vec![queue_pair],
        peer_count: 1,
        ..OperationProfile::default()
    }
}

#[test]
fn messages_that_are_answered_are_outstanding_until_their_answer() {
    let processes = vec![closed_loop("client", 1, 0), closed_loop("server", 0, 1)];
    let ledger = Ledger {
        processes,
        ..ledger()
    };
    let (text, _, status) = explained(&ledger, &["--nic", "cib"]);
    assert_eq!(status, Some(0));
    for words in [
        "It got an answer to each message: at most 1 message was unanswered",
        "It answered each message: at most 1 message was to be answered",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!(
        text.matches("round trips bound its rate").count(),
        2,
        "{text}"
    );
    assert!(!text.contains("doorbell-batching"), "{text}");
    let (json, _, _) = explained(&ledger, &["--nic", "cib", "--json"]);
    let value: Value = serde_json::from_str(&json).expect("one object");
    for process in value["data"]["processes"].as_array().expect("a list") {
        let rate = process["predicted_mops"].as_f64().expect("a rate");
        assert!((0.4..0.55).contains(&rate), "{rate}");
    }
}

#[test]
fn perftest_without_inlining_is_to_be_recorded_on_a_known_device() {
    let mut process = closed_loop("/usr/bin/ib_write_bw -s 8", 300, 7);
    process.queue_pairs[0].sent[0].operation.inline = false;
    let of = |provider: &str| Ledger {
        provider: provider.to_owned(),
        processes: vec![process.clone()],
        ..ledger()
    };
    let note = "verbatim run --nic cib --ledger FILE";
    assert!(explained(&of("softnic"), &[]).0.contains(note));
    assert!(!explained(&of("system"), &[]).0.contains(note));
}

#[test]
fn json_has_what_the_text_has() {
    let (text, _, status) = explained(&ledger(), &["--json"]);
    assert_eq!(status, Some(0));
    let value: Value = serde_json::from_str(&text).expect("one object");
    assert_eq!(value["type"], "explanation");
    let process = &value["data"]["processes"][0];
    assert_eq!(
        (&process["pid"], &process["posted"]),
        (&4711.into(), &568_000.into())
    );
    let advice = process["advice"].as_array().expect("a list");
    let gains: Vec<_> = advice
        .iter()
        .filter_map(|advice| advice["gain"]["relative"].as_f64())
        .collect();
    assert!(
        !gains.is_empty() && gains.is_sorted_by(|a, b| a >= b),
        "{gains:?}"
    );
    let sum: f64 = process["transactions"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|item| item["to_device_bytes"].as_f64())
        .sum();
    let all = process["to_device_bytes"].as_f64().expect("a number");
    assert!((sum - all).abs() < 1e-6 && all > 180.0, "{sum} {all}");
}

#[test]
fn a_program_that_keeps_the_guideline_is_not_told_of_it() {
    let mut kept = ledger();
    for qp in &mut kept.processes[1].queue_pairs {
        qp.postlists = qp.unpolled_postlist_runs;
    }
    let (text, _, _) = explained(&kept, &[]);
    assert!(!text.contains("doorbell-batching"), "{text}");
}

#[test]
fn what_is_no_ledger_or_no_nic_is_refused_with_words() {
    let (_, message, status) = explained(&ledger(), &["--nic", "cx9"]);
    assert_eq!(status, Some(2));
    assert!(
        message.contains("cx9") && message.contains("cib"),
        "{message}"
    );
    let other = Ledger {
        version: 9,
        ..ledger()
    };
    let (_, message, status) = explained(&other, &[]);
    assert_eq!(status, Some(2));
    assert!(message.contains("version 9"), "{message}");
    let mut wrong = ledger();
    wrong.processes[1].queue_pairs[0].unpolled_postlist_runs = u64::MAX;
    let (_, message, status) = explained(&wrong, &[]);
    assert_eq!(status, Some(2));
    assert!(
        message.contains("0x12") && message.contains("runs"),
        "{message}"
    );
    let folder = tempfile::tempdir().expect("a folder");
    for (name, bytes) in [
        ("empty", &b""[..]),
        ("binary", &[0xff; 64]),
        ("cut", br#"{"format": "verbatim led"#),
    ] {
        let file = folder.path().join(name);
        std::fs::write(&file, bytes).expect("written");
        let out = common::verbatim(&["explain", file.to_str().expect("text")])
            .output()
            .expect("it starts");
        let message = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{message}");
        assert!(message.contains("no ledger"), "{message}");
    }
    let out = common::verbatim(&["explain", "/nonexistent/l.json"])
        .output()
        .expect("it starts");
    assert_eq!(out.status.code(), Some(2));
}

#[test]
fn what_the_nic_cannot_do_is_said_and_the_rest_is_explained() {
    let mut long = ledger();
    for qp in &mut long.processes[1].queue_pairs {
        qp.sent[0].operation.payload_bytes = 3000;
    }
    let (text, _, status) = explained(&long, &[]);
    assert_eq!(status, Some(0));
    assert!(text.contains("taken as fetched by DMA"), "{text}");
}

#[test]
fn what_was_done_and_the_nic_cannot_do_is_not_called_nothing() {
    // ConnectX cannot send datagrams of more than 2048 bytes.
    let mut long = ledger();
    for qp in &mut long.processes[1].queue_pairs {
        for counted in qp.sent.iter_mut().chain(&mut qp.received) {
            counted.operation.payload_bytes = 4096;
            counted.operation.inline = false;
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("report.html");
    let (text, _, status) = explained(&long, &["--nic", "cx"]);
    assert_eq!(status, Some(0));
    let (_, _, status) = explained(
        &long,
        &["--nic", "cx", "--html", page.to_str().expect("text")],
    );
    assert_eq!(status, Some(0));
    let html = std::fs::read_to_string(&page).expect("written");
    for shown in [&text, &html] {
        assert!(!shown.contains("posted or received anything"), "{shown}");
        for words in [
            "This NIC can do nothing of what its processes did",
            "process 4711: 142000 operations are left out",
            "1 more of its processes",
        ] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
    }
}

#[test]
fn where_the_profile_has_no_number_a_change_is_not_called_useless() {
    let (known, _, _) = explained(&ledger(), &["--nic", "cib"]);
    assert!(!known.contains("what is unknown of it"), "{known}");
    // Neither the processor costs of ConnectX-3's cluster nor its processing units are published.
    let (text, _, _) = explained(&ledger(), &["--nic", "cx3"]);
    assert!(!text.contains("something else binds"), "{text}");
    assert!(text.contains("what is unknown of it may bind"), "{text}");
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("report.html");
    let args = ["--nic", "cx3", "--html", page.to_str().expect("text")];
    let (_, _, status) = explained(&ledger(), &args);
    assert_eq!(status, Some(0));
    let html = std::fs::read_to_string(&page).expect("written");
    for words in [
        "at most <b>",
        "unknown for this NIC: ",
        "what is unknown of it may bind",
    ] {
        assert!(html.contains(words), "{words}: {html}");
    }
}

#[test]
fn a_program_that_never_polls_is_said_to_do_so() {
    let mut silent = ledger();
    silent.processes[1].threads[0].poll_calls = 0;
    silent.processes[1].threads[0].empty_polls = 0;
    silent.processes[1].threads[0].completions = 0;
    let (text, _, status) = explained(&silent, &[]);
    assert_eq!(status, Some(0));
    assert!(text.contains("it polled no completion queue"), "{text}");
    assert!(!text.contains("of its polls"), "{text}");
}

#[test]
fn who_waits_for_each_operation_is_told_what_bounds_it() {
    let mut slow = ledger();
    for qp in &mut slow.processes[1].queue_pairs {
        (qp.max_outstanding, qp.mean_outstanding) = (1, 1.0);
        qp.unpolled_postlist_runs = qp.postlists;
    }
    let (text, _, _) = explained(&slow, &[]);
    // Four datagrams outstanding: their round trips allow hardly more than the core does.
    assert!(text.contains("\n round trips "), "{text}");
    // Neither more queue pairs nor postlists shorten a round trip, and its completion is necessary.
    assert!(!text.contains("  1. "), "{text}");
    assert!(!text.contains("[multi-queue"), "{text}");
    // One WRITE outstanding takes the time of the simulator.
    let mut one = one_queue_pair();
    let qp = &mut one.processes[1].queue_pairs[0];
    (
        qp.max_outstanding,
        qp.mean_outstanding,
        qp.unpolled_postlist_runs,
    ) = (1, 1.0, qp.postlists);
    qp.sent[0].operation = qp.sent[0].operation.inlined().with_signaled_fraction(1.0);
    let (text, _, _) = explained(&one, &["--nic", "cib"]);
    assert!(
        text.contains("\n0.652 M/s; bottleneck: round trips"),
        "{text}"
    );
    assert!(
        text.contains("At most 1 operation is outstanding"),
        "{text}"
    );
    let (text, _, _) = explained(&ledger(), &[]);
    assert!(!text.contains("round trips bound its rate"), "{text}");
}

/// Failed completions come first, and a closed loop with failures is still one.
#[test]
fn failures_come_before_costs_and_advice() {
    let mut half = one_queue_pair();
    let qp = &mut half.processes[1].queue_pairs[0];
    (
        qp.max_outstanding,
        qp.mean_outstanding,
        qp.unpolled_postlist_runs,
    ) = (1, 1.0, qp.postlists);
    qp.failed_completions = qp.sent[0].count / 2;
    let (text, _, status) = explained(&half, &["--nic", "cib"]);
    assert_eq!(status, Some(0));
    let at = |words: &str| {
        text.find(words)
            .unwrap_or_else(|| panic!("{words}: {text}"))
    };
    let failed = at("FAILED: 71000 of its completions are in error");
    assert!(failed < at("142000 posted") && failed < at("What each kind of operation costs"));
    assert!(text.contains("bottleneck: round trips"), "{text}");
    let (json, _, _) = explained(&half, &["--nic", "cib", "--json"]);
    let value: Value = serde_json::from_str(&json).expect("one object");
    assert_eq!(value["data"]["processes"][0]["failed"], 71_000);
}

/// `ib_write_bw -s 8`: a thread with one queue pair.
fn one_queue_pair() -> Ledger {
    let mut ledger = ledger();
    let worker = &mut ledger.processes[1];
    worker.queue_pairs.truncate(1);
    worker.peer_count = 1;
    let qp = &mut worker.queue_pairs[0];
    qp.transport = Transport::Rc;
    qp.received.clear();
    qp.sent[0].operation =
        Operation::new(Verb::RdmaWrite, Transport::Rc, 8).with_signaled_fraction(0.01);
    ledger
}

#[test]
fn steps_come_in_the_order_in_which_to_take_them() {
    let (text, _, status) = explained(&one_queue_pair(), &["--nic", "cib"]);
    assert_eq!(status, Some(0));
    let numbered = |number: &str| {
        let mut lines = text.lines();
        lines
            .find(|line| line.trim_start().starts_with(number))
            .unwrap_or_else(|| panic!("{text}"))
    };
    // Postlists on one queue pair lose rate, so more queue pairs come first.
    let (first, second) = (numbered("1. "), numbered("2. "));
    assert!(first.contains("[multi-queue"), "{first}");
    assert!(first.contains(" (10.4 to 18."), "{first}");
    assert!(second.contains("[doorbell-batching"), "{second}");
    for words in ["1 MMIO write instead of 14: +", " (18.", " % in all"] {
        assert!(second.contains(words), "{words}: {second}");
    }
    // The picture shows the same steps.
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("report.html");
    explained(&one_queue_pair(), &["--html", page.to_str().expect("text")]);
    let html = std::fs::read_to_string(&page).expect("written");
    // The advice links to the book's text on the guideline, on the same page.
    assert!(html.contains("href=\"#guideline-multi-queue\""), "{html}");
    assert!(html.contains("<h3 id=\"guideline-multi-queue\">"), "{html}");
    let at = |label: &str| {
        html.find(label)
            .unwrap_or_else(|| panic!("{label}: {html}"))
    };
    assert!(at(">1. multi-queue<") < at(">2. doorbell-batching<"));
    // The gain belongs to the queue pairs, not to inlining.
    assert!(!text.contains("together with multi-queue"), "{text}");
    let inlining = text.lines().find(|line| line.contains("[inlining"));
    assert!(
        inlining.is_none_or(|line| !line.contains("M/s")),
        "{inlining:?}"
    );
}

/// 64 equal ranks are one section with their spread; a different rank is its own section.
#[test]
fn ranks_of_one_program_are_one_section() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut files = Vec::new();
    for rank in 0..65u32 {
        let mut ledger = one_queue_pair();
        ledger.processes.remove(0);
        let process = &mut ledger.processes[0];
        process.pid = 100 + rank;
        process.program = format!("rank --id {rank}");
        let qp = &mut process.queue_pairs[0];
        let count = qp.sent[0].count + u64::from(rank);
        (qp.sent[0].count, qp.postlists) = (count, count);
        qp.postlist_lengths = vec![PostlistsByLength {
            max_postlist_len: 1,
            count,
        }];
        if rank == 64 {
            qp.sent[0].operation.payload_bytes = 65536;
        }
        let file = folder.path().join(format!("{rank}.json"));
        std::fs::write(&file, serde_json::to_string(&ledger).expect("JSON")).expect("written");
        files.push(file.to_str().expect("text").to_owned());
    }
    let mut args = vec!["explain", "--merge", "--nic", "cib"];
    args.extend(files.iter().map(String::as_str));
    let out = common::verbatim(&args).output().expect("it starts");
    let text = String::from_utf8(out.stdout).expect("text");
    assert_eq!(
        text.matches("What binds on its machine").count(),
        2,
        "{text}"
    );
    let words = "one of 64 processes that do the same; of them all, median (min..max): 142032 (142000..142063) posted, 0 \
                 (0..0) received, 0.142 (0.142..0.142) M/s where they ran; the model allows 10.4 (10.4..10.4) M/s";
    assert!(text.contains(words), "{text}");
    args.push("--json");
    let out = common::verbatim(&args).output().expect("it starts");
    let value: Value = serde_json::from_slice(&out.stdout).expect("one object");
    let alike = &value["data"]["processes"][0]["alike"];
    assert_eq!(alike["processes"], 64, "{value}");
}

#[test]
fn two_nics_and_two_ledgers_stand_side_by_side() {
    let (text, _, status) = explained(&one_queue_pair(), &["--nic", "cib", "--nic", "cx3"]);
    assert_eq!(status, Some(0));
    let line = |text: &str, title: &str| -> Vec<String> {
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(title));
        let line = line.unwrap_or_else(|| panic!("{title}: {text}"));
        let words = line.trim().trim_start_matches(title).split_whitespace();
        words.map(ToOwned::to_owned).collect()
    };
    assert!(
        text.contains("cib: server") && text.contains("cx3: server"),
        "{text}"
    );
    assert_eq!(line(&text, "posted")[..2], ["142000", "142000"]);
    assert_eq!(line(&text, "the model allows, M/s")[0], "10.4");
    // The program without and with inlining.
    let folder = tempfile::tempdir().expect("a folder");
    let mut after = one_queue_pair();
    for qp in &mut after.processes[1].queue_pairs {
        qp.sent[0].operation = qp.sent[0].operation.inlined();
    }
    let files = [("before", one_queue_pair()), ("after", after)].map(|(name, ledger)| {
        let file = folder.path().join(name);
        std::fs::write(&file, serde_json::to_string(&ledger).expect("JSON")).expect("written");
        file.to_str().expect("text").to_owned()
    });
    let out = common::verbatim(&["explain", &files[0], &files[1], "--nic", "cib"])
        .output()
        .expect("it starts");
    let text = String::from_utf8(out.stdout).expect("text");
    assert_eq!(
        line(&text, "DMA reads"),
        ["1.00", "0", "-100", "%"],
        "{text}"
    );
    assert_eq!(
        line(&text, "MMIO writes"),
        ["1.00", "1.00", "0", "%"],
        "{text}"
    );
    let page = folder.path().join("page.html");
    let args = [
        "explain",
        &files[0],
        &files[1],
        "--html",
        page.to_str().expect("text"),
    ];
    let out = common::verbatim(&args).output().expect("it starts");
    let message = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{message}");
    assert!(message.contains("--merge"), "{message}");
}

#[test]
fn a_program_that_nothing_makes_faster_is_told_why() {
    let mut large = one_queue_pair();
    // Both ports are in use.
    let queue_pairs = &mut large.processes[1].queue_pairs;
    queue_pairs.push(QueuePair {
        qpn: 0x13,
        ..queue_pairs[0].clone()
    });
    let second = &mut queue_pairs[1].sent[0].operation;
    second.payload_bytes = 65536;
    large.processes[1].queue_pairs[0].sent[0]
        .operation
        .payload_bytes = 65536;
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("report.html");
    let (text, _, _) = explained(&large, &[]);
    explained(&large, &["--html", page.to_str().expect("text")]);
    let html = std::fs::read_to_string(&page).expect("written");
    for shown in [&text, &html] {
        assert!(
            shown.contains("othing: none of the guidelines saves what binds, "),
            "{shown}"
        );
        assert!(!shown.contains("brings nothing"), "{shown}");
    }
}

#[test]
fn the_page_has_the_counters_of_pcie_and_idle_processes() {
    let mut counted = ledger();
    counted.pcie = Some(tap::PcieLines {
        rd_cur: 5_000_123,
        itom: 77,
    });
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("report.html");
    let (_, _, status) = explained(&counted, &["--html", page.to_str().expect("text")]);
    assert_eq!(status, Some(0));
    let html = std::fs::read_to_string(&page).expect("written");
    for words in ["5000123 lines read (PCIeRdCur", "1 more of its processes"] {
        assert!(html.contains(words), "{words}: {html}");
    }
    assert!(!html.contains('\u{fffd}'), "{html}");
}

/// A script that checks every picture: all text is inside, no texts overlap, and bars exist.
const LOOK: &str = "<script>
const svgs = [...document.querySelectorAll('svg')];
let outside = 0, overlaps = 0, texts = 0, bars = 0;
for (const svg of svgs) {
  const frame = svg.getBoundingClientRect();
  const boxes = [...svg.querySelectorAll('text')].map(text => text.getBoundingClientRect());
  texts += boxes.length;
  bars += [...svg.querySelectorAll('rect')].filter(rect => rect.getBoundingClientRect().width > 1).length;
  for (const [i, a] of boxes.entries()) {
    if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1 || a.bottom > frame.bottom + 1) outside++;
    for (const b of boxes.slice(i + 1))
      if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3) overlaps++;
  }
}
const page = document.documentElement;
const seen = {svgs: svgs.length, texts, bars, outside, overlaps, wider: page.scrollWidth - page.clientWidth,
  scripts: document.scripts.length, title: document.title};
const result = document.createElement('pre');
result.id = 'seen';
result.textContent = JSON.stringify(seen);
document.body.append(result);
</script>";

/// Returns the script's result for a page in a window of this width.
fn seen(page: &Path, width: u32) -> Value {
    let profile = tempfile::tempdir().expect("a folder");
    let out = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--virtual-time-budget=5000",
            "--dump-dom",
        ])
        .arg(format!("--window-size={width},900"))
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("chromium is installed");
    let dom = String::from_utf8_lossy(&out.stdout);
    let (_, rest) = dom
        .split_once("<pre id=\"seen\">")
        .unwrap_or_else(|| panic!("no result: {dom}"));
    let (json, _) = rest.split_once("</pre>").expect("it ends");
    let json = json
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&");
    serde_json::from_str(&json).expect("JSON")
}

#[test]
fn the_page_is_whole_in_a_browser() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("report.html");
    let (text, _, status) = explained(&ledger(), &["--html", page.to_str().expect("text")]);
    assert_eq!((status, text.as_str()), (Some(0), ""));
    let html = std::fs::read_to_string(&page).expect("written");
    // The summary comes first, and links only to sections of the page.
    let (before, _) = html.split_once("<h2 id=").expect("a section");
    let summary = before.find("<nav>").expect("a summary");
    for (at, _) in html.match_indices("href=\"") {
        let (target, _) = html[at + 6..].split_once('"').expect("its end");
        let id = target.strip_prefix('#').expect("a section of this page");
        assert!(
            at > summary && html.contains(&format!("id=\"{id}\"")),
            "{id}"
        );
    }
    assert!(html.contains("prefers-color-scheme: dark") && html.contains("@media print"));
    for elsewhere in ["http:", "https:", "src=", "<script"] {
        assert!(
            !html.contains(elsewhere),
            "the page needs nothing beside it: {elsewhere}"
        );
    }
    let looking = folder.path().join("looking.html");
    std::fs::write(&looking, html.replace("</body>", &format!("{LOOK}</body>"))).expect("written");
    for width in [1000, 500, 420] {
        let seen = seen(&looking, width);
        let number = |name: &str| seen[name].as_i64().unwrap_or(-1);
        assert!(
            number("svgs") >= 5 && number("texts") >= 20 && number("bars") >= 10,
            "{seen}"
        );
        assert_eq!((number("outside"), number("overlaps")), (0, 0), "{seen}");
        assert_eq!(number("wider"), 0, "the page scrolls sideways: {seen}");
        assert_eq!(
            number("scripts"),
            1,
            "what a program is called is no script: {seen}"
        );
        assert!(
            seen["title"]
                .as_str()
                .expect("text")
                .contains("<script>alert(1)"),
            "{seen}"
        );
    }
}

#[test]
fn every_guideline_is_advised_where_it_is_broken_and_only_there() {
    let lines = common::lines_of(&[
        "bench",
        "guidelines",
        "--rounds",
        "1",
        "--repetitions",
        "50",
        "--json",
    ]);
    let names: Vec<_> = lines
        .iter()
        .map(|line| line["data"]["guideline"].as_str().expect("a name"))
        .collect();
    let all: Vec<_> = nicmodel::guidelines::ALL_GUIDELINES
        .iter()
        .map(|guideline| guideline.name)
        .collect();
    assert_eq!(names, all);
    for line in &lines {
        let data = &line["data"];
        assert_eq!(
            (&data["advice"]["guideline"], &data["advised_though_kept"]),
            (&data["guideline"], &false.into()),
            "{data}"
        );
        assert!(data["measured_gain"]["median"].is_f64(), "{data}");
        // The simulated gain must agree with the gain that the model predicts.
        let (predicted, simulated) = (&data["predicted_gain"], &data["simulated_gain"]);
        match (predicted.as_f64(), simulated.as_f64()) {
            (Some(predicted), Some(simulated)) => {
                assert!(predicted > 0.15, "{data}");
                let error = (1.0 + simulated) / (1.0 + predicted) - 1.0;
                assert!(error.abs() < 0.15, "{error}: {data}");
            }
            (Some(_), None) => panic!("predicted and not simulated: {data}"),
            (None, _) => assert!(
                ["read-window", "connected-qps", "huge-pages"]
                    .contains(&data["guideline"].as_str().expect("a name")),
                "{data}"
            ),
        }
    }
}

#[test]
fn what_is_simulated_has_no_ledger_and_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("l.json");
    let file = file.to_str().expect("text");
    for command in [
        &["sequencer", "--nic", "cib"][..],
        &["kv", "--nic", "cib"],
        &["bench", "ud-send", "--nic", "cib"],
        &["bench", "latency", "--nic", "cib"],
        &["bench", "wqe-cache", "--nic", "cib"],
    ] {
        let out = common::run(&[command, &["--ledger", file]].concat());
        let message = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{command:?}: {message}");
        assert!(
            message.contains("a simulated cluster has none"),
            "{command:?}: {message}"
        );
        assert!(!Path::new(file).exists(), "{command:?}");
    }
}
