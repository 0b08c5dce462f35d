//! `verbatim btree`: a remote B+tree.

mod adapt;
mod arguments;
mod balance;
mod check;
mod compare;
mod json_lines;
mod manual_requests;
mod serve;
mod simulated;
mod strings;
mod workload;

use anyhow::Result;
use clap::Subcommand;

use crate::CommandOutcome;
use crate::ledger::LedgerArgs;

/// Arguments of `verbatim btree`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, allow_negative_numbers = true)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    part: Option<BtreeSubcommand>,
    #[command(flatten)]
    compare: compare::Args,
    #[command(flatten)]
    ledger: LedgerArgs,
}

const EXAMPLES: &str = "\
Without a subcommand: starts a server process with a loaded tree and a client process for each access design in turn,
measures lookups, scans and inserts, checks every answer, and prints the designs side by side, with LMDB behind a TCP server.

Examples:
  verbatim btree
  verbatim btree --keys 10_000_000
  verbatim btree --access read --node-size 2K --json
  verbatim btree --key-size 32 --value-size 128

On a simulated cluster of NICs that you need not have, in virtual time, with the tree on the host or on its DPU:
  verbatim btree --nic bf2
  verbatim btree --nic bf2 --place dpu --keys 256_000_000

By hand, on several terminals:
  verbatim btree serve --listen 127.0.0.1:7473 --load 1_000_000
  verbatim btree load 127.0.0.1:7473 --keys 1_000_000 --ycsb E
  verbatim btree scan 127.0.0.1:7473 --from 1000 --limit 10

Exit status 1 when an answer was wrong or a key was missing.";

#[derive(Subcommand)]
enum BtreeSubcommand {
    /// Serve trees until interrupted
    Serve(serve::Args),
    /// Ask a server for many keys, check what comes, and report how fast it came
    Load(workload::Args),
    /// Print the values of keys
    Get(manual_requests::GetArgs),
    /// Set or remove the value of a key
    Put(manual_requests::PutArgs),
    /// Print entries in the order of their keys
    Scan(manual_requests::ScanArgs),
    /// Keep several servers equally loaded, by moving ranges of keys
    Balance(balance::Args),
    /// Watch a split between host and DPU follow a hot spot, in virtual time
    Adapt(adapt::Args),
    /// Check that clients which work at the same time, and are killed, see one tree: linearizability, whole scans
    Check(check::Args),
    #[command(hide = true)]
    CheckClient(check::ClientArgs),
}

/// Runs `verbatim btree`.
pub(crate) fn run(args: Args) -> Result<CommandOutcome> {
    let simulated = args.part.is_none() && args.compare.simulation.is_asked_for();
    if let Some(outcome) = args.ledger.rerun_under_tap_if_wanted(simulated)? {
        return Ok(outcome);
    }
    match args.part {
        Some(BtreeSubcommand::Serve(args)) => serve::run(args),
        Some(BtreeSubcommand::Load(args)) => workload::run(args),
        Some(BtreeSubcommand::Get(args)) => manual_requests::get(&args),
        Some(BtreeSubcommand::Put(args)) => manual_requests::put(&args),
        Some(BtreeSubcommand::Scan(args)) => manual_requests::scan(&args),
        Some(BtreeSubcommand::Balance(args)) => balance::run(&args),
        Some(BtreeSubcommand::Adapt(args)) => adapt::run(&args),
        Some(BtreeSubcommand::Check(args)) => check::run(&args),
        Some(BtreeSubcommand::CheckClient(args)) => check::run_check_client(&args),
        None if simulated => simulated::run_all(&args.compare),
        None => compare::run(&args.compare),
    }
}
