//! The settings of an operation that a sweep can vary.

use chart::Axis;
use clap::ValueEnum;
use serde::Serialize;

/// A setting of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Knob {
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

impl Knob {
    /// Returns the axis of the setting's values.
    pub(super) fn axis(self) -> Axis {
        match self {
            Knob::Payload => Axis::log("payload, bytes").in_bytes(),
            Knob::Batch => Axis::log("operations in a postlist"),
            Knob::Cores => Axis::linear("cores of each side"),
            Knob::QueuePairs => Axis::log("queue pairs"),
            Knob::SignalEvery => Axis::log("one signaled operation in"),
            Knob::Counters => Axis::log("counters"),
        }
    }

    /// Returns the range of exponents of the default values, which are powers of two.
    pub(super) fn usual(self) -> std::ops::RangeInclusive<u32> {
        match self {
            Knob::Payload => 3..=12,
            Knob::Batch => 0..=6,
            Knob::Cores => 0..=4,
            Knob::QueuePairs => 0..=6,
            Knob::SignalEvery => 0..=7,
            Knob::Counters => 0..=12,
        }
    }
}
