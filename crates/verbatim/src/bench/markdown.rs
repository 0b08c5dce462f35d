//! The Markdown page that `verbatim bench providers --markdown` writes.

use std::fmt::Write;
use std::path::Path;

use bench::micro::compare_nics::{ComparisonSettings, ComparisonSummary};
use bench::micro::{MeasurementTask, VerbStream};
use bench::run_circumstances::RunCircumstances;
use bench::stats::MedianAndSpread;

use super::common::format_byte_count;
use super::verdict::{figure_unit_and_factor, format_goal, goal_met_text};
use crate::output::format_three_digits;

/// Formats the result as a Markdown page.
pub(super) fn comparison_page(
    record: &RunCircumstances<ComparisonSettings>,
    summary: &ComparisonSummary,
) -> String {
    let mut page = String::new();
    write_page(&mut page, record, summary).expect("a string takes everything");
    page
}

fn write_page(
    page: &mut String,
    record: &RunCircumstances<ComparisonSettings>,
    summary: &ComparisonSummary,
) -> Result<(), std::fmt::Error> {
    let device = &record.device;
    let kind = if is_soft_roce(device) {
        format!("the kernel's Soft-RoCE (`{device}`)")
    } else {
        format!("`{device}`")
    };
    writeln!(page, "# The software NIC beside {kind}\n")?;
    writeln!(
        page,
        "Written by `verbatim bench providers --markdown`; do not edit. The same commands ran on the \
         software NIC and on `{device}`, two processes pinned to two CPUs, in turn in each of {} \
         rounds of {} ms a measurement; figures are medians. A *ratio* is the software NIC's figure \
         divided by that of `{device}` in the same round: its median, and its smallest and largest. \
         Every SEND and READ was checked, and of WRITEs what came last to each place.\n",
        record.settings.rounds, record.settings.duration_ms
    )?;
    if is_cpu_emulated(record) {
        writeln!(
            page,
            "**Only the ratios mean anything**: the machine was a virtual one whose CPU was emulated in \
             software, where everything takes ten times longer and more.\n"
        )?;
    }
    writeln!(page, "| | |\n|---|---|")?;
    writeln!(
        page,
        "| CPU | {} ({} online) |",
        record.cpu_model, record.cpus
    )?;
    writeln!(page, "| kernel | {} |", record.kernel)?;
    writeln!(page, "| commit | {} |", record.commit)?;
    writeln!(page, "| load before | {} |", record.load_average_before)?;
    writeln!(page, "| command | `{}` |", command_line_in_checkout(record))?;
    if is_soft_roce(device) {
        writeln!(
            page,
            "| to repeat | `cargo build --release && cargo xtask rxe -- {}` |",
            command_line_in_checkout(record)
        )?;
    }
    writeln!(page)?;
    let rates = |row: &&_| matches!(measurement_task_of_row(row), MeasurementTask::Stream(_));
    writeln!(page, "## Message rate and bandwidth\n")?;
    write_table(page, device, summary.rows.iter().filter(rates))?;
    writeln!(
        page,
        "\n## Latency\n\nHalf of a round trip; medians of each round's median.\n"
    )?;
    write_table(page, device, summary.rows.iter().filter(|row| !rates(row)))?;
    if record.settings.runs_perftest {
        writeln!(
            page,
            "\n*perftest* is what its tools (`ib_send_bw -l`, `ib_write_lat`, …) measured on `{device}` in \
             the same rounds with the same payload, window, postlist and signaled period, and *ours \
             to perftest* the ratio of our own figure on `{device}` to it: near 1, our use of the \
             device is fair. perftest sends nothing inline on Soft-RoCE, and its receiver gives no \
             credit."
        )?;
    }
    let mut notes = summary.rows.iter().flat_map(|row| &row.errors).peekable();
    if notes.peek().is_some() {
        writeln!(page, "\nNot everything went well:\n")?;
        for note in notes {
            writeln!(page, "- {}", note.replace('\n', " "))?;
        }
    }
    writeln!(
        page,
        "\nGoals with 8 bytes: {}.",
        if summary.are_goals_met() {
            "all met"
        } else {
            "not all met"
        }
    )
}

fn measurement_task_of_row(row: &bench::micro::compare_nics::RowResult) -> MeasurementTask {
    row.task
}

fn write_table<'a>(
    page: &mut String,
    device: &str,
    rows: impl Iterator<Item = &'a bench::micro::compare_nics::RowResult>,
) -> Result<(), std::fmt::Error> {
    writeln!(
        page,
        "| verb | payload | outstanding, a doorbell | software NIC | {device} | ratio | goal | perftest \
         | ours to perftest |\n|---|--:|--:|--:|--:|--:|---|--:|--:|"
    )?;
    for row in rows {
        let (unit, scale) = figure_unit_and_factor(row);
        let side = |spread: Option<MedianAndSpread>| {
            spread.map_or_else(
                || "–".to_owned(),
                |s| format!("{} {unit}", format_three_digits(s.median * scale)),
            )
        };
        let ratio = |spread: Option<MedianAndSpread>| {
            spread.map_or_else(
                || "–".to_owned(),
                |s| {
                    let [median, min, max] = [s.median, s.min, s.max].map(format_three_digits);
                    format!("{median} ({min}–{max})")
                },
            )
        };
        let depth = match row.task {
            MeasurementTask::Stream(VerbStream {
                window,
                wrs_per_doorbell: batch,
                ..
            }) => {
                format!("{window}, {batch}")
            }
            MeasurementTask::PingPong(_) => "1, 1".to_owned(),
        };
        let goal = [&format_goal(row), goal_met_text(row)].join(" ");
        writeln!(
            page,
            "| {} | {} | {depth} | {} | {} | {} | {} | {} | {} |",
            row.task.verb().label(),
            format_byte_count(row.task.payload_bytes()),
            side(row.softnic),
            side(row.system),
            ratio(row.softnic_to_system_ratio),
            goal.trim(),
            side(row.perftest),
            ratio(row.system_to_perftest),
        )?;
    }
    Ok(())
}

