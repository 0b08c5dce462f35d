//! The decisions of an injector.

use crate::action::Incident;
use crate::facts::QueuePair;

/// The most rules of a plan, since [`Struck`] has a bit for each.
pub const MAX_RULES: usize = 64;

/// The set of rules that struck, by index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Struck(u64);

impl Struck {
    pub(crate) fn add(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    /// Returns true if no rule struck.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the indices of the rules, from 0.
    pub fn rules(self) -> impl Iterator<Item = usize> {
        (0..MAX_RULES).filter(move |index| self.0 >> index & 1 == 1)
    }
}

/// An incident and its queue pair; the number 0 stands for any.
pub type Happening = (Incident, QueuePair);

/// The decision about a call of a verb.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbVerdict {
    /// The errno with which the verb fails.
    pub errno: Option<i32>,
    /// Incidents before the verb is executed.
    pub incidents: Vec<Happening>,
    /// The rules that struck.
    pub struck: Struck,
}

/// The fault of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkFault {
    /// The work request is not executed and completes with this `ibv_wc_status`.
    Status(u32),
    /// The receiver is not ready for this time in nanoseconds.
    ReceiverNotReady(u64),
}

/// The decision about a work request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkVerdict {
    /// The fault of the work request.
    pub fault: Option<WorkFault>,
    /// Incidents before the work request is executed.
    pub incidents: Vec<Happening>,
    /// The rules that struck.
    pub struck: Struck,
}

/// Counts of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Occurrences that matched the rule.
    pub matched: u64,
    /// Occurrences that the rule struck.
    pub struck: u64,
}

/// The decision about a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// The packet is lost; the other fields then have no effect.
    pub drop: bool,
    /// The packet arrives twice.
    pub duplicate: bool,
    /// The delay of the packet in nanoseconds.
    pub delay_ns: u64,
    /// The bit of the packet that is inverted.
    pub corrupt_bit: Option<u32>,
    /// The packet is marked as having experienced congestion (ECN).
    pub ecn: bool,
    /// The rules that struck.
    pub struck: Struck,
}
