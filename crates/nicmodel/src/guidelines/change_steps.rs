//! The guidelines that raise the predicted rate, in the order in which to follow them.

use serde::Serialize;

use super::guideline::{Finding, Guideline};
use super::{
    ALL_GUIDELINES, ChangedRate, Gain, REDESIGN_GUIDELINE_NAME, is_rate_predictable, multi_queue,
    rate_in_original_operations,
};
use crate::op_profile::OperationProfile;
use crate::operation::OperationError;
use crate::profile::Profile;

/// One change in a sequence of changes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChangeStep {
    /// The guideline's name.
    pub guideline: &'static str,
    /// Publication and section of the guideline.
    pub section: &'static str,
    /// The violation and the advice.
    #[serde(flatten)]
    pub finding: Finding,
    /// Gain of this step over the program that has taken all earlier steps. The gain may be near 0 if the step
    /// enables the next one.
    pub gain: Gain,
    /// Relative gain of this and all earlier steps over the original program.
    #[serde(rename = "cumulative")]
    pub cumulative_relative_gain: f64,
}

/// Largest relative loss that counts as no loss for a step that enables the next one: the model is not more exact.
const MAX_TOLERATED_LOSS: f64 = 1e-3;

/// Most rounds of the search; the order is stable after this number.
const MAX_SEARCH_ROUNDS: usize = 4;

/// Returns the changes that a program should make for this NIC, in the order in which to make them. Each step has the
/// greatest gain over the program after the earlier steps, or enables the next step. A gain within the noise of the
/// model makes no step. Another design (cpu-bypass) is not a step.
///
/// # Errors
/// Returned if the NIC cannot execute one of the program's operations.
pub fn change_steps(
    observed: &OperationProfile,
    profile: &Profile,
) -> Result<Vec<ChangeStep>, OperationError> {
    let Some(start) = rate_in_original_operations(observed, observed, profile)? else {
        return Ok(Vec::new());
    };
    if !is_rate_predictable(observed, &start) {
        return Ok(Vec::new());
    }
    let way = ChangeSequence {
        observed,
        profile,
        original_rate: start,
    };
    let alone = [REDESIGN_GUIDELINE_NAME, multi_queue::GUIDELINE.name];
    let mut used: Vec<_> = ALL_GUIDELINES.into_iter().collect();
    used.retain(|guideline| !alone.contains(&guideline.name));
    let mut found = Vec::new();
    // The number of queue pairs depends on the other steps, and the gain of those steps depends on the queue pairs.
    for _ in 0..MAX_SEARCH_ROUNDS {
        let times = multi_queue::needed_queue_pair_factor(&way.apply_guidelines(&used), profile);
        found = way.order_by_gain(&used, times);
        let is_step = |guideline: &Guideline| {
            found
                .iter()
                .any(|step: &ChangeStep| step.guideline == guideline.name)
        };
        let before = used.len();
        used.retain(is_step);
        if used.len() == before {
            break;
        }
    }
    Ok(found)
}

struct ChangeSequence<'a> {
    observed: &'a OperationProfile,
    profile: &'a Profile,
    original_rate: ChangedRate,
}

/// The program after a change, and its rate.
struct ChangedProgram {
    program: OperationProfile,
    rate: ChangedRate,
}

