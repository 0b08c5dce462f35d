//! Checks the linearizability of histories of one register, as concurrent clients saw it.
//!
//! A history is the [`Operation`]s on one register, each with the times of its call and its return, and its outcome. It
//! is *linearizable* (Herlihy and Wing, TOPLAS 1990) if each operation can be given a moment between its call and its
//! return. Executed at these moments, the operations must have the same outcomes. The keys of a store are checked
//! separately: a store is linearizable if each key is.
//!
//! The register is that of a key-value store: it is empty, or holds a value with a version. Every change has a greater
//! version than all before. A store may report no versions ([`OperationOutcome::FoundUnversioned`],
//! [`OperationOutcome::UnversionedChangeAnswer`]): then only the values tell which write a read saw. An operation has
//! an unknown outcome if its client died or gave up. Such an operation may have happened at any time after its call, or
//! never.
//!
//! [`check()`] is Wing and Gong's search in Lowe's just-in-time order (G. Lowe, "Testing for linearizability", CCPE
//! 2017). It walks through calls and returns, and keeps all possible states of the register. An operation is executed
//! when it returns at the latest. These rules keep the number of states small, so that histories can be long:
//!
//! - Operations that change nothing are executed as soon as they fit: this excludes no other order.
//! - Versions only grow, so a state is discarded if its version exceeds one that an operation must still see.
//! - Without versions, a state tells a value from others only until the call of the last read that found it. After that
//!   it is equivalent to any other value. A write over a value that no read finds is executed as soon as it fits.
//! - A write of unknown outcome whose value was found happened before the first read that found it returned.
//! - Changes of unknown outcome whose value no read found are equivalent, and only counted. A state that was reached
//!   with fewer of them, or with less useful ones, covers one that was reached with more.
//!
//! Published checkers keep a bit for each operation of the history with each remembered state, so their memory grows
//! with the square of the length. They support no operations of unknown outcome. Therefore this crate has its own
//! checker.
//!
//! ```
//! use lincheck::{RegisterAction, WriteCondition, OperationEnd, Operation, OperationOutcome, check};
//! let write = Operation {
//!     process: 1,
//!     call_ns: 0,
//!     action: RegisterAction::Write { value: 7, condition: WriteCondition::Always },
//!     end: Some(OperationEnd { at_ns: 10, outcome: OperationOutcome::Done { version: 1 } }),
//! };
//! let read = |call_ns, outcome| Operation {
//!     process: 2,
//!     call_ns,
//!     action: RegisterAction::Read,
//!     end: Some(OperationEnd { at_ns: call_ns + 5, outcome }),
//! };
//! let found = OperationOutcome::FoundVersioned { value: 7, version: 1 };
//! assert!(check(&[write, read(2, found), read(12, found)]).is_ok());
//! let violation = check(&[write, read(2, found), read(12, OperationOutcome::Absent)]).unwrap_err();
//! println!("{violation}");
//! ```

mod check;
mod explain;
mod register;
mod search;
mod violation;

pub use check::check;
pub use violation::{MAX_WINDOW_OPERATIONS, Reason, Violation};

/// An operation of a process on the register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// The process of the operation, which is only used in messages.
    pub process: u64,
    /// A time before the operation began, by a clock that all processes share.
    pub call_ns: u64,
    /// The requested action.
    pub action: RegisterAction,
    /// The outcome, or `None` if it is unknown: the operation may then happen at any time after its call, or never.
    pub end: Option<OperationEnd>,
}

/// The end of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperationEnd {
    /// A time after the operation ended.
    pub at_ns: u64,
    /// The outcome.
    pub outcome: OperationOutcome,
}

/// An action on the register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegisterAction {
    /// Reads the value.
    Read,
    /// Reads the value as part of a scan of many registers; the search treats it as a [`Read`](Self::Read).
    Scan,
    /// Sets a value, which no other operation of the history may set.
    Write {
        /// The value.
        value: u64,
        /// The condition of the write.
        condition: WriteCondition,
    },
    /// Removes the value.
    Remove {
        /// If given, the value is removed only if it has this version.
        version: Option<u64>,
    },
}

/// The condition of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteCondition {
    /// Sets the value always.
    Always,
    /// Sets the value only if the register is empty.
    Absent,
    /// Sets the value only if the register has a value.
    Present,
    /// Sets the value only if the register has a value of this version: compare-and-set.
    Version(u64),
}

impl RegisterAction {
    /// Returns true if the action changes nothing.
    pub fn is_read_only(&self) -> bool {
        matches!(self, Self::Read | Self::Scan)
    }
}

impl WriteCondition {
    /// Returns true if the condition holds, given whether the register has a value. Returns `None` if it depends on the
    /// version.
    fn holds_if_known(self, found: bool) -> Option<bool> {
        match self {
            Self::Always => Some(true),
            Self::Absent => Some(!found),
            Self::Present => Some(found),
            Self::Version(_) => None,
        }
    }
}

/// The outcome of an operation. Versions are 1 or more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationOutcome {
    /// A read found a value.
    FoundVersioned {
        /// The value.
        value: u64,
        /// The version of the value.
        version: u64,
    },
    /// A read found the register empty, or a removal found no value.
    Absent,
    /// A write set its value, or a removal removed one. The version is that of the value.
    Done {
        /// The version.
        version: u64,
    },
    /// The condition did not hold.
    Refused {
        /// The present version, 0 if the register was empty.
        version: u64,
    },
    /// A read found a value in a store that reports no versions.
    FoundUnversioned {
        /// The value.
        value: u64,
    },
    /// The answer to a write or a removal in a store that reports no versions. The change was made if its condition
    /// held.
    UnversionedChangeAnswer {
        /// True if the register had a value before.
        found: bool,
    },
}

impl OperationOutcome {
    /// Returns true if the outcome has a version.
    pub(crate) fn has_version(&self) -> bool {
        match self {
            Self::FoundVersioned { .. } | Self::Done { .. } | Self::Refused { .. } => true,
            Self::Absent | Self::FoundUnversioned { .. } | Self::UnversionedChangeAnswer { .. } => {
                false
            }
        }
    }
}

/// Statistics of a checked history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckStats {
    /// Number of operations that were checked.
    pub operations: u64,
    /// Number of these that have an unknown outcome.
    pub unknown_outcomes: u64,
    /// Largest number of possible states at any time.
    pub max_possible_states: u64,
}

impl Operation {
    /// Returns true if the operation changed the register, or may have changed it.
    pub(crate) fn may_change_register(&self) -> bool {
        match (self.end.map(|end| end.outcome), self.action) {
            (None, action) => !action.is_read_only(),
            (
                Some(OperationOutcome::UnversionedChangeAnswer { found }),
                RegisterAction::Write { condition, .. },
            ) => condition.holds_if_known(found) == Some(true),
            (
                Some(OperationOutcome::UnversionedChangeAnswer { found }),
                RegisterAction::Remove { .. },
            ) => found,
            (Some(outcome), _) => matches!(outcome, OperationOutcome::Done { .. }),
        }
    }
}
