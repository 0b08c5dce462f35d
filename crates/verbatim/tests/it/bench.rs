//! The benchmarks with little work: two processes for every row, without a check of the rates.

use serde_json::Value;

use crate::common::{alone, json_lines, lines_of, run, verbatim};

#[test]
fn every_row_runs_beside_its_peer() {
    runs_beside_peers("peers", 24);
}

#[test]
fn every_row_by_packets_runs_beside_its_peer() {
    runs_beside_peers("wire", 9);
}

/// Returns true if a program is installed.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Returns true for a row whose peer is not installed; the row must name the missing package.
fn lacks_its_peer(data: &Value) -> bool {
    let is_lacking = data["row"] == "wire-tcp" && !is_installed("iperf3");
    if is_lacking {
        let errors = data["errors"].to_string();
        assert!(errors.contains("Debian: iperf3"), "{errors}");
    }
    is_lacking
}

fn runs_beside_peers(command: &str, row_count: usize) {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let record = folder.path().join("run.jsonl");
    let smoke = [
        "bench", command, "--smoke", "--rounds", "1", "--json", "--record",
    ];
    let out = verbatim(&smoke).arg(&record).output();
    let out = out.expect("the program starts");
    let messages = String::from_utf8_lossy(&out.stderr);
    // Goals are not checked here, so exit status 0 and 1 are both right.
    assert!(matches!(out.status.code(), Some(0 | 1)), "{messages}");
    let text = String::from_utf8(out.stdout).expect("text");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("one JSON object per line"))
        .collect();
    let of = |kind: &str| {
        lines
            .iter()
            .filter(|l| l["type"] == kind)
            .collect::<Vec<_>>()
    };
    assert_eq!(lines[0]["type"], "record");
    assert_eq!(of("bounce").len(), 1);
    assert_eq!(of("summary").len(), 1);
    let rows = of("row");
    assert_eq!(rows.len(), row_count);
    for row in rows {
        let data = &row["data"];
        if lacks_its_peer(data) {
            continue;
        }
        assert_eq!(
            data["errors"],
            Value::Array(vec![]),
            "{}: {messages}",
            data["row"]
        );
        let both = [&data["near"], &data["far"]];
        let mut both = both
            .into_iter()
            .filter(|figures| !figures.is_null())
            .peekable();
        // Other tests can disturb the bounces, and the cores then seem to move.
        assert!(
            both.peek().is_some() || data["moved"].as_u64() > Some(0),
            "{data}"
        );
        for figures in both {
            assert!(figures["ours"]["median"].is_f64(), "{data}");
            for (name, figure) in [("peer_name", "peer"), ("limit_name", "limit")] {
                assert!(!data[name].is_null() || figures[figure].is_null(), "{data}");
            }
        }
    }
    for sample in of("sample") {
        assert!(
            sample["data"]["verified_ops"].as_u64() > Some(0),
            "{sample}"
        );
    }
    let kept = std::fs::read_to_string(&record).expect("the run record");
    assert_eq!(kept, text, "the record holds what was printed");
}

#[test]
fn the_time_of_a_message_is_broken_down() {
    let args = ["peers", "--breakdown", "--smoke", "--rounds", "1"];
    let lines = lines(
        &[
            &args[..],
            &["--only", "rc-send", "--only", "ud-send-single"],
        ]
        .concat(),
    );
    let of: Vec<_> = lines.iter().map(|line| &line["data"]).collect();
    let who: Vec<_> = of
        .iter()
        .map(|data| (&data["row"], &data["side"]))
        .collect();
    assert_eq!(who.len(), 4, "{who:?}");
    for data in of {
        for phase in ["post", "poll", "receive", "post_recv"] {
            assert!(data["one_core"]["ns"][phase].as_f64() > Some(0.0), "{data}");
        }
        assert!(
            data["one_core"]["verified_ops"].as_u64() > Some(0),
            "{data}"
        );
    }
}

/// Runs `verbatim bench ARGS --json` in two short rounds, which must succeed, and returns the
/// lines.
#[track_caller]
fn bench(args: &[&str]) -> Vec<Value> {
    lines(&[args, &["--rounds", "2", "--duration", "10ms"]].concat())
}

/// Runs `verbatim bench ARGS --json`, which must succeed, and returns the lines.
#[track_caller]
fn lines(args: &[&str]) -> Vec<Value> {
    let _alone = alone();
    lines_of(&[&["bench"], args, &["--json"]].concat())
}

