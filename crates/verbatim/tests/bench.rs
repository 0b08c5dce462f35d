//! The benchmark with all its peers, tiny: two processes for every row, nothing measured.

use std::process::{Command, Stdio};

use serde_json::Value;

#[test]
fn every_row_runs_beside_its_peer() {
    let folder = tempfile::tempdir().expect("a folder");
    let record = folder.path().join("run.jsonl");
    let out = Command::new(env!("CARGO_BIN_EXE_verbatim"))
        .args([
            "bench", "peers", "--smoke", "--rounds", "1", "--json", "--record",
        ])
        .arg(&record)
        .env_remove("VERBATIM_LINK_LAYER")
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    let messages = String::from_utf8_lossy(&out.stderr);
    // Whether goals are reached says nothing here: so much for 0 and 1.
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
    assert_eq!(rows.len(), 13);
    for row in rows {
        let data = &row["data"];
        assert_eq!(
            data["errors"],
            Value::Array(vec![]),
            "{}: {messages}",
            data["row"]
        );
        assert!(data["ours"]["median"].is_f64(), "{data}");
        assert_eq!(
            data["peer_name"].is_null(),
            data["peer"].is_null(),
            "{data}"
        );
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
