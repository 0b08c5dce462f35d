//! The arguments of `verbatim btree --nic`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use nicmodel::profile::CorePlace;

use crate::args;

/// Arguments that only simulations have.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Simulation")]
pub(crate) struct SimulationArgs {
    /// Run on a simulated cluster of this NIC, in virtual time: cx, cx3, cib or bf2, as far as its profile goes;
    /// several are compared. --keys is the size of the tree whose walks cost time, and takes no memory
    #[arg(long, value_name = "NAME", conflicts_with_all = args::REAL_NIC_ARG_GROUPS, conflicts_with_all = ["nic_file", "rounds", "workers", "scan_length"])]
    pub(super) nic: Vec<String>,
    /// The same on a NIC of your own, described by a profile (verbatim model --template)
    #[arg(long, value_name = "FILE", conflicts_with_all = args::REAL_NIC_ARG_GROUPS, conflicts_with_all = ["rounds", "workers", "scan_length"])]
    pub(super) nic_file: Option<PathBuf>,
    /// Where the simulated server and its tree are: host, or dpu on a NIC that has one, such as bf2 [default: each in
    /// turn]
    #[arg(long, value_name = "PLACE")]
    pub(super) place: Option<CorePlace>,
    /// Cores of the server, a worker each; several with commas between them [default: as many as the place has, at most
    /// 8]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = args::integer_parser_in_range("a count of cores", 1..=64usize))]
    pub(super) cores: Vec<usize>,
    /// Clients [default: 32 that send RPCs, or 2 that READ]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a count of clients", 1..=1024usize))]
    pub(super) clients: Option<usize>,
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
            ("--clients", self.clients.is_some()),
            ("--seed", self.seed.is_some()),
        ];
        match given.into_iter().find(|&(_, given)| given) {
            Some((flag, _)) => {
                bail!("{flag} is for simulated clusters; add --nic, such as --nic bf2")
            }
            None => Ok(()),
        }
    }
}
