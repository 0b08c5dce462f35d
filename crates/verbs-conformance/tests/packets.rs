//! Runs the suite on the software NIC with queue pairs that communicate by RoCEv2 packets, even on this host.

use std::process::ExitCode;
use std::time::Duration;

use verbs_conformance::harness::{self, Variant};
use verbs_conformance::{Cap, Test, tests};

/// Features that packets do not carry, and checks that a remote responder cannot make before the requester.
const NOT_BY_PACKETS: [Cap; 6] = [
    Cap::RawPackets,
    Cap::Xrc,
    Cap::Tags,
    Cap::EarlyChecks,
    Cap::PatientDatagrams,
    Cap::PassiveResponder,
];

fn main() -> ExitCode {
    let tests: Vec<&'static Test> = tests().collect();
    let mut variant = Variant::softnic("roce");
    "packets".clone_into(&mut variant.name);
    variant.env.push(("VERBATIM_PATH".into(), "packets".into()));
    variant.own_address = true;
    // Each receiver-not-ready NAK costs a round trip and a timer.
    variant.limit = Duration::from_secs(240);
    // GID 0 is not the address of an interface there.
    variant.settings.gid_index = 1;
    variant.settings.without.extend(NOT_BY_PACKETS);
    harness::main(&tests, &[variant])
}
