//! What a deviation is.

use crate::env::Cap;

/// How a device deviates in a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It answers, and the answer is wrong.
    Wrong,
    /// It has nothing of the kind.
    Missing,
    /// What must come never comes.
    Hangs,
    /// It takes the kernel down; the test is not run.
    Crash,
}

impl Kind {
    /// One word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wrong => "wrong",
            Self::Missing => "missing",
            Self::Hangs => "hangs",
            Self::Crash => "crash",
        }
    }
}

/// One test that a device does not pass.
#[derive(Clone, Copy, Debug)]
pub struct Deviation {
    /// Name of the test.
    pub test: &'static str,
    /// How it deviates.
    pub kind: Kind,
    /// What the device does instead; a clause without a full stop.
    pub what: &'static str,
    /// Part of the failure's text: the evidence.
    pub observed: &'static str,
    /// Whether it also passes at times.
    pub flaky: bool,
}

impl Deviation {
    pub(super) const fn new(
        kind: Kind,
        test: &'static str,
        what: &'static str,
        observed: &'static str,
    ) -> Self {
        Self {
            test,
            kind,
            what,
            observed,
            flaky: false,
        }
    }

    pub(super) const fn flaky(mut self) -> Self {
        self.flaky = true;
        self
    }
}

/// Deviations under one heading.
#[derive(Clone, Copy, Debug)]
pub struct Topic {
    /// The heading.
    pub title: &'static str,
    /// The deviations.
    pub list: &'static [Deviation],
}

/// All that is known of one kind of device.
#[derive(Clone, Copy, Debug)]
pub struct Deviations {
    /// Name on the command line.
    pub device: &'static str,
    /// Kernel and library on which all was observed.
    pub observed_on: &'static str,
    /// Capabilities that it lacks altogether: tests of something else do without them.
    pub lacks: &'static [Cap],
    /// The tests that it does not pass.
    pub topics: &'static [Topic],
}
