//! The arguments of `verbatim sequencer` without a subcommand: the designs to run, and the
//! settings.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use nicmodel::profile::CorePlace;
use sequencer::Design;

use crate::args::{self, NicArgs, PortArgs, PublishedExperiment};
use crate::picture::PictureArgs;
use crate::sweeps::{SweepArgs, SweepSetting, value_within_knob_limit};

/// Arguments of `verbatim sequencer` without a subcommand.
#[derive(clap::Args, Clone)]
#[group(skip)]
pub(crate) struct Args {
    /// Run this design only (may be given several times): atomics, rpc, rpc-batch, rpc-batch-mq,
    /// spec-s0 [default: all that the device can run]
    #[arg(long, value_name = "DESIGN")]
    pub(super) design: Vec<Design>,
    /// How long each round of each design runs [default: 500ms; 1ms of virtual time on a simulated NIC]
    #[arg(long, value_name = "TIME", value_parser = args::parse_duration_from_10us)]
    pub(super) duration: Option<Duration>,
    /// How often each design runs, in turn with the others
    #[arg(long, value_name = "N", default_value = "3", value_parser = args::integer_parser_in_range("a count of rounds", 1..=1000u32))]
    pub(super) rounds: u32,
    /// Client processes, at most 64 [default: 1]; on a simulated NIC clients, at most 16384 [default: 70]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a count of clients", 1..=sequencer::counter::MAX_CLIENTS))]
    pub(super) clients: Option<usize>,
    /// Threads of each client process, each a client of its own
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::integer_parser_in_range("a count of threads", 1..=64usize))]
    pub(super) threads: usize,
    /// Worker threads of the server
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::integer_parser_in_range("a count of workers", 1..=64usize))]
    pub(super) workers: usize,
    /// Requests that a client has outstanding [default: 256; 32 on a simulated NIC]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a window", 1..=4096usize))]
    pub(super) window: Option<usize>,
    /// Requests that a client posts with one doorbell
    #[arg(long, value_name = "N", default_value = "16", value_parser = args::integer_parser_in_range("a postlist", 1..=64usize))]
    pub(super) postlist: usize,
    /// Requests that a worker answers with one doorbell, at most [default: 64; 16 on a simulated NIC]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a batch", 1..=64usize))]
    pub(super) batch: Option<usize>,
    /// UD queue pairs of a worker: batches of rpc designs rotate over them, and each has clients of its
    /// own in spec-s0 [default: 3 in rpc-batch-mq, else 1; on a simulated NIC for each of its ports, and 3 in
    /// spec-s0, too]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a count of queue pairs", 1..=64usize))]
    pub(super) queues: Option<usize>,
    /// The first number
    #[arg(long, value_name = "N", default_value = "0", value_parser = args::parse_decimal_or_hex_u64)]
    pub(super) start: u64,
    /// Print one JSON object per line: skipped, round, design
    #[arg(long)]
    pub(super) json: bool,
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
        if simulated && self.simulation.experiment.is_some() {
            let fixed = matches!(
                knob,
                SweepSetting::Window
                    | SweepSetting::Postlist
                    | SweepSetting::Batch
                    | SweepSetting::Queues
            );
            if fixed {
                bail!("--over: an experiment sets this; leave out --experiment");
            }
        }
        match knob {
            SweepSetting::Cores if simulated => self.simulation.cores = vec![limit(64)?],
            SweepSetting::Cores => self.workers = limit(64)?,
            SweepSetting::Clients => self.clients = Some(limit(sequencer::counter::MAX_CLIENTS)?),
            SweepSetting::Threads if !simulated => self.threads = limit(64)?,
            SweepSetting::Window => self.window = Some(limit(4096)?),
            SweepSetting::Postlist => self.postlist = limit(64)?,
            SweepSetting::Batch => self.batch = Some(limit(64)?),
            SweepSetting::Queues => self.queues = Some(limit(64)?),
            SweepSetting::Threads | SweepSetting::ValueSize | SweepSetting::Keys => {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn clients(&self) -> usize {
        self.clients.unwrap_or(1)
    }

    pub(super) fn window(&self) -> usize {
        self.window.unwrap_or(256)
    }

    pub(super) fn batch(&self) -> usize {
        self.batch.unwrap_or(64)
    }

    pub(super) fn duration(&self) -> Duration {
        self.duration.unwrap_or(Duration::from_millis(500))
    }
}

/// Arguments that only simulations have.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Simulation")]
pub(crate) struct SimulationArgs {
    /// Run on a simulated cluster of this NIC, in virtual time: cx, cx3, cib or bf2, as far as its profile
    /// goes; several are compared. Clients, windows and batches are the paper's unless told otherwise
    #[arg(long, value_name = "NAME", conflicts_with_all = args::REAL_NIC_ARG_GROUPS, conflicts_with_all = ["nic_file", "rounds", "threads", "workers", "start"])]
    pub(super) nic: Vec<String>,
    /// The same on a NIC of your own, described by a profile (verbatim model --template)
    #[arg(long, value_name = "FILE", conflicts_with_all = args::REAL_NIC_ARG_GROUPS, conflicts_with_all = ["rounds", "threads", "workers", "start"])]
    pub(super) nic_file: Option<PathBuf>,
    /// Where the simulated server and its counter are: host, or dpu on a NIC that has one, such as bf2 [default: host]
    #[arg(long, value_name = "PLACE")]
    pub(super) place: Option<CorePlace>,
    /// Cores of the server, a worker each; several with commas between them [default: several, from one to all of the
    /// profile]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = args::integer_parser_in_range("a count of cores", 1..=64usize))]
    pub(super) cores: Vec<usize>,
    /// Machines that clients run on [default: as few as have a core for each client]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a count of machines", 1..=40_000usize))]
    pub(super) machines: Option<usize>,
    /// Run a published experiment with the loops of its authors' benchmark: with atc16 clients over RPC are stop-and-go
    /// and post each request alone, a worker takes one request of each client in a pass and has a doorbell for each
    /// port, and each client of spec-s0 keeps 16 requests at one worker. Ours are the default
    #[arg(long, value_name = "NAME", conflicts_with_all = ["window", "postlist", "batch", "queues"])]
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
            ("--place", self.place.is_some()),
            ("--cores", !self.cores.is_empty()),
            ("--machines", self.machines.is_some()),
            ("--experiment", self.experiment.is_some()),
            ("--seed", self.seed.is_some()),
        ];
        match given.into_iter().find(|&(_, given)| given) {
            Some((flag, _)) => {
                bail!("{flag} is for simulated clusters; add --nic, such as --nic cib")
            }
            None => Ok(()),
        }
    }
}
