//! The register: what it may hold, and what an operation makes of that.

use crate::{Action, Condition, Outcome};

/// What the register holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Content {
    Nothing,
    /// This value. Its version is known, if the store tells versions.
    Value(u64),
    /// A value that no read ever found.
    Unseen,
    /// This value, which no read finds any more: as good as any other.
    Past(u64),
    /// Any state: the state before a window.
    Anything,
}

impl Content {
    /// Whether it is a value that no read finds from now on.
    pub(crate) fn is_past(self) -> bool {
        matches!(self, Self::Unseen | Self::Past(_))
    }

    /// Whether no operation that follows tells the two apart.
    fn is_like(self, other: Self) -> bool {
        self == other || self.is_past() && other.is_past()
    }
}

/// A state of the register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) content: Content,
    /// The version of what is there, or was there last; if it is not exact, at least this.
    pub(crate) version: u64,
    /// Of `Anything`, that there is something.
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

    /// Whether all that may follow this one's double may follow this one.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.content.is_like(other.content)
            && if self.exact {
                other.exact && self.version == other.version
            } else {
                self.version <= other.version
            }
    }

    /// The state, if there is nothing.
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

    /// The state, if there is something.
    fn present(self) -> Option<Self> {
        (self.content != Content::Nothing).then_some(self)
    }

    /// The state, if there is something that has this version.
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

    /// The state, if there is this value, of whatever version.
    fn with_value(self, value: u64) -> Option<Self> {
        let fits = match self.content {
            Content::Value(there) => there == value,
            Content::Anything => true,
            Content::Nothing | Content::Unseen | Content::Past(_) => false,
        };
        fits.then_some(Self {
            content: Content::Value(value),
            ..self
        })
    }

    /// The state when this is written without a version that anybody knows: it is above the one before.
    fn written(self, content: Content) -> Option<Self> {
        Some(Self {
            content,
            // Nothing is above the last one: then it did not happen.
            version: self.version.checked_add(1)?,
            exact: false,
        })
    }

    /// The state, if a condition holds.
    fn if_holds(self, condition: Condition) -> Option<Self> {
        match condition {
            Condition::Always => Some(self),
            Condition::Absent => self.absent(),
            Condition::Present => self.present(),
            Condition::Version(version) => self.with_version(version),
        }
    }

    /// The state when what was there is removed.
    fn removed(self) -> Self {
        Self {
            content: Content::Nothing,
            exact: false,
            ..self
        }
    }

    /// The state after an operation of this outcome; `None` if it cannot have that outcome.
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

    /// The state after a change that reports whether there was a value before; `None` if the report contradicts the
    /// state.
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

    /// The state after a write of unknown outcome whose value was found later, without a version.
    pub(crate) fn after_found(self, action: Action) -> Option<Self> {
        match action {
            Action::Write { value, condition } => {
                self.if_holds(condition)?.written(Content::Value(value))
            }
            _ => None,
        }
    }

    /// The state, if what is there is of this version (0: nothing), and not of the wanted one.
    fn refused(self, version: u64, wanted: Option<u64>) -> Option<Self> {
        match version {
            0 => self.absent(),
            _ if wanted == Some(version) => None,
            _ => self.with_version(version),
        }
    }

    /// The state after a change of unknown outcome, if it happens; `seen` is the version with which its value was found
    /// later.
    pub(crate) fn after_unknown(self, action: Action, seen: Option<u64>) -> Option<Self> {
        match (action, seen) {
            (Action::Read | Action::Scan, _) => None,
            (Action::Write { .. }, Some(version)) => self.after(action, Outcome::Done { version }),
            (Action::Write { condition, .. }, None) => {
                self.if_holds(condition)?.written(Content::Unseen)
            }
            (Action::Remove { version: None }, _) => self.present().map(Self::removed),
            (Action::Remove { version: Some(v) }, _) => self.with_version(v).map(Self::removed),
        }
    }

    /// Whether an operation that still has to happen cannot any more, since versions only grow.
    pub(crate) fn is_past(&self, action: Action, outcome: Outcome) -> bool {
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
