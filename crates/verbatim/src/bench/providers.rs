//! `verbatim bench providers`: compares the software NIC with an RDMA device of this machine.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bench::micro::compare_nics::{
    self, ComparisonEvent, ComparisonSample, ComparisonSettings, ComparisonSetup,
    ComparisonSummary, NicSide, PAYLOADS_BYTES, RowResult,
};
use bench::micro::{MAX_PAYLOAD_BYTES, MeasurementTask};
use bench::open_nic::NicChoice;
use bench::peers::perftest;
use bench::run_circumstances::RunCircumstances;
use serde::Serialize;

use super::common::{
    CoresArgs, JsonLineWriter, format_byte_count, format_median_and_range,
    warn_of_debug_build_and_load, worker_command,
};
use super::markdown::comparison_page;
use super::verdict::{figure_unit_and_factor, format_goal, goal_met_text};
use crate::CommandOutcome;
use crate::args::{self, PortArgs};
use crate::output::{self, format_three_digits, print_line};
use crate::steps::{CommandSteps, is_interrupted};

pub(super) const EXAMPLES: &str = "\
Examples:
  cargo xtask rxe -- target/release/verbatim bench providers
  verbatim bench providers --device mlx5_0 --rounds 5 --json
  verbatim bench providers --markdown table.md

Without an RDMA device, `cargo xtask rxe -- COMMAND` runs a command in a virtual machine that has the \
kernel's Soft-RoCE. There only the ratios mean anything. With the package perftest installed its tools \
run beside, with the same window, batch and signaled period.";

