//! `verbatim sequencer`: 8-byte increasing numbers for many clients, in every design.

mod client;
mod ladder;
mod lines;
mod serve;

use anyhow::Result;
use clap::Subcommand;

use crate::Outcome;
use crate::args::NicArgs;

/// Arguments of `verbatim sequencer`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, allow_negative_numbers = true)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    part: Option<Part>,
    #[command(flatten)]
    ladder: ladder::Args,
}

const EXAMPLES: &str = "\
Without a subcommand: starts a server process and client processes for each design in turn, measures
them, checks every number that was handed out, and prints the designs side by side.

Examples:
  verbatim sequencer
  verbatim sequencer --design rpc --design spec-s0 --clients 2 --window 256 --duration 2s
  verbatim sequencer --json

By hand, on two terminals:
  verbatim sequencer serve --listen 127.0.0.1:7471 --state /var/tmp/numbers
  verbatim sequencer client 127.0.0.1:7471 --duration 10s

Exit status 1 when a number was given twice, skipped without a reason, or out of order.";

#[derive(Subcommand)]
enum Part {
    /// Hand out numbers until interrupted
    Serve(serve::Args),
    /// Ask a server for numbers, and report how fast they came
    Client(client::Args),
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<Outcome> {
    match args.part {
        Some(Part::Serve(args)) => serve::run(args),
        Some(Part::Client(args)) => client::run(args),
        None => ladder::run(args.ladder),
    }
}

/// The library's words for the same NIC; the device is looked up, so that a wrong name is refused
/// before anything starts.
fn nic_config(args: &NicArgs) -> Result<sequencer::NicConfig> {
    let provider = verbs::Provider::by_name(args.provider.name())?;
    let device = provider.device(args.device.as_deref())?;
    Ok(sequencer::NicConfig {
        provider: args.provider.name().to_owned(),
        device: Some(device.name().to_owned()),
        ..sequencer::NicConfig::default()
    })
}
