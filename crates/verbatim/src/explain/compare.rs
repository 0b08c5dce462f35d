//! Comparison of the same program on several NICs, or before and after a change.

use anyhow::Result;
use nicmodel::bounds::Role;
use nicmodel::guidelines::MIN_RELATIVE_GAIN;
use nicmodel::uncertainty;

use super::report::{ProcessPrediction, Report};
use crate::model::{format_range, format_rate_or_limit, format_signed_percent};
use crate::output::{format_three_digits, print_line, table_with_header_slice};

/// Prints named reports side by side, process by process.
pub(super) fn print_side_by_side(reports: &[(String, Report)]) -> Result<()> {
    for (name, report) in reports {
        print_line(format_args!(
            "{name}: {} on {}",
            report.command, report.nic_title
        ))?;
    }
    let most = reports.iter().map(|(_, report)| report.processes.len());
    for number in 0..most.max().unwrap_or(0) {
        let columns: Vec<_> = reports
            .iter()
            .map(|(name, report)| (name.as_str(), report.processes.get(number)))
            .collect();
        let mut nics = reports.iter().map(|(_, report)| &report.nic);
        let first = nics.next();
        let one_nic = nics.all(|nic| Some(nic) == first);
        print_line("")?;
        show_process(&columns, one_nic)?;
    }
    for (name, report) in reports {
        for line in report
            .unexplained_process_notes()
            .iter()
            .chain(&report.notes)
        {
            print_line(format_args!("note: {name}: {line}"))?;
        }
    }
    Ok(())
}

/// A number of a process that the table compares.
type ProcessFigureFn = fn(&ProcessPrediction) -> f64;

fn show_process(columns: &[(&str, Option<&ProcessPrediction>)], one_nic: bool) -> Result<()> {
    let mut titles: Vec<_> = columns
        .iter()
        .filter_map(|(_, process)| process.map(|process| process.program.as_str()))
        .collect();
    titles.dedup();
    print_line(titles.join("; "))?;
    let mut header = vec!["of one operation"];
    header.extend(columns.iter().map(|(name, _)| *name));
    let two = columns.len() == 2;
    if two {
        header.push("change");
    }
    let right: Vec<_> = (1..header.len()).collect();
    let mut rows = table_with_header_slice(&header, &right);
    let words = |title: &str, of: &dyn Fn(&ProcessPrediction) -> String| {
        let mut row = vec![title.to_owned()];
        row.extend(
            columns
                .iter()
                .map(|(_, process)| process.map_or_else(|| "-".to_owned(), of)),
        );
        if two {
            row.push(String::new());
        }
        row
    };
    rows.add_row(words("posted", &|process| process.posted_wrs.to_string()));
    rows.add_row(words("failed", &|process| {
        process.failed_completions.to_string()
    }));
    let numbers: [(&str, ProcessFigureFn); 5] = [
        ("MMIO writes", |p| {
            mean_cost_per_operation(p, |kind| kind.mmio_writes_per_op)
        }),
        ("DMA reads", |p| {
            mean_cost_per_operation(p, |kind| kind.dma_reads_per_op)
        }),
        ("DMA writes", |p| {
            mean_cost_per_operation(p, |kind| kind.dma_writes_per_op)
        }),
        ("PCIe bytes to the NIC", |p| p.to_device_bytes_per_op),
        ("PCIe bytes to the host", |p| p.to_host_bytes_per_op),
    ];
    for (title, of) in numbers {
        let mut row = words(title, &|process| format_three_digits(of(process)));
        if let [(_, Some(before)), (_, Some(after))] = columns {
            let (before, after) = (of(before), of(after));
            if let Some(cell) = row.last_mut()
                && before > 0.0
            {
                *cell = format_signed_percent(after / before - 1.0, 0);
            }
        }
        rows.add_row(row);
    }
    let mut rate = words("the model allows, M/s", &|process| {
        format_rate_or_limit(Some(process.predicted_mops), &process.unknown_resources)
    });
    if let [(_, Some(before)), (_, Some(after))] = columns
        && let Some(cell) = rate.last_mut()
    {
        *cell = change_of_rate(before, after);
    }
    rows.add_row(rate);
    let mut range = words("likely, M/s", &|process| {
        let range = process.likely_rate.as_ref();
        range.map_or_else(|| "-".to_owned(), format_range)
    });
    if let [(_, Some(before)), (_, Some(after))] = columns
        && one_nic
        && differ_within_noise(before, after)
        && let Some(cell) = range.last_mut()
    {
        *cell = "within the noise".to_owned();
    }
    rows.add_row(range);
    rows.add_row(words("what binds", &|process| {
        let whose = if process.slower_role == Role::Responder {
            " of its peers"
        } else {
            ""
        };
        format!("{}{whose}", process.bottleneck)
    }));
    rows.add_row(words("not known of the NIC", &|process| {
        let unknown: Vec<_> = process
            .unknown_resources
            .iter()
            .map(ToString::to_string)
            .collect();
        unknown.join(", ")
    }));
    rows.add_row(words("to change", &|process| {
        let steps: Vec<_> = process.steps.iter().map(|step| step.guideline).collect();
        steps.join(", ")
    }));
    rows.add_row(words("which would allow, M/s", &|process| {
        let last = process.steps.last();
        let rate = last.map_or(process.predicted_mops, |step| step.gain.then_mops);
        format_rate_or_limit(Some(rate), &process.unknown_resources)
    }));
    print_line(rows)
}

