//! Where the running test is, and how long it waits.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Names how many seconds a test waits.
pub(crate) const PATIENCE: &str = "VERBATIM_TEST_PATIENCE";

/// Where the running test is, for the message of a hang or a failure.
static NOTE: Mutex<(String, String)> = Mutex::new((String::new(), String::new()));

fn notes() -> MutexGuard<'static, (String, String)> {
    NOTE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says what the test is waiting for; empty when it goes on.
pub fn note(text: &str) {
    text.clone_into(&mut notes().1);
}

/// Says which of its cases the test is at.
pub fn case(text: impl std::fmt::Display) {
    notes().0 = text.to_string();
}

/// Prints where the test is.
pub(crate) fn print_notes() {
    let (case, note) = notes().clone();
    for (what, text) in [("in the case", case), ("while", note)] {
        if !text.is_empty() {
            eprintln!("  {what} {text}");
        }
    }
}

/// How long a test waits for what must come before it gives up: not a bound on speed, only the end of a
/// hang. `VERBATIM_TEST_PATIENCE` seconds, by default 20.
#[must_use]
pub fn patience() -> Duration {
    let seconds = std::env::var(PATIENCE)
        .ok()
        .and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(20))
}
