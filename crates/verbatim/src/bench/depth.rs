//! `verbatim bench depth`: the rate of requests against the number of requests in flight.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use bench::depth::{self, DataMemory, ExchangeConfig, TransferVerb};
use bench::link::WorkerLink;
use bench::peers::copy_pipeline;
use bench::run_circumstances::RunCircumstances;
use bench::simulated;
use bench::stats::MedianAndSpread;
use clap::ValueEnum;
use serde::Serialize;

use super::common::{
    CoresArgs, are_core_costs_unknown, format_byte_count, nic_choice, note_if_core_costs_unknown,
    warn_of_debug_build_and_load, worker_command,
};
use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::output::{format_three_digits, print_line, print_typed_json, table};
use crate::steps::CommandSteps;
use crate::sweeps;

pub(super) const EXAMPLES: &str = "\
Examples:
  verbatim bench depth
  verbatim bench depth --verb read --memory large --depth 1,32
  verbatim bench depth --queue-pairs 4 --rounds 9 --json
  verbatim bench depth --nic cib --nic cx3          on simulated NICs, in virtual time

A client SENDs requests of 64 bytes. The server takes them from a shared receive queue, WRITEs the data into the client's \
memory (or READs them from there), and SENDs a response, as a target of NVMe over Fabrics does. Both poll, on a core each. \
Beside each depth is a pipeline of bare copies of the same blocks between the same cores, with as many buffers. On simulated \
NICs there is none, and each depth is measured once.";

/// Arguments of `verbatim bench depth`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// How the server moves the data
    #[arg(long, value_enum, default_value_t = TransferVerbArg::Write)]
    verb: TransferVerbArg,
    /// Requests in flight of each queue pair, with commas between them; ratios are to the first
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8,16,32,64,128", value_parser = args::integer_parser_in_range("a depth", 1..=1024usize))]
    depth: Vec<usize>,
    /// Bytes of data of a request; also with K (KiB) or M (MiB) behind
    #[arg(long, value_name = "BYTES", default_value = "4K", value_parser = parse_payload_bytes)]
    payload: usize,
    /// Queue pairs
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::integer_parser_in_range("a count of queue pairs", 1..=64usize))]
    queue_pairs: usize,
    /// Where the data lie on both sides
    #[arg(long, value_enum, default_value_t = MemoryArg::Shared)]
    memory: MemoryArg,
    /// How often each depth is measured, in turn
    #[arg(long, value_name = "N", default_value = "5", value_parser = args::integer_parser_in_range("a count of rounds", 1..=1000u32))]
    rounds: u32,
    /// How long each measurement takes [default: 200ms, or 10ms of virtual time]
    #[arg(long, value_name = "TIME", value_parser = args::parse_duration_from_10ms)]
    duration: Option<Duration>,
    /// Run on simulated machines with this NIC, in virtual time: cx, cx3, cib, or a profile's file; several are compared
    #[arg(long = "nic", id = "simulated_nic", value_name = "NAME", help_heading = "Simulation", conflicts_with_all = args::REAL_NIC_ARG_GROUPS, conflicts_with_all = ["nic_file", "rounds", "cores", "memory"])]
    simulated_nics: Vec<String>,
    /// The same with a NIC of your own, described by a profile (verbatim model --template)
    #[arg(long, value_name = "FILE", help_heading = "Simulation", conflicts_with_all = args::REAL_NIC_ARG_GROUPS, conflicts_with_all = ["rounds", "cores", "memory"])]
    nic_file: Option<PathBuf>,
    #[command(flatten)]
    cores: CoresArgs,
    /// Print one JSON object per line: record, depth
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TransferVerbArg {
    /// RDMA WRITE into the client's memory
    Write,
    /// RDMA READ of the client's memory
    Read,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MemoryArg {
    /// Memory that peers map
    Shared,
    /// Memory from malloc, which the software NIC lets peers map
    Heap,
    /// A region of 65 MiB from malloc, which peers reach by system call
    Large,
}

fn parse_payload_bytes(text: &str) -> Result<usize, String> {
    let parsed = args::byte_count_parser_up_to(1 << 20)(text)?;
    if parsed < 16 || !parsed.is_multiple_of(8) {
        return Err("the data of a request are words of 8 bytes, 16 or more".to_owned());
    }
    Ok(parsed)
}

/// The settings of the measurement, for the run record.
#[derive(Serialize)]
struct Settings {
    rounds: u32,
    #[serde(rename = "shapes")]
    exchanges: Vec<ExchangeConfig>,
}

/// The result of one depth, as `--json` prints it.
#[derive(Serialize)]
struct DepthResult {
    #[serde(flatten)]
    config: ExchangeConfig,
    requests_per_s: Option<MedianAndSpread>,
    /// The rate divided by the rate of the first depth in the same round.
    #[serde(rename = "ratio_to_first")]
    rate_ratio_to_first_depth: Option<MedianAndSpread>,
    /// The rate of plain copies of blocks of this size between the two cores.
    #[serde(rename = "copies_per_s")]
    plain_block_copies_per_s: Option<MedianAndSpread>,
    #[serde(rename = "verified")]
    verified_requests: u64,
}

/// The samples of one depth, one for each round.
#[derive(Default)]
struct DepthSamples {
    requests_per_s: Vec<f64>,
    rate_ratios_to_first_depth: Vec<f64>,
    plain_block_copies_per_s: Vec<f64>,
    requests_answered: u64,
}

impl Args {
    /// Returns true if the measurement runs in virtual time.
    pub(super) fn is_simulated(&self) -> bool {
        !self.simulated_nics.is_empty() || self.nic_file.is_some()
    }

    /// Returns the time of one measurement.
    fn round_duration(&self) -> Duration {
        let default_ms = if self.is_simulated() { 10 } else { 200 };
        self.duration.unwrap_or(Duration::from_millis(default_ms))
    }
}

/// The result of one depth on a simulated NIC, as `--json` prints it.
#[derive(Serialize)]
struct SimulatedDepthResult<'n> {
    nic: &'n str,
    /// True if the rate is at most as printed, because the profile lacks the costs of cores.
    #[serde(rename = "at_most")]
    is_limit: bool,
    #[serde(flatten)]
    config: ExchangeConfig,
    requests_per_s: f64,
    /// The rate divided by the rate of the first depth.
    #[serde(rename = "ratio_to_first")]
    rate_ratio_to_first_depth: f64,
    #[serde(rename = "verified")]
    verified_requests: u64,
}

