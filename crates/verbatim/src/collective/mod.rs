//! `verbatim collective`: bus bandwidth of collectives over message size, as nccl-tests prints it.

mod row;
mod show;

use std::path::PathBuf;

use anyhow::{Result, bail};
use bench::collective::{self as measured, Collective, CollectiveParameters};
use bench::simulated::collective as simulated;
use clap::ValueEnum;
use nicmodel::Profile;

use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::model::NicProfileChoice;
use crate::nic::OpenNic;
use crate::output::print_typed_json;
use crate::picture::PictureArgs;
use crate::side_by_side::{outcome_of_comparison, run_simulations as simulate};
use row::Row;

/// Arguments of `verbatim collective`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Which collective
    #[arg(long, value_enum, default_value = "all-reduce")]
    collective: CollectiveKind,
    /// Ranks in the ring: 2 to 8, simulated 2 to 64; a list measures each
    #[arg(long, short = 'n', value_name = "N", value_delimiter = ',', default_value = "2", value_parser = args::integer_parser_in_range("a count of ranks", 2..=64usize))]
    ranks: Vec<usize>,
    /// Bytes of the smallest buffer
    #[arg(long, short = 'b', value_name = "BYTES", default_value = "1K", value_parser = args::byte_count_parser_up_to(MAX_BUFFER_BYTES))]
    min: usize,
    /// Bytes of the largest buffer
    #[arg(long, short = 'e', value_name = "BYTES", default_value = "16M", value_parser = args::byte_count_parser_up_to(MAX_BUFFER_BYTES))]
    max: usize,
    /// From one size to the next
    #[arg(long, short = 'f', value_name = "N", default_value = "4", value_parser = args::integer_parser_in_range("a factor", 2..=1024usize))]
    factor: usize,
    /// How often a collective runs for a measurement [default: 20; simulated 2]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a count of runs", 1..=1_000_000usize))]
    iterations: Option<usize>,
    /// Queue pairs of a connection
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::integer_parser_in_range("a count of queue pairs", 1..=16usize))]
    lanes: usize,
    /// Bytes of a buffer that travel at a time
    #[arg(long, value_name = "BYTES", default_value = "256K", value_parser = args::byte_count_parser_up_to(64 << 20))]
    slice: usize,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    picture: PictureArgs,
    #[command(flatten)]
    simulation: SimulationArgs,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

/// Arguments that only simulations have.
#[derive(clap::Args)]
#[command(next_help_heading = "Simulation")]
struct SimulationArgs {
    /// Run on a simulated cluster of this NIC, in virtual time: cx, cx3, cib or bf2, as far as its profile goes
    #[arg(long, value_name = "NAME", conflicts_with_all = args::REAL_NIC_ARG_GROUPS, conflicts_with_all = ["nic_file"])]
    nic: Option<String>,
    /// The same on a NIC of your own, described by a profile (verbatim model --template)
    #[arg(long, value_name = "FILE", conflicts_with_all = args::REAL_NIC_ARG_GROUPS)]
    nic_file: Option<PathBuf>,
}

/// The largest size of a buffer in bytes.
const MAX_BUFFER_BYTES: usize = 1 << 30;
/// The maximum number of ranks on this machine, each of which is a polling thread.
const MAX_LOCAL_RANKS: usize = 8;

/// Minimum bytes of a slice: two elements.
const MIN_SLICE_BYTES: usize = 8;

const EXAMPLES: &str = "\
Each rank has a buffer of f32 and sends to the next rank of a ring, through the transport that NCCL gets from \
libnccl-net-verbatim.so. The result is checked before and after each measurement.

Examples:
  verbatim collective
  verbatim collective --ranks 4 --collective all-gather -b 64K -e 64M
  verbatim collective --json

On a simulated cluster of NICs that you need not have, in virtual time, beside the bound of the model:
  verbatim collective --nic cib --ranks 8
  verbatim collective --nic cx3 --ranks 2,8,64 -e 4M --svg all-reduce.svg

Exit status 1 when a result was wrong.";

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CollectiveKind {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    SendRecv,
}

impl From<CollectiveKind> for Collective {
    fn from(kind: CollectiveKind) -> Self {
        match kind {
            CollectiveKind::AllReduce => Self::AllReduce,
            CollectiveKind::AllGather => Self::AllGather,
            CollectiveKind::ReduceScatter => Self::ReduceScatter,
            CollectiveKind::Broadcast => Self::Broadcast,
            CollectiveKind::SendRecv => Self::SendRecv,
        }
    }
}

