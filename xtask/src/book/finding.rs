//! A place in a document that breaks a rule, as `cargo xtask book` reports it.

use std::path::PathBuf;

/// A violation of a rule by a document.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) path: PathBuf,
    /// The line number, from 1.
    pub(super) line: usize,
    pub(super) what: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.what)
    }
}