/// Measures each depth once on each simulated NIC.
fn run_simulated(args: &Args) -> Result<CommandOutcome> {
    let profiles = sweeps::profiles(&args.simulated_nics, args.nic_file.as_ref())?;
    let exchanges = exchange_configs(args);
    let steps = CommandSteps::new((profiles.len() * exchanges.len()) as u64)?;
    let mut measured = Vec::new();
    'nics: for profile in &profiles {
        let mut first = None;
        for config in &exchanges {
            let name = format!("depth {} on {}", config.depth, profile.name);
            let rate =
                steps.run_unless_interrupted(name, || simulated::depth::run(profile, config))?;
            let Some(rate) = rate else { break 'nics };
            let first = *first.get_or_insert(rate.requests_per_s);
            measured.push(SimulatedDepthResult {
                nic: &profile.name,
                is_limit: are_core_costs_unknown(profile),
                config: *config,
                requests_per_s: rate.requests_per_s,
                rate_ratio_to_first_depth: rate.requests_per_s / first,
                verified_requests: rate.requests_answered,
            });
        }
    }
    drop(steps);
    profiles.iter().for_each(note_if_core_costs_unknown);
    if args.json {
        for line in &measured {
            print_typed_json("depth", line)?;
        }
        return Ok(CommandOutcome::Done);
    }
    print_line(format_args!(
        "requests of 64 B, data of {} by {}, {} queue pair(s), simulated: a client and a server with one core each",
        format_byte_count(args.payload),
        exchanges[0].verb.name(),
        args.queue_pairs,
    ))?;
    let header = [
        "NIC",
        "depth",
        "1000 requests/s",
        "to the first",
        "GB/s",
        "verified",
    ];
    let mut rows = table(header, &[1, 2, 3, 4, 5]);
    for line in &measured {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let payload_bytes = line.config.payload_bytes as f64;
        let limit = if line.is_limit { "≤ " } else { "" };
        rows.add_row([
            line.nic.to_owned(),
            line.config.depth.to_string(),
            format!("{limit}{}", format_three_digits(line.requests_per_s / 1e3)),
            format_three_digits(line.rate_ratio_to_first_depth),
            format_three_digits(line.requests_per_s * payload_bytes / 1e9),
            line.verified_requests.to_string(),
        ]);
    }
    print_line(rows)?;
    Ok(CommandOutcome::Done)
}

