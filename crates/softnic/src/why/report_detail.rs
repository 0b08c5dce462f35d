//! The amount of output about failures, and its destination.

use std::io::Write;
use std::sync::LazyLock;

/// Environment variable that selects the output about failures: `each`, `summary`, or none.
pub const WHY_VAR: &str = "VERBATIM_WHY";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReportDetail {
    OnlyUnreachablePeers,
    Summary,
    Each,
}

pub(super) static REPORT_DETAIL: LazyLock<ReportDetail> =
    LazyLock::new(|| match std::env::var(WHY_VAR).as_deref().unwrap_or("") {
        "each" | "1" => ReportDetail::Each,
        "summary" => ReportDetail::Summary,
        _ => ReportDetail::OnlyUnreachablePeers,
    });

/// Returns true if every failure is printed.
pub(super) fn prints_each_failure() -> bool {
    *REPORT_DETAIL == ReportDetail::Each
}

/// Writes to standard error in one piece, so that lines of several processes do not mix. An error of the write is
/// ignored.
pub(super) fn write_to_stderr(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
