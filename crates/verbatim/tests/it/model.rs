//! `verbatim model`: rates beside the published ones, single operations and the gain of changes,
//! the evidence for each number, and the user's own profiles and mixes.

use std::process::Output;

use serde_json::Value;

use crate::common::run;

fn model(args: &[&str]) -> Output {
    run(&[&["model"], args].concat())
}

fn text(args: &[&str]) -> String {
    let out = model(args);
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{args:?}: {errors}");
    String::from_utf8(out.stdout).expect("text")
}

/// Returns the data of the lines of this type.
fn json(args: &[&str], kind: &str) -> Vec<Value> {
    let text = text(&[args, &["--json"]].concat());
    let lines = text.lines().map(|line| {
        let value: Value = serde_json::from_str(line).expect("one JSON object per line");
        value
    });
    let wanted = lines.filter(|line| line["type"] == kind);
    wanted.map(|line| line["data"].clone()).collect()
}

/// Asserts that `args` is refused with a message that contains `advice`.
#[track_caller]
fn refused(args: &[&str], advice: &str) {
    let out = model(args);
    let message = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{args:?}: {message}");
    assert!(message.contains(advice), "{args:?}: {message}");
    assert!(!message.contains("panicked"), "{args:?}: {message}");
    assert!(out.stdout.is_empty(), "{args:?}");
}

#[test]
fn rates_of_a_sweep_are_limits_where_a_number_is_unknown() {
    let folder = tempfile::tempdir().expect("a folder");
    let [csv, svg] = ["a.csv", "a.svg"].map(|name| folder.path().join(name));
    let (csv_arg, svg_arg) = (csv.to_str().expect("text"), svg.to_str().expect("text"));
    let over = [
        "--over",
        "queue-pairs",
        "--nic",
        "cib",
        "--nic",
        "cx3",
        "--cores",
        "1",
    ];
    let shown = text(&[&over[..], &["--csv", csv_arg, "--svg", svg_arg]].concat());
    for line in shown.lines().filter(|line| line.contains(" cx3 ")) {
        assert!(line.contains('≤') && line.contains("CPU"), "{line}");
    }
    for line in shown.lines().filter(|line| line.contains(" cib ")) {
        assert!(!line.contains('≤'), "{line}");
    }
    for file in [csv, svg] {
        let drawn = std::fs::read_to_string(file).expect("written");
        assert!(drawn.contains("cx3, requester, at most"), "{drawn}");
        assert!(!drawn.contains("cib, requester, at most"), "{drawn}");
    }
    let points = json(&over, "point");
    let unknown = |nic: &str| {
        let point = points.iter().find(|point| point["nic"] == nic);
        point.expect("a point")["requester_unknown"].to_string()
    };
    assert_eq!(unknown("cib"), "[]");
    assert!(unknown("cx3").contains("cpu"));
}

#[test]
fn a_sweep_leaves_out_default_values_that_a_nic_cannot_execute() {
    for (nic, more, left_out) in [
        ("cx", None, "4096"),
        ("bf2", Some("--inline"), "256, 512, 1024, 2048, 4096"),
    ] {
        let mut args = vec!["--over", "payload", "--nic", nic];
        args.extend(more);
        let out = model(&args);
        let note = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{args:?}: {note}");
        assert!(
            note.contains(&format!("note: {nic}: without {left_out}: ")),
            "{note}"
        );
        assert!(!json(&args, "point").is_empty());
    }
    // Values that the user chose are not left out.
    refused(
        &["--over", "payload", "--nic", "cx", "--values", "1024,4096"],
        "at most 2048 bytes",
    );
    // Nor is anything left out if the NIC can execute none.
    refused(
        &["--over", "batch", "--nic", "cx", "--payload", "4096"],
        "at most 2048 bytes",
    );
}

