//! `verbatim btree balance`: keeps several servers equally loaded.

use std::time::Duration;

use anyhow::{Result, bail};
use btree::balance::{ControlLawParameters, ObservedLoad, RangeMove};
use btree::load::{STABLE_KEY_DISTANCE, stable_key};
use btree::{ByteString, ClientConfig, KeyOrValue, LoadBalancer, PipelinedClient};
use serde::Serialize;

use super::strings::{OfEitherKeys, connect_all, connect_by_key_type, strings_for_key_numbers};
use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::nic::OpenNic;
use crate::output::{format_three_digits, print_line, print_typed_json};
use crate::stop::stop_request_channel;

/// Arguments of `verbatim btree balance`.
#[derive(clap::Args)]
#[command(after_help = "\
Shows what each server does, and has ranges of keys moved until all are equally loaded: a server that is slower gets fewer
keys, and a hot range goes to where there is room.

Examples:
  verbatim btree balance 127.0.0.1:7473,127.0.0.1:7474 --splits 500_000
  verbatim btree balance 127.0.0.1:7473,127.0.0.1:7474 --splits 500_000 --every 50ms --duration 10s --json")]
pub(crate) struct Args {
    /// The TCP addresses of all servers, in the order of their key ranges
    #[arg(value_name = "HOST:PORT", value_delimiter = ',', required = true, value_parser = args::check_host_and_port)]
    servers: Vec<String>,
    /// Where their ranges begin, but for the first, as numbers of stable keys
    #[arg(long, value_name = "N", value_delimiter = ',', required = true, value_parser = args::integer_parser_in_range("a count of keys", 1..=1u64 << 34))]
    splits: Vec<u64>,
    /// How often it looks
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = args::parse_duration_from_10ms)]
    every: Duration,
    /// How long it goes on [default: until it is interrupted]
    #[arg(long, value_name = "TIME", value_parser = args::parse_duration_from_10ms)]
    duration: Option<Duration>,
    /// Print one JSON object per line: look
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

/// An observation of all servers, as a line of `--json`.
#[derive(Serialize)]
struct ServersObservation<'a, T: KeyOrValue> {
    seconds: f64,
    /// The keys that divide the servers' key ranges, as numbers of stable keys.
    splits: Vec<u64>,
    #[serde(rename = "servers")]
    server_loads: &'a [ObservedLoad],
    #[serde(rename = "moved")]
    range_move: Option<RangeMove<T>>,
}

/// Runs `verbatim btree balance`.
pub(crate) fn run(args: &Args) -> Result<CommandOutcome> {
    if args.splits.len() + 1 != args.servers.len() {
        bail!(
            "{} servers have {} splits between them, not {}: give --splits a number for each server but the first",
            args.servers.len(),
            args.servers.len() - 1,
            args.splits.len()
        );
    }
    let nic = OpenNic::open(&args.nic, &args.port)?;
    let config_of = |server: &String| ClientConfig {
        server: server.clone(),
        nic: nic.config.clone(),
        ..ClientConfig::default()
    };
    let configs: Vec<_> = args.servers.iter().map(config_of).collect();
    let servers = connect_by_key_type(
        || connect_all::<u64>(&nic.context, &configs),
        || connect_all::<ByteString>(&nic.context, &configs),
    )?;
    match servers {
        OfEitherKeys::Numbers(servers) => balance(args, servers, |key| key, |key| *key),
        OfEitherKeys::Strings(servers, sizes) => {
            let strings = strings_for_key_numbers(sizes)?;
            let number_of = |key: &ByteString| strings.key_number(key);
            balance(args, servers, |key| strings.key(key), number_of)
        }
    }
}

/// Keeps servers equally loaded. `key_of` returns the key for a number, and `number_of` the number of a key.
fn balance<T: KeyOrValue>(
    args: &Args,
    servers: Vec<PipelinedClient<T>>,
    key_of: impl Fn(u64) -> T,
    number_of: impl Fn(&T) -> u64,
) -> Result<CommandOutcome> {
    let splits = args.splits.iter().map(|i| key_of(stable_key(*i))).collect();
    let law = ControlLawParameters::default();
    let mut controller = LoadBalancer::new(servers, 0, (law, splits), &[]);
    let stop = stop_request_channel(false)?;
    let started = std::time::Instant::now();
    while stop.recv_timeout(args.every).is_err() {
        let moved = controller.rebalance_once()?;
        let seconds = started.elapsed().as_secs_f64();
        print_observation(args, &controller, &number_of, seconds, moved)?;
        if args.duration.is_some_and(|d| started.elapsed() >= d) {
            break;
        }
    }
    Ok(CommandOutcome::Done)
}

fn print_observation<T: KeyOrValue>(
    args: &Args,
    controller: &LoadBalancer<T>,
    number_of: &impl Fn(&T) -> u64,
    seconds: f64,
    moved: Option<RangeMove<T>>,
) -> Result<()> {
    let balancer = controller.balancer();
    let splits: Vec<u64> = balancer
        .split_keys()
        .iter()
        .map(|key| number_of(key) / STABLE_KEY_DISTANCE)
        .collect();
    if args.json {
        let look = ServersObservation {
            seconds,
            splits,
            server_loads: balancer.observed_loads(),
            range_move: moved,
        };
        return print_typed_json("look", &look);
    }
    let servers = balancer.observed_loads().iter().map(|seen| {
        let busy = (100.0 * seen.utilisation).round();
        format!(
            "{} M/s, {busy} % busy",
            format_three_digits(seen.rate / 1e6)
        )
    });
    let servers: Vec<String> = servers.collect();
    let moved = moved.map_or_else(String::new, |m| {
        format!("; keys go from server {} to {}", m.giver, m.taker)
    });
    print_line(format_args!(
        "{seconds:7.2} s  splits {splits:?}  {}{moved}",
        servers.join("  |  ")
    ))
}
