//! `verbatim bench peers`, `drop-in` and `wire`: compares verbs, unmodified programs and the packet path with their
//! peers.

use std::path::PathBuf;

use anyhow::{Result, bail};
use bench::cache_line_bounce::MAX_NEAR_CORES_BOUNCE_NS;
use bench::goal::{Row, RowGoal};
use bench::run::{
    BenchSettings, BenchSetup, ComparedSide, GoalVerdict, RowFigures, RowResult, RowSample,
    RunEvent, RunSummary,
};
use bench::run_circumstances::RunCircumstances;
use bench::stats::MedianAndSpread;
use comfy_table::Table;
use serde::Serialize;

use super::breakdown;
use super::common::{
    CoresArgs, JsonLineWriter, format_median_and_range, nic_choice, warn_of_debug_build_and_load,
    worker_command,
};
use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs, Provider};
use crate::output::{self, format_three_digits, print_line};
use crate::steps::{CommandSteps, is_interrupted};

pub(super) const EXAMPLES: &str = "\
Examples:
  verbatim bench peers
  verbatim bench peers --only ud-send --only rc-latency --rounds 9
  verbatim bench peers --only rc-send --only rc-send-single    beside the limit of the two cores, too
  verbatim bench peers --breakdown --only rc-send --only rc-send-single
  verbatim bench peers --json --record run.jsonl

Needs ucx_perftest (Debian: ucx-utils), redis-server and redis-benchmark (Debian: redis-server).";

pub(super) const DROP_IN_EXAMPLES: &str = "\
Examples:
  verbatim bench drop-in
  verbatim bench drop-in --only ib-send-bw --only ib-send-lat --rounds 9
  verbatim bench drop-in --json --record run.jsonl

Needs ib_send_bw and its kin (Debian: perftest) and ucx_perftest (Debian: ucx-utils).";

pub(super) const WIRE_EXAMPLES: &str = "\
Examples:
  verbatim bench wire
  verbatim bench wire --only wire-send --only wire-latency --rounds 9
  verbatim bench wire --json --record run.jsonl

Needs iperf3 (Debian: iperf3).";

/// Arguments of `verbatim bench peers`, `verbatim bench drop-in` and `verbatim bench wire`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct Args {
    /// Measure this row only (may be given several times); of `peers`: ud-send, rc-send-0, uc-send-0,
    /// ud-send-8, rc-send, uc-send, ud-send-single, rc-send-0-single, uc-send-0-single, ud-send-8-single,
    /// rc-send-single, uc-send-single, rc-latency, rpc, rc-write, rc-write-single, fetch-add, write-mapped,
    /// write-private, sequencer, sequencer-lead, idle-cpu, idle-memory, connect; of `drop-in`: ib-send-bw, ib-send-bw-ud,
    /// ib-send-lat, ib-write-lat, ib-write-bw, ib-write-start, uct-put, ucp-put; of `wire`: wire-send,
    /// wire-write, wire-send-rate, wire-write-rate, wire-tcp, wire-udp, wire-latency, wire-loss, wire-idle
    #[arg(long, value_name = "ROW")]
    only: Vec<Row>,
    /// How often each row and its peer are measured
    #[arg(long, value_name = "N", default_value = "5", value_parser = args::integer_parser_in_range("a count of rounds", 1..=1000u32))]
    rounds: u32,
    #[command(flatten)]
    cores: CoresArgs,
    /// A hundredth of the work: shows that everything runs, measures nothing
    #[arg(long)]
    smoke: bool,
    /// Say where the time of each SEND goes, in place of the table: posting, polling and receiving on one core, and
    /// waiting between two, of the software NIC and of the bare ring; rows of SENDs only
    #[arg(long, conflicts_with = "record")]
    breakdown: bool,
    /// Print one JSON object per line: record, bounce, sample, row, summary; of --breakdown: breakdown
    #[arg(long)]
    json: bool,
    /// Keep the run record with all raw samples in this file, as JSON lines
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

/// Runs `verbatim bench wire`.
pub(super) fn run_wire(args: Args) -> Result<CommandOutcome> {
    if args.nic.provider == Provider::System {
        bail!("the path by packets is the software NIC's; leave out --provider system");
    }
    run(args, &Row::WIRE_ROWS)
}

