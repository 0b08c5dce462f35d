//! The types that describe deviations of devices.

use crate::test_env::NicCapability;

/// The kind of a deviation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviationKind {
    /// The device answers a request, and the answer is wrong.
    WrongResult,
    /// The device lacks the feature.
    MissingFeature,
    /// An expected event never occurs, and the test waits for it until its time limit.
    Hangs,
    /// The device crashes the kernel; the test is not run.
    KernelCrash,
}

impl DeviationKind {
    /// Returns the kind as one word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::WrongResult => "wrong",
            Self::MissingFeature => "missing",
            Self::Hangs => "hangs",
            Self::KernelCrash => "crash",
        }
    }
}

/// The queue pairs of each pair that are on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceInPair {
    /// Both.
    Both,
    /// The first one, which is the requester in most tests.
    First,
    /// The second one.
    Second,
}

/// One test that a device fails.
#[derive(Clone, Copy, Debug)]
pub struct Deviation {
    /// Name of the test.
    pub test: &'static str,
    /// Kind of the deviation.
    pub kind: DeviationKind,
    /// Description of the device's behaviour: a clause without a full stop.
    pub behaviour: &'static str,
    /// Part of the failure's message, as evidence.
    pub failure_message_part: &'static str,
    /// True if the test passes in some runs.
    pub flaky: bool,
    /// True if the test shows the behaviour on the second queue pair of its pair, which is the responder in most tests.
    pub is_of_second_queue_pair: bool,
}

impl Deviation {
    pub(super) const fn new(
        kind: DeviationKind,
        test: &'static str,
        what: &'static str,
        observed: &'static str,
    ) -> Self {
        Self {
            test,
            kind,
            behaviour: what,
            failure_message_part: observed,
            flaky: false,
            is_of_second_queue_pair: false,
        }
    }

    pub(super) const fn mark_of_second_queue_pair(mut self) -> Self {
        self.is_of_second_queue_pair = true;
        self
    }

    pub(super) const fn mark_flaky(mut self) -> Self {
        self.flaky = true;
        self
    }
}

/// Deviations of a device that concern one topic.
#[derive(Clone, Copy, Debug)]
pub struct DeviationTopic {
    /// The heading of the topic.
    pub title: &'static str,
    /// The deviations that concern the topic.
    pub deviations: &'static [Deviation],
}

/// The known deviations of one kind of device.
#[derive(Clone, Copy, Debug)]
pub struct Deviations {
    /// Name of the device on the command line.
    pub device_kind: &'static str,
    /// Kernel and library on which the deviations were observed.
    pub kernel_and_library: &'static str,
    /// Capabilities that the device lacks completely. Tests of other features do not rely on these
    /// capabilities.
    pub lacked_capabilities: &'static [NicCapability],
    /// The tests that the device fails, by topic.
    pub topics: &'static [DeviationTopic],
    /// The tests that the device fails, or fails otherwise, if it has the first queue pair of each pair and the answers of
    /// the second one take time.
    pub with_distant_peer: DeviationTopic,
}