/// Runs `verbatim bench depth`.
pub(super) fn run(args: &Args) -> Result<CommandOutcome> {
    if args.is_simulated() {
        return run_simulated(args);
    }
    args.nic.apply_by_reexec()?;
    let nic = nic_choice(&args.nic, &args.port);
    let cores = args.cores.choose_cores()?;
    let exchanges = exchange_configs(args);
    let settings = Settings {
        rounds: args.rounds,
        exchanges: exchanges.clone(),
    };
    let record = RunCircumstances::new(cores, nic.provider.clone(), nic.device_name()?, settings);
    if args.json {
        print_typed_json("record", &record)?;
    }
    warn_of_debug_build_and_load(&record);
    let mut link = WorkerLink::spawn(&worker_command()?, cores.responder)?;
    let mut samples: Vec<DepthSamples> =
        exchanges.iter().map(|_| DepthSamples::default()).collect();
    let steps = CommandSteps::new(u64::from(args.rounds) * exchanges.len() as u64)?;
    'rounds: for _ in 0..args.rounds {
        let mut first = None;
        for (config, samples) in exchanges.iter().zip(&mut samples) {
            let both = steps.run_unless_interrupted(format!("depth {}", config.depth), || {
                let rate = depth::run(cores.requester, &mut link, &nic, config)?;
                let copies = copy_pipeline::measure_block_copies_per_s(
                    cores,
                    config.payload_bytes,
                    config.depth * config.queue_pairs,
                    args.round_duration() / 4,
                )?;
                Ok((rate, copies))
            })?;
            let Some((rate, copies)) = both else {
                break 'rounds;
            };
            samples.requests_per_s.push(rate.requests_per_s);
            let first = *first.get_or_insert(rate.requests_per_s);
            samples
                .rate_ratios_to_first_depth
                .push(rate.requests_per_s / first);
            samples.plain_block_copies_per_s.push(copies);
            samples.requests_answered += rate.requests_answered;
        }
    }
    drop(steps);
    let measured = exchanges
        .iter()
        .zip(samples)
        .filter(|(_, samples)| !samples.requests_per_s.is_empty())
        .map(|(config, samples)| DepthResult {
            config: *config,
            requests_per_s: MedianAndSpread::of(&samples.requests_per_s),
            rate_ratio_to_first_depth: MedianAndSpread::of(&samples.rate_ratios_to_first_depth),
            plain_block_copies_per_s: MedianAndSpread::of(&samples.plain_block_copies_per_s),
            verified_requests: samples.requests_answered,
        });
    let measured: Vec<_> = measured.collect();
    if args.json {
        for line in &measured {
            print_typed_json("depth", line)?;
        }
        return Ok(CommandOutcome::Done);
    }
    print_line(format_args!(
        "requests of 64 B, data of {} by {} in {} memory, {} queue pair(s), on {}, cores {} and {}; medians of {} rounds \
         (min..max)",
        format_byte_count(args.payload),
        exchanges[0].verb.name(),
        exchanges[0].memory.name(),
        args.queue_pairs,
        record.device,
        cores.requester,
        cores.responder,
        args.rounds
    ))?;
    print_table(&measured)
}

fn exchange_configs(args: &Args) -> Vec<ExchangeConfig> {
    let config = |depth: &usize| ExchangeConfig {
        verb: match args.verb {
            TransferVerbArg::Write => TransferVerb::Write,
            TransferVerbArg::Read => TransferVerb::Read,
        },
        memory: match args.memory {
            MemoryArg::Shared => DataMemory::Shared,
            MemoryArg::Heap => DataMemory::Heap,
            MemoryArg::Large => DataMemory::Large,
        },
        depth: *depth,
        queue_pairs: args.queue_pairs,
        payload_bytes: args.payload,
        duration_ms: u64::try_from(args.round_duration().as_millis()).unwrap_or(u64::MAX),
    };
    args.depth.iter().map(config).collect()
}

fn print_table(measured: &[DepthResult]) -> Result<CommandOutcome> {
    let mut rows = table(
        [
            "depth",
            "1000 requests/s",
            "to the first",
            "1000 bare copies/s",
            "verified",
        ],
        &[0, 1, 2, 3, 4],
    );
    for line in measured {
        rows.add_row([
            line.config.depth.to_string(),
            format_spread_in_unit(line.requests_per_s, 1e3),
            format_spread_in_unit(line.rate_ratio_to_first_depth, 1.0),
            format_spread_in_unit(line.plain_block_copies_per_s, 1e3),
            line.verified_requests.to_string(),
        ]);
    }
    print_line(rows)?;
    Ok(CommandOutcome::Done)
}

/// Formats median and range in multiples of `unit`.
pub(super) fn format_spread_in_unit(spread: Option<MedianAndSpread>, unit: f64) -> String {
    spread.map_or_else(
        || "-".to_owned(),
        |s| {
            let [median, min, max] =
                [s.median, s.min, s.max].map(|x| format_three_digits(x / unit));
            format!("{median} ({min}..{max})")
        },
    )
}
