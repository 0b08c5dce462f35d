//! The possible states of the register, and the effects of operations on them.

use crate::{Action, Condition, Outcome};

/// The content of the register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Content {
    Nothing,
    /// This value. Its version is known if the store reports versions.
    Value(u64),
    /// A value that no read ever finds.
    NeverRead,
    /// This value, which no later read finds: equivalent to any other such value.
    Past(u64),
    /// Any content: the content before a window.
    Anything,
}

impl Content {
    /// Returns true if the content is a value that no later read finds.
    pub(crate) fn is_past(self) -> bool {
        matches!(self, Self::NeverRead | Self::Past(_))
    }

    /// Returns true if no later operation can distinguish the two.
    fn is_like(self, other: Self) -> bool {
        self == other || self.is_past() && other.is_past()
    }
}

/// A state of the register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) content: Content,
    /// The version of the present or last value; a lower bound if `exact` is false.
    pub(crate) version: u64,
    /// True if `version` is exact; with `Anything`, the register then has a value.
    pub(crate) exact: bool,
}

impl State {
    pub(crate) const EMPTY: Self = Self {
        content: Content::Nothing,
        version: 0,
        exact: false,
    };

    pub(crate) const ANYTHING: Self = Self {
        content: Content::Anything,
        version: 0,
        exact: false,
    };

    /// Returns true if every continuation of `other` is also possible from this state.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.content.is_like(other.content)
            && if self.exact {
                other.exact && self.version == other.version
            } else {
                self.version <= other.version
            }
    }

    /// Returns the state if the register can be empty.
    fn absent(self) -> Option<Self> {
        match self.content {
            Content::Nothing => Some(self),
            Content::Anything if !self.exact => Some(Self {
                content: Content::Nothing,
                ..self
            }),
            _ => None,
        }
    }

    /// Returns the state if the register can have a value.
    fn present(self) -> Option<Self> {
        (self.content != Content::Nothing).then_some(self)
    }

    /// Returns the state if the register can have a value of this version.
    fn with_version(self, version: u64) -> Option<Self> {
        let fits = if self.exact {
            version == self.version
        } else {
            version >= self.version.max(1)
        };
        self.present().filter(|_| fits).map(|state| Self {
            version,
            exact: true,
            ..state
        })
    }

    /// Returns the state if the register can have this value, of any version.
    fn with_value(self, value: u64) -> Option<Self> {
        let fits = match self.content {
            Content::Value(there) => there == value,
            Content::Anything => true,
            Content::Nothing | Content::NeverRead | Content::Past(_) => false,
        };
        fits.then_some(Self {
            content: Content::Value(value),
            ..self
        })
    }

    /// Returns the state after a write whose version is unknown; it is greater than the version before.
    fn written(self, content: Content) -> Option<Self> {
        Some(Self {
            content,
            // No version is above the largest: such a write cannot have happened.
            version: self.version.checked_add(1)?,
            exact: false,
        })
    }

    /// Returns the state if a condition can hold.
    fn if_holds(self, condition: Condition) -> Option<Self> {
        match condition {
            Condition::Always => Some(self),
            Condition::Absent => self.absent(),
            Condition::Present => self.present(),
            Condition::Version(version) => self.with_version(version),
        }
    }

    /// Returns the state after the value was removed.
    fn removed(self) -> Self {
        Self {
            content: Content::Nothing,
            exact: false,
            ..self
        }
    }

    /// Returns the state after an operation with this outcome, or `None` if the outcome is impossible.
    pub(crate) fn after(self, action: Action, outcome: Outcome) -> Option<Self> {
        match (action, outcome) {
            (Action::Read | Action::Scan, Outcome::Value { value, version }) => {
                self.with_version(version)?.with_value(value)
            }
            (Action::Read | Action::Scan, Outcome::Found { value }) => self.with_value(value),
            (Action::Read | Action::Scan | Action::Remove { .. }, Outcome::Absent) => self.absent(),
            (_, Outcome::Changed { found }) => self.changed(action, found),
            (Action::Write { value, condition }, Outcome::Done { version }) => {
                let before = self.if_holds(condition)?;
                (version > before.version).then_some(Self {
                    content: Content::Value(value),
                    version,
                    exact: true,
                })
            }
            (Action::Remove { version: wanted }, Outcome::Done { version }) => {
                let as_wanted = wanted.is_none_or(|wanted| wanted == version);
                let before = self.with_version(version).filter(|_| as_wanted)?;
                Some(before.removed())
            }
            (Action::Write { condition, .. }, Outcome::Refused { version }) => {
                let (can_be, wanted) = match condition {
                    Condition::Always => (false, None),
                    Condition::Absent => (version != 0, None),
                    Condition::Present => (version == 0, None),
                    Condition::Version(wanted) => (true, Some(wanted)),
                };
                self.refused(version, wanted).filter(|_| can_be)
            }
            (Action::Remove { version: wanted }, Outcome::Refused { version }) => {
                self.refused(version, wanted).filter(|_| wanted.is_some())
            }
            _ => None,
        }
    }

    /// Returns the state after a change that reports whether the register had a value; `None` if the report contradicts
    /// the state.
    fn changed(self, action: Action, found: bool) -> Option<Self> {
        let before = if found { self.present() } else { self.absent() }?;
        match action {
            Action::Write { value, condition } if condition.holds(found)? => {
                before.written(Content::Value(value))
            }
            Action::Remove { version: None } if found => Some(before.removed()),
            Action::Write { .. } | Action::Remove { version: None } => Some(before),
            Action::Read | Action::Scan | Action::Remove { .. } => None,
        }
    }

    /// Returns the state after a write of unknown outcome whose value was later found without a version.
    pub(crate) fn after_found(self, action: Action) -> Option<Self> {
        match action {
            Action::Write { value, condition } => {
                self.if_holds(condition)?.written(Content::Value(value))
            }
            _ => None,
        }
    }

    /// Returns the state if its version can be `version` (0: empty) and is not `wanted`.
    fn refused(self, version: u64, wanted: Option<u64>) -> Option<Self> {
        match version {
            0 => self.absent(),
            _ if wanted == Some(version) => None,
            _ => self.with_version(version),
        }
    }

    /// Returns the state after a change of unknown outcome that happens. `seen` is the version with which its value was
    /// later found.
    pub(crate) fn after_unknown(self, action: Action, seen: Option<u64>) -> Option<Self> {
        match (action, seen) {
            (Action::Read | Action::Scan, _) => None,
            (Action::Write { .. }, Some(version)) => self.after(action, Outcome::Done { version }),
            (Action::Write { condition, .. }, None) => {
                self.if_holds(condition)?.written(Content::NeverRead)
            }
            (Action::Remove { version: None }, _) => self.present().map(Self::removed),
            (Action::Remove { version: Some(v) }, _) => self.with_version(v).map(Self::removed),
        }
    }

    /// Returns true if an outstanding operation with this outcome can no longer happen, because versions only grow.
    pub(crate) fn excludes(&self, action: Action, outcome: Outcome) -> bool {
        let (Outcome::Value { version, .. }
        | Outcome::Done { version }
        | Outcome::Refused { version }) = outcome
        else {
            return false;
        };
        let gone = match action {
            Action::Write { .. } if matches!(outcome, Outcome::Done { .. }) => true,
            _ => self.content == Content::Nothing,
        };
        version != 0 && (version < self.version || version == self.version && gone)
    }
}