/// Returns the data of the last line of `args`, after a record and two samples.
#[track_caller]
fn result(args: &[&str], kind: &str) -> Value {
    let mut lines = bench(args);
    let kinds: Vec<_> = lines.iter().map(|line| line["type"].clone()).collect();
    assert_eq!(kinds, ["record", "sample", "sample", kind], "{args:?}");
    let result = lines.pop().expect("a last line")["data"].take();
    assert!(
        result["verified_ops"].as_u64() > Some(0),
        "{args:?}: {result}"
    );
    result
}

#[test]
fn processes_that_sleep_answer_each_other() {
    let _alone = alone();
    let out = verbatim(&["bench", "events", "--rounds", "1"])
        .args(["--duration", "10ms", "--json"])
        .output()
        .expect("the program starts");
    let messages = String::from_utf8_lossy(&out.stderr);
    // The comparison with TCP is not checked here, so exit status 0 and 1 are both right.
    assert!(matches!(out.status.code(), Some(0 | 1)), "{messages}");
    let text = String::from_utf8(out.stdout).expect("text");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("one JSON object per line"))
        .collect();
    let kinds: Vec<_> = lines.iter().filter_map(|l| l["type"].as_str()).collect();
    assert_eq!(
        kinds,
        [&["record"][..], &["sample"; 6], &["row"; 6]].concat()
    );
    for row in &lines[7..] {
        assert!(
            row["data"]["per_second"]["median"].as_f64() > Some(0.0),
            "{row}"
        );
    }
}

#[test]
fn every_verb_has_a_rate() {
    for verb in [
        "ud-send", "rc-send", "uc-send", "rc-write", "uc-write", "rc-read", "atomics",
    ] {
        let result = result(&[verb], "rate");
        for figure in ["rate_mops", "bandwidth_gbytes_per_s"] {
            assert!(
                result[figure]["median"].as_f64() > Some(0.0),
                "{verb}: {result}"
            );
        }
    }
}

#[test]
fn every_verb_has_a_latency() {
    for verb in ["send", "ud-send", "write", "uc-write", "read", "atomics"] {
        let result = result(&["latency", "--verb", verb], "latency");
        let median = |figure: &str| result[figure]["median"].as_f64().expect("a figure");
        assert!(median("latency_ns_p50") > 0.0, "{verb}: {result}");
        assert!(
            median("latency_ns_p50") <= median("latency_ns_p99"),
            "{verb}: {result}"
        );
    }
}

#[test]
fn knobs_reach_the_record() {
    let args = [
        "rc-send",
        "--payload",
        "4K",
        "--batch",
        "3",
        "--window",
        "12",
        "--signal-every",
        "6",
        "--no-inline",
    ];
    let record = &bench(&args)[0]["data"];
    let stream = &record["settings"]["task"]["stream"];
    for (knob, want) in [
        ("payload_bytes", 4096),
        ("batch", 3),
        ("window", 12),
        ("signal_every", 6),
    ] {
        assert_eq!(stream[knob], want, "{stream}");
    }
    assert_eq!(stream["inline"], false);
    assert_eq!(record["provider"], "softnic");
}

#[test]
fn rates_are_told_to_people_too() {
    let _alone = alone();
    let short = ["bench", "rc-write", "--rounds", "1", "--duration", "10ms"];
    let out = run(&[&short[..], &["--payload", "1M"]].concat());
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(
        text.contains("RC WRITE, 1 MiB, 4 a doorbell, 8 outstanding"),
        "{text}"
    );
    assert!(
        text.contains("message rate") && text.contains("GB/s"),
        "{text}"
    );
}

#[test]
fn a_sweep_is_a_table_a_file_and_a_picture() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let (csv, svg) = (file("s.csv"), file("s.svg"));
    let points = |args: &[&str]| -> Vec<Value> {
        let files = ["--csv", &csv, "--svg", &svg];
        let lines = lines(&[&["sweep"], args, &files].concat());
        let points = lines.into_iter().filter(|line| line["type"] == "point");
        points.map(|line| line["data"].clone()).collect()
    };
    // Simulated: the port bounds long payloads on one queue pair, whatever the window.
    let simulated = points(&["uc-write", "--nic", "cib", "--values", "8,1K,64K"]);
    let values: Vec<_> = simulated
        .iter()
        .map(|point| point["value"].as_u64())
        .collect();
    assert_eq!(values, [Some(8), Some(1024), Some(65536)]);
    let bandwidth = |point: &Value| point["bandwidth_gbytes_per_s"]["median"].as_f64();
    let long = bandwidth(&simulated[2]).expect("a bandwidth");
    assert!((6.5..6.9).contains(&long), "{long} GB/s");
    // Measured.
    let measured = [
        "rc-send",
        "--over",
        "batch",
        "--values",
        "4,1",
        "--rounds",
        "2",
        "--duration",
        "20ms",
    ];
    let measured = points(&measured);
    assert_eq!(measured.len(), 2);
    assert!(
        measured
            .iter()
            .all(|point| point["verified_ops"].as_u64() > Some(0))
    );
    let text = std::fs::read_to_string(&csv).expect("written");
    let first: Vec<_> = text
        .lines()
        .map(|line| line.split(',').next().unwrap_or(""))
        .collect();
    assert_eq!(first, ["batch", "1", "4"]);
    let picture = std::fs::read_to_string(&svg).expect("drawn");
    assert!(picture.starts_with("<svg") && picture.contains("work requests a doorbell"));
}

