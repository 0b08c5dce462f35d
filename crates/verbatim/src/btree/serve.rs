//! `verbatim btree serve`: runs one server until a signal stops it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use btree::load::{stable_key, value_of};
use btree::{BtreeService, ByteString, KeyOrValue, NumberSizes, Server, ServerConfig, ServerStats};

use super::json_lines::ServeOrLoadLine;
use super::strings::{StringArgs, strings_for_key_numbers};
use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::nic::OpenNic;
use crate::output::{format_three_digits, print_json, print_line};
use crate::side_by_side;
use crate::stop::stop_request_channel;

/// Arguments of `verbatim btree serve`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Where clients find it, over TCP; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7473", value_parser = args::check_host_and_port)]
    listen: String,
    /// Keys that there is room for, in all trees together
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = args::integer_parser_in_range("a count of keys", 1..=1u64 << 34))]
    keys: u64,
    /// Load so many stable keys into tree 0 before clients come, in parallel; see `verbatim btree load`
    #[arg(long, value_name = "N", default_value = "0", value_parser = args::integer_parser_in_range("a count of keys", 0..=1u64 << 34))]
    load: u64,
    /// How full loaded nodes are: what is free takes inserts
    #[arg(long, value_name = "SHARE", default_value = "0.9", value_parser = args::decimal_parser_in_range("a share", 0.5..=1.0))]
    fill: f64,
    #[command(flatten)]
    strings: StringArgs,
    /// Bytes of a node: 256, 512, 1024, 2048 or 4096 [default: 1K, or more if keys and values are long]
    #[arg(long, value_name = "BYTES", value_parser = args::byte_count_parser_up_to(btree::MAX_NODE_BYTES))]
    node_size: Option<usize>,
    /// Trees
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::integer_parser_in_range("a count of trees", 1..=btree::tree::MAX_TREES))]
    trees: usize,
    /// Worker threads, each of which serves all trees
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::integer_parser_in_range("a count of workers", 1..=64usize))]
    workers: usize,
    /// Requests answered with one doorbell, at most; with 1 the walks of a batch are not interleaved either
    #[arg(long, value_name = "N", default_value = "64", value_parser = args::integer_parser_in_range("a batch", 1..=64usize))]
    batch: usize,
    /// UD queue pairs of a worker that batches rotate over
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::integer_parser_in_range("a count of queue pairs", 1..=64usize))]
    queues: usize,
    /// Clients at the same time
    #[arg(long, value_name = "N", default_value = "64", value_parser = args::integer_parser_in_range("a count of clients", 1..=1024usize))]
    max_clients: usize,
    /// Requests that a client may have outstanding
    #[arg(long, value_name = "N", default_value = "256", value_parser = args::integer_parser_in_range("a window", 1..=4096usize))]
    max_window: usize,
    /// Let clients change leaves by themselves, with remote locks: they must be trusted to do it right
    #[arg(long)]
    remote_writes: bool,
    /// How long such a client may have a lock while others wait for it
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = args::parse_duration_from_10ms)]
    lease: Duration,
    /// Share the trees with other servers: the TCP addresses of all of them in the order of their key ranges
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', value_parser = args::check_host_and_port, requires = "splits")]
    parts: Vec<String>,
    /// Where the key ranges of these servers begin, but for the first, as numbers of stable keys
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = args::integer_parser_in_range("a count of keys", 1..=1u64 << 34))]
    splits: Vec<u64>,
    /// Which of these servers this one is, from 0 on
    #[arg(long, value_name = "N", default_value = "0", value_parser = args::integer_parser_in_range("a server", 0..=1023u16))]
    part: u16,
    /// Bytes a second that this server takes from others at most
    #[arg(long, value_name = "BYTES", default_value = "100M", value_parser = args::byte_count_parser_up_to(1 << 31))]
    handover_rate: usize,
    /// Work so much slower than this machine could: a request costs so long more, as on a slower processor
    #[arg(long, value_name = "NS", default_value = "0", value_parser = args::integer_parser_in_range("nanoseconds", 0..=1_000_000u32))]
    slow_by: u32,
    /// End when standard input ends, besides SIGINT and SIGTERM
    #[arg(long)]
    until_eof: bool,
    /// Print one JSON object per line: loaded, listening, stats
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

const EXAMPLES: &str = "\
Keys and values are 64-bit numbers, or with --key-size or --value-size byte strings. Memory is taken for --keys in whatever
order they come: about 40 bytes for a numeric key, of which a tree that was loaded takes half. A byte string takes as much
memory as the longest one.

Examples:
  verbatim btree serve
  verbatim btree serve --load 10_000_000 --workers 2 --listen 0.0.0.0:7473
  verbatim btree serve --trees 4 --node-size 512
  verbatim btree serve --key-size 32 --value-size 128";

/// Runs `verbatim btree serve`.
pub(crate) fn run(args: Args) -> Result<CommandOutcome> {
    let Some(sizes) = args.strings.sizes() else {
        return serve::<u64>(&args, NumberSizes, |key| key, |value| value);
    };
    if args.load == 0 && args.splits.is_empty() {
        // No keys are generated, so any length will do.
        return serve(
            &args,
            sizes,
            |_| ByteString::default(),
            |_| ByteString::default(),
        );
    }
    let strings = strings_for_key_numbers(sizes)?;
    serve(
        &args,
        sizes,
        |key| strings.key(key),
        |value| strings.value(value),
    )
}

