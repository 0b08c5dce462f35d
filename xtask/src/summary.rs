//! The outcomes of the steps, as a table or as JSON.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use comfy_table::{CellAlignment, Table, TableComponent, presets};
use serde::Serialize;

use crate::cargo_output::{Failure, TestCounts};

/// The outcome of one step.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) step: &'static str,
    pub(crate) what: &'static str,
    pub(crate) ok: bool,
    #[serde(flatten)]
    pub(crate) counts: TestCounts,
    pub(crate) elapsed_s: f64,
    /// The reason of a failure, if the output of the tests lacks it, or another remark.
    pub(crate) note: Option<String>,
    /// The failed tests, with their output.
    pub(crate) failures: Vec<Failure>,
}

/// One line of `--json`.
#[derive(Serialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
enum Line<'a> {
    Step(&'a Outcome),
    Total(TestCounts),
}

/// Prints a step's outcome as a line of JSON.
pub(crate) fn print_step(outcome: &Outcome) -> Result<()> {
    print_json(&Line::Step(outcome))
}

/// Prints all outcomes, the elapsed time, and `N passed, N failed, N skipped`; returns false if a
/// step failed.
pub(crate) fn print_summary_and_check_ok(
    outcomes: &[Outcome],
    elapsed: Duration,
    json: bool,
) -> Result<bool> {
    let mut total = TestCounts::default();
    for outcome in outcomes {
        total += outcome.counts;
    }
    if json {
        print_json(&Line::Total(total))?;
    } else {
        print_table(outcomes, elapsed, total)?;
    }
    Ok(outcomes.iter().all(|outcome| outcome.ok))
}

fn print_json(line: &Line<'_>) -> Result<()> {
    let mut out = std::io::stdout();
    serde_json::to_writer(&mut out, line)?;
    writeln!(out)?;
    Ok(())
}

fn print_table(outcomes: &[Outcome], elapsed: Duration, total: TestCounts) -> Result<()> {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_style(TableComponent::HeaderLines, '─')
        .set_style(TableComponent::MiddleHeaderIntersections, '─')
        .set_header([
            "step", "what", "", "passed", "failed", "skipped", "time", "",
        ]);
    for outcome in outcomes {
        table.add_row([
            outcome.step.to_owned(),
            outcome.what.to_owned(),
            if outcome.ok { "ok" } else { "FAILED" }.to_owned(),
            outcome.counts.passed.to_string(),
            outcome.counts.failed.to_string(),
            outcome.counts.skipped.to_string(),
            time(outcome.elapsed_s),
        ]);
    }
    for column in 3..=6 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut out = std::io::stdout();
    writeln!(out, "\n{table}")?;
    for outcome in outcomes {
        if let Some(note) = &outcome.note {
            writeln!(out, "{}: {note}", outcome.step)?;
        }
        for failure in &outcome.failures {
            writeln!(out, "{}: {}:", outcome.step, failure.name)?;
            for line in &failure.output {
                writeln!(out, "    {line}")?;
            }
        }
    }
    writeln!(out, "all in {}", time(elapsed.as_secs_f64()))?;
    writeln!(
        out,
        "{} passed, {} failed, {} skipped",
        total.passed, total.failed, total.skipped
    )?;
    Ok(())
}

fn time(seconds: f64) -> String {
    let duration = Duration::from_secs_f64(seconds);
    match duration.as_secs() {
        0..60 => format!("{seconds:.1} s"),
        whole => format!("{} min {:02} s", whole / 60, whole % 60),
    }
}
