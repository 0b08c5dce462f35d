//! `verbatim bench crowd`: many polling processes on two cores.

use anyhow::Result;
use bench::crowd::{Crowd, CrowdConfig, CrowdPattern, RunResult};
use bench::run_circumstances::RunCircumstances;
use bench::stats::MedianAndSpread;
use clap::ValueEnum;
use serde::Serialize;

use super::common::{CoresArgs, nic_choice, warn_of_debug_build_and_load, worker_command};
use super::depth::format_spread_in_unit;
use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::output::{print_line, print_typed_json, table};
use crate::steps::{CommandSteps, is_interrupted};

pub(super) const EXAMPLES: &str = "\
Examples:
  verbatim bench crowd
  verbatim bench crowd --only ping-pong --processes 4
  verbatim bench crowd --messages 2000 --rounds 3 --json

The processes poll and never yield themselves. The time of a crowd on two cores is compared with the sum of the times of \
its pairs, each measured alone with a core for either process. Exit status 1 when a crowd takes more than twice as long.";

/// Arguments of `verbatim bench crowd`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Only this kind; may be given several times [default: all]
    #[arg(long, value_enum)]
    only: Vec<PatternArg>,
    /// Polling processes; an even number
    #[arg(long, value_name = "N", default_value = "8", value_parser = args::integer_parser_in_range("a count of processes", 2..=64usize))]
    processes: usize,
    /// Messages of each process to each peer [default: 20000 of ping-pongs, 1000000 of streams, 10000 of all to all]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a count of messages", 1..=1_000_000_000u64))]
    messages: Option<u64>,
    /// How often each kind is measured, each time all together and then one pair at a time
    #[arg(long, value_name = "N", default_value = "5", value_parser = args::integer_parser_in_range("a count of rounds", 1..=1000u32))]
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
enum PatternArg {
    /// Pairs that SEND one message to and fro
    PingPong,
    /// Pairs of which one SENDs to the other
    Stream,
    /// Each process asks every other one
    AllToAll,
    /// One pair of ping-pongs beside a process that computes
    BesideBusy,
}

impl PatternArg {
    fn pattern(self) -> CrowdPattern {
        match self {
            PatternArg::PingPong => CrowdPattern::PingPong,
            PatternArg::Stream => CrowdPattern::Stream,
            PatternArg::AllToAll => CrowdPattern::AllToAll,
            PatternArg::BesideBusy => CrowdPattern::BesideBusy,
        }
    }
}

/// The maximum time of a crowd, as a multiple of the time that its pairs take in turn.
const MAX_TOGETHER_TO_IN_TURN_RATIO: f64 = 2.0;

/// Returns the number of messages of each process to each peer. All pairs in turn then take about a tenth of a
/// second.
fn default_message_count(kind: CrowdPattern) -> u64 {
    match kind {
        CrowdPattern::PingPong => 20_000,
        CrowdPattern::Stream => 1_000_000,
        CrowdPattern::AllToAll => 10_000,
        CrowdPattern::BesideBusy => 100_000,
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
struct CrowdResult {
    #[serde(flatten)]
    config: CrowdConfig,
    together_ms: Option<MedianAndSpread>,
    in_turn_ms: Option<MedianAndSpread>,
    /// The time `together` divided by the time `in_turn` of the same round.
    #[serde(rename = "ratio")]
    together_to_in_turn_ratio: Option<MedianAndSpread>,
    #[serde(rename = "verified")]
    verified_messages: u64,
}

/// Runs `verbatim bench crowd`.
pub(super) fn run(args: &Args) -> Result<CommandOutcome> {
    args.nic.apply_by_reexec()?;
    let nic = nic_choice(&args.nic, &args.port);
    let cores = args.cores.choose_cores()?;
    let configs = configs(args)?;
    let settings = Settings {
        rounds: args.rounds,
        configs: configs.clone(),
    };
    let record = RunCircumstances::new(cores, nic.provider.clone(), nic.device_name()?, settings);
    if args.json {
        print_typed_json("record", &record)?;
    }
    warn_of_debug_build_and_load(&record);
    let worker = worker_command()?;
    let steps = CommandSteps::new(u64::from(args.rounds) * configs.len() as u64)?;
    let mut all = Vec::new();
    for config in configs {
        if is_interrupted() {
            break;
        }
        let mut crowd = Crowd::start(cores, &worker, &nic, &config)?;
        let (mut together, mut in_turn) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            let name = config.pattern.name();
            let both = steps.run_unless_interrupted(name, || {
                Ok((crowd.run_all_pairs_at_once()?, crowd.run_one_by_one()?))
            })?;
            let Some(both) = both else {
                break;
            };
            together.push(both.0);
            in_turn.push(both.1);
        }
        if together.is_empty() {
            break;
        }
        let measured = CrowdResult::new(config, &together, &in_turn);
        if args.json {
            print_typed_json("crowd", &measured)?;
        }
        all.push(measured);
    }
    drop(steps);
    if !args.json {
        print_line(format_args!(
            "{}, cores {} and {}; medians of {} rounds (min..max)",
            record.device, cores.requester, cores.responder, args.rounds
        ))?;
        print_table(&all)?;
    }
    let reached = |m: &CrowdResult| {
        m.together_to_in_turn_ratio
            .is_some_and(|ratio| ratio.median <= MAX_TOGETHER_TO_IN_TURN_RATIO)
    };
    Ok(if is_interrupted() || all.iter().all(reached) {
        CommandOutcome::Done
    } else {
        CommandOutcome::NegativeAnswer
    })
}

fn configs(args: &Args) -> Result<Vec<CrowdConfig>> {
    let kinds: Vec<CrowdPattern> = if args.only.is_empty() {
        CrowdPattern::ALL.to_vec()
    } else {
        args.only.iter().map(|kind| kind.pattern()).collect()
    };
    let config = |kind: CrowdPattern| {
        let messages = args.messages.unwrap_or_else(|| default_message_count(kind));
        CrowdConfig::new(kind, args.processes, messages)
    };
    kinds.into_iter().map(config).collect()
}

impl CrowdResult {
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    fn new(config: CrowdConfig, together: &[RunResult], in_turn: &[RunResult]) -> CrowdResult {
        let ms = |result: &RunResult| result.elapsed_ns as f64 / 1e6;
        let ratios = together.iter().zip(in_turn);
        let ratios = ratios.map(|(together, in_turn)| ms(together) / ms(in_turn).max(1e-6));
        CrowdResult {
            config,
            together_ms: MedianAndSpread::of(&together.iter().map(ms).collect::<Vec<_>>()),
            in_turn_ms: MedianAndSpread::of(&in_turn.iter().map(ms).collect::<Vec<_>>()),
            together_to_in_turn_ratio: MedianAndSpread::of(&ratios.collect::<Vec<_>>()),
            verified_messages: together
                .iter()
                .chain(in_turn)
                .map(|t| t.verified_messages)
                .sum(),
        }
    }
}

fn print_table(all: &[CrowdResult]) -> Result<()> {
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
            line.config.pattern.name().to_owned(),
            line.config.processes.to_string(),
            line.config.total_messages().to_string(),
            format_spread_in_unit(line.together_ms, 1.0),
            format_spread_in_unit(line.in_turn_ms, 1.0),
            format_spread_in_unit(line.together_to_in_turn_ratio, 1.0),
            format!("at most {MAX_TOGETHER_TO_IN_TURN_RATIO}"),
        ]);
    }
    print_line(rows)
}