/// Runs a server. `key` and `value` return what stands for a number.
fn serve<T: KeyOrValue>(
    args: &Args,
    sizes: T::Sizes,
    key: impl Fn(u64) -> T + Sync,
    value: impl Fn(u64) -> T + Sync,
) -> Result<CommandOutcome> {
    let nic = OpenNic::open(&args.nic, &args.port)?;
    let config = ServerConfig {
        listen: args.listen.clone(),
        nic: nic.config,
        node_bytes: args.strings.node_bytes(args.node_size),
        key_and_value_limits: sizes,
        key_capacity: args.keys.max(args.load),
        trees: args.trees,
        workers: args.workers,
        batch: args.batch,
        ud_qps_per_worker: args.queues,
        max_clients: args.max_clients,
        max_window: args.max_window,
        remote_writes: args.remote_writes,
        lock_lease_ms: u16::try_from(args.lease.as_millis()).unwrap_or(u16::MAX),
        splits: args.splits.iter().map(|i| key(stable_key(*i))).collect(),
        server_number: args.part,
        servers: args.parts.clone(),
        handover_bytes_per_s: u32::try_from(args.handover_rate).unwrap_or(u32::MAX),
        slow_by_ns: args.slow_by,
    };
    let stop = stop_request_channel(args.until_eof)?;
    let load = |service: &BtreeService<T>| match args.load {
        0 => Ok(()),
        _ => {
            let entry = |i| (key(stable_key(i)), value(value_of(stable_key(i), 0)));
            load_stable_keys(args, service, entry)
        }
    };
    // Clients are not served until the tree is loaded.
    let server = Server::<T>::start_prepared_on(&nic.context, config, load);
    let server = server.context("cannot start the server")?;
    let address = server.address().to_string();
    if args.json {
        print_json(&ServeOrLoadLine::Listening { address })?;
    } else {
        // A client needs the addresses of all servers that share the keys.
        let all = match &args.parts[..] {
            [] => address.clone(),
            parts => parts.join(","),
        };
        print_line(format_args!(
            "a B-tree on {address}; clients: verbatim btree load {all} --keys {}",
            args.load.max(64)
        ))?;
    }
    side_by_side::show_rate_until_stop(
        (&server, &stop),
        args.json,
        || Ok(()),
        |stats| stats.gets + stats.changes + stats.scans,
        |stats, rate| {
            let (levels, clients) = (stats.tree.levels, stats.connected_clients);
            format!("{levels} levels, {rate} M/s, clients: {clients}")
        },
    )?;
    let failure = server.failure();
    let stats = server.stop();
    print_stats(args, &stats)?;
    side_by_side::serving_outcome(failure)
}

/// Fills tree 0 with stable keys.
fn load_stable_keys<T: KeyOrValue>(
    args: &Args,
    service: &BtreeService<T>,
    entry: impl Fn(u64) -> (T, T) + Sync,
) -> Result<()> {
    let started = Instant::now();
    let loaded = service.bulk_load(0, args.load, args.fill, entry);
    let loaded = loaded.map_err(|e| anyhow!("cannot load the tree: {e}"))?;
    let store = service.store();
    let seconds = started.elapsed().as_secs_f64();
    if args.json {
        return print_json(&ServeOrLoadLine::Loaded {
            keys: loaded,
            seconds,
            bytes: store.stats().used_node_bytes,
        });
    }
    let bytes = store.stats().used_node_bytes;
    let (key_bytes, value_bytes) = args.strings.key_and_value_bytes();
    #[allow(clippy::cast_precision_loss)] // a ratio
    let ratio = bytes as f64 / (loaded.max(1) * (key_bytes + value_bytes) as u64) as f64;
    print_line(format_args!(
        "{loaded} keys loaded in {seconds:.2} s: {} MB, {} times the data",
        bytes / 1_000_000,
        format_three_digits(ratio)
    ))
}

/// Prints the server's statistics.
fn print_stats(args: &Args, stats: &ServerStats) -> Result<()> {
    if args.json {
        return print_json(&ServeOrLoadLine::Stats(stats.clone()));
    }
    print_line(format_args!(
        "{} lookups ({} found), {} scans of {} entries, {} changes ({} came again); {} levels, {} nodes of {}, {} splits, \
         {} merges",
        stats.gets,
        stats.get_hits,
        stats.scans,
        stats.scanned_entries,
        stats.changes,
        stats.repeated_changes,
        stats.tree.levels,
        stats.tree.used_nodes,
        stats.tree.node_capacity,
        stats.tree.splits,
        stats.tree.merges,
    ))?;
    if args.remote_writes {
        print_line(format_args!(
            "{} locks freed for clients that were gone or slow, {} clients expelled",
            stats.recovered_locks, stats.expelled_clients
        ))?;
    }
    Ok(())
}
