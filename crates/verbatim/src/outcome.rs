//! How a command ends.

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
