//! `verbatim sequencer`: 8-byte increasing numbers for many clients, in every design.

mod arguments;
mod client;
mod compare;
mod json_lines;
mod report;
mod round;
mod serve;
mod simulated;

use anyhow::Result;
use clap::Subcommand;

use crate::CommandOutcome;
use crate::ledger::LedgerArgs;

/// Arguments of `verbatim sequencer`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, allow_negative_numbers = true)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    part: Option<SequencerSubcommand>,
    #[command(flatten)]
    ladder: arguments::Args,
    #[command(flatten)]
    ledger: LedgerArgs,
}

const EXAMPLES: &str = "\
Without a subcommand: starts a server process and client processes for each design in turn, measures \
them, checks every number that was handed out, and prints the designs side by side.

Examples:
  verbatim sequencer
  verbatim sequencer --design rpc --design spec-s0 --clients 2 --window 256 --duration 2s
  verbatim sequencer --provider system --device rxe0 --window 64
  verbatim sequencer --json

On a simulated cluster of NICs that you need not have, in virtual time:
  verbatim sequencer --nic cib
  verbatim sequencer --nic cib --design spec-s0 --cores 10 --clients 70 --json
  verbatim sequencer --nic bf2 --place dpu

A design that the device cannot run is left out and named with the reason; with --design it is an error.

By hand, on two terminals:
  verbatim sequencer serve --listen 127.0.0.1:7471 --state /var/tmp/numbers
  verbatim sequencer client 127.0.0.1:7471 --duration 10s

Exit status 1 when a number was given twice, skipped without a reason, or out of order.";

#[derive(Subcommand)]
enum SequencerSubcommand {
    /// Hand out numbers until interrupted
    Serve(serve::Args),
    /// Ask a server for numbers, and report how fast they came
    Client(client::Args),
}

/// Runs `verbatim sequencer`.
pub(crate) fn run(args: Args) -> Result<CommandOutcome> {
    let simulated = args.part.is_none() && args.ladder.simulation.is_asked_for();
    if let Some(outcome) = args.ledger.rerun_under_tap_if_wanted(simulated)? {
        return Ok(outcome);
    }
    match args.part {
        Some(SequencerSubcommand::Serve(args)) => serve::run(args),
        Some(SequencerSubcommand::Client(args)) => client::run(args),
        None if args.ladder.simulation.is_asked_for() => simulated::run(&args.ladder),
        None => compare::run(args.ladder),
    }
}
