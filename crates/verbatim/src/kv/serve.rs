//! `verbatim kv serve`: runs one server until a signal stops it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kv::store::{FullPolicy, LockPlacement};
use kv::{Design, NicConfig, Server, ServerConfig, ServerStats};
use kv_resp::{FrontEndStats, ListenAddress};

use super::json_lines::ServeOrLoadLine;
use super::resp_listeners::{RespAddresses, RespArgs};
use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::nic::OpenNic;
use crate::output::{print_json, print_line};
use crate::side_by_side;
use crate::stop::stop_request_channel;

/// Arguments of `verbatim kv serve`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// How clients reach the data: herd, reads, atomics
    #[arg(long, value_name = "DESIGN", default_value_t = Design::Herd)]
    design: Design,
    /// Where clients find it, over TCP; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7472", value_parser = args::check_host_and_port)]
    listen: String,
    /// Keep every item, and refuse new ones when there is no room, instead of dropping the oldest
    #[arg(long)]
    store: bool,
    /// Items that there is room for
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = args::integer_parser_in_range("a count of keys", 1..=1usize << 32))]
    keys: usize,
    /// Bytes of a key, about; of a record's key at most (atomics, and reads with --read-size)
    #[arg(long, value_name = "BYTES", default_value = "16", value_parser = args::integer_parser_in_range("a length of keys", 0..=255usize))]
    key_size: usize,
    /// Bytes of a value, about: longer ones work too, slower; of a record's value at most
    #[arg(long, value_name = "BYTES", default_value = "32", value_parser = args::byte_count_parser_up_to(65_535))]
    value_size: usize,
    /// Memory for keys and values, such as 512M [default: enough for the keys]
    #[arg(long, value_name = "BYTES", value_parser = args::byte_count_parser_up_to(1 << 42))]
    memory: Option<usize>,
    /// Worker threads, each with a partition of its own
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::integer_parser_in_range("a count of workers", 1..=64usize))]
    workers: usize,
    /// Requests answered with one doorbell, at most; with 1 nothing is prefetched either
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
    #[command(flatten)]
    resp: RespArgs,
    #[command(flatten)]
    records: RecordArgs,
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

/// The default number of bytes of a GET's only READ: as many as `atomics` READs to find a record.
pub(super) const DEFAULT_SINGLE_READ_GET_BYTES: usize = 512;

/// Arguments for the layout of records that clients access by one-sided verbs.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Records")]
pub(crate) struct RecordArgs {
    /// reads: with 0 a GET is two READs (index bucket, item), otherwise one READ of so many bytes, a neighbourhood of
    /// records with keys and values inline. atomics: what a client READs to find a record [default: reads 0, atomics
    /// 512]
    #[arg(long, value_name = "BYTES", value_parser = args::byte_count_parser_up_to(1 << 16))]
    pub(super) read_size: Option<usize>,
    /// atomics: where locks are: spread (in an array), or record (in each record, at the same offset)
    #[arg(long, value_name = "WHERE", default_value_t = LockPlacement::Spread)]
    pub(super) locks: LockPlacement,
    /// atomics: records begin at multiples of this; with 4096 and --locks record all locks have the same lower 12 bits
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = args::integer_parser_in_range("an alignment", 8..=4096usize))]
    pub(super) record_align: usize,
    /// atomics: how long a client may have a lock while others wait for it
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = args::parse_duration_from_10ms)]
    pub(super) lease: Duration,
}

impl RecordArgs {
    /// Returns the same arguments as flags for a server process.
    pub(super) fn to_command_line_flags(&self, read_size: usize) -> [String; 4] {
        [
            format!("--read-size={read_size}"),
            format!("--locks={}", self.locks),
            format!("--record-align={}", self.record_align),
            format!("--lease={}ms", self.lease.as_millis()),
        ]
    }
}

const EXAMPLES: &str = "\
Without --store it is a cache: when there is no room the oldest items are dropped, so a key that was put may be gone later. \
Records (atomics, and reads with --read-size) are always a store: they have a size, drop nothing, and keep no time to live.

Examples:
  verbatim kv serve
  verbatim kv serve --resp 127.0.0.1:6379     and then redis-cli; whoever can connect can change everything
  verbatim kv serve --resp-tls 0.0.0.0:6380 --tls-cert-file server.crt --tls-key-file server.key --tls-ca-cert-file ca.crt
  verbatim kv serve --store --memory 512M --workers 2 --listen 0.0.0.0:7472";

