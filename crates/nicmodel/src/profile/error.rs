//! What can be wrong with a profile.

use std::fmt;

/// Why a text is no profile.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// No TOML, a key that is missing, unknown or of the wrong kind, or a number without evidence.
    /// The message holds line, column and the text of the line.
    #[error("{0}")]
    Malformed(String),
    /// Values that no NIC can have.
    #[error("{}", list(.0))]
    Impossible(Vec<Problem>),
}

/// One impossible value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The line in the text, counted from 1.
    pub line: usize,
    /// Table and field, such as `pcie.lanes`.
    pub key: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}: {}", self.line, self.key, self.message)
    }
}

fn list(problems: &[Problem]) -> String {
    let lines: Vec<_> = problems.iter().map(Problem::to_string).collect();
    lines.join("\n")
}
