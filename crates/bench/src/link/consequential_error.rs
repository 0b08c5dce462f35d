//! Errors that are consequences of other errors.

use std::fmt;

/// The other end is gone or has reported a failure. This error is a consequence of another error.
#[derive(Debug)]
pub(crate) struct ConsequentialError(pub(super) String);

impl fmt::Display for ConsequentialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConsequentialError {}

/// Returns the first error that is not a [`ConsequentialError`], or else the first error.
pub(crate) fn root_cause(errors: Vec<anyhow::Error>) -> Option<anyhow::Error> {
    let is_own = |error: &anyhow::Error| !error.is::<ConsequentialError>();
    let place = errors.iter().position(is_own).unwrap_or(0);
    errors.into_iter().nth(place)
}