/// Formats the change of the rate. A rate with unknown resources is a limit, so the change is one, too.
fn change_of_rate(before: &ProcessPrediction, after: &ProcessPrediction) -> String {
    let change = format_signed_percent(after.predicted_mops / before.predicted_mops - 1.0, 0);
    let is_limit = |process: &ProcessPrediction| !process.unknown_resources.is_empty();
    match (is_limit(before), is_limit(after)) {
        (false, false) => change,
        (false, true) => format!("at most {change}"),
        (true, false) => format!("at least {change}"),
        (true, true) => format!("{change} of the limits"),
    }
}

/// Returns true if two rates on one NIC differ, and by no more than the noise of the model.
fn differ_within_noise(before: &ProcessPrediction, after: &ProcessPrediction) -> bool {
    let change = (after.predicted_mops / before.predicted_mops).ln().abs();
    let noise = uncertainty::noise_of_gain(before.bottleneck, after.bottleneck);
    change > MIN_RELATIVE_GAIN && change <= noise.ln_1p()
}

/// Returns a cost per operation, as the mean over all kinds.
fn mean_cost_per_operation(
    process: &ProcessPrediction,
    of: fn(&super::report::OperationKindCost) -> f64,
) -> f64 {
    let all = process.kinds.iter();
    let sum: f64 = all
        .map(|kind| of(kind) * super::report::count_as_f64(kind.count))
        .sum();
    sum / super::report::count_as_f64(process.posted_or_received_count().max(1))
}

#[cfg(test)]
mod tests {
    use nicmodel::op_profile::{CountedOperations, OperationProfile, QueuePair};
    use nicmodel::{Operation, Transport, Verb};

    use super::*;

    /// A process that posts one SEND and receives four, on a profile.
    fn posts_one_and_receives_four(nic: &str) -> ProcessPrediction {
        let operation = Operation::new(Verb::Send, Transport::Ud, 32).inlined();
        let counted = |count| vec![CountedOperations { operation, count }];
        let qp = QueuePair {
            sent: counted(1),
            received: counted(4),
            postlists: 1,
            unpolled_postlist_runs: 1,
            ..QueuePair::new(1, Transport::Ud)
        };
        let observed = OperationProfile {
            version: nicmodel::op_profile::VERSION,
            queue_pairs: vec![qp],
            ..OperationProfile::default()
        };
        let profile = nicmodel::profile::builtin_profile(nic).expect("built in");
        let process = ProcessPrediction::new(&observed, profile).expect("possible");
        process.expect("it posts")
    }

    #[test]
    fn costs_are_of_one_posted_operation() {
        let process = posts_one_and_receives_four("cib");
        let mean = mean_cost_per_operation(&process, |kind| kind.mmio_writes_per_op);
        let sent = process.kinds.iter().find(|kind| kind.count == 1);
        assert!((mean - sent.expect("the SEND").mmio_writes_per_op).abs() < 1e-9);
        assert!(mean > 0.0);
    }

    #[test]
    fn a_change_from_or_to_a_limit_is_a_limit() {
        let [known, limit] = ["cib", "cx"].map(posts_one_and_receives_four);
        assert!(change_of_rate(&known, &known).starts_with('0'));
        assert!(change_of_rate(&known, &limit).starts_with("at most "));
        assert!(change_of_rate(&limit, &known).starts_with("at least "));
        assert!(change_of_rate(&limit, &limit).ends_with(" of the limits"));
    }

    #[test]
    fn an_unknown_number_of_either_machine_makes_the_rate_a_limit() {
        let process = posts_one_and_receives_four("cx");
        let requester = process.bounds.unknown_resources.iter();
        assert!(requester.clone().count() > 0 && process.likely_rate.is_none());
        assert!(
            requester
                .clone()
                .all(|of| process.unknown_resources.contains(of))
        );
        assert!(process.unknown_resources.is_sorted_by(|a, b| a < b));
    }
}