impl ChangeSequence<'_> {
    /// The program after all of these guidelines.
    fn apply_guidelines(&self, used: &[Guideline]) -> OperationProfile {
        used.iter()
            .fold(self.observed.clone(), |program, guideline| {
                match self.apply_if_violated(guideline, &program, 1) {
                    Some(changed) => changed.program,
                    None => program,
                }
            })
    }

    /// The program after one change; `None` if the program keeps the guideline, or the model has no rate for the
    /// change.
    fn apply_if_violated(
        &self,
        guideline: &Guideline,
        program: &OperationProfile,
        times: u32,
    ) -> Option<ChangedProgram> {
        let changed = if guideline.name == multi_queue::GUIDELINE.name {
            multi_queue::multiply_queue_pairs(program, times)
        } else {
            (guideline.find_violation)(program, self.profile)?;
            (guideline.program_after_change)(program, self.profile)?
        };
        let rate = rate_in_original_operations(&changed, self.observed, self.profile).ok()??;
        Some(ChangedProgram {
            program: changed,
            rate,
        })
    }

    fn order_by_gain(&self, used: &[Guideline], times: u32) -> Vec<ChangeStep> {
        let mut rest = used.to_vec();
        if times > 1 {
            rest.push(multi_queue::GUIDELINE);
        }
        let mut now = ChangedProgram {
            program: self.observed.clone(),
            rate: self.original_rate,
        };
        let mut steps = Vec::new();
        while let Some((index, then)) = self
            .guideline_of_greatest_gain(&rest, &now, times)
            .or_else(|| self.best_enabler(&rest, &now, times))
        {
            let guideline = rest.remove(index);
            let gain = then.rate.gain_over(&now.rate);
            if let Some(finding) = self.finding(&guideline, &now.program, times) {
                steps.push(ChangeStep {
                    guideline: guideline.name,
                    section: guideline.section,
                    finding,
                    gain,
                    cumulative_relative_gain: then
                        .rate
                        .gain_over(&self.original_rate)
                        .relative_gain,
                });
            }
            now = then;
        }
        steps
    }

    /// The finding of a guideline. The text describes the original program if that breaks the guideline already.
    fn finding(
        &self,
        guideline: &Guideline,
        program: &OperationProfile,
        times: u32,
    ) -> Option<Finding> {
        if guideline.name == multi_queue::GUIDELINE.name {
            return Some(multi_queue::too_few_queue_pairs_finding(
                self.observed,
                self.profile,
                times,
            ));
        }
        let of = |program| (guideline.find_violation)(program, self.profile);
        of(self.observed).or_else(|| of(program))
    }

    /// Returns the guideline with the greatest gain by itself, and the changed program.
    fn guideline_of_greatest_gain(
        &self,
        rest: &[Guideline],
        now: &ChangedProgram,
        times: u32,
    ) -> Option<(usize, ChangedProgram)> {
        let each = rest.iter().enumerate();
        let all = each.filter_map(|(index, guideline)| {
            Some((
                index,
                self.apply_if_violated(guideline, &now.program, times)?,
            ))
        });
        all.filter(|(_, then)| then.rate.gain_over(&now.rate).exceeds_noise())
            .max_by(|a, b| a.1.rate.rate_mops.total_cmp(&b.1.rate.rate_mops))
    }

    /// Returns a guideline that loses nothing and enables another one. Among several, the one whose successor gains
    /// most is returned.
    fn best_enabler(
        &self,
        rest: &[Guideline],
        now: &ChangedProgram,
        times: u32,
    ) -> Option<(usize, ChangedProgram)> {
        let mut best: Option<(f64, usize, ChangedProgram)> = None;
        for (index, first) in rest.iter().enumerate() {
            let Some(then) = self.apply_if_violated(first, &now.program, times) else {
                continue;
            };
            if then.rate.gain_over(&now.rate).relative_gain < -MAX_TOLERATED_LOSS {
                continue;
            }
            let others = rest.iter().filter(|other| other.name != first.name);
            let both = others
                .filter_map(|second| self.apply_if_violated(second, &then.program, times))
                .map(|both| both.rate.gain_over(&then.rate))
                .filter(Gain::exceeds_noise)
                .map(|gain| gain.relative_gain)
                .fold(0.0, f64::max);
            let is_best = best.as_ref().is_none_or(|(most, ..)| both > *most);
            if both > 0.0 && is_best {
                best = Some((both, index, then));
            }
        }
        best.map(|(_, index, then)| (index, then))
    }
}
