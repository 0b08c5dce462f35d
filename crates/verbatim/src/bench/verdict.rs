//! The goals of the comparison of providers, and the verdict on each row.

use bench::micro::MeasurementTask;
use bench::micro::compare_nics::RowResult;

/// Formats the goal for the ratio of a row.
pub(super) fn format_goal(row: &RowResult) -> String {
    match (row.ratio_goal, row.task) {
        (None, _) => String::new(),
        (Some(goal), MeasurementTask::Stream(_)) => format!("≥ {goal} x"),
        (Some(goal), MeasurementTask::PingPong(_)) => format!("≤ {goal} x"),
    }
}

/// Returns the unit of a row and the factor of the unit. Rates of short messages are in messages,
/// rates of long messages in bytes.
pub(super) fn figure_unit_and_factor(row: &RowResult) -> (&'static str, f64) {
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let bytes = row.task.payload_bytes() as f64;
    match row.task {
        MeasurementTask::PingPong(_) => ("µs", 1e-3),
        MeasurementTask::Stream(_) if row.task.payload_bytes() < 1024 => ("k/s", 1e3),
        MeasurementTask::Stream(_) => ("MB/s", bytes),
    }
}

/// Formats the verdict on a row's goal.
pub(super) fn goal_met_text(row: &RowResult) -> &'static str {
    match row.goal_met {
        _ if row.softnic_to_system_ratio.is_none() => "FAILED",
        None => "",
        Some(true) => "met",
        Some(false) => "MISSED",
    }
}
