//! `verbatim kv`: key-value stores.

mod arguments;
mod check;
mod cli;
mod compare;
mod comparison_servers;
mod json_lines;
mod manual_requests;
mod resp;
mod resp_listeners;
mod serve;
mod simulated;
mod valkey;
mod workload;

use anyhow::Result;
use clap::Subcommand;

use crate::CommandOutcome;
use crate::ledger::LedgerArgs;

/// Arguments of `verbatim kv`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, allow_negative_numbers = true)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    part: Option<KvSubcommand>,
    #[command(flatten)]
    compare: arguments::Args,
    #[command(flatten)]
    ledger: LedgerArgs,
}

const EXAMPLES: &str = "\
Without a subcommand: starts a server process and client processes for each design in turn, fills the store, measures, \
checks every value that comes back, and prints the designs side by side, with Redis and memcached where they are installed.

Examples:
  verbatim kv
  verbatim kv --keys 8000000 --zipf 0.99 --puts 0.5 --value-size 1000
  verbatim kv --ycsb A --workers 2 --clients 2
  verbatim kv --design herd --window 1 --json
  verbatim kv --design reads --read-size 1K

On a simulated cluster of NICs that you need not have, in virtual time (Figures 9 and 10 of the paper):
  verbatim kv --nic cib
  verbatim kv --nic cib --design atomics

By hand, on several terminals:
  verbatim kv serve --listen 127.0.0.1:7472
  verbatim kv put 127.0.0.1:7472 colour green --ttl 60min
  verbatim kv get 127.0.0.1:7472 colour
  verbatim kv load 127.0.0.1:7472 --fill --duration 10s

Exit status 1 when a value was wrong or a key was missing.";

#[derive(Subcommand)]
enum KvSubcommand {
    /// Serve a store until interrupted
    Serve(serve::Args),
    /// Ask a server for many keys, check what comes, and report how fast it came
    Load(workload::Args),
    /// Print the values of keys
    Get(manual_requests::GetArgs),
    /// Set the value of a key
    Put(manual_requests::PutArgs),
    /// Send one command of the Redis protocol, over sockets or RDMA, and print the answer
    Cli(cli::Args),
    /// Compare the Redis-protocol front with Redis, by redis-benchmark, or over TCP and RDMA (--rdma)
    Resp(resp::Args),
    /// Check that clients which work at the same time, and are killed, see one store: linearizability
    Check(check::Args),
    #[command(hide = true)]
    CheckClient(check::ClientArgs),
}

/// Runs `verbatim kv`.
pub(crate) fn run(args: Args) -> Result<CommandOutcome> {
    let simulated = args.part.is_none() && args.compare.simulation.is_asked_for();
    if let Some(outcome) = args.ledger.rerun_under_tap_if_wanted(simulated)? {
        return Ok(outcome);
    }
    match args.part {
        Some(KvSubcommand::Serve(args)) => serve::run(args),
        Some(KvSubcommand::Load(args)) => workload::run(args),
        Some(KvSubcommand::Get(args)) => manual_requests::get(&args),
        Some(KvSubcommand::Put(args)) => manual_requests::put(&args),
        Some(KvSubcommand::Cli(args)) => cli::run(&args),
        Some(KvSubcommand::Resp(args)) if args.compares_tcp_and_rdma() => valkey::run(&args),
        Some(KvSubcommand::Resp(args)) => resp::run(&args),
        Some(KvSubcommand::Check(args)) => check::run(&args),
        Some(KvSubcommand::CheckClient(args)) => check::run_check_client(&args),
        None if args.compare.simulation.is_asked_for() => simulated::run_all(&args.compare),
        None => compare::run(args.compare),
    }
}
