//! `verbatim trace`: converts a trace to statistics, to JSON lines, and for Perfetto.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;

use crate::common::{lines_of, run};
use crate::program::Program;

/// Returns the trace of a program whose only work request fails.
fn traced(what: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("t.txt");
    let file = file.to_str().expect("a path").to_owned();
    Program::of_the_tests("refused").run(&["--trace", &file], &[what]);
    (folder, file)
}

fn output(args: &[&str]) -> String {
    let out = run(&[&["trace"], args].concat());
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{args:?}: {said}");
    String::from_utf8(out.stdout).expect("text")
}

#[test]
fn statistics_of_a_program() {
    let (_folder, file) = traced("range");
    let rows = lines_of(&["trace", &file, "--by-qp", "--json"]);
    let verbs: Vec<_> = rows.iter().filter(|row| row["type"] == "verb").collect();
    assert_eq!(verbs.len(), 1, "{rows:?}");
    let write = &verbs[0]["data"];
    assert_eq!(write["verb"], "RDMA_WRITE");
    assert_eq!(
        (&write["requests"], &write["failed"]),
        (&1.into(), &1.into())
    );
    assert!(write["time_ns"]["max"].as_u64() > Some(0), "{write}");
    assert_eq!(write["qp"], "qp1");
    let polls = rows
        .iter()
        .find(|row| row["type"] == "polls")
        .expect("polls");
    assert_eq!(polls["data"]["completions"], 1);
    let text = output(&[&file]);
    assert!(text.contains("RDMA_WRITE"), "{text}");
    assert!(!output(&[&file, "--verb", "SEND"]).contains("RDMA_WRITE"));
    // The filter drops the line that names the queue pair, but its work requests are paired
    // nevertheless.
    for filter in [["--qp", "qp1"], ["--verb", "RDMA_WRITE"]] {
        let rows = lines_of(&["trace", &file, "--json", filter[0], filter[1]]);
        let write = &rows[0]["data"];
        assert_eq!(
            (&write["requests"], &write["pending"]),
            (&1.into(), &0.into()),
            "{filter:?}"
        );
    }
}

#[test]
fn json_lines_are_the_lines_of_the_trace() {
    let (_folder, file) = traced("range");
    let text = std::fs::read_to_string(&file).expect("the trace");
    let lines = text.lines().filter(|line| !line.starts_with('#')).count();
    let json = output(&[&file, "--to", "json-lines"]);
    let events: Vec<Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect();
    assert_eq!(events.len(), lines);
    let post = events.iter().find(|event| event["event"] == "post_send");
    let post = post.expect("a post");
    assert_eq!((&post["wr_id"], &post["bytes"]), (&7.into(), &64.into()));
    let found = events.iter().find(|event| event["event"] == "completion");
    assert_eq!(found.expect("a completion")["status"], "REM_ACCESS_ERR");
}

/// Work requests that are outstanding at once are on separate tracks, since slices of a track must
/// not overlap.
#[test]
fn slices_of_a_track_do_not_overlap() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("t.txt");
    let mut text = "1.000000000 7/7 ibv_create_qp(pd=pd1) = qp1, QPN 0x8000\n".to_owned();
    for n in 0..4 {
        text += &format!("1.00000010{n} 7/7 post_send qp1 1/1 wr_id={n} RDMA_READ 8 B SIGNALED\n");
    }
    for n in 0..3 {
        text += &format!(
            "1.00000020{n} 7/7 poll_cq cq1 1/1 wr_id={n} SUCCESS RDMA_READ 8 B QPN 0x8000\n"
        );
    }
    text += "1.000000300 7/7 post_send qp1 1/1 wr_id=9 SEND 8 B SIGNALED\n1.00";
    std::fs::write(&trace, text).expect("written");
    let json = folder.path().join("t.json");
    let [trace, json] = [&trace, &json].map(|path| path.to_str().expect("a path"));
    output(&[trace, "--to", "perfetto", "-o", json]);
    let text = std::fs::read_to_string(Path::new(json)).expect("the events");
    let document: Value = serde_json::from_str(&text).expect("a document");
    let events = document["traceEvents"].as_array().expect("a list");
    let mut ends: HashMap<u64, f64> = HashMap::new();
    let mut slices = 0;
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let number = |name: &str| event[name].as_f64().expect("a number");
        let end = ends
            .entry(event["tid"].as_u64().expect("a track"))
            .or_default();
        assert!(number("ts") >= *end, "{event}");
        *end = number("ts") + number("dur");
        slices += 1;
    }
    assert_eq!((slices, ends.len()), (5, 4), "{text}");
    let names = events.iter().filter(|event| event["name"] == "thread_name");
    assert_eq!(names.count(), ends.len());
    assert!(text.contains("qp1 0x8000 · 4"), "{text}");
}

#[test]
fn what_is_no_trace_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("x");
    std::fs::write(&file, "hello\n").expect("written");
    for path in [file.to_str().expect("a path"), "/nonexistent"] {
        let out = run(&["trace", path]);
        assert_eq!(out.status.code(), Some(2));
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(said.contains(path), "{said}");
    }
}
