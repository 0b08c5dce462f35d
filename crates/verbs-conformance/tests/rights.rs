//! Checks that the suite detects a NIC that omits one of the conditions for memory access.
//!
//! In a build with debug assertions, `nic_core::rights` omits the condition named by an environment variable.

#![forbid(unsafe_code)]

use std::process::Command;

/// Each condition (`nic_core::rights::AccessDenied`), and tests of the suite that fail without it.
const CASES: [(&str, &[&str]); 4] = [
    (
        "QueuePairAccess",
        &[
            "access::remote_queue_pair_without_the_right",
            "access::remote_rights_of_a_queue_pair_can_change",
        ],
    ),
    (
        "RegionAccess",
        &[
            "access::local_read_target_needs_local_write",
            "access::receive_without_local_write",
            "access::remote_region_without_the_right",
            "access::remote_rights_do_not_imply_each_other",
        ],
    ),
    (
        "WrongPdOrQp",
        &[
            "access::local_other_protection_domain",
            "access::receive_other_protection_domain",
            "access::remote_other_protection_domain",
            "windows::a_window_of_type_2_is_for_the_queue_pair_that_bound_it",
        ],
    ),
    (
        "OutOfRange",
        &[
            "access::receive_beyond_the_region",
            "access::remote_beyond_the_region",
            "windows::a_window_gives_only_what_was_bound",
        ],
    ),
];

/// Returns true if the test `case` passes on a software NIC that omits `condition`. If `condition` is empty,
/// the NIC omits no condition.
fn passes(case: &str, condition: &str) -> bool {
    let output = Command::new(env!("CARGO_BIN_EXE_verbs-conformance"))
        .args(["--filter", case, "--jobs", "1"])
        .env("VERBATIM_TEST_WITHOUT_RIGHT", condition)
        .env("VERBATIM_TEST_PATIENCE", "2")
        .output()
        .expect("the suite runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let verdict = |word| text.contains(&format!("test {case} ... {word}"));
    assert!(verdict("ok") != verdict("FAILED"), "{case}: {text}");
    verdict("ok")
}

fn notices(condition: usize) {
    let (condition, cases) = CASES[condition];
    for case in cases {
        assert!(passes(case, ""), "{case} fails on a sound NIC");
        assert!(
            !passes(case, condition),
            "{case} passes without {condition}"
        );
    }
}

#[test]
fn the_queue_pair_must_allow_the_access() {
    notices(0);
}

#[test]
fn the_region_must_allow_the_access() {
    notices(1);
}

#[test]
fn the_domain_must_be_the_same() {
    notices(2);
}

#[test]
fn the_bytes_must_lie_within_the_region() {
    notices(3);
}
