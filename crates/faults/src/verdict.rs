//! The decisions of an injector.

use crate::action::Incident;
use crate::facts::QueuePairIds;

/// The maximum number of rules in a plan, since [`StruckRules`] has one bit per rule.
pub const MAX_RULES: usize = 64;

/// The set of rules that struck an occurrence, by index in the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StruckRules(u64);

impl StruckRules {
    pub(crate) fn add_rule(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    /// Returns true if no rule struck.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the indices in the plan of the rules that struck, from 0.
    pub fn rule_indices(self) -> impl Iterator<Item = usize> {
        (0..MAX_RULES).filter(move |index| self.0 >> index & 1 == 1)
    }
}

/// An incident and its queue pair; queue pair number 0 stands for any queue pair.
pub type TargetedIncident = (Incident, QueuePairIds);

/// The decision about a call of a verb.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbVerdict {
    /// The errno with which the verb fails.
    pub errno: Option<i32>,
    /// Incidents that happen before the verb is executed.
    pub incidents: Vec<TargetedIncident>,
    /// The rules that struck the call.
    pub struck_rules: StruckRules,
}

/// The fault of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkRequestFault {
    /// The work request is not executed and completes with this `ibv_wc_status`.
    Status(u32),
    /// The receiver is not ready, for this number of nanoseconds.
    ReceiverNotReady(u64),
}

/// The decision about a work request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkRequestVerdict {
    /// The fault of the work request.
    pub fault: Option<WorkRequestFault>,
    /// Incidents that happen before the work request is executed.
    pub incidents: Vec<TargetedIncident>,
    /// The rules that struck the work request.
    pub struck_rules: StruckRules,
}

/// Counts of the occurrences that a rule matched and struck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Number of occurrences that matched the rule.
    pub matched: u64,
    /// Number of occurrences that the rule struck.
    pub struck: u64,
}

/// The decision about a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketVerdict {
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
    /// The rules that struck the packet.
    pub struck_rules: StruckRules,
}
