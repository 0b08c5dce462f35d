//! The possible states of the register, and the effects of operations on them.

use crate::{OperationOutcome, RegisterAction, WriteCondition};

/// The content of the register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum RegisterContent {
    Nothing,
    /// This value. Its version is known if the store reports versions.
    Value(u64),
    /// A value that no read ever finds.
    NeverRead,
    /// This value, which no later read finds: equivalent to any other such value.
    NoLongerRead(u64),
    /// Any content: the content before a window.
    Anything,
}

impl RegisterContent {
    /// Returns true if the content is a value that no later read finds.
    pub(crate) fn is_never_read_again(self) -> bool {
        matches!(self, Self::NeverRead | Self::NoLongerRead(_))
    }

    /// Returns true if no later operation can distinguish the two.
    fn is_equivalent(self, other: Self) -> bool {
        self == other || self.is_never_read_again() && other.is_never_read_again()
    }
}

/// A state of the register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RegisterState {
    pub(crate) content: RegisterContent,
    /// The version of the present or last value; a lower bound if `version_is_exact` is false.
    pub(crate) version: u64,
    /// True if `version` is exact; with `Anything`, the register then has a value.
    pub(crate) version_is_exact: bool,
}

impl RegisterState {
    pub(crate) const EMPTY: Self = Self {
        content: RegisterContent::Nothing,
        version: 0,
        version_is_exact: false,
    };

    pub(crate) const ANYTHING: Self = Self {
        content: RegisterContent::Anything,
        version: 0,
        version_is_exact: false,
    };

