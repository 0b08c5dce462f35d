//! The arguments of `verbatim kv` without a subcommand: what is compared, and how.

use std::time::Duration;

use kv::Design;

use super::serve::RecordArgs;
use super::workload::WorkloadArgs;
use crate::args::{self, NicArgs, PortArgs};

/// Arguments of `verbatim kv` without a subcommand.
#[derive(clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Run this design only (may be given several times): herd, reads, atomics [default: all]
    #[arg(long, value_name = "DESIGN")]
    pub(super) design: Vec<Design>,
    /// How long each measurement runs [default: 500ms; 200 µs of virtual time on a simulated NIC]
    #[arg(long, value_name = "TIME", value_parser = args::run_time)]
    pub(super) duration: Option<Duration>,
    /// How often everything runs, in turn
    #[arg(long, value_name = "N", default_value = "3", value_parser = args::number("a count of rounds", 1..=1000u32))]
    pub(super) rounds: u32,
    /// Client processes, at most 64 [default: 1]; on a simulated NIC clients, at most 1024 [default: 128]
    #[arg(long, value_name = "N", value_parser = args::number("a count of clients", 1..=1024usize))]
    pub(super) clients: Option<usize>,
    /// Worker threads of the server
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::number("a count of workers", 1..=64usize))]
    pub(super) workers: usize,
    /// Requests that a worker answers with one doorbell, at most
    #[arg(long, value_name = "N", default_value = "64", value_parser = args::number("a batch", 1..=64usize))]
    pub(super) batch: usize,
    /// UD queue pairs of a worker that batches rotate over
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::number("a count of queue pairs", 1..=64usize))]
    pub(super) queues: usize,
    #[command(flatten)]
    pub(super) records: RecordArgs,
    /// Leave Redis and memcached out
    #[arg(long)]
    pub(super) no_peers: bool,
    /// Print one JSON object per line: skipped, round, row; simulated
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) workload: WorkloadArgs,
    #[command(flatten)]
    pub(super) simulation: SimulationArgs,
    #[command(flatten)]
    pub(super) nic: NicArgs,
    #[command(flatten)]
    pub(super) port: PortArgs,
}

impl Args {
    pub(super) fn clients(&self) -> usize {
        self.clients.unwrap_or(1)
    }

    pub(super) fn duration(&self) -> Duration {
        self.duration.unwrap_or(Duration::from_millis(500))
    }
}

/// What only simulations have.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Simulation")]
pub(crate) struct SimulationArgs {
    /// Run on a simulated cluster of this NIC, in virtual time: cx, cx3, cib or bf2, as far as its profile goes. Clients
    /// and windows are the paper's unless told otherwise
    #[arg(long, value_name = "NAME", conflicts_with_all = ["provider", "device", "pcap", "rounds", "workers"])]
    pub(super) nic: Option<String>,
    /// Cores of the server, a worker each [default: several, from one to all of the profile]
    #[arg(long, value_name = "N", value_parser = args::number("a count of cores", 1..=64usize), requires = "nic")]
    pub(super) cores: Option<usize>,
    /// What the simulation starts its random numbers from [default: 1]: the same seed gives the same output
    #[arg(long, value_name = "N", value_parser = args::word, requires = "nic")]
    pub(super) seed: Option<u64>,
}

impl SimulationArgs {
    pub(super) fn is_asked_for(&self) -> bool {
        self.nic.is_some()
    }
}
