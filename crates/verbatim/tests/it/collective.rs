//! `verbatim collective`, and the guide to NCCL's plugin.

use crate::common;

#[test]
fn every_collective_is_right_on_the_software_nic() {
    for collective in [
        "all-reduce",
        "all-gather",
        "reduce-scatter",
        "broadcast",
        "send-recv",
    ] {
        let flags = [
            "--ranks",
            "3",
            "-b",
            "1K",
            "-e",
            "64K",
            "--iterations",
            "2",
            "--json",
        ];
        let lines =
            common::lines_of(&[&["collective", "--collective", collective][..], &flags].concat());
        assert_eq!(lines.len(), 4, "{lines:?}");
        for line in lines {
            let data = &line["data"];
            assert_eq!(data["collective"], collective);
            assert_eq!(data["verified"], true, "{line}");
            assert!(
                data["bus_gb_s"].as_f64() > Some(0.0) && data["memcpy_gb_s"].as_f64() > Some(0.0)
            );
        }
    }
}

#[test]
fn a_simulated_ring_keeps_within_the_bound_and_is_drawn() {
    let folder = tempfile::tempdir().expect("a folder");
    let svg = folder.path().join("ring.svg");
    let svg_flag = svg.to_str().expect("UTF-8");
    let flags = [
        "collective",
        "--nic",
        "cib",
        "--ranks",
        "8",
        "-e",
        "1M",
        "--json",
        "--svg",
        svg_flag,
    ];
    let lines = common::lines_of(&flags);
    assert_eq!(lines.len(), 6);
    for line in &lines {
        let data = &line["data"];
        assert_eq!(data["verified"], true, "{line}");
        let ratio = data["bus_gb_s"]
            .as_f64()
            .zip(data["bound_gb_s"].as_f64())
            .map(|(a, b)| a / b);
        assert!(
            ratio.is_some_and(|ratio| ratio > 0.0 && ratio < 1.02),
            "{line}"
        );
    }
    assert_eq!(
        lines,
        common::lines_of(&flags),
        "virtual time is the same every time"
    );
    assert!(
        std::fs::read_to_string(svg)
            .expect("a figure")
            .starts_with("<svg")
    );
}

#[test]
fn what_cannot_run_is_refused_with_the_reason() {
    for (flags, reason) in [
        (&["--ranks", "9"][..], "simulate more with --nic"),
        (&["--ranks", "2,9"], "9 ranks on one machine"),
        (&["-b", "1M", "-e", "1K"], "is more than -e"),
        (&["-b", "4"], "each of 2 ranks needs an element"),
        (&["--nic", "nothing"], "there is no NIC"),
    ] {
        let out = common::run(&[&["collective"][..], flags].concat());
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{told}");
        assert!(told.contains(reason), "{told}");
    }
}

#[test]
fn the_commands_of_the_guide_run() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(common::run_the_guide("collective.md", folder.path()) >= 4);
    let drawn = std::fs::read_to_string(folder.path().join("all-reduce.svg")).expect("a figure");
    let book =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/figures/all-reduce.svg");
    let kept = std::fs::read_to_string(&book).expect("the book has it");
    assert!(
        drawn == kept,
        "docs/figures/all-reduce.svg is not what the command of docs/collective.md draws: draw it anew"
    );
}
