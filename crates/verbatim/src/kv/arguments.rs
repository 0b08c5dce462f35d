//! The arguments of `verbatim kv` without a subcommand: the designs to compare, and the settings.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use kv::Design;

use super::serve::RecordArgs;
use super::workload::WorkloadArgs;
use crate::args::{self, NicArgs, PortArgs, PublishedExperiment};
use crate::picture::PictureArgs;
use crate::sweeps::{SweepArgs, SweepSetting, value_within_knob_limit};

/// Arguments of `verbatim kv` without a subcommand.
#[derive(clap::Args, Clone)]
#[group(skip)]
pub(crate) struct Args {
    /// Run this design only (may be given several times): herd, reads, atomics [default: all]
    #[arg(long, value_name = "DESIGN")]
    pub(super) design: Vec<Design>,
    /// How long each measurement runs [default: 500ms; 200 µs of virtual time on a simulated NIC]
    #[arg(long, value_name = "TIME", value_parser = args::parse_duration_from_10us)]
    pub(super) duration: Option<Duration>,
    /// How often everything runs, in turn
    #[arg(long, value_name = "N", default_value = "3", value_parser = args::integer_parser_in_range("a count of rounds", 1..=1000u32))]
    pub(super) rounds: u32,
    /// Client processes, at most 64 [default: 1]; on a simulated NIC clients, at most 1024 [default: 128]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a count of clients", 1..=1024usize))]
    pub(super) clients: Option<usize>,
    /// Worker threads of the server
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::integer_parser_in_range("a count of workers", 1..=64usize))]
    pub(super) workers: usize,
    /// Requests that a worker answers with one doorbell, at most
    #[arg(long, value_name = "N", default_value = "64", value_parser = args::integer_parser_in_range("a batch", 1..=64usize))]
    pub(super) batch: usize,
    /// UD queue pairs of a worker that batches rotate over
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::integer_parser_in_range("a count of queue pairs", 1..=64usize))]
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
    pub(super) picture: PictureArgs,
    #[command(flatten)]
    pub(super) sweep: SweepArgs,
    #[command(flatten)]
    pub(super) simulation: SimulationArgs,
    #[command(flatten)]
    pub(super) nic: NicArgs,
    #[command(flatten)]
    pub(super) port: PortArgs,
}

impl Args {
    /// Sets a knob; returns false if this command has no such knob.
    pub(super) fn set_knob_if_known(&mut self, knob: SweepSetting, value: usize) -> Result<bool> {
        let simulated = self.simulation.is_asked_for();
        let limit = |most| value_within_knob_limit(value, most);
        if self.simulation.experiment.is_some() && knob == SweepSetting::Window {
            bail!("--over: an experiment sets the window; leave out --experiment");
        }
        match knob {
            SweepSetting::Cores if simulated => self.simulation.cores = vec![limit(64)?],
            SweepSetting::Cores => self.workers = limit(64)?,
            SweepSetting::Clients => self.clients = Some(limit(1024)?),
            SweepSetting::Window => self.workload.window = Some(limit(4096)?),
            SweepSetting::Batch if !simulated => self.batch = limit(64)?,
            SweepSetting::Queues if !simulated => self.queues = limit(64)?,
            SweepSetting::ValueSize if value < 16 => {
                bail!("--values: a value has 16 bytes or more")
            }
            SweepSetting::ValueSize => self.workload.value_size = limit(65_535)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub(super) fn clients(&self) -> usize {
        self.clients.unwrap_or(1)
    }

    pub(super) fn duration(&self) -> Duration {
        self.duration.unwrap_or(Duration::from_millis(500))
    }
}

/// Arguments that only simulations have.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Simulation")]
pub(crate) struct SimulationArgs {
    /// Run on a simulated cluster of this NIC, in virtual time: cx, cx3, cib or bf2, as far as its profile goes; several
    /// are compared. Clients
    /// and windows are the paper's unless told otherwise
    #[arg(long, value_name = "NAME", conflicts_with_all = args::REAL_NIC_ARG_GROUPS, conflicts_with_all = ["nic_file", "rounds", "workers", "batch", "queues", "keys", "key_size", "postlist"])]
    pub(super) nic: Vec<String>,
    /// The same on a NIC of your own, described by a profile (verbatim model --template)
    #[arg(long, value_name = "FILE", conflicts_with_all = args::REAL_NIC_ARG_GROUPS, conflicts_with_all = ["rounds", "workers", "batch", "queues", "keys", "key_size", "postlist"])]
    pub(super) nic_file: Option<PathBuf>,
    /// Cores of the server, a worker each; several with commas between them [default: several, from one to all of the
    /// profile]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = args::integer_parser_in_range("a count of cores", 1..=64usize))]
    pub(super) cores: Vec<usize>,
    /// Run a published experiment with the loops of its authors' benchmark: with atc16 clients of herd are stop-and-go and
    /// post each request alone, and a worker takes one request of each client in a pass and has a doorbell for each port.
    /// Ours are the default
    #[arg(long, value_name = "NAME", conflicts_with = "window")]
    pub(super) experiment: Option<PublishedExperiment>,
    /// What the simulation starts its random numbers from [default: 1]: the same seed gives the same output
    #[arg(long, value_name = "N", value_parser = args::parse_decimal_or_hex_u64)]
    pub(super) seed: Option<u64>,
}

impl SimulationArgs {
    pub(super) fn is_asked_for(&self) -> bool {
        !self.nic.is_empty() || self.nic_file.is_some()
    }

    /// Refuses arguments that have no meaning without a simulation.
    pub(super) fn refuse_simulation_only_arguments(&self) -> Result<()> {
        let given = [
            ("--cores", !self.cores.is_empty()),
            ("--seed", self.seed.is_some()),
            ("--experiment", self.experiment.is_some()),
        ];
        match given.into_iter().find(|&(_, given)| given) {
            Some((flag, _)) => {
                bail!("{flag} is for simulated clusters; add --nic, such as --nic cib")
            }
            None => Ok(()),
        }
    }
}
