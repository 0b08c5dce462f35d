//! The spread of a group of processes that are explained as one process.

use bench::stats::MedianAndSpread;
use serde::Serialize;

/// The spread of the group of processes for which one process stands.
#[derive(Debug, Serialize)]
pub(super) struct GroupSpread {
    /// Number of processes in the group, including the explained process.
    pub(super) processes: usize,
    /// Number of work requests that each process has posted.
    #[serde(rename = "posted")]
    pub(super) posted_wrs: MinMedianMax,
    /// Number of messages that each process has received.
    #[serde(rename = "received")]
    pub(super) received_messages: MinMedianMax,
    /// Observed rates in 10^6 operations a second; `None` if a process has no duration.
    pub(super) observed_mops: Option<MinMedianMax>,
    /// Predicted rates, in 10^6 operations a second.
    pub(super) predicted_mops: MinMedianMax,
}

/// The minimum, the median and the maximum of several numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct MinMedianMax {
    pub(super) min: f64,
    pub(super) median: f64,
    pub(super) max: f64,
}

impl MinMedianMax {
    /// Computes the range; `None` without numbers.
    pub(super) fn of(numbers: impl Iterator<Item = f64>) -> Option<Self> {
        let numbers: Vec<_> = numbers.collect();
        let spread = MedianAndSpread::of(&numbers)?;
        Some(Self {
            min: spread.min,
            median: spread.median,
            max: spread.max,
        })
    }
}
