//! `verbatim kv load`: clients in one process that verify each answer.

use std::sync::Barrier;
use std::time::Duration;

use anyhow::{Context, Result};
use kv::load::{self, LoadEnd, LoadReport, Popularity, Workload, Ycsb};
use kv::{ClientConfig, PipelinedClient};

use super::json_lines::ServeOrLoadLine;
use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::nic::OpenNic;
use crate::outcome::any_answered_or_print_error;
use crate::output::{self, format_three_digits, format_time_ns, print_json, print_line};
use crate::steps::{InterruptibleLoad, is_interrupted};

/// The workload: the keys, the values, and the shares of the requests.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Workload")]
pub(crate) struct WorkloadArgs {
    /// Keys
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = args::integer_parser_in_range("a count of keys", 64..=1u64 << 32))]
    pub(super) keys: u64,
    /// Bytes of a key
    #[arg(long, value_name = "BYTES", default_value = "16", value_parser = args::integer_parser_in_range("a length of keys", 8..=255usize))]
    pub(super) key_size: usize,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", default_value = "32", value_parser = args::integer_parser_in_range("a length of values", 16..=65_535usize))]
    pub(super) value_size: usize,
    /// Some keys are more popular than others, by Zipf's law with this exponent: 0.99 in YCSB
    #[arg(long, value_name = "THETA", value_parser = args::decimal_parser_in_range("an exponent", 0.01..=0.999), conflicts_with = "ycsb")]
    pub(super) zipf: Option<f64>,
    /// The share of PUTs [default: 0.05]
    #[arg(long, value_name = "SHARE", value_parser = args::decimal_parser_in_range("a share", 0.0..=1.0), conflicts_with = "ycsb")]
    pub(super) puts: Option<f64>,
    /// A workload of YCSB: A, B, C, D or F
    #[arg(long, value_name = "LETTER")]
    pub(super) ycsb: Option<Ycsb>,
    /// Requests that a client has outstanding [default: 64; on a simulated NIC 32, and 8 with atomics]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a window", 1..=4096usize))]
    pub(super) window: Option<usize>,
    /// Requests that a client posts with one doorbell
    #[arg(long, value_name = "N", default_value = "16", value_parser = args::integer_parser_in_range("a postlist", 1..=64usize))]
    pub(super) postlist: usize,
}

impl WorkloadArgs {
    pub(super) fn window(&self) -> usize {
        self.window.unwrap_or(64)
    }

    pub(super) fn workload(&self) -> Workload {
        let plain = Workload {
            keys: self.keys,
            key_bytes: self.key_size,
            value_bytes: self.value_size,
            popularity: self.zipf.map_or(Popularity::Uniform, Popularity::Zipf),
            put_fraction: self.puts.unwrap_or(0.05),
            ..Workload::default()
        };
        match self.ycsb {
            Some(letter) => plain.ycsb(letter),
            None => plain,
        }
    }

    /// Returns the workload as flags for another process, with the given window.
    pub(super) fn to_command_line_flags(&self, window: usize) -> Vec<String> {
        let mut flags = vec![
            format!("--keys={}", self.keys),
            format!("--key-size={}", self.key_size),
            format!("--value-size={}", self.value_size),
            format!("--window={window}"),
            format!("--postlist={}", self.postlist.min(window)),
        ];
        flags.extend(self.zipf.map(|theta| format!("--zipf={theta}")));
        flags.extend(self.puts.map(|puts| format!("--puts={puts}")));
        flags.extend(self.ycsb.map(|letter| format!("--ycsb={letter:?}")));
        flags
    }
}

/// Arguments of `verbatim kv load`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The server's TCP address, as it printed it
    #[arg(value_name = "HOST:PORT", value_parser = args::check_host_and_port)]
    server: String,
    /// Put every key once before
    #[arg(long)]
    fill: bool,
    /// Put every key once, and that is all
    #[arg(long, conflicts_with_all = ["fill", "duration"])]
    fill_only: bool,
    /// How long to ask
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = args::parse_duration_from_10ms)]
    duration: Duration,
    /// Threads, each a client of its own
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::integer_parser_in_range("a count of threads", 1..=64usize))]
    threads: usize,
    /// Keys may be missing: the server is a cache without room for all
    #[arg(long)]
    allow_misses: bool,
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
Every value says by its bytes which key it belongs to and who put it, and all of it is checked.