#[test]
fn writes_are_probed_for_what_the_target_sees() {
    for (probe, question) in [("write-order", "order"), ("write-visible", "visible")] {
        for verb in ["rc-write", "uc-write"] {
            let lines = lines(&[
                probe,
                "--verb",
                verb,
                "--payload",
                "16,4K",
                "--writes",
                "200",
            ]);
            assert_eq!(lines[0]["type"], "record");
            let sizes: Vec<_> = lines[1..]
                .iter()
                .map(|line| {
                    assert_eq!(line["data"]["question"], question);
                    assert!(line["data"]["looks"].as_u64() > Some(0), "{line}");
                    line["data"]["payload_bytes"].as_u64()
                })
                .collect();
            assert_eq!(sizes, [Some(16), Some(4096)]);
        }
    }
}

#[test]
fn more_requests_in_flight_are_measured_and_verified() {
    for more in [
        &["--verb", "write"][..],
        &["--verb", "read", "--queue-pairs", "2"],
    ] {
        let depths = [&["depth", "--depth", "1,8"][..], more].concat();
        let lines = bench(&depths);
        assert_eq!(lines[0]["type"], "record");
        let depths: Vec<_> = lines[1..]
            .iter()
            .map(|line| {
                assert_eq!(line["type"], "depth");
                let data = &line["data"];
                assert!(data["verified"].as_u64() > Some(0), "{line}");
                assert!(
                    data["copies_per_s"]["median"].as_f64() > Some(0.0),
                    "{line}"
                );
                data["depth"].as_u64()
            })
            .collect();
        assert_eq!(depths, [Some(1), Some(8)]);
    }
}

#[test]
fn more_requests_in_flight_on_simulated_nics_pay_until_the_port_is_full() {
    let depth = ["bench", "depth", "--depth", "1,64", "--duration", "10ms"];
    let lines = json_lines(&run(&[
        &depth[..],
        &["--nic", "cib", "--nic", "cx3", "--json"],
    ]
    .concat()));
    let rates: Vec<_> = lines
        .iter()
        .map(|line| {
            assert_eq!(line["type"], "depth");
            let data = &line["data"];
            assert!(data["verified"].as_u64() > Some(0), "{line}");
            (data["nic"].as_str(), data["ratio_to_first"].as_f64())
        })
        .collect();
    let [
        (Some("cib"), Some(1.0)),
        (Some("cib"), cib),
        (Some("cx3"), Some(1.0)),
        (Some("cx3"), cx3),
    ] = rates[..]
    else {
        panic!("{rates:?}");
    };
    for gain in [cib, cx3] {
        assert!(gain > Some(5.0) && gain < Some(12.0), "{rates:?}");
    }
}

#[test]
fn a_crowd_does_the_work_of_its_pairs() {
    let _alone = alone();
    let crowd = ["bench", "crowd", "--processes", "4", "--messages", "100"];
    let out = run(&[&crowd[..], &["--rounds", "2", "--json"]].concat());
    let messages = String::from_utf8_lossy(&out.stderr);
    // The time is not checked here, so exit status 0 and 1 are both right.
    assert!(matches!(out.status.code(), Some(0 | 1)), "{messages}");
    let lines = json_lines(&out);
    assert_eq!(lines[0]["type"], "record");
    let verified: Vec<_> = lines[1..]
        .iter()
        .map(|line| {
            assert_eq!(line["type"], "crowd");
            let data = &line["data"];
            (data["kind"].as_str(), data["verified"].as_u64())
        })
        .collect();
    // Two rounds, each with all pairs together and in turn.
    let expected = [
        (Some("ping-pong"), Some(4 * 200)),
        (Some("stream"), Some(4 * 200)),
        (Some("all-to-all"), Some(4 * 1200)),
        (Some("beside-busy"), Some(4 * 100)),
    ];
    assert_eq!(verified, expected);
}
