//! The function of this crate's fuzz target, and the replay of its corpus.

use crate::profile::Profile;
use crate::{Bounds, Footprint, Mix, MixOperation, Operation, PostMethod, Role, Transport, Verb};

/// Parses any bytes as a NIC profile: the bytes are refused with a message, or the model can compute with the
/// profile.
///
/// # Panics
/// If the model's arithmetic panics or returns a rate that is negative or not a number.
pub fn check_profile_of_any_bytes(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let profile = match Profile::parse(text) {
        Ok(profile) => profile,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(!profile.numbers().is_empty());
    if let Some(there) = profile.as_seen_from_dpu() {
        check_rates(&there);
    }
    check_rates(&profile);
}

/// Checks that the model's arithmetic over the profile gives rates.
fn check_rates(profile: &Profile) {
    for transport in [Transport::Rc, Transport::Uc, Transport::Ud] {
        for verb in Verb::ALL
            .into_iter()
            .filter(|verb| transport.carries(*verb))
        {
            let operation =
                Operation::new(verb, transport, verb.fixed_payload_bytes().unwrap_or(8));
            for method in [PostMethod::WqeByMmio, PostMethod::Doorbell] {
                let _ = Footprint::of_postlist(profile, &operation, method, 16);
            }
            for role in [Role::Requester, Role::Responder] {
                let mix = Mix::new(vec![MixOperation::new(operation, role)]).on_cores(2);
                if let Ok(bounds) = Bounds::of(profile, &mix) {
                    let rate = bounds.predicted_mops;
                    assert!(rate.is_none_or(|rate| rate >= 0.0), "{verb}: {rate:?}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_of_nic_profiles_is_replayed() {
        corpus::replay("nic_profile", super::check_profile_of_any_bytes);
    }
}