/// Arguments of `verbatim bench providers`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct Args {
    /// Name of the RDMA device, as `verbatim devices` prints it [default: the machine's first]
    #[arg(long, value_name = "NAME", value_parser = args::parse_device_name)]
    device: Option<String>,
    #[command(flatten)]
    port: PortArgs,
    /// Measure this payload only (may be given several times), in bytes, also with K or M behind
    /// [default: 8, 64, 4K, 64K and 1M]
    #[arg(long, value_name = "BYTES", value_parser = args::byte_count_parser_up_to(MAX_PAYLOAD_BYTES))]
    payload: Vec<usize>,
    /// How long each measurement takes
    #[arg(long = "duration", value_name = "TIME", default_value = "300ms", value_parser = args::parse_duration_from_10ms)]
    measurement_duration: Duration,
    /// How often each row is measured on each side
    #[arg(long, value_name = "N", default_value = "5", value_parser = args::integer_parser_in_range("a count of rounds", 1..=1000u32))]
    rounds: u32,
    /// Leave out perftest
    #[arg(long)]
    no_perftest: bool,
    #[command(flatten)]
    cores: CoresArgs,
    /// Print one JSON object per line: record, sample, row, summary
    #[arg(long)]
    json: bool,
    /// Write the result as a page in Markdown to this file; `-` is standard output
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Keep the run record with all raw samples in this file, as JSON lines
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// One line of `--json` and of the `--record` file.
#[derive(Serialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
enum JsonLine<'a> {
    /// The circumstances of the run; this is the first line.
    Record(&'a RunCircumstances<ComparisonSettings>),
    /// One measurement.
    Sample(&'a ComparisonSample),
    /// One row of the table.
    Row(&'a RowResult),
    /// The verdict on all rows; this is the last line.
    Summary { goals_met: bool },
}

pub(super) fn run(args: &Args) -> Result<CommandOutcome> {
    let page = match args.markdown.as_deref() {
        Some(path) if path.as_os_str() == "-" => {
            if args.json {
                bail!("--json and --markdown - both write to standard output; leave out one");
            }
            MarkdownDestination::Stdout
        }
        Some(path) => MarkdownDestination::File(args::check_output_file_path(path)?),
        None => MarkdownDestination::None,
    };
    let cores = args.cores.choose_cores()?;
    let mut lines = JsonLineWriter::new(args.record.as_deref(), args.json)?;
    let system = NicChoice {
        device: args.device.clone(),
        port_num: args.port.port_num,
        gid_index: args.port.gid_index,
        ..NicChoice::first_device_of("system")
    };
    let device = system.device_name().context(NO_DEVICE_MESSAGE)?;
    let settings = ComparisonSettings {
        rounds: args.rounds,
        duration_ms: u64::try_from(args.measurement_duration.as_millis()).unwrap_or(u64::MAX),
        payloads_bytes: if args.payload.is_empty() {
            PAYLOADS_BYTES.to_vec()
        } else {
            args.payload.clone()
        },
        runs_perftest: !args.no_perftest && perftest::is_installed(),
    };
    if !settings.runs_perftest && !args.no_perftest {
        eprintln!("note: perftest is not installed (Debian: perftest), so its figures are missing");
    }
    let softnic = NicChoice::first_device_of("softnic");
    let comparison =
        ComparisonSetup::new(settings.clone(), cores, worker_command()?, softnic, system)?;
    let tasks = comparison.tasks()?;
    let record = RunCircumstances::new(cores, "softnic, system".to_owned(), device, settings);
    warn_of_debug_build_and_load(&record);
    lines.write_line(&JsonLine::Record(&record))?;

    let sides = if record.settings.runs_perftest { 3 } else { 2 };
    let steps = CommandSteps::new(u64::from(args.rounds) * tasks.len() as u64 * sides)?;
    let mut told = Ok(());
    let on_event = |event: &ComparisonEvent| {
        if told.is_err() {
            return;
        }
        match event {
            ComparisonEvent::Begin { task, side } => {
                steps.show_step(format!("{}: {}", row_label(task), side.name()));
            }
            ComparisonEvent::Sample(sample) => {
                steps.complete_step();
                told = lines.write_line(&JsonLine::Sample(sample));
            }
        }
    };
    let summary = compare_nics::run(&comparison, on_event, is_interrupted)?;
    drop(steps);
    told?;
    for row in &summary.rows {
        lines.write_line(&JsonLine::Row(row))?;
    }
    let met = summary.are_goals_met();
    lines.write_line(&JsonLine::Summary { goals_met: met })?;
    let page_text = || comparison_page(&record, &summary);
    match &page {
        MarkdownDestination::Stdout => print_line(page_text().trim_end())?,
        MarkdownDestination::File(path) => std::fs::write(path, page_text())
            .with_context(|| format!("cannot write {}", path.display()))?,
        MarkdownDestination::None => {}
    }
    if !args.json && !matches!(page, MarkdownDestination::Stdout) {
        print_summary(&record, &summary)?;
    }
    for row in &summary.rows {
        for error in &row.errors {
            eprintln!("error: {}: {error}", row_label(&row.task));
        }
    }
    let failed = |row: &RowResult| !row.errors.is_empty();
    // An interrupt leaves rows without a second side, which meet no goal.
    let is_good = met || (is_interrupted() && !summary.rows.iter().any(failed));
    Ok(if is_good {
        CommandOutcome::Done
    } else {
        CommandOutcome::NegativeAnswer
    })
}

/// The destination of the Markdown page.
enum MarkdownDestination {
    None,
    Stdout,
    File(PathBuf),
}

const NO_DEVICE_MESSAGE: &str = "\
there is no such RDMA device on this machine to compare the software NIC with; run `cargo xtask rxe \
-- target/release/verbatim bench providers`, which starts a virtual machine with the kernel's \
Soft-RoCE, or make a Soft-RoCE device as root (`modprobe rdma_rxe && rdma link add rxe0 type rxe \
netdev eth0`)";

/// Returns a short name of a row.
pub(super) fn row_label(task: &MeasurementTask) -> String {
    let latency = match task {
        MeasurementTask::Stream(_) => "",
        MeasurementTask::PingPong(_) => " latency",
    };
    let payload = format_byte_count(task.payload_bytes());
    format!("{}{latency}, {payload}", task.verb().label())
}

fn print_summary(
    record: &RunCircumstances<ComparisonSettings>,
    summary: &ComparisonSummary,
) -> Result<()> {
    print_line(format_args!(
        "{}, {} (commit {}), cores {} and {}\nmedian of {} rounds (min..max); ratio: software NIC to \
         {} in the same round\n",
        record.cpu_model,
        record.kernel,
        record.commit,
        record.cores.requester,
        record.cores.responder,
        record.settings.rounds,
        record.device,
    ))?;
    let header = [
        "what",
        "software NIC",
        &record.device,
        "ratio",
        "goal",
        "",
        "perftest",
        "ours/perftest",
    ];
    let mut table = output::table(header, &[1, 2, 3, 4, 6, 7]);
    for row in &summary.rows {
        let (unit, scale) = figure_unit_and_factor(row);
        let side = |spread: Option<bench::stats::MedianAndSpread>| {
            spread.map_or_else(
                || "-".to_owned(),
                |s| format!("{} {unit}", format_three_digits(s.median * scale)),
            )
        };
        table.add_row([
            row_label(&row.task),
            side(row.softnic),
            side(row.system),
            format_median_and_range(row.softnic_to_system_ratio, "x"),
            format_goal(row),
            goal_met_text(row).to_owned(),
            side(row.perftest),
            format_median_and_range(row.system_to_perftest, "x"),
        ]);
    }
    print_line(table)?;
    for row in &summary.rows {
        for (side, lost) in [NicSide::Softnic, NicSide::System]
            .iter()
            .zip(row.lost_datagrams)
        {
            if lost > 0 {
                let (label, side) = (row_label(&row.task), side.name());
                print_line(format_args!(
                    "{label}: {lost} datagrams were lost on the {side}"
                ))?;
            }
        }
    }
    Ok(())
}
