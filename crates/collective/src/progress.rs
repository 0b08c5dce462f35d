//! The loop of every collective that waits for its peers.

use std::time::Duration;

use verbs::Waiter;

use crate::error::Error;

/// How a step of a collective went.
pub(crate) enum Step {
    /// Something moved: there may be more to do at once.
    Moved,
    /// Nothing can be done until a peer does something.
    Stuck,
    /// The collective is over.
    Done,
}

/// Takes steps until the collective is done.
///
/// # Errors
/// Those of a step; [`Error::Timeout`].
pub(crate) fn drive(
    timeout: Duration,
    mut step: impl FnMut() -> Result<Step, Error>,
) -> Result<(), Error> {
    let (mut waiter, begun) = (Waiter::new(), verbs::time::now());
    loop {
        match step()? {
            Step::Done => return Ok(()),
            Step::Moved => {
                waiter.reset();
                continue;
            }
            Step::Stuck => waiter.idle(),
        }
        // The clock is only read once waiting takes time anyhow.
        if !waiter.is_spinning() && verbs::time::now() - begun > timeout {
            return Err(Error::Timeout {
                what: "a collective",
                ms: timeout.as_millis(),
            });
        }
    }
}
