//! Selects which matched occurrences a rule strikes.

use std::collections::HashMap;

use crate::random::{Draws, is_within};
use crate::rule::Rule;

/// The most streams with their own counters; later streams share one.
const MAX_STREAMS: usize = 1 << 16;

/// A rule and its past occurrences.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) rule: Rule,
    pub(crate) draws: Draws,
    /// Occurrences that matched the rule.
    pub(crate) matched: u64,
    pub(crate) struck: u64,
    /// The number of matched occurrences of each stream.
    numbers: HashMap<u64, u64>,
    /// For each stream, the time at which the last delayed packet leaves.
    pub(crate) releases: HashMap<u64, u64>,
    /// The time at which the limited rate lets the next packet leave.
    pub(crate) next_free_ns: u64,
}

/// An occurrence that a rule struck.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strike {
    stream: u64,
    number: u64,
}

/// The purpose of the random number that decides about a strike; `HOW` is for its details.
const WHETHER: u64 = 0;
const HOW: u64 = 1;

impl State {
    pub(crate) fn new(rule: Rule, draws: Draws) -> Self {
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

    /// Counts a matched occurrence in `stream`; returns a strike if the rule strikes.
    pub(crate) fn strikes(&mut self, stream: u64) -> Option<Strike> {
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
                self.draws.draw(stream, number, WHETHER),
                selection.probability,
            );
        if !chosen {
            return None;
        }
        self.struck += 1;
        Some(Strike { stream, number })
    }

    /// Returns a random number for a detail of a strike.
    pub(crate) fn draw(&self, strike: Strike) -> u64 {
        self.draws.draw(strike.stream, strike.number, HOW)
    }
}
