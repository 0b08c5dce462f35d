//! A violation of a rule at a place in a document, as `cargo xtask book` reports it.

use std::path::PathBuf;

/// A violation of a rule by a document.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) path: PathBuf,
    /// The line number in the document, from 1.
    pub(super) line: usize,
    pub(super) what: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.what)
    }
}
