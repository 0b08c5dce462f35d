//! Functions that run when the process exits normally.

/// Calls `f` when the process exits normally.
#[allow(unsafe_code)]
pub(crate) fn at_exit(f: extern "C" fn()) {
    // SAFETY: a function that lives as long as the program.
    unsafe { libc::atexit(f) };
}
