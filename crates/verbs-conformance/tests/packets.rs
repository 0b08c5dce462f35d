//! Runs the suite on the software NIC; all queue pairs communicate by RoCEv2 packets, even on this host.

use std::process::ExitCode;
use std::time::Duration;

use verbs_abi::{IBV_QPS_INIT, IBV_QPS_RTR};
use verbs_conformance::harness::{self, SuiteVariant};
use verbs_conformance::pair::QpSpec;
use verbs_conformance::{SuiteTest, TestEnv, TestOutcome, tests};

/// The tests of this path alone, beside the suite.
const OWN_TESTS: [SuiteTest; 1] = [SuiteTest {
    name: "path::tag_matching_is_refused",
    needed_capabilities: &[],
    run: |env| {
        tag_matching_is_refused(env);
        TestOutcome::Passed
    },
}];

fn main() -> ExitCode {
    let tests: Vec<&'static SuiteTest> = tests().chain(&OWN_TESTS).collect();
    let mut variant = SuiteVariant::softnic("roce");
    "packets".clone_into(&mut variant.test_name_prefix);
    variant
        .env_vars
        .push(("VERBATIM_PATH".into(), "packets".into()));
    variant.gives_test_own_address = true;
    // Each receiver-not-ready NAK costs a round trip and a timer.
    variant.hang_timeout = Duration::from_secs(240);
    // GID 0 of this variant's port is not the address of an interface.
    variant.settings.gid_index = 1;
    variant
        .settings
        .excluded_capabilities
        .extend(harness::NOT_BY_PACKETS);
    harness::main(&tests, &[variant])
}

/// The receiver of a rendezvous could not read its payload, so its queue pair does not become ready to receive.
fn tag_matching_is_refused(env: &TestEnv) {
    let peer = QpSpec::rc().create_qp_side(env);
    let receiver = QpSpec::rc().with_tags(4).create_qp_side(env);
    receiver.to_init();
    let (attr, mask) = receiver.init_to_rtr_attr_and_mask(&peer.address());
    assert_eq!(receiver.qp.modify(&attr, mask), Err(libc::EOPNOTSUPP));
    receiver.qp.await_state(IBV_QPS_INIT);
    // A queue pair without tags accepts the same attributes.
    let plain = QpSpec::rc().create_qp_side(env);
    plain.to_init();
    let (attr, mask) = plain.init_to_rtr_attr_and_mask(&peer.address());
    assert_eq!(plain.qp.modify(&attr, mask), Ok(()));
    plain.qp.await_state(IBV_QPS_RTR);
}
