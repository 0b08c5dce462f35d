//! `verbatim bench calibrate` writes a profile that other commands accept.

use serde_json::Value;

use crate::common::{run, run_the_guide};

#[track_caller]
fn text(args: &[&str]) -> String {
    let out = run(args);
    let messages = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{args:?}: {messages}");
    String::from_utf8(out.stdout).expect("text")
}

#[test]
fn a_simulated_nic_is_found_again_and_its_file_is_a_nic() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("found.toml");
    let file = file.to_str().expect("text");
    // The command in its form as a flag.
    let args = ["--nic", "cib", "--like", "cx3", "--out", file, "--json"];
    let found = text(&[&["bench", "--calibrate"][..], &args].concat());
    let mut fitted = 0;
    for line in found.lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let data = &line["data"];
        if line["type"] == "number" && data["source"] == "fitted" {
            fitted += 1;
            assert!(
                data["evidence"]
                    .as_str()
                    .is_some_and(|text| text.contains("measured: ")),
                "{line}"
            );
        }
        if data["key"] == "atomics.lock_bits" {
            assert_eq!(
                (&data["value"], &data["simulated"]),
                (&data["simulated"], &data["value"])
            );
        }
    }
    assert!(fitted >= 20, "{fitted}");
    // A NIC simulated from the file alone reproduces the rate to which it was fitted.
    let rate = |nic: &str| -> f64 {
        let args = [
            "bench",
            "ud-recv",
            "--header-only",
            "--queue-pairs",
            "4",
            "--json",
            "--nic",
            nic,
        ];
        let line: Value = serde_json::from_str(&text(&args)).expect("JSON");
        line["data"]["outcome"]["rate"]["rate_mops"]
            .as_f64()
            .expect("a rate")
    };
    let (found, true_one) = (rate(file), rate("cib"));
    assert!(
        (found / true_one - 1.0).abs() < 0.03,
        "{found} and {true_one}"
    );
}

#[test]
fn the_software_nic_has_a_profile_that_says_what_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("soft.toml");
    let file = file.to_str().expect("text");
    text(&[
        "bench",
        "calibrate",
        "--duration",
        "10ms",
        "--rounds",
        "1",
        "--out",
        file,
    ]);
    let written = std::fs::read_to_string(file).expect("written");
    assert!(
        written.contains("Measured on the software NIC"),
        "{written}"
    );
    assert!(
        written.contains("source = \"assumed\", why = \"not measured; as in the profile cib"),
        "{written}"
    );
    let numbers = text(&["model", "--profiles", "--nic", file, "--json"]);
    assert!(numbers.contains("processing.send_ns"), "{numbers}");
}

#[test]
fn what_cannot_be_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let lacking = folder.path().join("lacking.toml");
    let template = text(&["model", "--template"]).replace("\nsend_ns = ", "\n# send_ns = ");
    std::fs::write(&lacking, template).expect("written");
    let lacking = lacking.to_str().expect("text");
    for (args, why) in [
        (
            &["bench", "calibrate", "--like", "cx9"][..],
            "there is no NIC",
        ),
        (
            &["bench", "calibrate", "--nic", lacking],
            "cannot be simulated",
        ),
        (
            &["bench", "calibrate", "--out", "/nonexistent/p.toml"],
            "is not there",
        ),
    ] {
        let out = run(args);
        let message = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{message}");
        assert!(message.contains(why), "{message}");
    }
}

#[test]
fn the_commands_of_the_guide_run() {
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(run_the_guide("nic-profile.md", folder.path()), 3);
}
