//! `verbatim sockets`: TCP connections of unmodified programs, carried over RDMA.

mod measure;
mod stat;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::CommandOutcome;
use crate::args::parse_fabric_name;
use crate::run::{find_sockets_library, ld_preload_value};

/// Arguments of `verbatim sockets`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Only programs of this host that were run with this name carry each other's connections [default: all of this
    /// user's]
    #[arg(long, value_name = "NAME", value_parser = parse_fabric_name)]
    fabric: Option<String>,
    /// Print the connections of this user's processes: which are on RDMA, how much they carried, and why others are
    /// not. Connections that have ended follow as totals
    #[arg(long)]
    stat: bool,
    /// Print the connections as JSON lines
    #[arg(long, requires = "stat")]
    json: bool,
    /// Measure programs of this machine over TCP loopback and over RDMA, in turns: redis, qperf, iperf3 and nginx, as
    /// far as they are installed
    #[arg(long, conflicts_with = "stat")]
    measure: bool,
    /// How often each is measured; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, requires = "measure", value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// The program and its arguments; `--` before it keeps its own flags apart
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  verbatim sockets -- redis-server --port 7000      and in another terminal:
  verbatim sockets -- redis-benchmark -p 7000 -t get,set
  verbatim sockets --stat                           which connections are on RDMA
  verbatim sockets --measure                        programs over TCP and over RDMA, side by side

A connection is carried when both of its ends run under this command: on one host as the same user, by shared memory; on \
two hosts by packets. All others stay on TCP, as does what only TCP can do.

Exit status: the program's; 2 when it could not be run.";

/// Environment variable that names the fabric that the software NIC joins.
const FABRIC_VARIABLE: &str = "VERBATIM_FABRIC";

/// Runs `verbatim sockets`. The program replaces this process.
pub(crate) fn run(args: &Args) -> Result<CommandOutcome> {
    if (args.stat || args.measure) && !args.command.is_empty() {
        bail!("--stat and --measure run no program of yours; leave it out");
    }
    if args.measure {
        return measure::run(args.rounds);
    }
    if args.stat {
        return stat::print_connections(args.fabric.as_deref(), args.json);
    }
    let [program, rest @ ..] = &args.command[..] else {
        bail!("name the program to run, such as: verbatim sockets -- redis-server");
    };
    let mut command = Command::new(program);
    command
        .args(rest)
        .env("LD_PRELOAD", ld_preload_value(&find_sockets_library()?)?);
    if let Some(name) = &args.fabric {
        command.env(FABRIC_VARIABLE, name);
    }
    Err(command.exec()).with_context(|| format!("cannot run {}", program.display()))
}
