//! The verdict on each advice for a process, and the sentences on its round trips.

use nicmodel::bounds::{Resource, Role};
use nicmodel::guidelines::{self, Advice};

use super::report::ProcessPrediction;
use crate::model::format_likely_rate;
use crate::output::{format_three_digits, format_time_ns};

/// The verdict on a guideline that a process breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdviceVerdict {
    /// The guideline is one of the steps.
    IsStep,
    /// The guideline stands for another design, which would raise the rate in place of the steps.
    RedesignInstead,
    /// The guideline would raise the rate of the program as it is, but not after the steps.
    NoGainAfterSteps,
    /// The gain of the guideline is within the noise of the model.
    GainWithinNoise,
    /// The guideline does not relieve the bottleneck. An unknown resource may be the bottleneck, or the guideline
    /// has a gain only after other guidelines.
    NoGainYet,
    /// The guideline does not raise the rate, even if every other guideline is followed.
    NoGainEver,
    /// The model has no rate for the change.
    NoModelledRate,
}

impl ProcessPrediction {
    pub(super) fn verdict(&self, advice: &Advice) -> AdviceVerdict {
        if self
            .steps
            .iter()
            .any(|step| step.guideline == advice.guideline)
        {
            return AdviceVerdict::IsStep;
        }
        match advice.gain {
            None => AdviceVerdict::NoModelledRate,
            Some(gain) if gain.exceeds_noise() => {
                if advice.guideline == guidelines::REDESIGN_GUIDELINE_NAME {
                    AdviceVerdict::RedesignInstead
                } else {
                    AdviceVerdict::NoGainAfterSteps
                }
            }
            Some(gain) if gain.exceeds_rounding() => AdviceVerdict::GainWithinNoise,
            Some(_)
                if !self.unknown_resources.is_empty()
                    || !self.bounds.unknown_resources.is_empty() =>
            {
                AdviceVerdict::NoGainYet
            }
            Some(_) => match advice.gain_after_others {
                Some(gain) if gain.exceeds_noise() => AdviceVerdict::NoGainYet,
                Some(gain) if gain.exceeds_rounding() => AdviceVerdict::GainWithinNoise,
                _ => AdviceVerdict::NoGainEver,
            },
        }
    }

    /// Returns the maximum number of operations outstanding at a time, or unanswered if these are fewer.
    fn operations_at_a_time(&self) -> Option<f64> {
        let all = [
            self.max_outstanding_ops,
            self.max_unanswered,
            self.clients_unanswered,
        ];
        all.into_iter().flatten().reduce(f64::min)
    }

    /// Returns the advice with this verdict.
    pub(super) fn advice_judged_as(&self, wanted: AdviceVerdict) -> impl Iterator<Item = &Advice> {
        let all = self.advice.iter();
        all.filter(move |advice| self.verdict(advice) == wanted)
    }

    /// Returns the sentence for a process without useful advice.
    pub(super) fn no_advice_sentence(&self) -> Option<String> {
        if self.advice.is_empty() {
            return Some("nothing: it keeps every guideline that applies to it".to_owned());
        }
        let never = self.advice_judged_as(AdviceVerdict::NoGainEver).count();
        let within_noise = self
            .advice_judged_as(AdviceVerdict::GainWithinNoise)
            .count();
        if never == self.advice.len() {
            return Some(format!(
                "nothing: none of the guidelines saves what binds, {}",
                self.bottleneck
            ));
        }
        (never + within_noise == self.advice.len())
            .then(|| "nothing: no guideline gains more than the noise of the model".to_owned())
    }

    /// Returns the range in which the rate probably lies, as ", likely … M/s"; nothing if it is not known.
    pub(super) fn likely_range_text(&self) -> String {
        self.likely_rate.map_or_else(String::new, |range| {
            format!(", {}", format_likely_rate(&range))
        })
    }

    /// Returns the sentences that precede the bounds.
    pub(super) fn sentences_before_bounds(&self) -> impl Iterator<Item = String> {
        [self.answers_sentence(), self.round_trip_sentence()]
            .into_iter()
            .flatten()
    }

    /// Returns the sentence on the answers of a process that waits for them, or gives them.
    fn answers_sentence(&self) -> Option<String> {
        let number = |count: f64| match format_three_digits(count).as_str() {
            "1.00" => "1 message was".to_owned(),
            many => format!("{many} messages were"),
        };
        if let Some(most) = self.max_unanswered {
            return Some(format!(
                "It got an answer to each message: at most {} unanswered at a time, whatever is outstanding. So a round \
                 trip is the way of the message and of its answer.",
                number(most)
            ));
        }
        let most = self.max_to_answer?;
        Some(format!(
            "It answered each message: at most {} to be answered at a time, so no more answers were waiting.",
            number(most)
        ))
    }

    /// Returns the sentence that precedes the bounds if round trips determine the program's rate.
    fn round_trip_sentence(&self) -> Option<String> {
        let known = self
            .bounds
            .bounds
            .iter()
            .find(|bound| bound.resource == Resource::RoundTrips);
        let Some(round_trips) = known else {
            return self.waits_for_each_operation.then(|| {
                "It waits for each operation before it posts the next on a queue pair: round trips bound its rate, and \
                 none of the resources does. With many operations outstanding these would allow:"
                    .to_owned()
            });
        };
        let outstanding = self.operations_at_a_time()?;
        if self.bottleneck != Resource::RoundTrips || self.slower_role != Role::Requester {
            return None;
        }
        let mut words = format!(
            "At most {} outstanding at a time: round trips bound its rate, {} each.",
            match format_three_digits(outstanding).as_str() {
                "1.00" => "1 operation is".to_owned(),
                many => format!("{many} operations are"),
            },
            format_time_ns(round_trips.busy_ns_per_request * outstanding)
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
                format_three_digits(next.rate_mops)
            ));
        }
        Some(words)
    }
}
