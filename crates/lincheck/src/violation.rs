//! Violations of linearizability, and their description in words.

use std::fmt;

use crate::{Operation, OperationOutcome, RegisterAction, WriteCondition};

/// The reason why a history is not linearizable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The misfit fits into no order of the window's operations, whatever the register held before.
    NoValidOrder,
    /// A read found a value that no operation set.
    ReadNeverWritten,
    /// A read found a value before it was set.
    ReadBeforeWrite,
    /// A read found a value whose write was refused.
    ReadRefusedWrite,
    /// A value was found with two versions.
    TwoVersions,
    /// Two writes set the same value: such a history cannot be checked.
    DuplicateValue,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoValidOrder => "no order of these operations gives what they came to",
            Self::ReadNeverWritten => "a value was read that nobody set",
            Self::ReadBeforeWrite => "a value was read before it was set",
            Self::ReadRefusedWrite => "a value was read whose write had been refused",
            Self::TwoVersions => "a value was read with two versions",
            Self::DuplicateValue => "a value was set twice, which a history may not have",
        })
    }
}

/// A history that is not linearizable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The reason.
    pub reason: Reason,
    /// The operations that show the violation, in the order of their calls. If they are more than
    /// [`MAX_WINDOW_OPERATIONS`], the last to return.
    pub window: Vec<Operation>,
    /// Number of operations that were left out.
    pub omitted_operation_count: usize,
    /// The operation that fits nowhere, with [`Reason::NoValidOrder`].
    pub misfit: Option<Operation>,
    /// Possible values of the register before the misfit returned.
    pub states_before_misfit: Vec<String>,
    /// Number of changes of unknown outcome that were called before, and do not explain the misfit.
    pub unknown_outcome_count: usize,
}

impl std::error::Error for Violation {}

/// Largest number of operations in a [`Violation::window`], so that people can read it.
pub const MAX_WINDOW_OPERATIONS: usize = 64;

impl Violation {
    pub(crate) fn of(reason: Reason, operations: &[Operation], at: &[usize]) -> Self {
        let mut window: Vec<Operation> = at.iter().map(|&i| operations[i]).collect();
        window.sort_by_key(|o| std::cmp::Reverse(o.end.map(|end| end.at_ns)));
        let left_out = window.len().saturating_sub(MAX_WINDOW_OPERATIONS);
        window.truncate(MAX_WINDOW_OPERATIONS);
        window.sort_by_key(|o| o.call_ns);
        Self {
            reason,
            window,
            omitted_operation_count: left_out,
            misfit: None,
            states_before_misfit: Vec::new(),
            unknown_outcome_count: 0,
        }
    }
}

impl fmt::Display for RegisterAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read => f.write_str("GET"),
            Self::Scan => f.write_str("SCAN"),
            Self::Write { value, condition } => {
                write!(f, "PUT {value:#x}")?;
                match condition {
                    WriteCondition::Always => Ok(()),
                    WriteCondition::Absent => f.write_str(" if absent"),
                    WriteCondition::Present => f.write_str(" if present"),
                    WriteCondition::Version(version) => write!(f, " if version {version}"),
                }
            }
            Self::Remove { version: None } => f.write_str("DELETE"),
            Self::Remove { version: Some(v) } => write!(f, "DELETE if version {v}"),
        }
    }
}

impl fmt::Display for OperationOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FoundVersioned { value, version } => write!(f, "{value:#x}, version {version}"),
            Self::Absent => f.write_str("not there"),
            Self::Done { version } => write!(f, "done, version {version}"),
            Self::Refused { version: 0 } => f.write_str("refused, not there"),
            Self::Refused { version } => write!(f, "refused, version {version} is there"),
            Self::FoundUnversioned { value } => write!(f, "{value:#x}"),
            Self::UnversionedChangeAnswer { found: true } => f.write_str("was there before"),
            Self::UnversionedChangeAnswer { found: false } => f.write_str("was not there before"),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:", self.reason)?;
        let begin = self.window.first().map_or(0, |o| o.call_ns);
        #[expect(clippy::cast_precision_loss, reason = "microseconds for people")]
        let us = |ns: u64| ns.saturating_sub(begin) as f64 / 1e3;
        writeln!(f, "{:>12} {:>12}  client", "called, µs", "returned")?;
        for o in &self.window {
            write!(f, "{:>12.3} ", us(o.call_ns))?;
            match o.end {
                Some(end) => write!(f, "{:>12.3}", us(end.at_ns))?,
                None => write!(f, "{:>12}", "never")?,
            }
            write!(f, "  {:>6}  {}", o.process, o.action)?;
            if let Some(end) = o.end {
                write!(f, " -> {}", end.outcome)?;
            }
            let fits = self.misfit != Some(*o);
            writeln!(f, "{}", if fits { "" } else { "   fits nowhere" })?;
        }
        if self.omitted_operation_count > 0 {
            writeln!(
                f,
                "and {} operations that returned before",
                self.omitted_operation_count
            )?;
        }
        if !self.states_before_misfit.is_empty() {
            writeln!(
                f,
                "before that one returned there can have been: {}",
                self.states_before_misfit.join("; ")
            )?;
        }
        if self.unknown_outcome_count > 0 {
            writeln!(
                f,
                "{} changes of unknown outcome, called before, explain it neither",
                self.unknown_outcome_count
            )?;
        }
        Ok(())
    }
}
