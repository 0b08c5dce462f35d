//! The table and the figure of `verbatim collective`.

use anyhow::Result;
use chart::{Axis, Chart, Series};

use super::row::Row;
use crate::output::{format_three_digits, format_time_ns, print_line, table};
use crate::side_by_side::{format_or_empty, yes_or_no};

/// Formats a description of the measurement, with these numbers of ranks.
fn describe_measurement(row: &Row, ranks: &str) -> String {
    let collective = format!("{:?}", row.setup.collective);
    let lower = collective
        .chars()
        .enumerate()
        .fold(String::new(), |mut text, (at, letter)| {
            if at > 0 && letter.is_uppercase() {
                text.push('-');
            }
            text.push(letter.to_ascii_lowercase());
            text
        });
    format!(
        "{lower} of f32, {ranks} ranks in a ring, slices up to {} bytes, {} a connection: {}, {}",
        row.setup.slice_bytes,
        if row.setup.qps_per_connection == 1 {
            "1 queue pair".to_owned()
        } else {
            format!("{} queue pairs", row.setup.qps_per_connection)
        },
        row.nic_kind,
        row.nic
    )
}

/// Returns the rows of each number of ranks.
fn rows_by_ranks(rows: &[Row]) -> impl Iterator<Item = &[Row]> {
    rows.chunk_by(|a, b| a.setup.ranks == b.setup.ranks)
}

/// Prints the rows: a table for each number of ranks.
pub(super) fn print_tables(rows: &[Row]) -> Result<()> {
    let Some(first) = rows.first() else {
        return print_line("no size is from -b to -e");
    };
    for (index, rows) in rows_by_ranks(rows).enumerate() {
        if index > 0 {
            print_line("")?;
        }
        print_table(rows)?;
    }
    print_line(if first.bound_gb_s.is_some() {
        "\nBandwidths in GB/s (10^9 bytes a second); busbw as nccl-tests defines it. In virtual time, not measured: the \
         transport's own code ran, reductions took no time. bound: what the model allows where latency does not count."
    } else {
        "\nBandwidths in GB/s (10^9 bytes a second); busbw as nccl-tests defines it. Ranks are threads, which also reduce. \
         memcpy: what one core copies of a buffer."
    })
}

/// Prints the rows of a number of ranks.
fn print_table(rows: &[Row]) -> Result<()> {
    let Some(first) = rows.first() else {
        return Ok(());
    };
    let ranks = first.setup.ranks.to_string();
    print_line(format_args!("{}\n", describe_measurement(first, &ranks)))?;
    let beside = if first.bound_gb_s.is_some() {
        "bound"
    } else {
        "memcpy"
    };
    let header = [
        "bytes", "time", "algbw", "busbw", beside, "share", "limit", "verified",
    ];
    let mut shown = table(header, &[0, 1, 2, 3, 4, 5]);
    for row in rows {
        let beside = row.bound_gb_s.or(row.memcpy_gb_s);
        shown.add_row([
            row.setup.buffer_bytes.to_string(),
            format_time_ns(row.run_result.slowest_rank_time_ns),
            format_three_digits(row.run_result.algorithm_gb_s),
            format_three_digits(row.run_result.bus_gb_s),
            format_or_empty(beside, format_three_digits),
            format_or_empty(beside, |beside| {
                format!("{:.0} %", 100.0 * row.run_result.bus_gb_s / beside)
            }),
            format_or_empty(row.bound_by, |by| by.to_string()),
            yes_or_no(row.run_result.are_results_right).to_owned(),
        ]);
    }
    print_line(shown)
}

/// Draws the rows; returns `None` if no size is within `-b` to `-e`.
pub(super) fn chart(rows: &[Row]) -> Option<Chart> {
    let first = rows.first()?;
    let mut ranks: Vec<String> = Vec::new();
    let mut series = Vec::new();
    for rows in rows_by_ranks(rows) {
        let count = rows.first()?.setup.ranks;
        ranks.push(count.to_string());
        let measured = Series::new(
            format!("{count} ranks"),
            curve(rows, |row| Some(row.run_result.bus_gb_s)),
        );
        series.push(measured.with_bound_points(curve(rows, |row| row.bound_gb_s)));
        // The copies of other numbers of ranks are the same.
        if series.len() == 1 && first.memcpy_gb_s.is_some() {
            series.push(Series::new("memcpy", curve(rows, |row| row.memcpy_gb_s)));
        }
    }
    Some(Chart {
        title: "Bus bandwidth over the size of the buffer".to_owned(),
        caption: describe_measurement(first, &ranks.join(", ")),
        x: Axis::log("buffer, bytes").in_bytes(),
        y: Axis::auto("10⁹ bytes a second"),
        series,
        constant_levels: Vec::new(),
    })
}

/// Returns a value of each row over the size of the buffer.
fn curve(rows: &[Row], value: impl Fn(&Row) -> Option<f64>) -> Vec<(f64, f64)> {
    #[allow(clippy::cast_precision_loss)] // 1 GiB at most
    let point = |row: &Row| Some((row.setup.buffer_bytes as f64, value(row)?));
    rows.iter().filter_map(point).collect()
}
