//! The outcome of a command, and its exit status.

/// Returns true if a request was answered, because only answered requests are verified. Otherwise
/// prints an error: a run without any answer is not a success.
pub(crate) fn any_answered_or_print_error(answered: u64, lost: u64) -> bool {
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
pub(crate) enum CommandOutcome {
    /// The command has succeeded: exit status 0.
    Done,
    /// The command ran, and its answer is negative: exit status 1.
    NegativeAnswer,
    /// The exit status of the program that the command ran.
    ProgramExitStatus(u8),
}
