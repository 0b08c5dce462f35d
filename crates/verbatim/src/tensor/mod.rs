//! `verbatim tensor`: tensors between processes.

mod serve;

use anyhow::Result;
use clap::Subcommand;

use crate::CommandOutcome;

/// Arguments of `verbatim tensor`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    part: TensorSubcommand,
}

const EXAMPLES: &str = "\
Examples:
  verbatim tensor serve --listen 127.0.0.1:7473 --capacity 4096M

and in Python (pip install verbatim-rdma), in any process:
  from verbatim.tensor import Peer
  store = Peer().connect(\"127.0.0.1:7473\")
  store.put(\"weights\", array); array = store.get(\"weights\")";

#[derive(Subcommand)]
enum TensorSubcommand {
    /// Hold tensors that others put, until interrupted
    Serve(serve::Args),
}

/// Runs `verbatim tensor`.
pub(crate) fn run(args: &Args) -> Result<CommandOutcome> {
    match &args.part {
        TensorSubcommand::Serve(args) => serve::run(args),
    }
}
