//! Tests of connections between two processes: established, rejected, used, disconnected, and ended by a death.

#![allow(
    clippy::macro_metavars_in_unsafe,
    reason = "calls of C functions are what the macros are for"
)]

#[macro_use]
#[path = "../common/mod.rs"]
mod common;
mod deaths;
mod made;
mod scenes;
mod services;
mod signals;

use common::Parts;

const PARTS: &Parts = &[
    ("talk/server", made::talk_server),
    ("talk/client", made::talk_client),
    ("refuse/server", made::refuse_server),
    ("refuse/client", made::refuse_client),
    ("nobody/client", made::nobody_client),
    ("mute/server", deaths::mute_server),
    ("unanswered/client", deaths::unanswered_client),
    ("doomed/client", deaths::doomed_client),
    ("survivor/server", deaths::survivor_server),
    ("steady/server", deaths::steady_server),
    ("steady/client", deaths::steady_client),
    ("leaving/server", deaths::leaving_server),
    ("forking/server", deaths::forking_server),
    ("lookup/server", services::lookup_server),
    ("lookup/client", services::lookup_client),
    ("stale/server", services::stale_server),
    ("stale/client", services::stale_client),
    ("left", services::left),
    ("sync/server", services::sync_server),
    ("sync/client", services::sync_client),
    ("own_qp/server", services::own_qp_server),
    ("own_qp/client", services::own_qp_client),
    ("early/server", services::early_server),
    ("early/client", services::early_client),
    ("giving_up/server", services::giving_up_server),
    ("giving_up/client", services::giving_up_client),
    ("crowd/server", services::crowd_server),
    ("crowd/client", services::crowd_client),
    ("moved/server", made::moved_server),
    ("moved/client", made::moved_client),
    ("states", made::states),
    ("signals", signals::signals),
];

#[test]
fn child_main() {
    common::child_main(PARTS);
}
