//! The design guidelines as values: each finds a violation, gives the advice, and predicts the gain.
//!
//! Each guideline is a file of its own; a new guideline is a new file and its line in [`ALL_GUIDELINES`].

mod atomic_locks;
mod change_steps;
mod connected_qps;
mod cpu_bypass;
mod doorbell_batching;
mod guideline;
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
use crate::op_profile::{OperationProfile, count_to_f64};
use crate::operation::OperationError;
use crate::profile::Profile;
use crate::uncertainty;

pub use change_steps::{ChangeStep, change_steps};
pub use guideline::{Finding, Guideline};

/// A finding with the gain that following it would bring.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// The guideline's name.
    pub guideline: &'static str,
    /// Publication and section of the guideline.
    pub section: &'static str,
    /// The violation and the advice.
    #[serde(flatten)]
    pub finding: Finding,
    /// Predicted gain of this change alone; `None` if the model has no rate for the difference. If
    /// `required_queue_pairs_per_thread` is set, the gain over the program with that number of queue pairs.
    pub gain: Option<Gain>,
    /// Queue pairs for each posting thread that this change needs to bring its gain.
    #[serde(rename = "with_queue_pairs")]
    pub required_queue_pairs_per_thread: Option<u32>,
    /// Predicted gain without these additional queue pairs, which may be a loss.
    #[serde(rename = "alone")]
    pub gain_without_queue_pairs: Option<Gain>,
    /// Gain of this change if every other guideline is followed. `None` if `gain` is at least [`MIN_RELATIVE_GAIN`] or
    /// unknown.
    #[serde(rename = "after_others")]
    pub gain_after_others: Option<Gain>,
}

/// The predicted rates before and after a change.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gain {
    /// Rate without the change, in 10^6 operations a second.
    pub now_mops: f64,
    /// Rate with the change, in 10^6 operations a second.
    pub then_mops: f64,
    /// `then / now - 1`.
    #[serde(rename = "relative")]
    pub relative_gain: f64,
    /// Largest relative gain that is within the noise of the model, from pairs of published rates with these
    /// bottlenecks ([`uncertainty::noise_of_gain`]).
    pub noise: f64,
    /// The bottleneck after the change.
    pub then_bottleneck: Resource,
    /// True if the profile lacks a number that may make the gain smaller.
    #[serde(rename = "at_most")]
    pub is_upper_bound: bool,
}

impl Gain {
    /// Returns true if the model predicts a gain, of whatever size.
    pub fn exceeds_rounding(&self) -> bool {
        self.relative_gain >= MIN_RELATIVE_GAIN
    }

    /// Returns true if the predicted gain exceeds the noise of the model.
    pub fn exceeds_noise(&self) -> bool {
        self.exceeds_rounding() && self.relative_gain > self.noise
    }
}

/// The guideline that advises another design instead of a step from the present design.
pub const REDESIGN_GUIDELINE_NAME: &str = cpu_bypass::GUIDELINE.name;

/// Smallest relative gain that counts as a gain: a smaller one is rounding.
pub const MIN_RELATIVE_GAIN: f64 = 0.01;

