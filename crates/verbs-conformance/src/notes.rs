//! Notes on the progress of the running test, and the time that it waits.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Environment variable with the number of seconds that a test waits for an event.
pub(crate) const WAIT_LIMIT_VARIABLE: &str = "VERBATIM_TEST_PATIENCE";

/// The current case and the current wait of the running test, printed at a hang or a failure.
static CASE_AND_AWAITED_EVENT: Mutex<(String, String)> = Mutex::new((String::new(), String::new()));

fn notes() -> MutexGuard<'static, (String, String)> {
    CASE_AND_AWAITED_EVENT
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Records the event for which the test waits; an empty text means that the test continues.
pub fn record_awaited_event(text: &str) {
    text.clone_into(&mut notes().1);
}

/// Records the current case of the test.
pub fn record_case(text: impl std::fmt::Display) {
    notes().0 = text.to_string();
}

/// Prints the recorded case and the recorded wait.
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
/// This time does not limit the speed of a NIC; it only ends a hang.
#[must_use]
pub fn wait_limit() -> Duration {
    let seconds = std::env::var(WAIT_LIMIT_VARIABLE)
        .ok()
        .and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(20))
}
