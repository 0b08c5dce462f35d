//! Output of results to standard output: text, JSON and tables.

use std::fmt;
use std::io::{self, Write};

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, TableComponent, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// Error: the reader of standard output has closed it. The command then ends without a message.
#[derive(Debug)]
pub(crate) struct StdoutClosed;

impl fmt::Display for StdoutClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("standard output is closed")
    }
}

impl std::error::Error for StdoutClosed {}

/// Prints a text and a newline to standard output.
pub(crate) fn print_line(text: impl fmt::Display) -> Result<()> {
    let mut out = io::stdout().lock();
    broken_pipe_to_stdout_closed(writeln!(out, "{text}").and_then(|()| out.flush()))
}

/// Prints a value as one line of JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    broken_pipe_to_stdout_closed(out.write_all(&line).and_then(|()| out.flush()))
}

/// Prints a text as it is.
pub(crate) fn print_text(text: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    broken_pipe_to_stdout_closed(out.write_all(text).and_then(|()| out.flush()))
}

/// Prints `{"type": kind, "data": data}` as one line.
pub(crate) fn print_typed_json(kind: &str, data: &impl Serialize) -> Result<()> {
    #[derive(Serialize)]
    struct TypedJsonLine<'a, T> {
        r#type: &'a str,
        data: &'a T,
    }
    print_json(&TypedJsonLine { r#type: kind, data })
}

fn broken_pipe_to_stdout_closed(written: io::Result<()>) -> Result<()> {
    match written {
        Err(err) if err.kind() == io::ErrorKind::BrokenPipe => Err(StdoutClosed.into()),
        other => Ok(other?),
    }
}

/// Makes a table with a line below its header; `right` are the indices of right-aligned columns.
pub(crate) fn table<const N: usize>(header: [&str; N], right: &[usize]) -> Table {
    table_with_header_slice(&header, right)
}

/// Makes a table as [`table`] does, with a number of columns known only at run time.
pub(crate) fn table_with_header_slice(header: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_style(TableComponent::HeaderLines, '─')
        .set_style(TableComponent::MiddleHeaderIntersections, '─')
        .set_header(header.iter().copied());
    for &column in right {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Returns a line on standard error that shows the current activity. The line is hidden if standard
/// error is not a terminal, or if `json` is set.
pub(crate) fn activity_display(json: bool) -> ProgressBar {
    if json {
        return ProgressBar::hidden();
    }
    let line = ProgressBar::new_spinner();
    let style = ProgressStyle::with_template("{elapsed:>4} {msg}").expect("the template is right");
    line.set_style(style);
    line
}

/// Formats a figure with three significant digits.
pub(crate) fn format_three_digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Formats a time in ns, µs or ms.
pub(crate) fn format_time_ns(ns: f64) -> String {
    if ns < 1000.0 {
        format!("{} ns", format_three_digits(ns))
    } else if ns < 1e6 {
        format!("{} µs", format_three_digits(ns / 1e3))
    } else {
        format!("{} ms", format_three_digits(ns / 1e6))
    }
}

pub(crate) fn write_file(file: &std::path::Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        let shown: Vec<_> = [0.0, 0.0123, 1.234, 12.34, 123.4, 12345.6]
            .map(format_three_digits)
            .into();
        assert_eq!(shown, ["0", "0.012", "1.23", "12.3", "123", "12346"]);
    }

    #[test]
    fn a_closed_pipe_is_told_from_other_failures() {
        let broken = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(
            broken_pipe_to_stdout_closed(Err(broken))
                .unwrap_err()
                .is::<StdoutClosed>()
        );
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert!(
            !broken_pipe_to_stdout_closed(Err(full))
                .unwrap_err()
                .is::<StdoutClosed>()
        );
    }

    #[test]
    fn times_read_well() {
        assert_eq!(
            [
                format_time_ns(250.0),
                format_time_ns(1500.0),
                format_time_ns(2.5e6)
            ],
            ["250 ns", "1.50 µs", "2.50 ms"]
        );
    }
}