#[test]
fn the_papers_mixes_are_there_without_flags() {
    let shown = text(&[]);
    for part in [
        "ud-send-batch",
        "101.6",
        "PCIe DMA read bandwidth",
        "predicted",
    ] {
        assert!(shown.contains(part), "{part} is not in\n{shown}");
    }
    let rows = json(&[], "mix");
    let row = |name: &str| {
        let found = rows.iter().find(|row| row["name"] == name);
        found.expect("a row").clone()
    };
    let send = row("ud-send-batch");
    assert_eq!(send["published"]["value"], 101.6);
    assert_eq!(send["bottleneck"], "dma-read");
    assert_eq!(send["basis"], "fitted");
    let atomics = row("sequencer-atomics");
    let rate = atomics["predicted_mops"].as_f64().expect("a rate");
    assert!((rate - 2.24).abs() < 0.01, "{rate}");
    for nic in ["cx", "cx3", "bf2"] {
        assert!(!json(&["--nic", nic], "mix").is_empty(), "{nic}");
    }
}

#[test]
fn a_window_bounds_the_rate_by_round_trips_and_nics_stand_side_by_side() {
    let write = ["--verb", "write", "--payload", "8", "--inline"];
    let shown = text(&[&write[..], &["--window", "1"]].concat());
    assert!(
        shown.contains("the requester: 0.652 M/s; bottleneck: round trips"),
        "{shown}"
    );
    let shown = text(&[&write[..], &["--nic", "cib", "--nic", "cx3"]].concat());
    for nic in ["cib", "cx3"] {
        let mut lines = shown.lines();
        let line = lines.find(|line| line.trim_start().starts_with(nic));
        assert!(
            line.is_some_and(|line| line.contains("requester")),
            "{shown}"
        );
    }
    // One queue pair uses one port, in either direction.
    let large = ["--verb", "write", "--payload", "64K", "--queue-pairs"];
    let rate = |queue_pairs: &str| {
        let bounds = json(&[&large[..], &[queue_pairs]].concat(), "bounds");
        bounds[0]["predicted_mops"].as_f64().expect("a rate") * 65.536
    };
    assert!((rate("1") / 6.8 - 1.0).abs() < 0.02, "{}", rate("1"));
    assert!(rate("2") > 1.8 * rate("1"), "{}", rate("2"));
}

#[test]
fn an_operation_has_a_cost_bounds_and_changes() {
    let args = [
        "--verb",
        "send",
        "--payload",
        "60",
        "--inline",
        "--cores",
        "1",
        "--queue-pairs",
        "1",
    ];
    let shown = text(&args);
    for part in [
        "WQEs of 128 bytes (2 cache lines)",
        "MMIO writes",
        "bottleneck: CPU",
        "what if",
    ] {
        assert!(shown.contains(part), "{part} is not in\n{shown}");
    }
    let cost = &json(&args, "footprint")[0]["per_operation"];
    assert_eq!(
        cost["requester"]["transactions"][0]["purpose"],
        "wqe-by-mmio"
    );
    assert_eq!(cost["requester"]["transactions"][0]["count"], 2.0);
    assert_eq!(json(&args, "bounds").len(), 2);
    // Postlists need several queue pairs: the best change combines both, and postlists alone are
    // worse.
    let ideas = json(&args, "what-if");
    let gain = |idea: &Value| idea["requester"]["gain"].as_f64().expect("a gain");
    assert_eq!(ideas[0]["change"], "postlists of 16 on 4 queue pairs");
    assert!(gain(&ideas[0]) > 2.0);
    let batches = ideas
        .iter()
        .find(|idea| idea["change"] == "postlists of 16");
    assert!(gain(batches.expect("it is there")) < 0.0);
}

#[test]
fn counters_choose_locks() {
    let slots = |args: &[&str]| {
        let bounds = json(&[&["--verb", "fetch-add"], args].concat(), "bounds");
        let responder = &bounds[1];
        responder["predicted_mops"].as_f64().expect("a rate")
    };
    let page = slots(&["--counters", "1000", "--stride", "4096"]);
    assert!((page - 2.24).abs() < 0.01, "{page}");
    assert!(slots(&["--counters", "1000"]) > 51.0);
}

