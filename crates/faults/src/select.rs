//! Selects which matched occurrences a rule strikes.

use std::collections::HashMap;

use crate::random::{RuleRandom, is_within};
use crate::rule::Rule;

/// For each rule, the maximum number of streams (queue pairs or verbs) with a counter of their own. All further streams share one counter.
const MAX_STREAMS: usize = 1 << 16;

/// A rule and its past occurrences.
#[derive(Clone, Debug)]
pub(crate) struct RuleState {
    pub(crate) rule: Rule,
    pub(crate) draws: RuleRandom,
    /// Occurrences that matched the rule.
    pub(crate) matched: u64,
    pub(crate) struck: u64,
    /// The number of matched occurrences in each stream.
    numbers: HashMap<u64, u64>,
    /// The time at which the last delayed packet of each stream leaves, in nanoseconds.
    pub(crate) releases: HashMap<u64, u64>,
    /// The time in nanoseconds at which the limited rate lets the next packet leave.
    pub(crate) next_free_ns: u64,
}

/// An occurrence that a rule struck.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StruckRule {
    stream: u64,
    number: u64,
}

/// Purpose of the random number that decides whether a rule strikes; `PURPOSE_DETAIL` is the purpose of all
/// other numbers.
const PURPOSE_DECISION: u64 = 0;
const PURPOSE_DETAIL: u64 = 1;

impl RuleState {
    pub(crate) fn new(rule: Rule, draws: RuleRandom) -> Self {
        Self {
            rule,
            draws,
            matched: 0,
            struck: 0,
            numbers: HashMap::new(),
            releases: HashMap::new(),
            next_free_ns: 0,
        }
    }

    /// Counts a matched occurrence in `stream`; returns a [`StruckRule`] if the rule strikes the
    /// occurrence.
    pub(crate) fn strikes(&mut self, stream: u64) -> Option<StruckRule> {
        let stream = if self.numbers.len() < MAX_STREAMS || self.numbers.contains_key(&stream) {
            stream
        } else {
            0
        };
        let next = self.numbers.entry(stream).or_default();
        let number = *next;
        *next += 1;
        let place = self.matched;
        self.matched += 1;
        let selection = &self.rule.selection;
        let chosen = place >= selection.after
            && (place - selection.after).is_multiple_of(selection.every)
            && self.struck < selection.count
            && is_within(
                self.draws.draw(stream, number, PURPOSE_DECISION),
                selection.probability,
            );
        if !chosen {
            return None;
        }
        self.struck += 1;
        Some(StruckRule { stream, number })
    }

    /// Returns a random number for a detail of a strike, such as a delay.
    pub(crate) fn draw(&self, strike: StruckRule) -> u64 {
        self.draws
            .draw(strike.stream, strike.number, PURPOSE_DETAIL)
    }
}
