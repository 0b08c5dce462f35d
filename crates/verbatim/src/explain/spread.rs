//! The spread of processes that are explained as one.

use bench::stats::Spread;
use serde::Serialize;

/// The spread of the processes that one process stands for.
#[derive(Debug, Serialize)]
pub(super) struct Alike {
    /// Number of processes, the explained one included.
    pub(super) processes: usize,
    /// Work requests that each process has posted.
    pub(super) posted: Range,
    /// Messages that each process has received.
    pub(super) received: Range,
    /// Observed rates in 10^6 operations a second; `None` if a process has no duration.
    pub(super) observed_mops: Option<Range>,
    /// Predicted rates, in 10^6 operations a second.
    pub(super) predicted_mops: Range,
}

/// The minimum, the median and the maximum of several numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Range {
    pub(super) min: f64,
    pub(super) median: f64,
    pub(super) max: f64,
}

impl Range {
    /// Computes the range; `None` without numbers.
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