/// Runs `verbatim kv serve`.
pub(crate) fn run(args: Args) -> Result<CommandOutcome> {
    let nic = OpenNic::open(&args.nic, &args.port)?;
    let config = config(&args, nic.config.clone());
    if args.resp.are_given() && config.has_fixed_size_records() {
        bail!(
            "the Redis protocol needs a store of items of any length: leave out --resp and --resp-tls, or serve herd, or reads without \
             --read-size"
        );
    }
    let is_store = args.store || config.has_fixed_size_records();
    let stop = stop_request_channel(args.until_eof)?;
    let server = Server::start_on(&nic.context, config).context("cannot start the server")?;
    let (front, resp_addresses) = if args.resp.are_given() {
        crate::streams::raise_descriptor_limit()?;
        let store = Arc::clone(server.service().store());
        let (front, addresses) = args.resp.start(store, &nic)?;
        (Some(front), addresses)
    } else {
        (None, RespAddresses::default())
    };
    print_addresses(&args, &server, &resp_addresses, is_store)?;
    side_by_side::show_rate_until_stop(
        (&server, &stop),
        args.json,
        || match &front {
            Some(front) if !front.is_serving() => bail!("the Redis-protocol front ended"),
            _ => Ok(()),
        },
        |stats| stats.gets + stats.changes,
        |stats, rate| {
            let (items, clients) = (stats.store.items, stats.connected_clients);
            format!("{items} items, {rate} M/s, clients: {clients}")
        },
    )?;
    let failure = server.failure();
    let spoken = front.map(|f| f.stats());
    let stats = server.stop();
    print_statistics(&args, &stats, spoken.as_ref())?;
    side_by_side::serving_outcome(failure)
}

/// Returns the server's configuration.
fn config(args: &Args, nic: NicConfig) -> ServerConfig {
    ServerConfig {
        listen: args.listen.clone(),
        nic,
        design: args.design,
        workers: args.workers,
        batch: args.batch,
        ud_qps_per_worker: args.queues,
        max_clients: args.max_clients,
        max_window: args.max_window,
        full_policy: if args.store {
            FullPolicy::Store
        } else {
            FullPolicy::Cache
        },
        item_capacity: args.keys,
        expected_key_bytes: args.key_size,
        neighbourhood_read_bytes: args.records.read_size.unwrap_or(0),
        lock_placement: args.records.locks,
        record_align: args.records.record_align,
        lock_lease_ms: u16::try_from(args.records.lease.as_millis()).unwrap_or(u16::MAX),
        expected_value_bytes: args.value_size,
        log_bytes: args.memory,
        ..ServerConfig::default()
    }
}

/// Prints the server's addresses.
fn print_addresses(
    args: &Args,
    server: &Server,
    resp: &RespAddresses,
    is_store: bool,
) -> Result<()> {
    let address = server.address().to_string();
    if args.json {
        let text = |address: &Option<ListenAddress>| address.as_ref().map(ToString::to_string);
        return print_json(&ServeOrLoadLine::Listening {
            address,
            design: args.design,
            resp: text(&resp.plain),
            rdma: text(&resp.rdma),
            resp_tls: text(&resp.tls),
        });
    }
    print_line(format_args!(
        "{} serves a {} on {address}; {}; clients: verbatim kv load {address} --fill",
        args.design,
        if is_store { "store" } else { "cache" },
        args.design.consistency_guarantee(),
    ))?;
    for (address, by) in [
        (
            &resp.plain,
            if resp.rdma.is_some() {
                ", by TCP and RDMA"
            } else {
                ""
            },
        ),
        (&resp.tls, ", by TLS"),
    ] {
        if let Some(address) = address {
            print_line(format_args!("the Redis protocol on {address}{by}"))?;
        }
    }
    Ok(())
}

/// Prints the server's statistics.
fn print_statistics(
    args: &Args,
    stats: &ServerStats,
    spoken: Option<&FrontEndStats>,
) -> Result<()> {
    if args.json {
        if let Some(spoken) = spoken {
            print_json(&ServeOrLoadLine::Resp(*spoken))?;
        }
        print_json(&ServeOrLoadLine::Stats(stats.clone()))?;
    } else {
        print_line(format_args!(
            "{} GETs ({} found), {} changes, {} items in {} MB, {} evicted, {} refused as full",
            stats.gets,
            stats.get_hits,
            stats.changes,
            stats.store.items,
            stats.store.memory_bytes / 1_000_000,
            stats.store.evictions,
            stats.store.refused_full
        ))?;
        if args.design == Design::Atomics {
            print_line(format_args!(
                "{} locks freed for clients that were gone or slow, {} clients expelled",
                stats.recovered_locks, stats.expelled_clients
            ))?;
        }
        if let Some(spoken) = spoken {
            print_line(format_args!(
                "{} commands of the Redis protocol over {} connections, {} answered with an error, {} malformed",
                spoken.commands, spoken.connections_total, spoken.errors, spoken.protocol_errors
            ))?;
        }
    }
    Ok(())
}
