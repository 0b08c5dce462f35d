//! `verbatim bench crowd`: many polling processes on two cores.

use anyhow::Result;
use bench::crowd::{Crowd, CrowdConfig, Kind, RunResult};
use bench::record::Record;
use bench::stats::Spread;
use clap::ValueEnum;
use serde::Serialize;

use super::common::{CoresArgs, nic_choice, warn_of_circumstances, worker};
use super::depth::spread;
use crate::Outcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::output::{print, print_typed, table};
use crate::progress::progress;

pub(super) const EXAMPLES: &str = "\
Examples:
  verbatim bench crowd
  verbatim bench crowd --only ping-pong --processes 4
  verbatim bench crowd --messages 2000 --rounds 3 --json

The processes poll and never yield themselves. What a crowd takes on two cores stands beside the sum of what its pairs \
take in turn, each alone with a core for either process. Exit status 1 when a crowd takes more than twice as long.";

/// Arguments of the command.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Only this kind; may be given several times [default: all]
    #[arg(long, value_enum)]
    only: Vec<KindArg>,
    /// Polling processes; an even number
    #[arg(long, value_name = "N", default_value = "8", value_parser = args::number("a count of processes", 2..=64usize))]
    processes: usize,
    /// Messages of each process to each peer [default: 20000 of ping-pongs, 1000000 of streams, 10000 of all to all]
    #[arg(long, value_name = "N", value_parser = args::number("a count of messages", 1..=1_000_000_000u64))]
    messages: Option<u64>,
    /// How often each kind is measured, in turn
    #[arg(long, value_name = "N", default_value = "5", value_parser = args::number("a count of rounds", 1..=1000u32))]
    rounds: u32,
    #[command(flatten)]
    cores: CoresArgs,
    /// Print one JSON object per line: record, crowd
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum KindArg {
    /// Pairs that SEND one message to and fro
    PingPong,
    /// Pairs of which one SENDs to the other
    Stream,
    /// Each process asks every other one
    AllToAll,
    /// One pair of ping-pongs beside a process that computes
    BesideBusy,
}

impl KindArg {
    fn kind(self) -> Kind {
        match self {
            KindArg::PingPong => Kind::PingPong,
            KindArg::Stream => Kind::Stream,
            KindArg::AllToAll => Kind::AllToAll,
            KindArg::BesideBusy => Kind::BesideBusy,
        }
    }
}

/// The longest time that a crowd may take, as a multiple of the time of its pairs in turn.
const WANTED: f64 = 2.0;

/// Returns the messages of each process to each peer: about a tenth of a second for all pairs in
/// turn.
fn messages(kind: Kind) -> u64 {
    match kind {
        Kind::PingPong => 20_000,
        Kind::Stream => 1_000_000,
        Kind::AllToAll => 10_000,
        Kind::BesideBusy => 100_000,
    }
}

/// The settings of the measurement, for the run record.
#[derive(Serialize)]
struct Settings {
    rounds: u32,
    #[serde(rename = "scenes")]
    configs: Vec<CrowdConfig>,
}

/// The result of one kind of crowd, as `--json` prints it.
#[derive(Serialize)]
struct Measured {
    #[serde(flatten)]
    config: CrowdConfig,
    together_ms: Option<Spread>,
    in_turn_ms: Option<Spread>,
    /// `together` divided by `in_turn` of the same round.
    ratio: Option<Spread>,
    verified: u64,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Result<Outcome> {
    args.nic.settle()?;
    let nic = nic_choice(&args.nic, &args.port);
    let cores = args.cores.settle()?;
    let configs = configs(args)?;
    let settings = Settings {
        rounds: args.rounds,
        configs: configs.clone(),
    };
    let record = Record::new(cores, nic.provider.clone(), nic.device_name()?, settings);
    if args.json {
        print_typed("record", &record)?;
    }
    warn_of_circumstances(&record);
    let worker = worker()?;
    let bar = progress(u64::from(args.rounds) * configs.len() as u64);
    let mut all = Vec::new();
    for config in configs {
        let mut crowd = Crowd::start(cores, &worker, &nic, &config)?;
        let (mut together, mut in_turn) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            together.push(crowd.together()?);
            in_turn.push(crowd.in_turn()?);
            bar.inc(1);
        }
        let measured = Measured::new(config, &together, &in_turn);
        if args.json {
            print_typed("crowd", &measured)?;
        }
        all.push(measured);
    }
    bar.finish_and_clear();
    if !args.json {
        print(format_args!(
            "{}, cores {} and {}; medians of {} rounds (min..max)",
            record.device, cores.requester, cores.responder, args.rounds
        ))?;
        print_table(&all)?;
    }
    let reached = |m: &Measured| m.ratio.is_some_and(|ratio| ratio.median <= WANTED);
    Ok(if all.iter().all(reached) {
        Outcome::Done
    } else {
        Outcome::No
    })
}

fn configs(args: &Args) -> Result<Vec<CrowdConfig>> {
    let kinds: Vec<Kind> = if args.only.is_empty() {
        Kind::ALL.to_vec()
    } else {
        args.only.iter().map(|kind| kind.kind()).collect()
    };
    let config = |kind: Kind| {
        let messages = args.messages.unwrap_or_else(|| messages(kind));
        CrowdConfig::new(kind, args.processes, messages)
    };
    kinds.into_iter().map(config).collect()
}

impl Measured {
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    fn new(config: CrowdConfig, together: &[RunResult], in_turn: &[RunResult]) -> Measured {
        let ms = |result: &RunResult| result.elapsed_ns as f64 / 1e6;
        let ratios = together.iter().zip(in_turn);
        let ratios = ratios.map(|(together, in_turn)| ms(together) / ms(in_turn).max(1e-6));
        Measured {
            config,
            together_ms: Spread::of(&together.iter().map(ms).collect::<Vec<_>>()),
            in_turn_ms: Spread::of(&in_turn.iter().map(ms).collect::<Vec<_>>()),
            ratio: Spread::of(&ratios.collect::<Vec<_>>()),
            verified: together.iter().chain(in_turn).map(|t| t.verified).sum(),
        }
    }
}

fn print_table(all: &[Measured]) -> Result<()> {
    let mut rows = table(
        [
            "crowd",
            "processes",
            "messages",
            "together, ms",
            "in turn, ms",
            "ratio",
            "wanted",
        ],
        &[1, 2, 3, 4, 5, 6],
    );
    for line in all {
        rows.add_row([
            line.config.kind.name().to_owned(),
            line.config.processes.to_string(),
            line.config.messages().to_string(),
            spread(line.together_ms, 1.0),
            spread(line.in_turn_ms, 1.0),
            spread(line.ratio, 1.0),
            format!("at most {WANTED}"),
        ]);
    }
    print(rows)
}
