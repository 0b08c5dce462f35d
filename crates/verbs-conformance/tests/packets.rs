//! The suite on the software NIC when its queue pairs reach each other by RoCEv2 packets, also on this host.

use std::process::ExitCode;
use std::time::Duration;

use verbs_conformance::harness::{self, Variant};
use verbs_conformance::{Cap, Test, tests};

/// What packets do not carry, and what a responder far away cannot check before the requester.
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
    // A receiver that is not ready costs a round with a timer.
    variant.limit = Duration::from_secs(240);
    // GID 0 is no address of an interface there.
    variant.settings.gid_index = 1;
    variant.settings.without.extend(NOT_BY_PACKETS);
    harness::main(&tests, &[variant])
}