/// Runs the command with the rows that the arguments name, or with all rows in `all`.
pub(super) fn run(args: Args, all: &[Row]) -> Result<CommandOutcome> {
    args.nic.apply_by_reexec()?;
    let cores = args.cores.choose_cores()?;
    let rows = named_or_all_rows(&args, all);
    let mut lines = JsonLineWriter::new(args.record.as_deref(), args.json)?;
    let nic = nic_choice(&args.nic, &args.port);
    let device = nic.device_name()?;
    let bench = BenchSetup {
        settings: BenchSettings {
            rounds: args.rounds,
            shrink_divisor: if args.smoke { 100 } else { 1 },
            rows,
        },
        cores,
        worker_command: worker_command()?,
        nic,
    };
    if args.breakdown {
        return breakdown::run(&bench, args.json);
    }
    let record = RunCircumstances::new(
        cores,
        bench.nic.provider.clone(),
        device,
        bench.settings.clone(),
    );
    warn_of_debug_build_and_load(&record);
    lines.write_line(&JsonLine::Record(&record))?;

    let count = bench::run::measurements_per_round(&bench.settings.rows);
    let steps = CommandSteps::new(u64::from(args.rounds) * count as u64)?;
    let mut told = Ok(());
    let mut is_running = false;
    let on_event = |event: &RunEvent| {
        if told.is_err() {
            return;
        }
        match event {
            RunEvent::Begin { row, side, .. } => {
                // The measurement before this one failed.
                if std::mem::replace(&mut is_running, true) {
                    steps.complete_step();
                }
                steps.show_step(match side {
                    ComparedSide::Ours => row.name().to_owned(),
                    ComparedSide::Peer | ComparedSide::Limit => {
                        format!("{}: {}", row.name(), side.name())
                    }
                });
            }
            RunEvent::Bounce { round, bounce_ns } => {
                told = lines.write_line(&JsonLine::Bounce {
                    round: *round,
                    bounce_ns: *bounce_ns,
                });
            }
            RunEvent::Sample(sample) => {
                is_running = false;
                steps.complete_step();
                told = lines.write_line(&JsonLine::Sample(sample));
            }
        }
    };
    let summary = bench::run::run(&bench, on_event, is_interrupted)?;
    drop(steps);
    told?;
    for row in &summary.rows {
        lines.write_line(&JsonLine::Row(row))?;
    }
    lines.write_line(&JsonLine::Summary {
        bounce_ns: summary.bounce_ns.as_ref(),
        at_least_reached: summary.are_minimums_reached(),
    })?;
    if !args.json {
        print_summary(&record, &summary)?;
    }
    // An interrupt leaves rows without a peer, which reach no goal.
    let failed = |row: &RowResult| !row.errors.is_empty();
    let is_good = if is_interrupted() {
        !summary.rows.iter().any(failed)
    } else {
        summary.are_minimums_reached()
    };
    Ok(if is_good {
        CommandOutcome::Done
    } else {
        CommandOutcome::NegativeAnswer
    })
}

/// Returns the rows that the arguments name, or all rows in `all`.
fn named_or_all_rows(args: &Args, all: &[Row]) -> Vec<Row> {
    if !args.only.is_empty() {
        return args.only.clone();
    }
    let all = all.iter().copied();
    all.filter(|row| !args.breakdown || row.as_send_stream().is_some())
        .collect()
}

