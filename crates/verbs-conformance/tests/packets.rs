//! Runs the suite on the software NIC; all queue pairs communicate by RoCEv2 packets, even on this host.

use std::process::ExitCode;
use std::time::Duration;

use verbs_conformance::harness::{self, SuiteVariant};
use verbs_conformance::{NicCapability, SuiteTest, tests};

/// Features that packets do not support, and checks that a remote responder cannot make before the requester.
const NOT_BY_PACKETS: [NicCapability; 6] = [
    NicCapability::RawPackets,
    NicCapability::Xrc,
    NicCapability::Tags,
    NicCapability::EarlyChecks,
    NicCapability::PatientDatagrams,
    NicCapability::PassiveResponder,
];

fn main() -> ExitCode {
    let tests: Vec<&'static SuiteTest> = tests().collect();
    let mut variant = SuiteVariant::softnic("roce");
    "packets".clone_into(&mut variant.test_name_prefix);
    variant.env.push(("VERBATIM_PATH".into(), "packets".into()));
    variant.gives_test_own_address = true;
    // Each receiver-not-ready NAK costs a round trip and a timer.
    variant.hang_timeout = Duration::from_secs(240);
    // GID 0 of this variant's port is not the address of an interface.
    variant.settings.gid_index = 1;
    variant.settings.without.extend(NOT_BY_PACKETS);
    harness::main(&tests, &[variant])
}
