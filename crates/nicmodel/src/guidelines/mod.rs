//! The design guidelines as values: what to look for, what to do, and what it would bring.
//!
//! Each guideline is a file of its own; adding one is adding a file and its line in [`ALL`].

mod atomic_locks;
mod connected_qps;
mod cpu_bypass;
mod doorbell_batching;
mod header_only;
mod huge_pages;
mod inline_recv;
mod inlining;
mod multi_queue;
mod read_size;
mod read_window;
mod unsignaled;
mod wqe_shrinking;

use serde::Serialize;

use crate::bounds::Resource;
use crate::op_profile::{OperationProfile, real};
use crate::operation::OperationError;
use crate::profile::Profile;

/// A guideline.
#[derive(Clone, Copy, Debug)]
pub struct Guideline {
    /// Short name.
    pub name: &'static str,
    /// Where it is published.
    pub section: &'static str,
    /// What it says, in one sentence.
    pub rule: &'static str,
    /// Where a program breaks it, and what to do about it; nothing if it keeps it.
    pub finds: fn(&OperationProfile, &Profile) -> Option<Finding>,
    /// The same program if it did so; nothing where the model has no rate for the difference.
    pub fixed: fn(&OperationProfile, &Profile) -> Option<OperationProfile>,
}

/// Where a program breaks a guideline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it does.
    pub seen: String,
    /// What to do instead, by the names of the verbs.
    pub advice: String,
}

/// A finding with the gain that following it would bring.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// The guideline's name.
    pub guideline: &'static str,
    /// Where it is published.
    pub section: &'static str,
    /// What was found.
    #[serde(flatten)]
    pub finding: Finding,
    /// What the model predicts; nothing where it has no rate for the difference.
    pub gain: Option<Gain>,
    /// Another guideline that this one needs to bring its gain, which is that of both.
    pub together_with: Option<&'static str>,
}

/// What a change would bring.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gain {
    /// Rate as it is, in 10^6 operations a second.
    pub now_mops: f64,
    /// Rate with the change.
    pub then_mops: f64,
    /// `then / now - 1`.
    pub relative: f64,
    /// What the program lacks then.
    pub then_bottleneck: Resource,
}

/// Every guideline.
pub const ALL: [Guideline; 13] = [
    doorbell_batching::GUIDELINE,
    wqe_shrinking::GUIDELINE,
    inlining::GUIDELINE,
    unsignaled::GUIDELINE,
    header_only::GUIDELINE,
    inline_recv::GUIDELINE,
    multi_queue::GUIDELINE,
    atomic_locks::GUIDELINE,
    cpu_bypass::GUIDELINE,
    read_size::GUIDELINE,
    read_window::GUIDELINE,
    connected_qps::GUIDELINE,
    huge_pages::GUIDELINE,
];

/// What a program should change for this NIC, the greatest gain first, then what has no predicted
/// gain.
///
/// # Errors
/// The NIC cannot do what the program does.
pub fn advise(
    observed: &OperationProfile,
    profile: &Profile,
) -> Result<Vec<Advice>, OperationError> {
    let now = observed.predict(profile)?;
    // The same work may take another number of operations. A fix that the NIC could not do would be none.
    let gain_of = |fixed: &OperationProfile| {
        let then = fixed.predict(profile).ok().flatten()?;
        let now = now.as_ref()?;
        let then_mops = then.rate_mops * real(observed.requests()) / real(fixed.requests().max(1));
        Some(Gain {
            now_mops: now.rate_mops,
            then_mops,
            relative: then_mops / now.rate_mops - 1.0,
            then_bottleneck: then.bottleneck,
        })
    };
    let second = multi_queue::GUIDELINE;
    let seconds = (second.finds)(observed, profile)
        .and_then(|_| (second.fixed)(observed, profile))
        .as_ref()
        .and_then(gain_of);
    let mut all = Vec::new();
    for guideline in ALL {
        let Some(finding) = (guideline.finds)(observed, profile) else {
            continue;
        };
        let fixed = (guideline.fixed)(observed, profile);
        let mut gain = fixed.as_ref().and_then(gain_of);
        let mut together_with = None;
        // Lists on one queue pair make its processing unit the bottleneck, which is that guideline's subject. What it
        // brings alone is no gain of this one.
        if let (Some(fixed), Some(alone)) = (&fixed, gain)
            && guideline.name != second.name
            && alone.then_bottleneck == Resource::QueuePairUnits
            && (second.finds)(fixed, profile).is_some()
            && let Some(both) = (second.fixed)(fixed, profile).as_ref().and_then(gain_of)
            && both.relative > alone.relative
            && seconds.is_none_or(|seconds| both.then_mops > 1.005 * seconds.then_mops)
        {
            gain = Some(both);
            together_with = Some(second.name);
        }
        all.push(Advice {
            guideline: guideline.name,
            section: guideline.section,
            finding,
            gain,
            together_with,
        });
    }
    let size = |advice: &Advice| advice.gain.map_or(f64::NEG_INFINITY, |gain| gain.relative);
    all.sort_by(|a, b| size(b).total_cmp(&size(a)));
    Ok(all)
}

#[cfg(test)]
mod tests;
