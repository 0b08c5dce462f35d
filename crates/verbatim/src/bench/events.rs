//! `verbatim bench events`: round trips between processes that sleep, beside TCP and Unix sockets.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bench::events::{self, CorePlacement, PING_PONG_MESSAGE_BYTES, RoundTripResult, Transport};
use bench::run_circumstances::RunCircumstances;
use bench::stats::MedianAndSpread;
use serde::Serialize;

use super::common::{
    CoresArgs, JsonLineWriter, format_median_and_range, nic_choice, warn_of_debug_build_and_load,
    worker_command,
};
use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::output::{print_line, table};
use crate::steps::{CommandSteps, is_interrupted};

pub(super) const EXAMPLES: &str = "\
Examples:
  verbatim bench events
  verbatim bench events --rounds 9 --duration 1s
  verbatim bench events --json --record run.jsonl

Both sides wait in epoll_wait(2). Sleeps are voluntary context switches of all threads of both processes.";

/// Arguments of `verbatim bench events`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// How often each transport is measured in each placement
    #[arg(long, value_name = "N", default_value = "5", value_parser = args::integer_parser_in_range("a count of rounds", 1..=1000u32))]
    rounds: u32,
    /// How long a measurement takes
    #[arg(long = "duration", value_name = "TIME", default_value = "300ms", value_parser = args::parse_duration_from_10us)]
    measurement_duration: Duration,
    #[command(flatten)]
    cores: CoresArgs,
    /// Print one JSON object per line: record, sample, row
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

/// The settings of the measurement, for the run record.
#[derive(Clone, Serialize)]
struct Settings {
    rounds: u32,
    duration_ms: u128,
    message_bytes: usize,
}

