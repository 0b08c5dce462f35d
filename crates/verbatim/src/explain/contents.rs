//! The summary at the start of the page: one line for each process, with a link to its section.

use std::fmt::Write;

use chart::escape;

use super::report::{ProcessPrediction, Report};
use super::text;
use crate::output::format_three_digits;

/// Returns the HTML id of a process's section.
pub(super) fn anchor(process: &ProcessPrediction) -> String {
    format!("process-{}", process.pid)
}

/// Formats the summary: the bottleneck and the predicted rate of each process.
pub(super) fn summary_html(report: &Report) -> String {
    if report.processes.is_empty() {
        return String::new();
    }
    let mut html = "<nav><h2>Summary</h2><ul>".to_owned();
    for process in &report.processes {
        let failed = match process.failed_completions {
            0 => String::new(),
            failed => format!(" <b class=\"failed\">{failed} completions in error.</b>"),
        };
        write!(
            html,
            "<li><a href=\"#{}\">Process {}, {}</a>: {}{} M/s, bound by the {}.{failed}</li>",
            anchor(process),
            process.pid,
            escape(&process.program),
            text::at_most_prefix(process),
            format_three_digits(process.predicted_mops),
            escape(&process.bottleneck.to_string())
        )
        .expect("a String takes all");
    }
    html.push_str("</ul></nav>");
    html
}
