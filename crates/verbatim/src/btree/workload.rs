//! `verbatim btree load`: clients in one process that verify each answer.

use std::sync::Barrier;
use std::time::Duration;

use anyhow::Result;
use btree::load::{self, LoadEnd, LoadReport, NumberedClient, Popularity, Workload, Ycsb};
use btree::{AccessDesign, ByteString, ClientConfig, ClientError, ExecuteRequests, Router};

use super::json_lines::ServeOrLoadLine;
use super::strings::{OfEitherKeys, connect_all, connect_by_key_type, strings_for_key_numbers};
use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::nic::OpenNic;
use crate::outcome::any_answered_or_print_error;
use crate::output::{self, format_three_digits, format_time_ns, print_json, print_line};
use crate::steps::{InterruptibleLoad, is_interrupted};

/// The workload: the keys, and the shares of the requests.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Workload")]
pub(crate) struct WorkloadArgs {
    /// Stable keys: those that the server loaded
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = args::integer_parser_in_range("a count of keys", 64..=1u64 << 34))]
    pub(super) keys: u64,
    /// Some keys are more popular than others, by Zipf's law with this exponent: 0.99 in YCSB
    #[arg(long, value_name = "EXPONENT", value_parser = args::decimal_parser_in_range("an exponent", 0.01..=5.0), conflicts_with = "ycsb")]
    pub(super) zipf: Option<f64>,
    /// The share of updates [default: 0]
    #[arg(long, value_name = "SHARE", value_parser = args::decimal_parser_in_range("a share", 0.0..=1.0), conflicts_with = "ycsb")]
    pub(super) updates: Option<f64>,
    /// The share of inserts, and of deletes of what was inserted [default: 0]
    #[arg(long, value_name = "SHARE", value_parser = args::decimal_parser_in_range("a share", 0.0..=1.0), conflicts_with = "ycsb")]
    pub(super) inserts: Option<f64>,
    /// The share of scans [default: 0]
    #[arg(long, value_name = "SHARE", value_parser = args::decimal_parser_in_range("a share", 0.0..=1.0), conflicts_with = "ycsb")]
    pub(super) scans: Option<f64>,
    /// Entries of a scan
    #[arg(long, value_name = "N", default_value = "100", value_parser = args::integer_parser_in_range("a count of entries", 1..=65_535u32))]
    pub(super) scan_length: u32,
    /// A workload of YCSB: A to F
    #[arg(long, value_name = "LETTER")]
    pub(super) ycsb: Option<Ycsb>,
    /// Requests that a client has outstanding
    #[arg(long, value_name = "N", default_value = "64", value_parser = args::integer_parser_in_range("a window", 1..=4096usize))]
    pub(super) window: usize,
    /// Requests that a client posts with one doorbell
    #[arg(long, value_name = "N", default_value = "16", value_parser = args::integer_parser_in_range("a postlist", 1..=64usize))]
    pub(super) postlist: usize,
}

impl WorkloadArgs {
    pub(super) fn workload(&self) -> Workload {
        let plain = Workload {
            keys: self.keys,
            popularity: self.zipf.map_or(Popularity::Uniform, Popularity::Zipf),
            update_fraction: self.updates.unwrap_or(0.0),
            insert_fraction: self.inserts.unwrap_or(0.0),
            scan_fraction: self.scans.unwrap_or(0.0),
            scan_length: self.scan_length,
            ..Workload::default()
        };
        match self.ycsb {
            Some(letter) => plain.ycsb(letter),
            None => plain,
        }
    }
}

/// Arguments of `verbatim btree load`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The server's TCP address, as it printed it; of several servers that share the keys, all of them in their order
    #[arg(value_name = "HOST:PORT", value_delimiter = ',', required = true, value_parser = args::check_host_and_port)]
    servers: Vec<String>,
    /// How clients reach the tree: rpc, read, auto
    #[arg(long, value_name = "ACCESS", default_value_t = AccessDesign::Rpc)]
    access: AccessDesign,
    /// Inner nodes that a client which READs keeps; with 0 each lookup READs a node a level
    #[arg(long, value_name = "NODES", default_value = "16384", value_parser = args::integer_parser_in_range("a count of nodes", 0..=1usize << 24))]
    cache: usize,
    /// Put every stable key once before, instead of the server's --load
    #[arg(long)]
    fill: bool,
    /// How long to ask
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = args::parse_duration_from_10ms)]
    duration: Duration,
    /// Threads, each a client of its own
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::integer_parser_in_range("a count of threads", 1..=64usize))]
    threads: usize,
    /// What random choices start from; clients in several processes need different ones
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::parse_decimal_or_hex_u64)]
    seed: u64,
    /// How long a server that does not answer is tried to be reached again
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = args::parse_duration_from_10ms)]
    reconnect: Duration,
    /// Print one JSON object per line: filled, report (of each thread)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    workload: WorkloadArgs,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

const EXAMPLES: &str = "\
Every value says by its bits which key it belongs to. Lookups, deleted keys, and the order and completeness of scans are
checked.

Examples:
  verbatim btree load 127.0.0.1:7473 --fill
  verbatim btree load 127.0.0.1:7473 --keys 10_000_000 --access read
  verbatim btree load 127.0.0.1:7473 --ycsb E --threads 2 --duration 30s

Exit status 1 when an answer was wrong or a key was missing.";