/// One line of `--json` and of the `--record` file.
#[derive(Serialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
enum JsonLine<'a> {
    /// The circumstances of the run; this is the first line.
    Record(&'a RunCircumstances<Settings>),
    /// One measurement.
    Sample(&'a EventsSample),
    /// One row of the table.
    Row(&'a Row),
}

#[derive(Clone, Serialize)]
struct EventsSample {
    /// Number of the round, from 0.
    round: u32,
    placement: CorePlacement,
    transport: Transport,
    #[serde(flatten)]
    measured: RoundTripResult,
}

/// Medians of all rounds for a placement and a transport, with their spread.
#[derive(Serialize)]
struct Row {
    placement: CorePlacement,
    transport: Transport,
    /// Round trips per second.
    #[serde(rename = "per_second")]
    round_trips_per_s: MedianAndSpread,
    /// Microseconds of CPU time of both processes for each round trip.
    #[serde(rename = "cpu_us")]
    cpu_us_per_round_trip: MedianAndSpread,
    /// Voluntary context switches of both processes for each round trip.
    #[serde(rename = "sleeps")]
    sleeps_per_round_trip: MedianAndSpread,
    /// The round-trip rate of verbs divided by that of this transport in the same round.
    #[serde(rename = "verbs_ratio")]
    verbs_to_transport_rate_ratio: MedianAndSpread,
}

/// Runs `verbatim bench events`. The outcome is success if verbs are at least as fast as TCP in
/// each placement.
pub(super) fn run(args: &Args) -> Result<CommandOutcome> {
    args.nic.apply_by_reexec()?;
    args::refuse_too_short_for_real_time(Some(args.measurement_duration))?;
    let cores = args.cores.choose_cores()?;
    let nic = nic_choice(&args.nic, &args.port);
    let settings = Settings {
        rounds: args.rounds,
        duration_ms: args.measurement_duration.as_millis(),
        message_bytes: PING_PONG_MESSAGE_BYTES,
    };
    let record = RunCircumstances::new(cores, nic.provider.clone(), nic.device_name()?, settings);
    warn_of_debug_build_and_load(&record);
    let mut lines = JsonLineWriter::new(args.record.as_deref(), args.json)?;
    lines.write_line(&JsonLine::Record(&record))?;
    let worker = worker_command()?;
    let count = CorePlacement::ALL.len() * Transport::ALL.len();
    let steps = CommandSteps::new(u64::from(args.rounds) * count as u64)?;
    let mut samples = Vec::new();
    'rounds: for round in 0..args.rounds {
        for placement in CorePlacement::ALL {
            for turn in 0..Transport::ALL.len() {
                // Rotate the order of transports each round, so that none is always measured first.
                let turn = (turn + round as usize) % Transport::ALL.len();
                let transport = Transport::ALL[turn];
                let name = format!("{}, {}", transport.label(), placement.label());
                let measured = steps.run_unless_interrupted(name.clone(), || {
                    events::measure_with_worker(
                        cores,
                        &worker,
                        &nic,
                        transport,
                        placement,
                        args.measurement_duration,
                    )
                });
                let Some(measured) = measured.context(name)? else {
                    break 'rounds;
                };
                let sample = EventsSample {
                    round,
                    placement,
                    transport,
                    measured,
                };
                lines.write_line(&JsonLine::Sample(&sample))?;
                samples.push(sample);
            }
        }
    }
    drop(steps);
    let mut rows = Vec::new();
    for placement in CorePlacement::ALL {
        for transport in Transport::ALL {
            match Row::from_samples(&samples, placement, transport) {
                Some(row) => rows.push(row),
                // Without a round of verbs there is no ratio.
                None if is_interrupted() => {}
                None => bail!("nothing was measured"),
            }
        }
    }
    for row in &rows {
        lines.write_line(&JsonLine::Row(row))?;
    }
    if !args.json {
        print_rows(&record, &rows)?;
    }
    let slower = |row: &Row| {
        row.transport == Transport::Tcp && row.verbs_to_transport_rate_ratio.median < 1.0
    };
    Ok(if !is_interrupted() && rows.iter().any(slower) {
        CommandOutcome::NegativeAnswer
    } else {
        CommandOutcome::Done
    })
}

impl Row {
    /// Returns the row of a placement and transport, or `None` without samples.
    fn from_samples(
        samples: &[EventsSample],
        placement: CorePlacement,
        transport: Transport,
    ) -> Option<Row> {
        let of = |transport| {
            let wanted =
                move |s: &&EventsSample| s.placement == placement && s.transport == transport;
            samples.iter().filter(wanted)
        };
        let spread = |value: fn(&RoundTripResult) -> f64| {
            MedianAndSpread::of(
                &of(transport)
                    .map(|s| value(&s.measured))
                    .collect::<Vec<_>>(),
            )
        };
        let ratios = of(Transport::Verbs).zip(of(transport));
        let ratios = ratios.map(|(verbs, this)| {
            verbs.measured.round_trips_per_s / this.measured.round_trips_per_s
        });
        Some(Row {
            placement,
            transport,
            round_trips_per_s: spread(|m| m.round_trips_per_s)?,
            cpu_us_per_round_trip: spread(|m| m.cpu_us_per_round_trip)?,
            sleeps_per_round_trip: spread(|m| m.sleeps_per_round_trip)?,
            verbs_to_transport_rate_ratio: MedianAndSpread::of(&ratios.collect::<Vec<_>>())?,
        })
    }
}

fn print_rows(record: &RunCircumstances<Settings>, rows: &[Row]) -> Result<()> {
    print_line(format_args!(
        "{}, {} (commit {})\ncores {} and {}; requests and answers of {PING_PONG_MESSAGE_BYTES} bytes, one at a time; median of {} \
         rounds (min..max)\n",
        record.cpu_model,
        record.kernel,
        record.commit,
        record.cores.requester,
        record.cores.responder,
        record.settings.rounds,
    ))?;
    let header = [
        "processes on",
        "transport",
        "round trips",
        "CPU",
        "sleeps",
        "verbs / this",
    ];
    let mut table = table(header, &[2, 3, 4, 5]);
    for row in rows {
        let ratio = match row.transport {
            Transport::Verbs => String::new(),
            Transport::Tcp | Transport::Unix => {
                format_median_and_range(Some(row.verbs_to_transport_rate_ratio), "x")
            }
        };
        table.add_row([
            row.placement.label().to_owned(),
            row.transport.label().to_owned(),
            format_median_and_range(Some(row.round_trips_per_s), "/s"),
            format_median_and_range(Some(row.cpu_us_per_round_trip), "µs"),
            format_median_and_range(Some(row.sleeps_per_round_trip), ""),
            ratio,
        ]);
    }
    print_line(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_same_round_and_placement() {
        let sample = |round, placement, transport, per_second| EventsSample {
            round,
            placement,
            transport,
            measured: RoundTripResult {
                round_trips: 1,
                round_trips_per_s: per_second,
                cpu_us_per_round_trip: 1.0,
                sleeps_per_round_trip: 2.0,
            },
        };
        let (two, one) = (CorePlacement::TwoCores, CorePlacement::OneCore);
        let samples = [
            sample(0, two, Transport::Verbs, 10.0),
            sample(0, two, Transport::Tcp, 20.0),
            sample(0, one, Transport::Verbs, 1.0),
            sample(1, two, Transport::Tcp, 10.0),
            sample(1, two, Transport::Verbs, 15.0),
        ];
        let row = Row::from_samples(&samples, two, Transport::Tcp).expect("measured");
        assert_eq!(
            (
                row.verbs_to_transport_rate_ratio.min,
                row.verbs_to_transport_rate_ratio.max
            ),
            (0.5, 1.5)
        );
        assert_eq!(row.round_trips_per_s.median, 15.0);
        assert!(Row::from_samples(&samples, one, Transport::Tcp).is_none());
    }
}
