//! Runs the suite on the software NIC, with either link layer.

use std::process::ExitCode;

use verbs_conformance::harness::{self, Variant};
use verbs_conformance::{Test, tests};

fn main() -> ExitCode {
    let tests: Vec<&'static Test> = tests().collect();
    harness::main(&tests, &[Variant::softnic("roce"), Variant::softnic("ib")])
}