/// Runs `verbatim btree load`.
pub(crate) fn run(args: Args) -> Result<CommandOutcome> {
    let nic = OpenNic::open(&args.nic, &args.port)?;
    let workload = args.workload.workload();
    let config = |server: &String| ClientConfig {
        server: server.clone(),
        nic: nic.config.clone(),
        access: args.access,
        max_cached_nodes: args.cache,
        window: args.workload.window,
        batch: args.workload.postlist,
        deadline_ms: u64::try_from(args.reconnect.as_millis()).unwrap_or(u64::MAX),
        ..ClientConfig::default()
    };
    let configs: Vec<_> = args.servers.iter().map(config).collect();
    let connect = |_| connect_load_client(&nic.context, &configs);
    let mut pipelines: Vec<Box<dyn LoadClient>> =
        (0..args.threads).map(connect).collect::<Result<_>>()?;
    let bar = output::activity_display(args.json);
    bar.enable_steady_tick(Duration::from_secs(1));
    let mut right = true;
    if args.fill {
        bar.set_message("filling");
        let all = u64::try_from(pipelines.len()).unwrap_or(1);
        let filled = run_all_in_threads(&mut pipelines, |i, pipeline| {
            pipeline.put_initial_keys(&workload, (i, all))
        })?;
        for report in filled {
            right &= report.changes_refused_as_full == 0 && report.unanswered_requests == 0;
            if args.json {
                print_json(&ServeOrLoadLine::Filled(report))?;
            } else {
                print_line(format_args!(
                    "{} keys put in {:.2} s, {} refused",
                    report.changes, report.seconds, report.changes_refused_as_full
                ))?;
            }
        }
    }
    bar.set_message("asking");
    let interruptible = InterruptibleLoad::start()?;
    let seed = args.seed;
    let reports = run_all_in_threads(&mut pipelines, |i, pipeline| {
        let until = LoadEnd::AtOrWhen(verbs::time::now() + args.duration, is_interrupted);
        pipeline.run(&workload, until, seed.wrapping_mul(64) + i)
    })?;
    interruptible.finish();
    bar.finish_and_clear();
    for report in reports {
        right &= any_answered_or_print_error(report.operations, report.unanswered_requests);
        right &= report.has_no_wrong_answers();
        if args.json {
            print_json(&ServeOrLoadLine::Report(report))?;
        } else {
            print_load_report(&report)?;
        }
    }
    Ok(if right {
        CommandOutcome::Done
    } else {
        CommandOutcome::NegativeAnswer
    })
}

/// A client that runs workloads.
trait LoadClient: Send {
    /// Puts stable keys, as [`load::put_stable_keys`].
    fn put_initial_keys(
        &mut self,
        workload: &Workload,
        from: (u64, u64),
    ) -> Result<LoadReport, ClientError>;

    /// Runs a load, as [`load::run`].
    fn run(
        &mut self,
        workload: &Workload,
        until: LoadEnd,
        seed: u64,
    ) -> Result<LoadReport, ClientError>;
}

impl<C: ExecuteRequests + Send> LoadClient for C {
    fn put_initial_keys(
        &mut self,
        workload: &Workload,
        from: (u64, u64),
    ) -> Result<LoadReport, ClientError> {
        load::put_stable_keys(self, workload, from)
    }

    fn run(
        &mut self,
        workload: &Workload,
        until: LoadEnd,
        seed: u64,
    ) -> Result<LoadReport, ClientError> {
        load::run(self, workload, until, seed)
    }
}

/// Connects a client of one server, or of several that share the keys.
fn connect_load_client(
    context: &verbs::Context,
    servers: &[ClientConfig],
) -> Result<Box<dyn LoadClient>> {
    let clients = connect_by_key_type(
        || connect_all::<u64>(context, servers),
        || connect_all::<ByteString>(context, servers),
    )?;
    Ok(match clients {
        OfEitherKeys::Numbers(mut clients) => match clients.pop() {
            Some(one) if clients.is_empty() => Box::new(one),
            last => Box::new(Router::new(clients.into_iter().chain(last).collect())),
        },
        OfEitherKeys::Strings(mut clients, sizes) => {
            let strings = strings_for_key_numbers(sizes)?;
            match clients.pop() {
                Some(one) if clients.is_empty() => Box::new(NumberedClient::new(one, strings)),
                last => {
                    let all = Router::new(clients.into_iter().chain(last).collect());
                    Box::new(NumberedClient::new(all, strings))
                }
            }
        }
    })
}

/// Runs all clients at once, each in a thread.
fn run_all_in_threads(
    pipelines: &mut [Box<dyn LoadClient>],
    work: impl Fn(u64, &mut dyn LoadClient) -> Result<LoadReport, ClientError> + Sync,
) -> Result<Vec<LoadReport>> {
    let (barrier, work) = (&Barrier::new(pipelines.len()), &work);
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..)
            .zip(pipelines.iter_mut())
            .map(|(i, pipeline)| {
                scope.spawn(move || {
                    barrier.wait();
                    work(i, pipeline.as_mut())
                })
            })
            .collect();
        let ended = running.into_iter().map(|thread| {
            let result = thread.join();
            Ok(result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?)
        });
        ended.collect()
    })
}

fn print_load_report(report: &LoadReport) -> Result<()> {
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let [median, p99] =
        [report.latency.p50_ns, report.latency.p99_ns].map(|ns| format_time_ns(ns as f64));
    print_line(format_args!(
        "{} M/s ({} operations in {:.2} s), latency {median} median, {p99} p99; {} lookups, {} scans of {} entries, {} \
         changes, {} refused, {} lost, {} reconnects; {} answers checked: {} wrong values, {} missing, {} deleted and \
         found, {} wrong scans",
        format_three_digits(report.operations_per_s / 1e6),
        report.operations,
        report.seconds,
        report.lookups,
        report.scans,
        report.scanned_entries,
        report.changes,
        report.changes_refused_as_full,
        report.unanswered_requests,
        report.client_stats.reconnects,
        report.checked_answers,
        report.wrong_values,
        report.missing_keys,
        report.deleted_keys_found,
        report.wrong_scans
    ))
}
