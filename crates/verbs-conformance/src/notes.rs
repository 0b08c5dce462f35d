//! Notes on the progress of the running test, and the time that it waits.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Variable with the number of seconds that a test waits.
pub(crate) const WAIT_LIMIT_VARIABLE: &str = "VERBATIM_TEST_PATIENCE";

/// The current case and the current wait of the running test, printed at a hang or a failure.
static NOTE: Mutex<(String, String)> = Mutex::new((String::new(), String::new()));

fn notes() -> MutexGuard<'static, (String, String)> {
    NOTE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records what the test is waiting for; empty when it continues.
pub fn note(text: &str) {
    text.clone_into(&mut notes().1);
}

/// Records the current case of the test.
pub fn case(text: impl std::fmt::Display) {
    notes().0 = text.to_string();
}

/// Prints the recorded case and wait.
pub(crate) fn print_notes() {
    let (case, note) = notes().clone();
    for (what, text) in [("in the case", case), ("while", note)] {
        if !text.is_empty() {
            eprintln!("  {what} {text}");
        }
    }
}

/// Returns the time that a test waits for an expected event before it fails: `VERBATIM_TEST_PATIENCE`
/// seconds, by default 20.
///
/// The time is not a bound on speed, only the end of a hang.
#[must_use]
pub fn wait_limit() -> Duration {
    let seconds = std::env::var(WAIT_LIMIT_VARIABLE)
        .ok()
        .and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(20))
}
