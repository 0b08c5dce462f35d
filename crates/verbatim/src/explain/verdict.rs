//! What is said of a process in sentences: which advice counts, and what bounds a closed loop.

use nicmodel::bounds::{Resource, Role};
use nicmodel::guidelines::{self, Advice, WORTHWHILE};

use super::report::Process;
use crate::output::{figure, time};

/// What becomes of a guideline that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is one of the steps.
    Step,
    /// It would bring something in place of the steps: another design.
    Instead,
    /// It would bring something to the program as it is, and nothing after the steps.
    NotAfterSteps,
    /// Something else binds, or something of which the profile has no number may.
    BringsNothing,
    /// Something else binds, and does so still when every other guideline is followed.
    Never,
    /// The model has no rate for it.
    Unknown,
}

impl Process {
    pub(super) fn verdict(&self, advice: &Advice) -> Verdict {
        if self
            .steps
            .iter()
            .any(|step| step.guideline == advice.guideline)
        {
            return Verdict::Step;
        }
        match advice.gain {
            None => Verdict::Unknown,
            Some(gain) if gain.relative >= WORTHWHILE => {
                if advice.guideline == guidelines::OTHER_DESIGN {
                    Verdict::Instead
                } else {
                    Verdict::NotAfterSteps
                }
            }
            Some(_) if !self.unknown.is_empty() || !self.bounds.unknown.is_empty() => {
                Verdict::BringsNothing
            }
            Some(_) if advice.after_others.is_some_and(|more| more >= WORTHWHILE) => {
                Verdict::BringsNothing
            }
            Some(_) => Verdict::Never,
        }
    }

    /// What is advised with this verdict.
    pub(super) fn advised(&self, wanted: Verdict) -> impl Iterator<Item = &Advice> {
        let all = self.advice.iter();
        all.filter(move |advice| self.verdict(advice) == wanted)
    }

    /// What to say if there is nothing to advise.
    pub(super) fn nothing(&self) -> Option<String> {
        if self.advice.is_empty() {
            return Some("nothing: it keeps every guideline that applies to it".to_owned());
        }
        let never = self.advised(Verdict::Never).count();
        (never == self.advice.len()).then(|| {
            format!(
                "nothing: none of the guidelines saves what binds, {}",
                self.bottleneck
            )
        })
    }

    /// What is to be said before the rates, where they are not the program's.
    pub(super) fn round_trips(&self) -> Option<String> {
        let known = self
            .bounds
            .bounds
            .iter()
            .find(|bound| bound.resource == Resource::RoundTrips);
        let Some(round_trips) = known else {
            return self.waits_for_each.then(|| {
                "It waits for each operation before it posts the next on a queue pair: round trips bound its rate, and \
                 none of the resources does. With many operations outstanding these would allow:"
                    .to_owned()
            });
        };
        let outstanding = self.outstanding?;
        if self.bottleneck != Resource::RoundTrips || self.slower != Role::Requester {
            return None;
        }
        let mut words = format!(
            "At most {} outstanding at a time: round trips bound its rate, {} each.",
            match figure(outstanding).as_str() {
                "1.00" => "1 operation is".to_owned(),
                many => format!("{many} operations are"),
            },
            time(round_trips.busy_ns * outstanding)
        );
        let next = self
            .bounds
            .bounds
            .iter()
            .find(|bound| bound.resource != Resource::RoundTrips);
        if let Some(next) = next {
            words.push_str(&format!(
                " With {:.0} outstanding the next limit would be reached: {}, {} M/s.",
                (outstanding * next.rate_mops / round_trips.rate_mops).ceil(),
                next.resource,
                figure(next.rate_mops)
            ));
        }
        Some(words)
    }
}