/// Runs `verbatim collective`.
pub(crate) fn run(args: &Args) -> Result<CommandOutcome> {
    if args.min > args.max {
        bail!("-b {} is more than -e {}", args.min, args.max);
    }
    if args.slice < MIN_SLICE_BYTES {
        bail!(
            "--slice {}: a slice has {MIN_SLICE_BYTES} bytes or more",
            args.slice
        );
    }
    let most_ranks = args.ranks.iter().copied().max().unwrap_or_default();
    if args.min < 4 * most_ranks {
        bail!(
            "-b {}: each of {most_ranks} ranks needs an element of 4 bytes, which are {} bytes",
            args.min,
            4 * most_ranks
        );
    }
    args.picture.check_files_writable()?;
    let simulation = &args.simulation;
    let rows = if simulation.nic.is_some() || simulation.nic_file.is_some() {
        let chosen = NicProfileChoice {
            nic: simulation.nic.clone(),
            nic_file: simulation.nic_file.clone(),
        };
        let profile = chosen.chosen_or_default_profile()?;
        measure_row_per_size(args, 2, |setup| simulate_row(&profile, setup))?
    } else {
        if most_ranks > MAX_LOCAL_RANKS {
            bail!(
                "{most_ranks} ranks on one machine: there may be {MAX_LOCAL_RANKS}, each a thread that polls; simulate more \
                 with --nic"
            );
        }
        let nic = OpenNic::open(&args.nic, &args.port)?;
        let kind = args.nic.provider.nic_description();
        measure_row_per_size(args, 20, |setup| measure_row(&nic, kind, setup))?
    };
    if !args.json {
        show::print_tables(&rows)?;
    }
    if let Some(chart) = show::chart(&rows) {
        args.picture.write_requested_files(&chart)?;
    }
    Ok(outcome_of_comparison(
        rows.iter().all(|row| row.run_result.are_results_right),
    ))
}

/// Measures a row for each number of ranks and message size.
fn measure_row_per_size(
    args: &Args,
    iterations: usize,
    one: impl Fn(CollectiveParameters) -> Result<Row>,
) -> Result<Vec<Row>> {
    let sizes = std::iter::successors(Some(args.min), |size| size.checked_mul(args.factor));
    let sizes: Vec<usize> = sizes.take_while(|size| *size <= args.max).collect();
    let of_ranks = |ranks: usize| {
        sizes.iter().map(move |bytes| CollectiveParameters {
            collective: args.collective.into(),
            ranks,
            // Round down to whole elements of 4 bytes.
            buffer_bytes: bytes / 4 * 4,
            iterations: args.iterations.unwrap_or(iterations),
            qps_per_connection: args.lanes,
            slice_bytes: args.slice,
        })
    };
    let setups = args.ranks.iter().flat_map(|ranks| of_ranks(*ranks));
    let name = |setup: &CollectiveParameters| {
        format!("{} ranks, {} bytes", setup.ranks, setup.buffer_bytes)
    };
    simulate(setups.collect(), name, |setup, _| {
        let row = one(setup)?;
        if args.json {
            print_typed_json("collective", &row)?;
        }
        Ok(row)
    })
}

fn simulate_row(profile: &Profile, setup: CollectiveParameters) -> Result<Row> {
    let (bound, by) = simulated::bus_bandwidth_bound(profile, &setup)?;
    Ok(Row {
        nic_kind: "simulated",
        nic: profile.name.clone(),
        run_result: simulated::run(profile, &setup, 1)?,
        setup,
        bound_gb_s: Some(bound),
        bound_by: Some(by),
        memcpy_gb_s: None,
    })
}

fn measure_row(nic: &OpenNic, kind: &'static str, setup: CollectiveParameters) -> Result<Row> {
    let config = collective::Config {
        port_num: nic.config.port_num,
        gid_index: nic.config.gid_index,
        ..collective::Config::default()
    };
    let memcpy = measured::best_memcpy_gb_s(setup.buffer_bytes);
    Ok(Row {
        nic_kind: kind,
        nic: nic.context.device_name().to_owned(),
        run_result: measured::run(&nic.context, &config, &setup)?,
        setup,
        bound_gb_s: None,
        bound_by: None,
        memcpy_gb_s: Some(memcpy),
    })
}
