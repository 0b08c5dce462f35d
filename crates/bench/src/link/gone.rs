//! Errors that are consequences of another one.

use std::fmt;

/// The other end is gone, or has said that it failed: a consequence of an error, and not the error itself.
#[derive(Debug)]
pub(crate) struct Gone(pub(super) String);

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Gone {}

/// The first of some errors that is no consequence of another one, if there is such a one.
pub(crate) fn cause(errors: Vec<anyhow::Error>) -> Option<anyhow::Error> {
    let is_own = |error: &anyhow::Error| !error.is::<Gone>();
    let place = errors.iter().position(is_own).unwrap_or(0);
    errors.into_iter().nth(place)
}
