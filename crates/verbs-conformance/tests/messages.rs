//! The suite on the software NIC when its queue pairs reach each other by messages: at once, and with delay and loss.

use std::process::ExitCode;

use verbs_conformance::harness::{self, Variant};
use verbs_conformance::{Cap, Test, tests};

/// What the network within one process does not carry, and what a responder far away cannot check before the requester.
const NOT_BY_MESSAGES: [Cap; 5] = [
    Cap::Processes,
    Cap::RawPackets,
    Cap::Xrc,
    Cap::Tags,
    Cap::EarlyChecks,
];

/// Services that do not repeat what is lost.
const UNRELIABLE: [Cap; 3] = [Cap::Uc, Cap::Ud, Cap::Multicast];

fn variant(name: &str, path: &str, without: &[Cap]) -> Variant {
    let mut variant = Variant::softnic("roce");
    name.clone_into(&mut variant.name);
    variant.env.push(("VERBATIM_PATH".into(), path.into()));
    variant.settings.without.extend(NOT_BY_MESSAGES);
    variant.settings.without.extend(without);
    variant
}

fn main() -> ExitCode {
    let tests: Vec<&'static Test> = tests().collect();
    let variants = [
        variant("messages", "loopback", &[]),
        variant(
            "lossy",
            "loopback:delay_us=20,loss=0.02,seed=1",
            &UNRELIABLE,
        ),
    ];
    harness::main(&tests, &variants)
}
