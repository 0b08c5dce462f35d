//! The sequencer as separate processes: every design, both link layers, restarts, kills.

use std::collections::BTreeSet;
use std::process::Stdio;

use serde_json::Value;

use crate::common::{ANYWHERE, Server, ask, json_lines, lines_of, run, verbatim};

fn serve(args: &[&str]) -> Server {
    Server::start("sequencer", ANYWHERE, args)
}

#[test]
fn every_design_is_verified() {
    let lines = lines_of(&[
        "sequencer",
        "--rounds",
        "1",
        "--duration",
        "50ms",
        "--window",
        "64",
        "--json",
    ]);
    let rows: Vec<&Value> = lines.iter().filter(|l| l["type"] == "design").collect();
    let names: Vec<_> = rows
        .iter()
        .map(|l| l["data"]["design"].as_str().unwrap_or(""))
        .collect();
    assert_eq!(
        names,
        ["atomics", "rpc", "rpc-batch", "rpc-batch-mq", "spec-s0"]
    );
    for row in rows {
        let data = &row["data"];
        assert_eq!(data["verified"], true, "{data}");
        assert_eq!(data["kind"], "software NIC");
        assert!(data["rate_per_s"]["median"].as_f64() > Some(0.0));
        assert!(
            data["requests_per_doorbell"].as_f64() >= Some(1.0),
            "{data}"
        );
    }
}

#[test]
fn several_clients_workers_and_an_infiniband_port() {
    let lines = lines_of(&[
        "sequencer",
        "--rounds",
        "1",
        "--duration",
        "50ms",
        "--design",
        "spec-s0",
        "--design",
        "rpc-batch-mq",
        "--design",
        "atomics",
        "--clients",
        "2",
        "--threads",
        "2",
        "--workers",
        "2",
        "--link-layer",
        "ib",
        "--json",
    ]);
    let rounds: Vec<&Value> = lines.iter().filter(|l| l["type"] == "round").collect();
    assert_eq!(rounds.len(), 3);
    for round in rounds {
        let verdict = &round["data"]["verdict"];
        assert_eq!(verdict["ok"], true, "{verdict}");
        assert_eq!(verdict["clients"], 4);
    }
}

#[test]
fn the_table_is_for_people() {
    let short = ["sequencer", "--rounds", "1", "--duration", "50ms"];
    let designs = ["--design", "rpc", "--design", "rpc-batch"];
    let out = run(&[&short[..], &designs].concat());
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let text = String::from_utf8(out.stdout).expect("text");
    for word in [
        "software NIC",
        "requests/s",
        "p99",
        "yes",
        "Doorbell batching",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn a_wrong_guess_and_the_wrap_of_the_lower_half() {
    for start in ["0xfffffc00", "0x1fffffc00"] {
        let server = serve(&["--start", start]);
        assert_eq!(
            Some(server.next()),
            start
                .strip_prefix("0x")
                .and_then(|s| u64::from_str_radix(s, 16).ok())
        );
        let (report, verdict) = ask(&server.address, "5000");
        assert_eq!(verdict["ok"], true, "{verdict}");
        assert_eq!(verdict["numbers"], 5000);
        assert!(report["wrong_guesses"].as_u64() >= Some(1), "{report}");
        server.stop();
    }
}

#[test]
fn the_last_numbers_end_with_a_refusal_not_a_wrap() {
    let server = serve(&["--start", "0xfffffffffffff000"]);
    let client = ["sequencer", "client", &server.address, "--json"];
    let out = run(&[&client[..], &["--count", "1000000"]].concat());
    assert_eq!(out.status.code(), Some(1), "the answer is no");
    let verdict = json_lines(&out).pop().expect("a verdict");
    assert_eq!(verdict["data"]["duplicates"], 0);
    assert!(verdict["data"]["numbers"].as_u64() <= Some(0x1000));
    assert!(String::from_utf8_lossy(&out.stderr).contains("ended early"));
}

#[test]
fn a_killed_server_gives_no_number_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    let state = state.to_str().expect("a name in ASCII");
    let mut begun = BTreeSet::new();
    let mut last = 0;
    for _ in 0..4 {
        let mut server = serve(&["--state", state]);
        assert!(server.next() >= last, "{} after {last}", server.next());
        let (report, verdict) = ask(&server.address, "20000");
        assert_eq!(verdict["duplicates"], 0);
        assert_eq!(report["requests"], 20000);
        assert!(begun.insert(server.next()), "the same first number again");
        // The client received consecutive numbers from `next` on.
        last = server.next() + 20000;
        server.child.kill().expect("killed");
    }
}

#[test]
fn a_client_outlives_its_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    let state = state.to_str().expect("a name in ASCII");
    let mut server = serve(&["--state", state]);
    let address = server.address.clone();
    let client = ["sequencer", "client", &address, "--json"];
    let client = verbatim(&[&client[..], &["--duration", "2s"]].concat())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the client starts");
    server.wait_for_client();
    std::thread::sleep(std::time::Duration::from_millis(500));
    server.child.kill().expect("killed");
    server.child.wait().expect("gone");
    let again = Server::start("sequencer", &address, &["--state", state]);
    let out = client.wait_with_output().expect("the client ends");
    assert!(out.status.success(), "{:?}", out.status);
    let lines = json_lines(&out);
    assert!(
        lines[0]["data"]["failures"]["reconnects"].as_u64() >= Some(1),
        "{}",
        lines[0]["data"]["failures"]
    );
    assert_eq!(lines[1]["data"]["duplicates"], 0);
    assert_eq!(lines[1]["data"]["not_increasing"], 0);
    again.stop();
}

