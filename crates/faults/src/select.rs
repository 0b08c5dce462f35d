//! Selects which matched occurrences a rule strikes.

use std::collections::HashMap;

use crate::random::{RuleRandom, is_draw_within_probability};
use crate::rule::Rule;

/// For each rule, the maximum number of streams (queue pairs or verbs) with a counter of their own. All further streams
/// share one counter.
const MAX_STREAMS: usize = 1 << 16;

/// A rule and its past occurrences.
#[derive(Clone, Debug)]
pub(crate) struct RuleState {
    pub(crate) rule: Rule,
    pub(crate) random_draws: RuleRandom,
    /// Occurrences that matched the rule.
    pub(crate) matched_count: u64,
    pub(crate) struck_count: u64,
    /// The number of matched occurrences in each stream.
    matches_by_stream: HashMap<u64, u64>,
    /// The time at which the last delayed packet of each stream leaves, in nanoseconds.
    pub(crate) last_release_ns_by_stream: HashMap<u64, u64>,
    /// The time in nanoseconds at which the limited rate lets the next packet leave.
    pub(crate) rate_limit_free_at_ns: u64,
}

/// An occurrence that a rule struck.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StruckOccurrence {
    stream: u64,
    occurrence_number: u64,
}

/// Purpose of the random number that decides whether a rule strikes; `RANDOM_PURPOSE_DETAIL` is the purpose of all
/// other numbers.
const RANDOM_PURPOSE_DECISION: u64 = 0;
const RANDOM_PURPOSE_DETAIL: u64 = 1;

impl RuleState {
    pub(crate) fn new(rule: Rule, draws: RuleRandom) -> Self {
        Self {
            rule,
            random_draws: draws,
            matched_count: 0,
            struck_count: 0,
            matches_by_stream: HashMap::new(),
            last_release_ns_by_stream: HashMap::new(),
            rate_limit_free_at_ns: 0,
        }
    }

    /// Counts a matched occurrence in `stream`; returns a [`StruckOccurrence`] if the rule strikes the
    /// occurrence.
    pub(crate) fn try_strike(&mut self, stream: u64) -> Option<StruckOccurrence> {
        let stream = if self.matches_by_stream.len() < MAX_STREAMS
            || self.matches_by_stream.contains_key(&stream)
        {
            stream
        } else {
            0
        };
        let next = self.matches_by_stream.entry(stream).or_default();
        let number = *next;
        *next += 1;
        let place = self.matched_count;
        self.matched_count += 1;
        let selection = &self.rule.selection;
        let chosen = place >= selection.skipped_match_count
            && (place - selection.skipped_match_count).is_multiple_of(selection.every_nth_match)
            && self.struck_count < selection.max_strikes
            && is_draw_within_probability(
                self.random_draws
                    .draw_for_occurrence(stream, number, RANDOM_PURPOSE_DECISION),
                selection.probability,
            );
        if !chosen {
            return None;
        }
        self.struck_count += 1;
        Some(StruckOccurrence {
            stream,
            occurrence_number: number,
        })
    }

    /// Returns a random number for a detail of a strike, such as a delay.
    pub(crate) fn draw_detail(&self, strike: StruckOccurrence) -> u64 {
        self.random_draws.draw_for_occurrence(
            strike.stream,
            strike.occurrence_number,
            RANDOM_PURPOSE_DETAIL,
        )
    }
}
