//! `verbatim bench simulator`: the speed of simulations of clusters.

use anyhow::{Context, Result};
use bench::resource_usage::ResourceUsage;
use bench::simulated::sequencer::{SequencerParameters, run as simulate};
use bench::stats::MedianAndSpread;
use nicmodel::profile::builtin_profile;
use sequencer::Design;
use serde::Serialize;

use crate::CommandOutcome;
use crate::args;
use crate::output::{format_three_digits, print_line, print_typed_json, table};
use crate::steps::CommandSteps;

/// Arguments of `verbatim bench simulator`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this design of the sequencer; may be given several times [default: all]
    #[arg(long, value_name = "DESIGN")]
    design: Vec<Design>,
    /// Cores of the simulated server; several with commas between them
    #[arg(long, value_name = "N", default_value = "10", value_delimiter = ',', value_parser = args::integer_parser_in_range("a count of cores", 1..=14usize))]
    cores: Vec<usize>,
    /// Simulated clients
    #[arg(long, value_name = "N", default_value = "70", value_parser = args::integer_parser_in_range("clients", 1..=40_000usize))]
    clients: usize,
    /// Virtual time of a run
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = args::parse_duration_from_10ms)]
    duration: std::time::Duration,
    /// Runs of each design
    #[arg(long, value_name = "N", default_value = "5", value_parser = args::integer_parser_in_range("rounds", 1..=1000u32))]
    rounds: u32,
    /// Print one JSON object for each design: {"type": "simulator", "data": …}
    #[arg(long)]
    json: bool,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  verbatim bench simulator
  verbatim bench simulator --design spec-s0 --rounds 9
  verbatim bench simulator --clients 10000 --design spec-s0 --rounds 1

Rates are per second of processor time, of one core: a simulation has one thread.";

/// The speed at which a design is simulated.
#[derive(Serialize)]
struct SimulationSpeedRow {
    design: Design,
    cores: usize,
    clients: usize,
    /// Number of simulated requests of a run, including warm-up.
    requests: u64,
    virtual_ms: f64,
    /// Simulated requests in 10^6 per second of processor time, including all overhead.
    requests_per_cpu_us: MedianAndSpread,
    /// Virtual time divided by processor time.
    speed: f64,
}

pub(crate) fn run(args: &Args) -> Result<CommandOutcome> {
    let cib = builtin_profile("cib").context("Connect-IB is built in")?;
    let designs = if args.design.is_empty() {
        &Design::ALL[..]
    } else {
        &args.design[..]
    };
    let header = [
        "design",
        "cores",
        "clients",
        "requests",
        "virtual ms",
        "M requests a CPU second",
    ];
    let mut rows = table(header, &[1, 2, 3, 4, 5]);
    let setups = designs
        .iter()
        .flat_map(|design| args.cores.iter().map(move |cores| (*design, *cores)));
    let setups: Vec<_> = setups.collect();
    let steps = CommandSteps::new(setups.len() as u64 * u64::from(args.rounds))?;
    for (design, cores) in setups {
        let setup = SequencerParameters {
            clients: args.clients,
            measured_time: args.duration,
            ..SequencerParameters::paper_setup(design, cores)
        };
        let (mut rates, mut last) = (Vec::new(), None);
        for _ in 0..args.rounds {
            let name = format!("{design} on {cores} cores");
            let simulated = steps.run_unless_interrupted(name, || {
                let before = ResourceUsage::of_process(std::process::id())?.cpu_ns;
                let outcome = simulate(cib, &setup)?;
                Ok((
                    outcome,
                    ResourceUsage::of_process(std::process::id())?.cpu_ns - before,
                ))
            })?;
            let Some((outcome, cpu_ns)) = simulated else {
                break;
            };
            #[allow(clippy::cast_precision_loss)] // far below 2^52
            let (requests, cpu_ns) = (outcome.received_numbers as f64, cpu_ns.max(1) as f64);
            rates.push(requests / cpu_ns * 1e3);
            last = Some((outcome, cpu_ns));
        }
        let Some((outcome, cpu_ns)) = last else {
            break;
        };
        let row = SimulationSpeedRow {
            design,
            cores,
            clients: args.clients,
            requests: outcome.received_numbers,
            virtual_ms: outcome.virtual_ms,
            requests_per_cpu_us: MedianAndSpread::of(&rates).context("there was no round")?,
            speed: outcome.virtual_ms * 1e6 / cpu_ns,
        };
        if args.json {
            print_typed_json("simulator", &row)?;
        }
        rows.add_row([
            design.to_string(),
            row.cores.to_string(),
            row.clients.to_string(),
            row.requests.to_string(),
            format_three_digits(row.virtual_ms),
            super::common::format_median_and_range(Some(row.requests_per_cpu_us), ""),
        ]);
    }
    drop(steps);
    if !args.json {
        print_line(rows)?;
    }
    Ok(CommandOutcome::Done)
}