#[test]
fn a_simulated_server_is_on_the_host_or_on_the_dpu() {
    let simulated = |args: &[&str]| {
        let all = ["sequencer", "--nic", "bf2", "--design", "atomics", "--json"];
        lines_of(&[&all[..], args].concat())[0]["data"].clone()
    };
    let (host, dpu) = (
        simulated(&["--place", "host"]),
        simulated(&["--place", "dpu"]),
    );
    assert_eq!(
        (&host["place"], &dpu["place"]),
        (&"host".into(), &"dpu".into())
    );
    assert!(
        host["verified"] == true && dpu["verified"] == true,
        "{host} {dpu}"
    );
    // The published rate is for the DPU's memory, and the model was fitted to it.
    assert!(host["published"].is_null(), "{host}");
    assert_eq!(dpu["published"]["id"], "dpu_seq_faa_rate");
    let error = dpu["relative_error"].as_f64().expect("an error");
    assert!(error.abs() < 0.03, "{dpu}");
    // The default place is the host.
    let unsaid = simulated(&[]);
    assert!(unsaid["place"].is_null());
    assert_eq!(unsaid["rate_mops"], host["rate_mops"]);
}

#[test]
fn a_place_that_is_not_there_is_refused() {
    for (args, why) in [
        (&["--nic", "cib", "--place", "dpu"][..], "cib has no DPU"),
        (&["--place", "dpu"], "add --nic"),
        (&["--nic", "bf2", "--place", "nic"], "host and dpu"),
        (
            &["--nic", "bf2", "--place", "dpu", "--cores", "9"],
            "the DPU of bf2",
        ),
    ] {
        let out = run(&[&["sequencer"][..], args].concat());
        let message = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{message}");
        assert!(message.contains(why), "{message}");
    }
}

/// The loops of the paper's authors are settings of the same programs, and refuse the knobs that
/// they fix.
#[test]
fn a_published_experiment_runs_with_its_own_loops() {
    let cib = [
        "--nic",
        "cib",
        "--cores",
        "3",
        "--duration",
        "100us",
        "--json",
    ];
    let atc16 = ["--experiment", "atc16"];
    let designs = ["--design", "rpc-batch-mq"];
    let of = |more: &[&str]| {
        let lines = lines_of(&[&["sequencer"][..], &cib, &designs, more].concat());
        lines[0]["data"].clone()
    };
    let (theirs, ours) = (of(&atc16), of(&[]));
    assert_eq!(theirs["loops"]["policy"], "stop-and-go");
    assert_eq!(theirs["postlist"], 1);
    assert!(ours["loops"].is_null());
    for row in [&theirs, &ours] {
        assert_eq!(row["verified"], true, "{row}");
        assert_eq!(row["published"]["id"], "bench_rpc_batch_mq_3c");
    }
    let herd = [&["kv"][..], &cib, &atc16, &["--clients", "8"]].concat();
    let herd = lines_of(&herd);
    assert!(
        herd.iter()
            .map(|row| &row["data"])
            .all(|row| row["verified"] == true && row["atc16"] == true)
    );
    for (args, why) in [
        (&["sequencer", "--experiment", "atc16"][..], "add --nic"),
        (&["kv", "--experiment", "atc16"], "add --nic"),
        (
            &[
                "sequencer",
                "--nic",
                "cib",
                "--experiment",
                "atc16",
                "--batch",
                "4",
            ],
            "cannot be used with",
        ),
        (
            &[
                "kv",
                "--nic",
                "cib",
                "--experiment",
                "atc16",
                "--design",
                "reads",
            ],
            "only herd",
        ),
        (
            &[
                "sequencer",
                "--nic",
                "cib",
                "--experiment",
                "atc16",
                "--over",
                "window",
                "--values",
                "8",
            ],
            "leave out --experiment",
        ),
    ] {
        let out = run(args);
        let message = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{message}");
        assert!(message.contains(why), "{message}");
    }
}

/// A client that gets no number has verified nothing; its message says where the server may be.
#[test]
fn a_client_in_another_fabric_verifies_nothing() {
    let server = serve(&[]);
    let client = ["sequencer", "client", &server.address, "--json"];
    let out = verbatim(&[&client[..], &["--duration", "200ms"]].concat())
        .env(
            "VERBATIM_FABRIC",
            format!("sequencer_{}", std::process::id()),
        )
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    let lines = json_lines(&out);
    let verdict = lines
        .iter()
        .find(|line| line["type"] == "verdict")
        .expect("a verdict");
    assert_eq!(verdict["data"]["ok"], false, "{verdict}");
    for part in ["nothing was verified", "in another fabric of this host"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// The core costs of ConnectX-3's cluster are not published. Designs without server cores run, and
/// a note says what the others lack.
#[test]
fn what_a_profile_lacks_is_said_and_the_rest_is_simulated() {
    let args = ["--duration", "1ms", "--clients", "4", "--json"];
    let out = crate::common::run(&[&["sequencer", "--nic", "cx3"], &args[..]].concat());
    let message = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{message}");
    let designs: Vec<_> = crate::common::json_lines(&out)
        .iter()
        .map(|line| line["data"]["design"].clone())
        .collect();
    assert_eq!(designs, ["atomics"], "{message}");
    for words in ["note: not run: rpc on 1 cores", "host.post_wqe_ns"] {
        assert!(message.contains(words), "{words}: {message}");
    }
    // A command without any runnable design fails.
    let out = crate::common::run(
        &[&["sequencer", "--nic", "cx3", "--design", "rpc"], &args[..]].concat(),
    );
    assert_eq!(out.status.code(), Some(2), "{out:?}");
}
