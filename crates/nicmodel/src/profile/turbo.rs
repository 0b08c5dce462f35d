//! The clock rate of a processor's cores by the number of active ones.

use serde::{Deserialize, Serialize};

use super::section::ProfileNumber;
use super::sourced::Sourced;

/// The clock rates of a processor whose turbo frequency falls with each active core.
///
/// The processor times of a profile are those of one active core.
/// [`Profile::with_active_cores`](super::Profile::with_active_cores) gives those of several.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Turbo {
    /// Highest clock rates in GHz with one active core, with two, and so on. The last one holds for all further cores.
    pub ghz: Sourced<Vec<f64>>,
}

impl Turbo {
    /// Factor by which a core that runs beside others is slower than a core that runs alone: at least 1.
    #[must_use]
    pub fn slowdown_factor(&self, active_cores: u32) -> f64 {
        let rates = &self.ghz.value;
        let index = (active_cores.max(1) as usize - 1).min(rates.len().saturating_sub(1));
        match (rates.first(), rates.get(index)) {
            (Some(alone), Some(beside)) => alone / beside,
            _ => 1.0,
        }
    }

    /// Adds each clock rate, under the number of active cores.
    pub(super) fn add_numbers_to<'a>(&'a self, into: &mut Vec<ProfileNumber<'a>>) {
        let evidence = &self.ghz.evidence;
        for (cores, &value) in (1..).zip(&self.ghz.value) {
            into.push(ProfileNumber {
                key: format!("turbo.ghz.{cores}"),
                meaning: "Highest clock rate in GHz with so many active cores; the last one holds for all further cores.",
                value,
                source: evidence.kind(),
                evidence,
            });
        }
    }

    /// Sets the clock rate of a field such as `ghz.3`; returns false if there is no such field.
    pub(super) fn set_clock_rate(&mut self, field: &str, value: f64) -> bool {
        let cores = field
            .strip_prefix("ghz.")
            .and_then(|cores| cores.parse().ok());
        let index = cores.and_then(|cores: usize| cores.checked_sub(1));
        let rate = index.and_then(|index| self.ghz.value.get_mut(index));
        rate.map(|rate| *rate = value).is_some()
    }

    /// Returns the byte offset in the text and the message of what is wrong.
    pub(super) fn problem(&self) -> Option<(usize, &'static str)> {
        let rates = &self.ghz.value;
        let message = if rates.is_empty() {
            "give at least the clock rate of one active core"
        } else if !rates.iter().all(|ghz| (0.1..=10.0).contains(ghz)) {
            "a clock rate must be from 0.1 to 10"
        } else if !rates.is_sorted_by(|fewer, more| fewer >= more) {
            "a clock rate must not be above that of fewer active cores"
        } else {
            return None;
        };
        Some((self.ghz.span.start, message))
    }
}