    /// Returns true if every continuation of `other` is also possible from this state.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.content.is_equivalent(other.content)
            && if self.version_is_exact {
                other.version_is_exact && self.version == other.version
            } else {
                self.version <= other.version
            }
    }

    /// Returns the state if the register can be empty.
    fn narrow_to_absent(self) -> Option<Self> {
        match self.content {
            RegisterContent::Nothing => Some(self),
            RegisterContent::Anything if !self.version_is_exact => Some(Self {
                content: RegisterContent::Nothing,
                ..self
            }),
            _ => None,
        }
    }

    /// Returns the state narrowed to a present value; `None` if the register cannot have a value.
    fn narrow_to_present(self) -> Option<Self> {
        (self.content != RegisterContent::Nothing).then_some(self)
    }

    /// Returns the state narrowed to this version; `None` if the register cannot have a value of this version.
    fn narrow_to_version(self, version: u64) -> Option<Self> {
        let fits = if self.version_is_exact {
            version == self.version
        } else {
            version >= self.version.max(1)
        };
        self.narrow_to_present().filter(|_| fits).map(|state| Self {
            version,
            version_is_exact: true,
            ..state
        })
    }

    /// Returns the state narrowed to this value, of any version; `None` if the register cannot have this value.
    fn narrow_to_value(self, value: u64) -> Option<Self> {
        let fits = match self.content {
            RegisterContent::Value(there) => there == value,
            RegisterContent::Anything => true,
            RegisterContent::Nothing
            | RegisterContent::NeverRead
            | RegisterContent::NoLongerRead(_) => false,
        };
        fits.then_some(Self {
            content: RegisterContent::Value(value),
            ..self
        })
    }

    /// Returns the state after a write whose version is unknown; it is greater than the version before.
    fn after_unversioned_write(self, content: RegisterContent) -> Option<Self> {
        Some(Self {
            content,
            // No version is above the largest: such a write cannot have happened.
            version: self.version.checked_add(1)?,
            version_is_exact: false,
        })
    }

    /// Returns the state if a condition can hold.
    fn narrow_to_condition(self, condition: WriteCondition) -> Option<Self> {
        match condition {
            WriteCondition::Always => Some(self),
            WriteCondition::Absent => self.narrow_to_absent(),
            WriteCondition::Present => self.narrow_to_present(),
            WriteCondition::Version(version) => self.narrow_to_version(version),
        }
    }

    /// Returns the state after the value was removed.
    fn after_removal(self) -> Self {
        Self {
            content: RegisterContent::Nothing,
            version_is_exact: false,
            ..self
        }
    }

    /// Returns the state after an operation with this outcome, or `None` if the outcome is impossible.
    pub(crate) fn after_operation(
        self,
        action: RegisterAction,
        outcome: OperationOutcome,
    ) -> Option<Self> {
        match (action, outcome) {
            (
                RegisterAction::Read | RegisterAction::Scan,
                OperationOutcome::FoundVersioned { value, version },
            ) => self.narrow_to_version(version)?.narrow_to_value(value),
            (
                RegisterAction::Read | RegisterAction::Scan,
                OperationOutcome::FoundUnversioned { value },
            ) => self.narrow_to_value(value),
            (
                RegisterAction::Read | RegisterAction::Scan | RegisterAction::Remove { .. },
                OperationOutcome::Absent,
            ) => self.narrow_to_absent(),
            (_, OperationOutcome::UnversionedChangeAnswer { found }) => {
                self.after_reported_change(action, found)
            }
            (RegisterAction::Write { value, condition }, OperationOutcome::Done { version }) => {
                let before = self.narrow_to_condition(condition)?;
                (version > before.version).then_some(Self {
                    content: RegisterContent::Value(value),
                    version,
                    version_is_exact: true,
                })
            }
            (RegisterAction::Remove { version: wanted }, OperationOutcome::Done { version }) => {
                let as_wanted = wanted.is_none_or(|wanted| wanted == version);
                let before = self.narrow_to_version(version).filter(|_| as_wanted)?;
                Some(before.after_removal())
            }
            (RegisterAction::Write { condition, .. }, OperationOutcome::Refused { version }) => {
                let (can_be, wanted) = match condition {
                    WriteCondition::Always => (false, None),
                    WriteCondition::Absent => (version != 0, None),
                    WriteCondition::Present => (version == 0, None),
                    WriteCondition::Version(wanted) => (true, Some(wanted)),
                };
                self.after_refusal(version, wanted).filter(|_| can_be)
            }
            (RegisterAction::Remove { version: wanted }, OperationOutcome::Refused { version }) => {
                self.after_refusal(version, wanted)
                    .filter(|_| wanted.is_some())
            }
            _ => None,
        }
    }

    /// Returns the state after a change that reports whether the register had a value; `None` if the report contradicts
    /// the state.
    fn after_reported_change(self, action: RegisterAction, found: bool) -> Option<Self> {
        let before = if found {
            self.narrow_to_present()
        } else {
            self.narrow_to_absent()
        }?;
        match action {
            RegisterAction::Write { value, condition } if condition.holds_if_known(found)? => {
                before.after_unversioned_write(RegisterContent::Value(value))
            }
            RegisterAction::Remove { version: None } if found => Some(before.after_removal()),
            RegisterAction::Write { .. } | RegisterAction::Remove { version: None } => Some(before),
            RegisterAction::Read | RegisterAction::Scan | RegisterAction::Remove { .. } => None,
        }
    }

    /// Returns the state after a write of unknown outcome whose value was later found without a version.
    pub(crate) fn after_write_found_later(self, action: RegisterAction) -> Option<Self> {
        match action {
            RegisterAction::Write { value, condition } => self
                .narrow_to_condition(condition)?
                .after_unversioned_write(RegisterContent::Value(value)),
            _ => None,
        }
    }

    /// Returns the state if its version can be `version` (0: empty) and is not `wanted`.
    fn after_refusal(self, version: u64, wanted: Option<u64>) -> Option<Self> {
        match version {
            0 => self.narrow_to_absent(),
            _ if wanted == Some(version) => None,
            _ => self.narrow_to_version(version),
        }
    }

    /// Returns the state after a change of unknown outcome that happens. `seen` is the version with which its value was
    /// later found.
    pub(crate) fn after_unknown_outcome(
        self,
        action: RegisterAction,
        seen: Option<u64>,
    ) -> Option<Self> {
        match (action, seen) {
            (RegisterAction::Read | RegisterAction::Scan, _) => None,
            (RegisterAction::Write { .. }, Some(version)) => {
                self.after_operation(action, OperationOutcome::Done { version })
            }
            (RegisterAction::Write { condition, .. }, None) => self
                .narrow_to_condition(condition)?
                .after_unversioned_write(RegisterContent::NeverRead),
            (RegisterAction::Remove { version: None }, _) => {
                self.narrow_to_present().map(Self::after_removal)
            }
            (RegisterAction::Remove { version: Some(v) }, _) => {
                self.narrow_to_version(v).map(Self::after_removal)
            }
        }
    }

    /// Returns true if an outstanding operation with this outcome can no longer happen, because versions only grow.
    pub(crate) fn makes_impossible(
        &self,
        action: RegisterAction,
        outcome: OperationOutcome,
    ) -> bool {
        let (OperationOutcome::FoundVersioned { version, .. }
        | OperationOutcome::Done { version }
        | OperationOutcome::Refused { version }) = outcome
        else {
            return false;
        };
        let gone = match action {
            RegisterAction::Write { .. } if matches!(outcome, OperationOutcome::Done { .. }) => {
                true
            }
            _ => self.content == RegisterContent::Nothing,
        };
        version != 0 && (version < self.version || version == self.version && gone)
    }
}