/// Every guideline.
pub const ALL_GUIDELINES: [Guideline; 13] = [
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

/// A change is advised together with more queue pairs only if that multiplies its gain by more than this factor.
const MIN_COMBINED_GAIN_FACTOR: f64 = 1.5;

/// Returns the changes that a program should make for this NIC: the greatest gain first, then the changes without a
/// predicted gain.
///
/// # Errors
/// Returned if the NIC cannot execute one of the program's operations.
pub fn advise(
    observed: &OperationProfile,
    profile: &Profile,
) -> Result<Vec<Advice>, OperationError> {
    let Some(now) = rate_in_original_operations(observed, observed, profile)? else {
        return Ok(Vec::new());
    };
    let has_rate = is_rate_predictable(observed, &now);
    // A change that the NIC cannot execute has no rate.
    let rate_of = |fixed: &OperationProfile| {
        rate_in_original_operations(fixed, observed, profile)
            .ok()
            .flatten()
    };
    let mut all = Vec::new();
    for guideline in ALL_GUIDELINES {
        let Some(finding) = (guideline.find_violation)(observed, profile) else {
            continue;
        };
        let mut advice = Advice {
            guideline: guideline.name,
            section: guideline.section,
            finding,
            gain: None,
            required_queue_pairs_per_thread: None,
            gain_without_queue_pairs: None,
            gain_after_others: None,
        };
        let fixed = (guideline.program_after_change)(observed, profile).filter(|_| has_rate);
        if let Some(fixed) = fixed
            && let Some(then) = rate_of(&fixed)
        {
            let alone = then.gain_over(&now);
            advice.gain = Some(alone);
            // Postlists on one queue pair make its processing unit the bottleneck, which is another guideline's
            // subject. So the gain of more queue pairs alone is not counted as a gain of this guideline.
            let times = match guideline.name == multi_queue::GUIDELINE.name {
                true => 1,
                false => multi_queue::needed_queue_pair_factor(&fixed, profile),
            };
            if times > 1
                && let Some(both) = rate_of(&multi_queue::multiply_queue_pairs(&fixed, times))
                && let Some(base) = rate_of(&multi_queue::multiply_queue_pairs(observed, times))
                && both.gain_over(&base).relative_gain
                    > MIN_COMBINED_GAIN_FACTOR * alone.relative_gain
            {
                advice.gain = Some(both.gain_over(&base));
                advice.required_queue_pairs_per_thread = Some(
                    multi_queue::queue_pairs_per_thread_after_multiplying(&fixed, profile, times),
                );
                advice.gain_without_queue_pairs = Some(alone);
            }
            if advice.gain.is_some_and(|gain| !gain.exceeds_rounding()) {
                let others = apply_guidelines_but_redesign(observed, profile, Some(guideline.name));
                let every = apply_guidelines_but_redesign(observed, profile, None);
                let last = rate_of(&every).zip(rate_of(&others));
                advice.gain_after_others = last.map(|(every, others)| every.gain_over(&others));
            }
        }
        all.push(advice);
    }
    let size = |advice: &Advice| {
        advice
            .gain
            .map_or(f64::NEG_INFINITY, |gain| gain.relative_gain)
    };
    all.sort_by(|a, b| size(b).total_cmp(&size(a)));
    Ok(all)
}

/// The rate of a changed program, in operations of the original program.
#[derive(Clone, Copy)]
struct ChangedRate {
    rate_mops: f64,
    bottleneck: Resource,
    is_upper_bound: bool,
    /// True if the time of the round trips is known and part of the rate.
    includes_round_trip_time: bool,
}

/// Returns true if the model predicts a rate. The rate of a program that waits for each operation needs the
/// round-trip time.
fn is_rate_predictable(observed: &OperationProfile, now: &ChangedRate) -> bool {
    now.includes_round_trip_time || !observed.waits_after_each_operation()
}

impl ChangedRate {
    fn gain_over(&self, now: &Self) -> Gain {
        Gain {
            now_mops: now.rate_mops,
            then_mops: self.rate_mops,
            relative_gain: self.rate_mops / now.rate_mops - 1.0,
            noise: uncertainty::noise_of_gain(now.bottleneck, self.bottleneck),
            then_bottleneck: self.bottleneck,
            is_upper_bound: self.is_upper_bound,
        }
    }
}

/// Computes the rate of `program` in operations of `observed`: the same work may take another number of operations.
fn rate_in_original_operations(
    program: &OperationProfile,
    observed: &OperationProfile,
    profile: &Profile,
) -> Result<Option<ChangedRate>, OperationError> {
    let Some(prediction) = program.predict(profile)? else {
        return Ok(None);
    };
    let round_trips = prediction
        .own_machine_bounds
        .rate_mops(Resource::RoundTrips);
    let unknown = [&prediction.own_machine_bounds, &prediction.peer_bounds];
    Ok(Some(ChangedRate {
        rate_mops: prediction.rate_mops * count_to_f64(observed.posted_or_received_operations())
            / count_to_f64(program.posted_or_received_operations().max(1)),
        bottleneck: prediction.bottleneck,
        is_upper_bound: unknown
            .iter()
            .any(|bounds| !bounds.unknown_resources.is_empty()),
        includes_round_trip_time: round_trips.is_some(),
    }))
}

/// Applies every guideline that the program breaks, except the guideline named `but` and another design.
fn apply_guidelines_but_redesign(
    observed: &OperationProfile,
    profile: &Profile,
    but: Option<&str>,
) -> OperationProfile {
    let last = multi_queue::GUIDELINE;
    let first = ALL_GUIDELINES.into_iter().filter(|guideline| {
        guideline.name != cpu_bypass::GUIDELINE.name && guideline.name != last.name
    });
    let mut program = observed.clone();
    for guideline in first.chain([last]) {
        if Some(guideline.name) != but
            && (guideline.find_violation)(&program, profile).is_some()
            && let Some(fixed) = (guideline.program_after_change)(&program, profile)
        {
            program = fixed;
        }
    }
    program
}

#[cfg(test)]
mod tests;
