//! `verbatim stream`: the byte stream of the crate `stream`, compared with TCP, Unix sockets and rsockets.

mod check;
mod compare;
mod load;
mod messages;
mod rsockets;
mod serve;

use anyhow::Result;
use clap::Subcommand;

use crate::CommandOutcome;

/// Arguments of `verbatim stream`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    comparison: compare::ComparisonArgs,
}

const EXAMPLES: &str = "\
Starts an echo server on a core of its own, and has a client on another core send to it by RDMA, by TCP, by a Unix socket \
and by rsockets in turn: small messages back and forth, then large ones. Every byte is checked.

Examples:
  verbatim stream
  verbatim stream --connections 1 --connections 64 --connections 500 --duration 200ms --json";

#[derive(Subcommand)]
enum Command {
    /// An echo server, by RDMA and by TCP on one port, until a signal
    Serve(serve::Args),
    /// Send bytes to an echo server and compare what comes back
    Check(check::Args),
}

/// Runs `verbatim stream`.
pub(crate) fn run(args: Args) -> Result<CommandOutcome> {
    match args.command {
        None => compare::run(&args.comparison),
        Some(Command::Serve(args)) => serve::run(&args),
        Some(Command::Check(args)) => check::run(&args),
    }
}
