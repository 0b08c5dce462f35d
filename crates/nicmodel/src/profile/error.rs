//! Errors of NIC profiles.

use std::fmt;

/// The reason for which a text is not a valid profile.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The text is not TOML, a key is missing, unknown or of the wrong type, or a number has no evidence.
    #[error("{0}")]
    Malformed(String),
    /// The profile has values that no NIC can have.
    #[error("{}", join_lines(.0))]
    Impossible(Vec<ImpossibleValue>),
}

/// One impossible value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImpossibleValue {
    /// The line in the text, counted from 1.
    pub line: usize,
    /// Table and field, such as `pcie.lanes`.
    pub key: String,
    /// The problem with the value, and the permitted values.
    pub message: String,
}

impl fmt::Display for ImpossibleValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}: {}", self.line, self.key, self.message)
    }
}

fn join_lines(problems: &[ImpossibleValue]) -> String {
    let lines: Vec<_> = problems.iter().map(ImpossibleValue::to_string).collect();
    lines.join("\n")
}
