//! `verbatim grpc`: tonic over the stream of the crate `stream`, beside tonic over TCP.

mod check;
mod compare;
mod load;
mod serve;

use anyhow::Result;
use clap::Subcommand;

use crate::CommandOutcome;

/// Arguments of `verbatim grpc`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    compare: compare::Args,
}

const EXAMPLES: &str = "\
Starts a server of tonic on a core of its own, and has a client on another core call it over RDMA and over TCP in turn, on one \
connection each. Every response is checked.

Examples:
  verbatim grpc
  verbatim grpc --outstanding 16 --payload 8000 --rounds 9 --json";

#[derive(Subcommand)]
enum Command {
    /// The test service of gRPC's interoperability suite, by RDMA and by TCP on one port, until a signal
    Serve(serve::Args),
    /// The cases of the interoperability suite against a server
    Check(check::Args),
}

/// Runs `verbatim grpc`.
pub(crate) fn run(args: Args) -> Result<CommandOutcome> {
    match args.command {
        None => compare::run(&args.compare),
        Some(Command::Serve(args)) => serve::run(&args),
        Some(Command::Check(args)) => check::run(&args),
    }
}
