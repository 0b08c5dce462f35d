//! `verbatim sequencer serve`: runs one server until a signal stops it.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use sequencer::{Design, Server, ServerConfig};

use super::json_lines::ServeOrClientLine;
use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::nic::OpenNic;
use crate::output::{print_json, print_line};
use crate::side_by_side;
use crate::stop::stop_request_channel;

/// Arguments of `verbatim sequencer serve`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// How numbers are handed out: atomics, rpc, rpc-batch, rpc-batch-mq, spec-s0
    #[arg(long, value_name = "DESIGN", default_value_t = Design::SpecS0)]
    design: Design,
    /// Where clients find it, over TCP; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7471", value_parser = args::check_host_and_port)]
    listen: String,
    /// Worker threads
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::integer_parser_in_range("a count of workers", 1..=64usize))]
    workers: usize,
    /// Requests answered with one doorbell, at most
    #[arg(long, value_name = "N", default_value = "64", value_parser = args::integer_parser_in_range("a batch", 1..=64usize))]
    batch: usize,
    /// UD queue pairs of a worker: batches of rpc designs rotate over them, and each has clients of its
    /// own in spec-s0 [default: 3 in rpc-batch-mq, else 1]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a count of queue pairs", 1..=64usize))]
    queues: Option<usize>,
    /// Clients at the same time
    #[arg(long, value_name = "N", default_value = "64", value_parser = args::integer_parser_in_range("a count of clients", 1..=256usize))]
    max_clients: usize,
    /// The first number, if the state file does not say a higher one
    #[arg(long, value_name = "N", default_value = "0", value_parser = args::parse_decimal_or_hex_u64)]
    start: u64,
    /// Keep in this file which numbers may have been given: the server can then be killed at any
    /// moment and started again, and gives no number twice (it may skip some)
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// End when standard input ends, besides SIGINT and SIGTERM
    #[arg(long)]
    until_eof: bool,
    /// Print one JSON object per line: listening, stats
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

const EXAMPLES: &str = "\
Examples:
  verbatim sequencer serve
  verbatim sequencer serve --design rpc-batch --workers 2 --listen 0.0.0.0:7471
  verbatim sequencer serve --state /var/tmp/numbers";

/// Runs `verbatim sequencer serve`.
pub(crate) fn run(args: Args) -> Result<CommandOutcome> {
    let state = args
        .state
        .as_deref()
        .map(args::check_output_file_path)
        .transpose()?;
    let end = args.design.end_of_numbers();
    if args.start >= end {
        bail!(
            "--start {}: {} gives numbers below {end}; start lower",
            args.start,
            args.design
        );
    }
    let nic = OpenNic::open(&args.nic, &args.port)?;
    let config = ServerConfig {
        listen: args.listen,
        nic: nic.config,
        design: args.design,
        workers: args.workers,
        batch: args.batch,
        ud_qps_per_worker: args.queues,
        max_clients: args.max_clients,
        start: args.start,
        state_path: state,
        ..ServerConfig::default()
    };
    let stop = stop_request_channel(args.until_eof)?;
    let server = Server::start_on(&nic.context, config).context("cannot start the server")?;
    let first = server.stats().next_number;
    if args.json {
        print_json(&ServeOrClientLine::Listening {
            address: server.address().to_string(),
            design: args.design,
            next: first,
        })?;
    } else {
        print_line(format_args!(
            "{} serves on {}, from number {first} on; clients: verbatim sequencer client {}",
            args.design,
            server.address(),
            server.address(),
        ))?;
    }

    side_by_side::show_rate_until_stop(
        (&server, &stop),
        args.json,
        || Ok(()),
        |stats| stats.next_number,
        |stats, rate| {
            let (next, clients) = (stats.next_number, stats.connected_clients);
            format!("next number {next}, {rate} M/s, clients: {clients}")
        },
    )?;
    let failure = server.failure();
    let stats = server.stop();
    if args.json {
        print_json(&ServeOrClientLine::Stats(stats))?;
    } else {
        print_line(format_args!(
            "{} numbers for {} clients; the next would be {}",
            stats.next_number - first,
            stats.clients_total,
            stats.next_number
        ))?;
    }
    side_by_side::serving_outcome(failure)
}
