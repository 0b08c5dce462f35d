//! Which of the occurrences that a rule is for it strikes.

use std::collections::HashMap;

use crate::random::{Draws, is_within};
use crate::rule::Rule;

/// Streams that are told apart; what comes later shares one.
const MAX_STREAMS: usize = 1 << 16;

/// A rule and what it has seen.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) rule: Rule,
    pub(crate) draws: Draws,
    /// Occurrences that it is for.
    pub(crate) matched: u64,
    pub(crate) struck: u64,
    /// Occurrences by stream.
    numbers: HashMap<u64, u64>,
    /// When the last packet of each stream leaves that it delays.
    pub(crate) releases: HashMap<u64, u64>,
    /// When the limited rate lets the next packet go.
    pub(crate) next_free_ns: u64,
}

/// An occurrence that a rule strikes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strike {
    stream: u64,
    number: u64,
}

/// A purpose of draws.
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

    /// An occurrence in `stream` that the rule is for: does it strike?
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

    /// A draw for something about a strike.
    pub(crate) fn draw(&self, strike: Strike) -> u64 {
        self.draws.draw(strike.stream, strike.number, HOW)
    }
}