Examples:
  verbatim kv load 127.0.0.1:7472 --fill
  verbatim kv load 127.0.0.1:7472 --ycsb A --threads 2 --duration 30s

Exit status 1 when a value was wrong, a version went back, or a key was missing.";

/// Runs `verbatim kv load`.
pub(crate) fn run(args: Args) -> Result<CommandOutcome> {
    let nic = OpenNic::open(&args.nic, &args.port)?;
    let workload = args.workload.workload();
    let config = ClientConfig {
        server: args.server,
        nic: nic.config,
        window: args.workload.window(),
        batch: args.workload.postlist,
        max_single_message_value_bytes: args.workload.value_size.min(1064),
        deadline_ms: u64::try_from(args.reconnect.as_millis()).unwrap_or(u64::MAX),
        ..ClientConfig::default()
    };
    let mut pipelines: Vec<PipelinedClient> = (0..args.threads)
        .map(|_| PipelinedClient::connect_on(&nic.context, config.clone()))
        .collect::<Result<_, _>>()
        .context("is the server running?")?;
    let bar = output::activity_display(args.json);
    bar.enable_steady_tick(Duration::from_secs(1));
    let mut right = true;
    if args.fill || args.fill_only {
        bar.set_message("filling");
        let all = u64::try_from(pipelines.len()).unwrap_or(1);
        let filled = run_clients_in_threads(&mut pipelines, |i, pipeline| {
            load::put_every_nth_key_once(pipeline, &workload, (i, all))
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
    if !args.fill_only {
        bar.set_message("asking");
        let interruptible = InterruptibleLoad::start()?;
        let seed = args.seed;
        let reports = run_clients_in_threads(&mut pipelines, |i, pipeline| {
            let until = LoadEnd::AtOrWhen(verbs::time::now() + args.duration, is_interrupted);
            load::run(pipeline, &workload, until, seed.wrapping_mul(1000) + i)
        })?;
        interruptible.finish();
        for report in reports {
            right &= any_answered_or_print_error(report.operations, report.unanswered_requests);
            right &= report.all_checks_passed() && (args.allow_misses || report.misses == 0);
            if args.json {
                print_json(&ServeOrLoadLine::Report(report))?;
            } else {
                print_load_report(&report)?;
            }
        }
    }
    bar.finish_and_clear();
    Ok(if right {
        CommandOutcome::Done
    } else {
        CommandOutcome::NegativeAnswer
    })
}

/// Runs all clients at once, each in a thread.
fn run_clients_in_threads(
    pipelines: &mut [PipelinedClient],
    work: impl Fn(u64, &mut PipelinedClient) -> Result<LoadReport, kv::ClientError> + Sync,
) -> Result<Vec<LoadReport>> {
    let (barrier, work) = (&Barrier::new(pipelines.len()), &work);
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..)
            .zip(pipelines.iter_mut())
            .map(|(i, pipeline)| {
                scope.spawn(move || {
                    barrier.wait();
                    work(i, pipeline)
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
        "{} M/s ({} operations in {:.2} s), latency {median} median, {p99} p99; {} GETs, {} misses, {} changes, {} \
         conflicts, {} refused, {} lost, {} reconnects; {} values checked, {} wrong, {} versions went back",
        format_three_digits(report.operations_per_s / 1e6),
        report.operations,
        report.seconds,
        report.gets,
        report.misses,
        report.changes,
        report.conflicts,
        report.changes_refused_as_full,
        report.unanswered_requests,
        report.client_stats.reconnects,
        report.checked_values,
        report.wrong_values,
        report.wrong_versions
    ))
}
