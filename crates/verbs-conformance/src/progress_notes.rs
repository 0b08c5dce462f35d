//! Notes on the progress of the running test, and the time that it waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Environment variable with the number of seconds that a test waits for an event.
pub(crate) const WAIT_LIMIT_ENV_VAR: &str = "VERBATIM_TEST_PATIENCE";

/// The current case and the current wait of the running test, printed at a hang or a failure.
static CASE_AND_AWAITED_EVENT: Mutex<(String, String)> = Mutex::new((String::new(), String::new()));

/// The number of records that the running test has made. A test that makes records does not hang.
static PROGRESS_RECORD_COUNT: AtomicU64 = AtomicU64::new(0);

fn lock_notes() -> MutexGuard<'static, (String, String)> {
    CASE_AND_AWAITED_EVENT
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Records the event for which the test waits; an empty text means that the test continues.
pub fn record_awaited_event(text: &str) {
    record_progress();
    text.clone_into(&mut lock_notes().1);
}

/// Records the current case of the test.
pub fn record_case(text: impl std::fmt::Display) {
    record_progress();
    lock_notes().0 = text.to_string();
}

/// Records that the test makes progress.
pub(crate) fn record_progress() {
    PROGRESS_RECORD_COUNT.fetch_add(1, Ordering::Relaxed);
}

/// Waits until the running test has made no record for `limit`, or has run for [`MAX_HANG_LIMITS_PER_TEST`] times
/// `limit`.
///
/// On a slow machine, such as an emulated one, a test that does not hang may run for longer than `limit`.
pub(crate) fn wait_until_test_hangs(limit: Duration) {
    let begin = Instant::now();
    loop {
        let count = PROGRESS_RECORD_COUNT.load(Ordering::Relaxed);
        std::thread::sleep(limit);
        let ran_too_long = begin.elapsed() >= limit * MAX_HANG_LIMITS_PER_TEST;
        if ran_too_long || PROGRESS_RECORD_COUNT.load(Ordering::Relaxed) == count {
            return;
        }
    }
}

/// The number of hang limits after which a test is considered hung, although it makes records.
pub(crate) const MAX_HANG_LIMITS_PER_TEST: u32 = 5;

/// Prints the recorded case and the recorded wait.
pub(crate) fn print_case_and_awaited_event() {
    let (case, note) = lock_notes().clone();
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
    let seconds = std::env::var(WAIT_LIMIT_ENV_VAR)
        .ok()
        .and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_hangs_only_when_it_makes_no_progress_or_never_ends() {
        let limit = Duration::from_millis(200);
        let begin = Instant::now();
        wait_until_test_hangs(limit);
        assert!(begin.elapsed() >= limit);

        let ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    record_progress();
                    std::thread::yield_now();
                }
            });
            let begin = Instant::now();
            wait_until_test_hangs(limit);
            assert!(begin.elapsed() >= limit * MAX_HANG_LIMITS_PER_TEST);
            ended.store(true, Ordering::Relaxed);
        });
    }
}
