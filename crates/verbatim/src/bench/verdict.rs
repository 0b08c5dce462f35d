//! The goals of the comparison of providers, and the verdict on each row.

use bench::micro::Task;
use bench::micro::compare::RowResult;

/// Formats the goal of a row's ratio.
pub(super) fn goal(row: &RowResult) -> String {
    match (row.goal, row.task) {
        (None, _) => String::new(),
        (Some(goal), Task::Stream(_)) => format!("≥ {goal} x"),
        (Some(goal), Task::PingPong(_)) => format!("≤ {goal} x"),
    }
}

/// Returns the unit of a row and its factor: rates of short messages are in messages, of long
/// messages in bytes.
pub(super) fn unit(row: &RowResult) -> (&'static str, f64) {
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let bytes = row.task.payload_bytes() as f64;
    match row.task {
        Task::PingPong(_) => ("µs", 1e-3),
        Task::Stream(_) if row.task.payload_bytes() < 1024 => ("k/s", 1e3),
        Task::Stream(_) => ("MB/s", bytes),
    }
}

/// Formats the verdict on a row's goal.
pub(super) fn verdict(row: &RowResult) -> &'static str {
    match row.goal_met {
        _ if row.ratio.is_none() => "FAILED",
        None => "",
        Some(true) => "met",
        Some(false) => "MISSED",
    }
}
