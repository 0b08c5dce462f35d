//! The settings of an operation that a sweep can vary.

use chart::Axis;
use clap::ValueEnum;
use serde::Serialize;

/// A setting of an operation that a sweep varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum SweptKnob {
    /// Bytes of payload
    Payload,
    /// Operations in a postlist
    Batch,
    /// Cores of each side
    Cores,
    /// Queue pairs
    QueuePairs,
    /// One operation in so many is signaled
    SignalEvery,
    /// Counters of atomics
    Counters,
}

impl SweptKnob {
    /// Returns the axis of the setting's values.
    pub(super) fn axis(self) -> Axis {
        match self {
            SweptKnob::Payload => Axis::log("payload, bytes").in_bytes(),
            SweptKnob::Batch => Axis::log("operations in a postlist"),
            SweptKnob::Cores => Axis::linear("cores of each side"),
            SweptKnob::QueuePairs => Axis::log("queue pairs"),
            SweptKnob::SignalEvery => Axis::log("one signaled operation in"),
            SweptKnob::Counters => Axis::log("counters"),
        }
    }

    /// Returns the range of exponents of the default values, which are powers of two.
    pub(super) fn default_value_exponents(self) -> std::ops::RangeInclusive<u32> {
        match self {
            SweptKnob::Payload => 3..=12,
            SweptKnob::Batch => 0..=6,
            SweptKnob::Cores => 0..=4,
            SweptKnob::QueuePairs => 0..=6,
            SweptKnob::SignalEvery => 0..=7,
            SweptKnob::Counters => 0..=12,
        }
    }
}
