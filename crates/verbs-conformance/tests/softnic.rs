//! Runs the suite on the software NIC, with either link layer.

use std::process::ExitCode;

use verbs_conformance::harness::{self, SuiteVariant};
use verbs_conformance::{SuiteTest, tests};

fn main() -> ExitCode {
    let tests: Vec<&'static SuiteTest> = tests().collect();
    harness::main(
        &tests,
        &[SuiteVariant::softnic("roce"), SuiteVariant::softnic("ib")],
    )
}
