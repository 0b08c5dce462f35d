//! How a command ends.

/// Whether anything was answered that could be verified; says on standard error if not, for a run in which nothing was wrong
/// because nothing was there is no success.
pub(crate) fn verified_something(answered: u64, lost: u64) -> bool {
    if answered == 0 {
        eprintln!(
            "error: nothing was verified: no request was answered, and {lost} were lost; if the server runs, is it in this \
             fabric (the same user, VERBATIM_FABRIC, PID namespace and /dev/shm), or reachable from this device?"
        );
    }
    answered != 0
}

/// What a command came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Exit status 0.
    Done,
    /// Exit status 1: it ran, and the answer is no.
    No,
    /// The exit status of the program that it ran.
    Exit(u8),
}
