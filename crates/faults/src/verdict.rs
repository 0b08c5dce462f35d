//! What an injector answers.

use crate::action::Incident;
use crate::facts::QueuePair;

/// The most rules that a plan has: as many as [`Struck`] tells apart.
pub const MAX_RULES: usize = 64;

/// The rules of a plan that struck, by their places in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Struck(u64);

impl Struck {
    pub(crate) fn add(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    /// Whether none struck.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The places of the rules, from 0 on.
    pub fn rules(self) -> impl Iterator<Item = usize> {
        (0..MAX_RULES).filter(move |index| self.0 >> index & 1 == 1)
    }
}

/// Something that happens to the device or the process, and to which queue pairs: 0 is any.
pub type Happening = (Incident, QueuePair);

/// The decision about a call of a verb.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbVerdict {
    /// It is refused.
    pub errno: Option<i32>,
    /// Incidents before it is executed.
    pub incidents: Vec<Happening>,
    /// The rules that did this.
    pub struck: Struck,
}

/// The fault of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkFault {
    /// It is not executed and completes with this `ibv_wc_status`.
    Status(u32),
    /// The receiver is not ready for so many nanoseconds.
    ReceiverNotReady(u64),
}

/// The decision about a work request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkVerdict {
    /// The fault of the work request.
    pub fault: Option<WorkFault>,
    /// Incidents before it is executed.
    pub incidents: Vec<Happening>,
    /// The rules that did this.
    pub struck: Struck,
}

/// Counts of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Occurrences that it is for.
    pub matched: u64,
    /// Those that it struck.
    pub struck: u64,
}

/// The decision about a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// It is lost; nothing else matters then.
    pub drop: bool,
    /// It comes twice.
    pub duplicate: bool,
    /// It is late by so many nanoseconds.
    pub delay_ns: u64,
    /// This bit of it is inverted.
    pub corrupt_bit: Option<u32>,
    /// It is marked as having experienced congestion.
    pub ecn: bool,
    /// The rules that did this.
    pub struck: Struck,
}
