use super::guideline::{Finding, Guideline};
use crate::op_profile::OperationProfile;
use crate::profile::Profile;
use crate::verb::Transport;

/// Guideline: use few connected queue pairs.
pub(super) const GUIDELINE: Guideline = Guideline {
    name: "connected-qps",
    section: "ATC'16, section 4.2.1",
    rule: "A NIC holds the state of a few hundred connected queue pairs; datagrams need one for all peers.",
    find_violation: detect_violation,
    program_after_change: |_, _| None,
};

fn detect_violation(observed: &OperationProfile, profile: &Profile) -> Option<Finding> {
    let most = profile.cache.connected_qps.as_ref()?.value;
    let mut all = observed.clone();
    all.queue_pairs.retain(|qp| qp.transport != Transport::Ud);
    let connected = all.max_concurrent_queue_pairs();
    (connected > most).then(|| Finding {
        observed_violation: format!("{connected} connected queue pairs are in use"),
        advice: format!(
            "this NIC keeps the state of about {most}; use UD (SEND and RECV with an address \
             handle) for requests and responses, or share queue pairs between threads"
        ),
    })
}
