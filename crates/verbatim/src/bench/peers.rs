//! `verbatim bench peers`: every verb beside its peer; `verbatim bench drop-in`: other people's programs;
//! `verbatim bench wire`: the path by packets.

use std::path::PathBuf;

use anyhow::{Result, bail};
use bench::goal::{Distance, Row};
use bench::record::Record;
use bench::run::{Bench, Event, RowResult, Sample, Settings, Side, Summary};
use bench::stats::Spread;
use serde::Serialize;

use super::common::{CoresArgs, Lines, nic_choice, warn_of_circumstances, with_range, worker};
use crate::Outcome;
use crate::args::{self, NicArgs, PortArgs, Provider};
use crate::output::{self, figure, print};

pub(super) const EXAMPLES: &str = "\
Examples:
  verbatim bench peers
  verbatim bench peers --only ud-send --only rc-latency --rounds 9
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
    /// Measure this row only (may be given several times); of `peers`: ud-send, rc-send, rc-latency,
    /// rc-write, rc-write-single, fetch-add, write-mapped, write-private, sequencer,
    /// sequencer-lead, idle-cpu, idle-memory, connect; of `drop-in`: ib-send-bw, ib-send-bw-ud,
    /// ib-send-lat, ib-write-lat, ib-write-bw, ib-write-start, uct-put, ucp-put; of `wire`: wire-send,
    /// wire-write, wire-send-rate, wire-write-rate, wire-tcp, wire-udp, wire-latency, wire-loss, wire-idle
    #[arg(long, value_name = "ROW")]
    only: Vec<Row>,
    /// How often each row and its peer are measured
    #[arg(long, value_name = "N", default_value = "5", value_parser = args::number("a count of rounds", 1..=1000u32))]
    rounds: u32,
    #[command(flatten)]
    cores: CoresArgs,
    /// A hundredth of the work: shows that everything runs, measures nothing
    #[arg(long)]
    smoke: bool,
    /// Print one JSON object per line: record, bounce, sample, row, summary
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
pub(super) fn run_wire(args: Args) -> Result<Outcome> {
    if args.nic.provider == Provider::System {
        bail!("the path by packets is the software NIC's; leave out --provider system");
    }
    run(args, &Row::WIRE)
}

/// Runs the command, with these rows unless others are named.
pub(super) fn run(args: Args, all: &[Row]) -> Result<Outcome> {
    args.nic.settle()?;
    let cores = args.cores.settle()?;
    let mut rows = args.only.clone();
    if rows.is_empty() {
        rows.extend(all);
    }
    let mut lines = Lines::new(args.record.as_deref(), args.json)?;
    let nic = nic_choice(&args.nic, &args.port);
    let device = nic.device_name()?;
    let bench = Bench {
        settings: Settings {
            rounds: args.rounds,
            shrink: if args.smoke { 100 } else { 1 },
            rows,
        },
        cores,
        worker: worker()?,
        nic,
    };
    let record = Record::new(
        cores,
        bench.nic.provider.clone(),
        device,
        bench.settings.clone(),
    );
    warn_of_circumstances(&record);
    lines.tell(&Line::Record(&record))?;

    let peers = bench
        .settings
        .rows
        .iter()
        .filter(|row| row.peer().is_some());
    let steps = bench.settings.rows.len() + peers.count();
    let bar = output::progress(u64::from(args.rounds) * steps as u64);
    let mut told = Ok(());
    let mut begun = false;
    let summary = bench::run::run(&bench, |event| {
        if told.is_err() {
            return;
        }
        match event {
            Event::Begin { row, side, .. } => {
                if begun {
                    bar.inc(1);
                }
                begun = true;
                bar.set_message(match side {
                    Side::Ours => row.name().to_owned(),
                    Side::Peer => format!("{}: peer", row.name()),
                });
            }
            Event::Bounce { round, bounce_ns } => {
                told = lines.tell(&Line::Bounce {
                    round: *round,
                    bounce_ns: *bounce_ns,
                });
            }
            Event::Sample(sample) => told = lines.tell(&Line::Sample(sample)),
        }
    })?;
    bar.finish_and_clear();
    told?;
    for row in &summary.rows {
        lines.tell(&Line::Row(row))?;
    }
    lines.tell(&Line::Summary {
        bounce_ns: &summary.bounce_ns,
        distance: summary.distance,
        at_least_reached: summary.reached(),
    })?;
    if !args.json {
        show(&record, &summary)?;
    }
    Ok(if summary.reached() {
        Outcome::Done
    } else {
        Outcome::No
    })
}

/// One line of `--json` and of the run record.
#[derive(Serialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
enum Line<'a> {
    /// The circumstances; first.
    Record(&'a Record),
    /// Cache-line bounce time at the start of a round.
    Bounce { round: u32, bounce_ns: f64 },
    /// One measurement, as it was made.
    Sample(&'a Sample),
    /// One row of the table.
    Row(&'a RowResult),
    /// Last.
    Summary {
        bounce_ns: &'a Spread,
        distance: Distance,
        at_least_reached: bool,
    },
}

fn show(record: &Record, summary: &Summary) -> Result<()> {
    let distance = match summary.distance {
        Distance::Near => "near: they share a cache",
        Distance::Far => "far: they share no cache",
    };
    print(format_args!(
        "{}, {} (commit {})\ncores {} and {}: a cache line takes {} ns from one to the other \
         ({}..{}), so they are {distance}\nmedian of {} rounds (min..max); {} beside peers\n",
        record.cpu_model,
        record.kernel,
        record.commit,
        record.cores.requester,
        record.cores.responder,
        figure(summary.bounce_ns.median),
        figure(summary.bounce_ns.min),
        figure(summary.bounce_ns.max),
        record.settings.rounds,
        if record.provider == "softnic" {
            "software NIC"
        } else {
            "measured NIC"
        },
    ))?;
    let header = [
        "what", "ours", "peer", "", "ratio", "at least", "aim for", "",
    ];
    let mut table = output::table(header, &[1, 3, 4, 5, 6]);
    for row in &summary.rows {
        let wanted = |value: f64| match row.peer_name {
            Some(_) => format!("{value} x"),
            None => format!("{value} {}", row.unit.name()),
        };
        let unit = row.unit.name();
        let (peer, ratio) = match row.peer_name {
            Some(_) => (with_range(row.peer, unit), with_range(row.ratio, "x")),
            None => (String::new(), String::new()),
        };
        table.add_row([
            row.row.label().to_owned(),
            with_range(row.ours, unit),
            row.peer_name.clone().unwrap_or_default(),
            peer,
            ratio,
            wanted(row.goal.at_least),
            wanted(row.goal.aim_for),
            verdict(row).to_owned(),
        ]);
    }
    print(table)?;
    for row in &summary.rows {
        if row.lost_ops > 0 {
            print(format_args!(
                "{}: {} datagrams were lost",
                row.what, row.lost_ops
            ))?;
        }
        for error in &row.errors {
            eprintln!("error: {}: {error}", row.what);
        }
    }
    Ok(())
}

fn verdict(row: &RowResult) -> &'static str {
    match (row.at_least_reached, row.aim_reached) {
        (_, true) => "aim",
        (true, false) => "ok",
        (false, false) if row.errors.is_empty() => "MISSED",
        (false, false) => "FAILED",
    }
}