/// Returns the command line, with the path that the program has in a checkout.
fn command_line_in_checkout(record: &RunCircumstances<ComparisonSettings>) -> String {
    let mut words = vec!["target/release/verbatim".to_owned()];
    words.extend(record.command.iter().skip(1).cloned());
    words.join(" ")
}

/// Returns true if the device is Soft-RoCE: only its driver names the network device in sysfs.
fn is_soft_roce(device: &str) -> bool {
    Path::new("/sys/class/infiniband")
        .join(device)
        .join("parent")
        .exists()
        || device.starts_with("rxe")
}

fn is_cpu_emulated(record: &RunCircumstances<ComparisonSettings>) -> bool {
    record.cpu_model.contains("TCG")
}

#[cfg(test)]
mod tests {
    use bench::core_pinning::CorePair;
    use bench::micro::compare_nics::RowResult;
    use bench::micro::{MicroParameters, PingPong, Verb};

    use super::*;

    fn record() -> RunCircumstances<ComparisonSettings> {
        let cores = CorePair {
            requester: 0,
            responder: 1,
        };
        let settings = ComparisonSettings {
            rounds: 3,
            duration_ms: 300,
            payloads_bytes: vec![8, 4096],
            runs_perftest: true,
        };
        let mut record =
            RunCircumstances::new(cores, "softnic, system".into(), "rxe0".into(), settings);
        record.cpu_model = "QEMU TCG CPU version 2.5+".into();
        record.command = ["/x/verbatim", "bench", "providers", "--markdown", "-"]
            .map(str::to_owned)
            .to_vec();
        record
    }

    fn row(task: MeasurementTask, softnic: f64, system: f64, goal: Option<f64>) -> RowResult {
        let of = |value| MedianAndSpread::of(&[value]);
        RowResult {
            task,
            unit: String::new(),
            softnic: of(softnic),
            system: of(system),
            perftest: None,
            softnic_to_system_ratio: of(softnic / system),
            system_to_perftest: None,
            ratio_goal: goal,
            goal_met: goal.map(|_| false),
            lost_datagrams: [0, 0],
            errors: vec![],
        }
    }

    fn summary() -> ComparisonSummary {
        let parameters = |payload_bytes| MicroParameters {
            payload_bytes: Some(payload_bytes),
            ..MicroParameters::default()
        };
        let stream =
            |payload| VerbStream::new(Verb::RcSend, &parameters(payload), 1).expect("it fits");
        let ping = PingPong::new(Verb::RcWrite, &parameters(8), 1).expect("it fits");
        let mut failed = row(MeasurementTask::Stream(stream(64)), 1.0, 1.0, None);
        failed.system = None;
        failed.softnic_to_system_ratio = None;
        failed.errors = vec!["round 0, device: it\nbroke".to_owned()];
        ComparisonSummary {
            rows: vec![
                row(MeasurementTask::Stream(stream(8)), 1.5, 0.1, Some(20.0)),
                row(MeasurementTask::Stream(stream(4096)), 0.5, 0.01, None),
                row(MeasurementTask::PingPong(ping), 2500.0, 10_000.0, Some(0.1)),
                failed,
            ],
        }
    }

    #[test]
    fn a_page_has_a_line_for_each_row_and_says_how_to_repeat_it() {
        let page = comparison_page(&record(), &summary());
        let has = |line: &str| assert!(page.lines().any(|l| l == line), "{line}\n{page}");
        has("# The software NIC beside the kernel's Soft-RoCE (`rxe0`)");
        has(
            "| RC SEND | 8 B | 256, 16 | 1500 k/s | 100 k/s | 15.0 (15.0–15.0) | ≥ 20 x MISSED | – | – |",
        );
        has("| RC SEND | 4 KiB | 256, 16 | 2048 MB/s | 41.0 MB/s | 50.0 (50.0–50.0) |  | – | – |");
        has(
            "| RC WRITE | 8 B | 1, 1 | 2.50 µs | 10.0 µs | 0.250 (0.250–0.250) | ≤ 0.1 x MISSED | – | – |",
        );
        has("| RC SEND | 64 B | 256, 16 | 1000 k/s | – | – | FAILED | – | – |");
        has("| command | `target/release/verbatim bench providers --markdown -` |");
        has("- round 0, device: it broke");
        has("Goals with 8 bytes: not all met.");
        assert!(page.contains("cargo xtask rxe -- target/release/verbatim bench providers"));
        assert!(page.contains("**Only the ratios mean anything**"));
    }

    #[test]
    fn latencies_are_in_a_table_of_their_own() {
        let page = comparison_page(&record(), &summary());
        let (rates, latencies) = page.split_once("## Latency").expect("both parts");
        assert_eq!(rates.matches("| RC SEND |").count(), 3);
        assert_eq!(latencies.matches("| RC WRITE |").count(), 1);
    }

    #[test]
    fn a_real_machine_has_figures_that_mean_something() {
        let mut record = record();
        record.cpu_model = "AMD EPYC".into();
        record.device = "mlx5_0".into();
        let page = comparison_page(&record, &summary());
        assert!(!page.contains("Only the ratios"));
        assert!(!page.contains("cargo xtask rxe"));
        assert!(page.starts_with("# The software NIC beside `mlx5_0`\n"));
    }
}
