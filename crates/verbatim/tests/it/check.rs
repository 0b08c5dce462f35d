//! `verbatim kv check` and `verbatim btree check`: every design under kills and stops, and a
//! falsified history.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::common::{self, json_lines, run};

fn check(system: &str, args: &[&str]) -> Output {
    run(&[&[system, "check", "--json"], args].concat())
}

fn checked(output: &Output) -> Vec<Value> {
    let lines = json_lines(output).into_iter();
    lines.map(|mut line| line["data"].take()).collect()
}

/// More than a check must have. A busy machine needs more than the duration for them.
const OPERATIONS: &str = "2000";

/// One more than the designs: one design has two variants.
#[test]
fn all_designs_of_the_store_are_linearizable() {
    are_linearizable("kv", kv::Design::ALL.len() + 1, 3);
}

/// Three hot keys, each with sixteen keys around it.
#[test]
fn all_access_designs_of_the_tree_are_linearizable() {
    are_linearizable("btree", btree::AccessDesign::ALL.len(), 3 * 17);
}

/// The same with byte strings.
#[test]
fn all_access_designs_of_a_tree_of_byte_strings_are_linearizable() {
    let sizes = ["--key-size", "24", "--value-size", "100"];
    let times = [
        "--duration",
        "1s",
        "--kill-every",
        "150ms",
        "--operations",
        OPERATIONS,
    ];
    let output = check("btree", &[&sizes[..], &times].concat());
    let all = checked(&output);
    assert_eq!(output.status.code(), Some(0), "{all:#?}");
    assert_eq!(all.len(), btree::AccessDesign::ALL.len());
    for checked in all {
        assert!(checked["operations"].as_u64() > Some(1_000), "{checked}");
    }
}

/// Checks each design with two seeds: few keys, many clients, kills and stops.
fn are_linearizable(system: &str, designs: usize, keys: u64) {
    for seed in ["1", "2"] {
        let times = [
            "--duration",
            "1500ms",
            "--kill-every",
            "150ms",
            "--stop-every",
            "300ms",
            "--operations",
            OPERATIONS,
        ];
        let output = check(
            system,
            &[&["--seed", seed, "--keys", "3"][..], &times].concat(),
        );
        let err = String::from_utf8_lossy(&output.stderr);
        let all = checked(&output);
        assert_eq!(output.status.code(), Some(0), "{all:#?}\n{err}");
        assert_eq!(all.len(), designs);
        for checked in all {
            let count = |name: &str| checked[name].as_u64().expect("a count");
            assert!(count("kills") > 0 && count("stops") > 0, "{checked}");
            assert!(
                count("operations") > 1_000 && count("keys") == keys,
                "{checked}"
            );
            assert_eq!(checked["violations"], Value::Array(Vec::new()));
        }
    }
}

/// Changes a word of the first record of a kind.
fn spoil(folder: &Path, kind: u64, word: usize, change: impl Fn(u64) -> u64) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("a file").path();
        let mut bytes = fs::read(&path).expect("a file");
        let mut records = bytes.chunks_exact_mut(48).skip(100);
        let record = records.find(|r| r[..8] == kind.to_le_bytes());
        let Some(record) = record else { continue };
        let place = 8 * word..8 * word + 8;
        let old = u64::from_le_bytes(record[place.clone()].try_into().expect("eight"));
        record[place].copy_from_slice(&change(old).to_le_bytes());
        fs::write(&path, bytes).expect("written");
        return;
    }
    panic!("no record of kind {kind}");
}

#[test]
fn a_spoiled_history_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let keep = folder.path().join("kept");
    let keep = keep.to_str().expect("text");
    let quiet = ["--kill-every", "0s", "--stop-every", "0s"];
    let short = ["--design", "herd", "--duration", "200ms", "--keep", keep];
    let quiet = [&quiet[..], &["--operations", OPERATIONS]].concat();
    let output = check("kv", &[&short[..], &quiet].concat());
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{err}");
    let undisturbed = &checked(&output)[0];
    assert_eq!(
        (&undisturbed["kills"], &undisturbed["stops"]),
        (&0.into(), &0.into())
    );
    let history = Path::new(keep).join("herd");
    let judge = || check("kv", &["--judge", history.to_str().expect("text")]);
    let again = judge();
    assert_eq!(again.status.code(), Some(0));
    assert_eq!(
        checked(&again)[0]["operations"],
        checked(&output)[0]["operations"]
    );
    // Decrement the version that a GET returned: a stale read.
    spoil(&history, 16, 5, |version| version - 1);
    let output = judge();
    assert_eq!(output.status.code(), Some(1));
    let violations = checked(&output)[0]["violations"].to_string();
    assert!(
        violations.contains("a value was read") || violations.contains("no order"),
        "{violations}"
    );
    // Folders without a history, and an invalid history.
    spoil(&history, 1, 0, |_| 99);
    let output = judge();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains("is no history of this version"), "{err}");
    let output = check("kv", &["--judge", folder.path().to_str().expect("text")]);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains("holds no history"), "{err}");
}

/// Both hosts are one machine, and packets of both directions are lost.
#[test]
fn the_store_is_linearizable_over_packets_that_get_lost() {
    common::build_libraries();
    let short = ["--keys", "3", "--duration", "1s", "--kill-every", "300ms"];
    let output = common::verbatim(&["kv", "check", "--json", "--design", "herd"])
        .args(short)
        .args(["--operations", "500"])
        .env("VERBATIM_PATH", "packets")
        .env("VERBATIM_FAULT", "drop,p=0.01")
        .env("VERBATIM_FAULT_SEED", "1")
        .output()
        .expect("it starts");
    let all = checked(&output);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{all:#?} {err}");
    let operations = all.first().and_then(|one| one["operations"].as_u64());
    assert!(operations >= Some(500), "{all:#?} {err}");
}

/// A history without a single answer shows nothing. Clients that all die before their first answer leave such a
/// history.
#[test]
fn a_history_without_answers_is_no_success() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("client-1"), []).expect("written");
    for system in ["kv", "btree"] {
        let output = check(system, &["--judge", folder.path().to_str().expect("text")]);
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{err}");
        assert!(err.contains("no request was answered"), "{err}");
        assert_eq!(checked(&output)[0]["operations"], 0);
    }
}

#[test]
fn a_spoiled_history_of_a_tree_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let keep = folder.path().join("kept");
    let keep = keep.to_str().expect("text");
    let short = ["--access", "auto", "--duration", "200ms", "--keep", keep];
    let output = check(
        "btree",
        &[&short[..], &["--operations", OPERATIONS]].concat(),
    );
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert_eq!(checked(&output)[0]["access"], "auto");
    let history = Path::new(keep).join("auto");
    let judged = || {
        let output = check("btree", &["--judge", history.to_str().expect("text")]);
        let violations = checked(&output)[0]["violations"].to_string();
        (output.status.code(), violations)
    };
    assert_eq!(judged(), (Some(0), "[]".to_owned()));
    // Change the value that a lookup returned to one that no client put.
    spoil(&history, 22, 4, |value| value ^ 1 << 60);
    let (status, violations) = judged();
    assert_eq!(status, Some(1));
    assert!(violations.contains("that nobody set"), "{violations}");
}
