//! Is what concurrent clients saw of a register what one client after the other could have seen?
//!
//! A history is the [`Operation`]s on one register, each with the times of its call and its return, and its outcome. It
//! is *linearizable* (Herlihy and Wing, TOPLAS 1990) if each operation can be given a moment between its call and its
//! return. Executed at these moments, the operations must have the same outcomes. Operations on different keys of a store
//! are judged apart: a store is linearizable if each key is.
//!
//! The register is that of a key-value store: it holds nothing, or a value with a version; every change of it has a
//! greater version than all before. A store may tell no versions ([`Outcome::Found`], [`Outcome::Changed`]): then the
//! values alone say which write a read saw. Operations whose outcome nobody knows, because a client died or gave up, may have
//! happened at any time after their call, or not at all.
//!
//! [`check`] is Wing and Gong's search in Lowe's just-in-time order (G. Lowe, "Testing for linearizability", CCPE
//! 2017). It walks through calls and returns, and knows all the states in which the register can be. An operation is
//! executed when it returns at the latest. These rules keep the states few, so that histories may be long:
//!
//! - Operations that change nothing are carried out as soon as they fit: that forecloses nothing.
//! - Versions only grow, so a state beyond a version that somebody has yet to see is given up.
//! - Without versions, a value stays until the last read that finds it is called. After that it is equivalent to any
//!   other value. A write over a value that no read finds is executed as soon as it fits.
//! - A write of unknown outcome whose value was found happened before the first read that found it returned.
//! - Changes of unknown outcome whose value no read found are equivalent, and only counted. A state that was reached
//!   with fewer of them, or with less useful ones, covers one that was reached with more.
//!
//! Published checkers keep a bit for each operation of the history with each state that they remember, so their memory
//! grows with its square. They have no operations without an outcome. So this crate has a checker of its own.
//!
//! ```
//! use lincheck::{Action, Condition, End, Operation, Outcome, check};
//! let write = Operation {
//!     process: 1,
//!     call_ns: 0,
//!     action: Action::Write { value: 7, condition: Condition::Always },
//!     end: Some(End { at_ns: 10, outcome: Outcome::Done { version: 1 } }),
//! };
//! let read = |call_ns, outcome| Operation {
//!     process: 2,
//!     call_ns,
//!     action: Action::Read,
//!     end: Some(End { at_ns: call_ns + 5, outcome }),
//! };
//! let found = Outcome::Value { value: 7, version: 1 };
//! assert!(check(&[write, read(2, found), read(12, found)]).is_ok());
//! let violation = check(&[write, read(2, found), read(12, Outcome::Absent)]).unwrap_err();
//! println!("{violation}");
//! ```

mod check;
mod explain;
mod register;
mod search;
mod violation;

pub use check::check;
pub use violation::{MOST_SHOWN, Reason, Violation};

/// Something that a process did with the register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// The process of the operation; only for messages.
    pub process: u64,
    /// A time before it began, by a clock that all processes share.
    pub call_ns: u64,
    /// The requested action.
    pub action: Action,
    /// The outcome, if it is known. Without one it may happen at any time after its call, or never.
    pub end: Option<End>,
}

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// A time after it was done.
    pub at_ns: u64,
    /// What it came to.
    pub outcome: Outcome,
}

/// An action on the register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Looks what is there.
    Read,
    /// Looks what is there, as part of a scan of many registers: for the search a [`Read`](Self::Read).
    Scan,
    /// Sets a value; no other operation of the history sets the same.
    Write {
        /// The value.
        value: u64,
        /// When.
        condition: Condition,
    },
    /// Removes what is there.
    Remove {
        /// Only if it has this version.
        version: Option<u64>,
    },
}

/// When a write sets its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// Always.
    Always,
    /// If there is nothing.
    Absent,
    /// If there is something.
    Present,
    /// If there is something that has this version: compare-and-set.
    Version(u64),
}

impl Action {
    /// Whether it changes nothing.
    pub fn looks(&self) -> bool {
        matches!(self, Self::Read | Self::Scan)
    }
}

impl Condition {
    /// Whether it holds where there is something, or nothing; `None` if that does not decide it.
    fn holds(self, found: bool) -> Option<bool> {
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
pub enum Outcome {
    /// A read found this.
    Value {
        /// The value.
        value: u64,
        /// Its version.
        version: u64,
    },
    /// A read found nothing, or there was nothing to remove.
    Absent,
    /// A write set its value, which has this version; a removal removed one that had it.
    Done {
        /// The version.
        version: u64,
    },
    /// The condition did not hold.
    Refused {
        /// The version that was there, 0 for nothing.
        version: u64,
    },
    /// A read found this; the store tells no versions.
    Found {
        /// The value.
        value: u64,
    },
    /// A write or a removal was answered by a store that tells no versions. It was made if its condition held.
    Changed {
        /// Whether there was something before.
        found: bool,
    },
}

impl Outcome {
    /// Whether it tells a version.
    pub(crate) fn has_version(&self) -> bool {
        match self {
            Self::Value { .. } | Self::Done { .. } | Self::Refused { .. } => true,
            Self::Absent | Self::Found { .. } | Self::Changed { .. } => false,
        }
    }
}

/// What a history was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Judged {
    /// Operations that were judged.
    pub operations: u64,
    /// Of these, those of unknown outcome.
    pub unknown: u64,
    /// The most states that the register could be in at a time.
    pub states_max: u64,
}

impl Operation {
    /// Whether what is known of it lets it change something.
    pub(crate) fn changes(&self) -> bool {
        match (self.end.map(|end| end.outcome), self.action) {
            (None, action) => !action.looks(),
            (Some(Outcome::Changed { found }), Action::Write { condition, .. }) => {
                condition.holds(found) == Some(true)
            }
            (Some(Outcome::Changed { found }), Action::Remove { .. }) => found,
            (Some(outcome), _) => matches!(outcome, Outcome::Done { .. }),
        }
    }
}