#[test]
fn a_flush_costs_what_a_read_of_no_bytes_does() {
    let rate = |verb: &str| {
        let args = ["--verb", verb, "--payload", "0", "--nic", "cib"];
        let bounds = json(&args, "bounds");
        bounds[0]["predicted_mops"].as_f64().expect("a rate")
    };
    assert!((rate("flush") - rate("read")).abs() < 1e-9);
}

#[test]
fn every_number_has_evidence() {
    let numbers = json(&["--profiles"], "number");
    assert!(numbers.len() > 100);
    for number in &numbers {
        let evidence = number["evidence"].as_str().expect("words");
        let source = number["source"].as_str().expect("a kind");
        assert!(evidence.starts_with(source), "{number}");
    }
    let one = json(&["--profiles", "--nic", "cx"], "profile");
    assert_eq!(one.len(), 1);
    assert!(text(&["--profiles"]).contains("published: the paper, Table 2"));
}

#[test]
fn a_profile_and_a_mix_of_ones_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let (nic, mix) = (
        folder.path().join("my.toml"),
        folder.path().join("mix.json"),
    );
    let (nic_path, mix_path) = (nic.to_str().expect("text"), mix.to_str().expect("text"));
    std::fs::write(&nic, text(&["--template"])).expect("written");
    assert_eq!(json(&["--nic-file", nic_path], "mix")[0]["nic"], "my-nic");

    let printed = json(&["--mix", "herd"], "mix");
    std::fs::write(&mix, printed[0]["mix"].to_string()).expect("written");
    assert_eq!(json(&["--mix-file", mix_path], "mix"), printed);

    let broken = text(&["--template"]).replace("lanes = { value = 16", "lanes = { value = 0");
    std::fs::write(&nic, broken).expect("written");
    refused(
        &["--nic-file", nic_path],
        "pcie.lanes: 0 is out of range; it must be from 1 to 32",
    );
    std::fs::write(&nic, [0xff, 0xfe]).expect("written");
    refused(&["--nic-file", nic_path], "cannot read");
    std::fs::write(&mix, "{\"loads\": 1}").expect("written");
    refused(&["--mix-file", mix_path], "is no mix of operations");
    std::fs::write(
        &mix,
        printed[0]["mix"]
            .to_string()
            .replace("\"cores\":14", "\"cores\":0"),
    )
    .expect("written");
    refused(
        &["--mix-file", mix_path],
        "cores is 0, and must be from 1 to 4096",
    );
}

#[test]
fn bad_input() {
    refused(&["--nic", "cx9"], "choose among cx, cx3, cib, bf2");
    refused(
        &["--nic-file", "/nonexistent/nic.toml"],
        "cannot read /nonexistent/nic.toml",
    );
    refused(&["--nic-file", "/dev/zero"], "longer than 1 MiB");
    refused(&["--mix", "none"], "choose among ud-send");
    refused(
        &["--verb", "put"],
        "send, write, read, cmp-swap, fetch-add, flush",
    );
    refused(&["--transport", "tcp"], "rc, uc, ud");
    refused(
        &["--verb", "read", "--transport", "ud"],
        "UD does not carry READ",
    );
    refused(&["--payload", "5000"], "at most 4096 bytes");
    refused(&["--payload", "4096", "--inline"], "at most 512");
    refused(&["--payload", "-1"], "payload");
    refused(&["--payload", "2147483649"], "from 0 to 2147483648");
    refused(&["--batch", "0"], "from 1 to 65536");
    refused(&["--cores", "0"], "from 1 to 4096");
    refused(&["--counters", "4"], "are of atomics");
    refused(
        &["--verb", "fetch-add", "--payload", "4"],
        "works on 8 bytes",
    );
    refused(&["--verb", "flush", "--payload", "4"], "no payload");
    refused(
        &["--verb", "flush", "--transport", "uc"],
        "UC does not carry FLUSH",
    );
    refused(
        &["--verb", "fetch-add", "--counters", "4", "--nic", "bf2"],
        "not known for bf2",
    );
    refused(&["--mix", "herd", "--verb", "send"], "cannot be used with");
}
