//! What is wanted of a row of the comparison of providers, and whether it is reached.

use bench::micro::Task;
use bench::micro::compare::RowResult;

/// What is wanted of a row's ratio, in words.
pub(super) fn goal(row: &RowResult) -> String {
    match (row.goal, row.task) {
        (None, _) => String::new(),
        (Some(goal), Task::Stream(_)) => format!("≥ {goal} x"),
        (Some(goal), Task::PingPong(_)) => format!("≤ {goal} x"),
    }
}

/// A unit for a row, and what its figures are multiplied by: rates of short messages in messages,
/// of long ones in bytes.
pub(super) fn unit(row: &RowResult) -> (&'static str, f64) {
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let bytes = row.task.payload_bytes() as f64;
    match row.task {
        Task::PingPong(_) => ("µs", 1e-3),
        Task::Stream(_) if row.task.payload_bytes() < 1024 => ("k/s", 1e3),
        Task::Stream(_) => ("MB/s", bytes),
    }
}

/// Whether it is reached.
pub(super) fn verdict(row: &RowResult) -> &'static str {
    match row.goal_met {
        _ if row.ratio.is_none() => "FAILED",
        None => "",
        Some(true) => "met",
        Some(false) => "MISSED",
    }
}
