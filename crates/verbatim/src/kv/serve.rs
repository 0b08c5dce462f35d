//! `verbatim kv serve`: runs one server until a signal stops it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kv::store::{FullPolicy, LockPlacement};
use kv::{Design, NicConfig, Server, ServerConfig, ServerStats};
use kv_resp::{
    DEFAULT_MAX_CONNECTIONS, FrontEnd, FrontEndStats, ListenAddress, Listener, RdmaListener,
};
use resp_rdma::Connector;

use super::json_lines::ServeOrLoadLine;
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
    /// Speak the Redis protocol there as well, for redis-cli: HOST:PORT, or the path of a Unix socket
    #[arg(long, value_name = "ADDR")]
    resp: Option<ListenAddress>,
    /// Speak it over RDMA as well, as Valkey does, on the port number of --resp HOST:PORT
    #[arg(long, requires = "resp")]
    rdma: bool,
    /// Bytes of a connection's receive buffer, such as 1M
    #[arg(long, value_name = "BYTES", default_value = "256K", requires = "rdma", value_parser = args::byte_count_parser_up_to(16 << 20))]
    rdma_buffer: usize,
    /// Clients of the Redis protocol at the same time
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_CONNECTIONS, requires = "resp", value_parser = args::integer_parser_in_range("a count of connections", 1..=1_000_000usize))]
    max_connections: usize,
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
  verbatim kv serve --store --memory 512M --workers 2 --listen 0.0.0.0:7472";

/// Runs `verbatim kv serve`.
pub(crate) fn run(args: Args) -> Result<CommandOutcome> {
    let nic = OpenNic::open(&args.nic, &args.port)?;
    let config = config(&args, nic.config.clone());
    if args.resp.is_some() && config.has_fixed_size_records() {
        bail!(
            "the Redis protocol needs a store of items of any length: leave out --resp, or serve herd, or reads without \
             --read-size"
        );
    }
    let is_store = args.store || config.has_fixed_size_records();
    let stop = stop_request_channel(args.until_eof)?;
    let server = Server::start_on(&nic.context, config).context("cannot start the server")?;
    if args.resp.is_some() {
        crate::streams::raise_descriptor_limit()?;
    }
    let front = args.resp.as_ref().map(|address| {
        let listeners = open_resp_listeners(address, &args, &nic);
        let front = listeners.and_then(|listeners| {
            let store = Arc::clone(server.service().store());
            let most = args.max_connections;
            Ok(FrontEnd::start_with_max_connections(
                store, listeners, most,
            )?)
        });
        front.with_context(|| format!("cannot speak the Redis protocol on {address}"))
    });
    let front = front.transpose()?;
    print_addresses(&args, &server, front.as_ref(), is_store)?;
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

/// Listens for clients of the Redis protocol on a socket. If the user wants RDMA, also listens by RDMA at the same port
/// number.
fn open_resp_listeners(
    address: &ListenAddress,
    args: &Args,
    nic: &OpenNic,
) -> Result<Vec<Box<dyn Listener>>> {
    let socket = address.listen()?;
    if !args.rdma {
        return Ok(vec![socket]);
    }
    let ListenAddress::Tcp(address) = socket.address() else {
        bail!("--rdma needs --resp HOST:PORT: a path has no port number to listen at");
    };
    let at = address
        .parse()
        .with_context(|| format!("{address} is no address of IP"))?;
    let config = resp_rdma::Config {
        receive_buffer_bytes: u32::try_from(args.rdma_buffer)?,
        ..resp_rdma::Config::default()
    };
    let connector = Connector::new(&nic.context, config)?;
    let rdma = RdmaListener::listen(&connector, at);
    let rdma = rdma.with_context(|| format!("cannot listen for RDMA at {at}"))?;
    Ok(vec![socket, rdma])
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
    front_end: Option<&FrontEnd>,
    is_store: bool,
) -> Result<()> {
    let address = server.address().to_string();
    let mut spoken = front_end.into_iter().flat_map(FrontEnd::addresses);
    let resp = spoken.next().map(ToString::to_string);
    let rdma = spoken.next().map(ToString::to_string);
    if args.json {
        let design = args.design;
        print_json(&ServeOrLoadLine::Listening {
            address,
            design,
            resp,
            rdma,
        })?;
    } else {
        print_line(format_args!(
            "{} serves a {} on {address}; {}; clients: verbatim kv load {address} --fill",
            args.design,
            if is_store { "store" } else { "cache" },
            args.design.consistency_guarantee(),
        ))?;
        if let Some(resp) = resp {
            let by = if rdma.is_some() {
                ", by TCP and RDMA"
            } else {
                ""
            };
            print_line(format_args!("the Redis protocol on {resp}{by}"))?;
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
