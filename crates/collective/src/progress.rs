//! The loop of every collective that waits for its peers.

use std::time::Duration;

use verbs::Waiter;

use crate::error::Error;

/// The result of a step of a collective.
pub(crate) enum StepResult {
    /// The step made progress, and the next step may make more at once.
    Progress,
    /// Nothing can be done until a peer does something.
    Blocked,
    /// The collective is over.
    Done,
}

/// Takes steps until the collective is done.
///
/// # Errors
/// The errors of a step, and [`Error::Timeout`].
pub(crate) fn run_to_completion(
    timeout: Duration,
    mut step: impl FnMut() -> Result<StepResult, Error>,
) -> Result<(), Error> {
    let (mut waiter, begun) = (Waiter::new(), verbs::time::now());
    loop {
        match step()? {
            StepResult::Done => return Ok(()),
            StepResult::Progress => {
                waiter.reset();
                continue;
            }
            StepResult::Blocked => waiter.idle(),
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
