//! The count of failures and the first ones, printed when the process ends.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::report_detail::{REPORT_DETAIL, ReportDetail, write_to_stderr};
use crate::at_exit::at_exit;
use crate::lock::lock;

/// Number of failures whose text a process keeps.
const MAX_KEPT_FAILURE_TEXTS: usize = 3;

struct SummaryState {
    pid: u32,
    failure_count: u64,
    first_failure_texts: Vec<String>,
}

static FAILURE_SUMMARY: Mutex<SummaryState> = Mutex::new(SummaryState {
    pid: 0,
    failure_count: 0,
    first_failure_texts: Vec::new(),
});

/// Counts a failure, and keeps its text if it is one of the first.
pub(super) fn count_failure(text: String) {
    static PRINT_AT_EXIT_REGISTERED: AtomicBool = AtomicBool::new(false);
    if !PRINT_AT_EXIT_REGISTERED.swap(true, Ordering::Relaxed) {
        at_exit(print_summary);
    }
    let pid = std::process::id();
    let mut kept = lock(&FAILURE_SUMMARY);
    if kept.pid != pid {
        // A forked child counts its own failures.
        *kept = SummaryState {
            pid,
            failure_count: 0,
            first_failure_texts: Vec::new(),
        };
    }
    kept.failure_count += 1;
    if kept.first_failure_texts.len() < MAX_KEPT_FAILURE_TEXTS && !text.is_empty() {
        kept.first_failure_texts.push(text);
    }
}

extern "C" fn print_summary() {
    // Another thread may hold the lock; the process then ends without a summary.
    let Ok(kept) = FAILURE_SUMMARY.try_lock() else {
        return;
    };
    if kept.pid != std::process::id() {
        return;
    }
    let plural = if kept.failure_count == 1 { "" } else { "s" };
    let more = if kept.failure_count > kept.first_failure_texts.len() as u64
        && *REPORT_DETAIL == ReportDetail::Summary
    {
        "; `verbatim run --why` prints all of them"
    } else {
        ""
    };
    let mut summary = format!(
        "verbatim: {} work request{plural} of process {} failed{more}\n",
        kept.failure_count, kept.pid
    );
    for text in &kept.first_failure_texts {
        summary += &format!("  {text}\n");
    }
    write_to_stderr(&summary);
}
