//! The spread of processes that are explained as one.

use bench::stats::Spread;
use serde::Serialize;

/// What processes have in common that are explained as one.
#[derive(Debug, Serialize)]
pub(super) struct Alike {
    /// How many there are, the explained one included.
    pub(super) processes: usize,
    /// Work requests that each has posted.
    pub(super) posted: Range,
    /// Messages that each has received.
    pub(super) received: Range,
    /// Operations a second where they ran, in 10^6; nothing if one of them did nothing for any time.
    pub(super) observed_mops: Option<Range>,
    /// What the model allows each of them, in 10^6 operations a second.
    pub(super) predicted_mops: Range,
}

/// The least, the middle and the most of several numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Range {
    pub(super) min: f64,
    pub(super) median: f64,
    pub(super) max: f64,
}

impl Range {
    /// Nothing of no numbers.
    pub(super) fn of(numbers: impl Iterator<Item = f64>) -> Option<Self> {
        let numbers: Vec<_> = numbers.collect();
        let spread = Spread::of(&numbers)?;
        Some(Self {
            min: spread.min,
            median: spread.median,
            max: spread.max,
        })
    }
}