/// One line of `--json` and of the `--record` file.
#[derive(Serialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
enum JsonLine<'a> {
    /// The circumstances of the run; this is the first line.
    Record(&'a RunCircumstances),
    /// Cache-line bounce time at the start of a round.
    Bounce { round: u32, bounce_ns: f64 },
    /// One measurement.
    Sample(&'a RowSample),
    /// One row of the table.
    Row(&'a RowResult),
    /// The verdict on all rows; this is the last line.
    Summary {
        /// `null` if the run was interrupted before the first was measured.
        bounce_ns: Option<&'a MedianAndSpread>,
        at_least_reached: bool,
    },
}

fn print_summary(record: &RunCircumstances, summary: &RunSummary) -> Result<()> {
    let bounce = summary.bounce_ns.map_or_else(
        || "an unknown time".to_owned(),
        |ns| {
            let [median, min, max] = [ns.median, ns.min, ns.max].map(format_three_digits);
            format!("{median} ns from one to the other ({min}..{max})")
        },
    );
    print_line(format_args!(
        "{}, {} (commit {})\ncores {} and {}: a cache line takes {bounce}; near is up to {MAX_NEAR_CORES_BOUNCE_NS} ns\nmedian of {} rounds (min..max); {} beside peers and limits; wanted: at least / aim\n",
        record.cpu_model,
        record.kernel,
        record.commit,
        record.cores.requester,
        record.cores.responder,
        record.settings.rounds,
        if record.provider == "softnic" {
            "software NIC"
        } else {
            "measured NIC"
        },
    ))?;
    print_line(table(&summary.rows))?;
    for row in &summary.rows {
        if row.lost_messages > 0 {
            print_line(format_args!(
                "{}: {} datagrams were lost",
                row.description, row.lost_messages
            ))?;
        }
        if row.measurements_with_moved_cores > 0 {
            print_line(format_args!(
                "{}: the cores moved during {} measurements, which do not count",
                row.description, row.measurements_with_moved_cores
            ))?;
        }
        for error in &row.errors {
            eprintln!("error: {}: {error}", row.description);
        }
    }
    Ok(())
}

/// Makes a line for each row and distance of the cores; the columns of limits appear only if a row
/// has one.
fn table(rows: &[RowResult]) -> Table {
    let has_limits = rows.iter().any(|row| row.limit_name.is_some());
    let header = [
        "what", "cores", "ours", "peer", "", "ratio", "wanted", "", "limit", "", "share", "wanted",
        "",
    ];
    let shown = if has_limits { header.len() } else { 8 };
    let mut table = output::table(header, &[2, 4, 5, 6, 9, 10, 11]);
    for row in rows {
        let both = [("near", row.near_cores), ("far", row.far_cores)];
        let both = both
            .into_iter()
            .filter_map(|(cores, figures)| Some((cores, figures?)));
        let mut lines: Vec<_> = both
            .map(|(cores, figures)| table_row_cells(row, cores, &figures))
            .collect();
        if lines.is_empty() {
            let verdict = if row.errors.is_empty() {
                "MOVED"
            } else {
                "FAILED"
            };
            let mut cells = vec![String::new(); header.len()];
            (cells[0], cells[7]) = (row.row.label(), verdict.to_owned());
            lines.push(cells);
        }
        for cells in lines {
            table.add_row(cells.into_iter().take(shown));
        }
    }
    if !has_limits {
        table.set_header(&header[..shown]);
    }
    table
}

fn table_row_cells(row: &RowResult, cores: &str, figures: &RowFigures) -> Vec<String> {
    let unit = row.unit.name();
    let median = |spread: Option<MedianAndSpread>| {
        spread.map_or_else(
            || "-".to_owned(),
            |s| format!("{} {unit}", format_three_digits(s.median)),
        )
    };
    // The columns of a peer that is missing are empty.
    let of =
        |name: &Option<String>, text: String| if name.is_some() { text } else { String::new() };
    let wanted_unit = if row.peer_name.is_some() { "x" } else { unit };
    let (wanted, verdict) = goal_and_verdict_text(row, figures.verdict, wanted_unit);
    let (limit_wanted, limit_verdict) = goal_and_verdict_text(row, figures.limit_verdict, "x");
    vec![
        row.row.label(),
        cores.to_owned(),
        format_median_and_range(figures.ours, unit),
        row.peer_name.clone().unwrap_or_default(),
        of(&row.peer_name, median(figures.peer)),
        of(
            &row.peer_name,
            format_median_and_range(figures.ratio_to_peer, "x"),
        ),
        wanted,
        verdict,
        row.limit_name.clone().unwrap_or_default(),
        of(&row.limit_name, median(figures.limit)),
        of(
            &row.limit_name,
            format_median_and_range(figures.share_of_limit, "x"),
        ),
        limit_wanted,
        limit_verdict,
    ]
}

fn goal_and_verdict_text(
    row: &RowResult,
    verdict: Option<GoalVerdict>,
    unit: &str,
) -> (String, String) {
    let Some(verdict) = verdict else {
        return (String::new(), String::new());
    };
    let word = match (verdict.is_minimum_reached, verdict.aim_reached) {
        _ if !row.errors.is_empty() => "FAILED",
        (_, true) => "aim",
        (true, false) => "ok",
        (false, false) => "MISSED",
    };
    let RowGoal {
        worst_acceptable: at_least,
        aim_for,
    } = verdict.goal;
    (format!("{at_least} / {aim_for} {unit}"), word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_a_line_for_each_distance_that_occurred() {
        let spread = |value| MedianAndSpread::of(&[value]);
        let goal = RowGoal {
            worst_acceptable: 0.5,
            aim_for: 0.75,
        };
        let verdict = |reached| GoalVerdict {
            goal,
            is_minimum_reached: reached,
            aim_reached: false,
        };
        let figures = |share: f64| RowFigures {
            ours: spread(34.0),
            peer: spread(17.0),
            ratio_to_peer: spread(2.0),
            verdict: Some(verdict(true)),
            limit: spread(34.0 / share),
            share_of_limit: spread(share),
            limit_verdict: Some(verdict(share >= 0.5)),
        };
        let row = RowResult {
            row: Row::RcSend,
            description: Row::RcSend.description(),
            unit: Row::RcSend.unit(),
            peer_name: Some("UCX am_bw".to_owned()),
            limit_name: Some("bare ring".to_owned()),
            near_cores: Some(figures(0.25)),
            far_cores: Some(figures(0.5)),
            measurements_with_moved_cores: 0,
            are_minimums_reached: false,
            lost_messages: 0,
            errors: vec![],
        };
        let text = table(std::slice::from_ref(&row)).to_string();
        let lines: Vec<_> = text.lines().skip(2).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(
            lines[0].contains("near") && lines[0].contains("136 M/s"),
            "{text}"
        );
        assert!(lines[0].trim_end().ends_with("MISSED"), "{text}");
        assert!(
            lines[1].contains("far") && lines[1].trim_end().ends_with("ok"),
            "{text}"
        );
        let moved = RowResult {
            near_cores: None,
            far_cores: None,
            measurements_with_moved_cores: 5,
            ..row
        };
        assert!(table(&[moved]).to_string().contains("MOVED"));
    }
}
