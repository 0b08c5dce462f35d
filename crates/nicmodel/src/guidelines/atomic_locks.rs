use super::guideline::{Finding, Guideline, queue_pair_text};
use crate::atomic_locks;
use crate::bounds::Resource;
use crate::op_profile::{AtomicSlotCount, OperationProfile};
use crate::profile::Profile;

/// Guideline: spread atomics over the NIC's locks.
pub(super) const GUIDELINE: Guideline = Guideline {
    name: "atomic-locks",
    section: "ATC'16, sections 3.4 and 5.4",
    rule: "Atomics on addresses with equal low bits wait for each other for a round trip of PCIe.",
    find_violation: detect_violation,
    program_after_change: program_after_fix,
};

fn detect_violation(observed: &OperationProfile, profile: &Profile) -> Option<Finding> {
    let prediction = observed.predict(profile).ok()??;
    if prediction.bottleneck != Resource::AtomicLocks {
        return None;
    }
    let all: Vec<_> = observed
        .posting_queue_pairs()
        .filter(|qp| qp.atomics_of_known_address() > 0)
        .collect();
    // The addresses cannot use more locks than the NIC has.
    let has = atomic_locks::reachable_lock_count(profile);
    let seen = match (all.first().zip(observed.effective_atomic_locks()), has) {
        (Some((qp, _)), Some(1)) => format!(
            "{}: atomics wait for the NIC's only lock",
            queue_pair_text(qp.qpn, all.len() - 1)
        ),
        (Some((qp, slots)), _) => {
            let locks = match slots.min(has.unwrap_or(u32::MAX)) {
                1 => "1 of the NIC's locks, and wait for it".to_owned(),
                more => format!("{more} of the NIC's locks evenly, and wait for them"),
            };
            format!(
                "{}: atomics use {locks}",
                queue_pair_text(qp.qpn, all.len() - 1)
            )
        }
        (None, _) => "atomics wait for the NIC's locks".to_owned(),
    };
    let advice = match has {
        Some(1) | None => {
            "do them on the processor: send the request by SEND or WRITE and let one \
                           core do all that wait by a single atomic of its own (an RPC); this NIC \
                           makes no two atomics at a time"
                .to_owned()
        }
        Some(all) => {
            let bits = profile
                .atomics
                .lock_bits
                .as_ref()
                .map_or(0, |bits| bits.value);
            format!(
                "place the words so that their addresses differ in the low {bits} bits ({all} \
                 places, 8 bytes apart; not at the same offset of pages or of records of a power of \
                 two), or do them on the processor by an RPC"
            )
        }
    };
    Some(Finding {
        observed_violation: seen,
        advice,
    })
}

fn program_after_fix(observed: &OperationProfile, profile: &Profile) -> Option<OperationProfile> {
    // A NIC with a single lock needs another design, which this guideline does not describe.
    let all = atomic_locks::reachable_lock_count(profile).filter(|all| *all > 1)?;
    let mut fixed = observed.clone();
    for qp in &mut fixed.queue_pairs {
        let total = qp.atomics_of_known_address();
        if total > 0 {
            let (each, more) = (total / u64::from(all), total % u64::from(all));
            let places = (0..all).map(|index| AtomicSlotCount {
                low_address_bits: index * crate::verb::ATOMIC_BYTES,
                count: each + u64::from(u64::from(index) < more),
            });
            qp.atomics_by_low_address_bits = places.collect();
        }
    }
    Some(fixed)
}
