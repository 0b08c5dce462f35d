//! The outcome of a command, and its exit status.

/// Returns true if any request was answered, and so verified. Otherwise prints an error: a run
/// without any answer is no success.
pub(crate) fn verified_something(answered: u64, lost: u64) -> bool {
    if answered == 0 {
        eprintln!(
            "error: nothing was verified: no request was answered, and {lost} were lost; if the server runs, is it in this \
             fabric (the same user, VERBATIM_FABRIC, PID namespace and /dev/shm), or reachable from this device?"
        );
    }
    answered != 0
}

/// The outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Exit status 0.
    Done,
    /// Exit status 1: the command ran, and its answer is negative.
    No,
    /// The exit status of the program that the command ran.
    Exit(u8),
}
