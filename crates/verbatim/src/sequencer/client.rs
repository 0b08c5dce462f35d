//! `verbatim sequencer client`: runs clients in one process.

use std::sync::Barrier;
use std::time::Duration;

use anyhow::{Context, Result};
use sequencer::{Client, ClientConfig, ClientReport, NumberChecker, RunLimit};

use super::json_lines::ServeOrClientLine;
use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::nic::OpenNic;
use crate::outcome::any_answered_or_print_error;
use crate::output::{self, format_three_digits, format_time_ns, print_json, print_line};
use crate::side_by_side::refuse_postlist_above_window;
use crate::steps::{InterruptibleLoad, is_interrupted};

/// Arguments of `verbatim sequencer client`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The server's TCP address, as it printed it
    #[arg(value_name = "HOST:PORT", value_parser = args::check_host_and_port)]
    server: String,
    /// How long to ask for numbers
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = args::parse_duration_from_10ms)]
    duration: Duration,
    /// Ask for so many numbers instead (each thread)
    #[arg(long, value_name = "N", conflicts_with = "duration", value_parser = args::integer_parser_in_range("a count of numbers", 1..=u64::MAX))]
    count: Option<u64>,
    /// Threads, each a client of its own
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::integer_parser_in_range("a count of threads", 1..=64usize))]
    threads: usize,
    /// Requests outstanding, of each thread
    #[arg(long, value_name = "N", default_value = "256", value_parser = args::integer_parser_in_range("a window", 1..=4096usize))]
    window: usize,
    /// Requests posted with one doorbell
    #[arg(long, value_name = "N", default_value = "16", value_parser = args::integer_parser_in_range("a postlist", 1..=64usize))]
    postlist: usize,
    /// How long to try to reach a server that is not there (any more)
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = args::parse_duration_from_10ms)]
    reconnect: Duration,
    /// Print one JSON object per line: report (of each thread), verdict
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

const EXAMPLES: &str = "\
Examples:
  verbatim sequencer client 127.0.0.1:7471
  verbatim sequencer client 127.0.0.1:7471 --threads 2 --window 256 --duration 30s
  verbatim sequencer client 127.0.0.1:7471 --count 1000000 --json

Exit status 1 when a number came twice or out of order, or the numbers ended early.";

/// Runs `verbatim sequencer client`.
pub(crate) fn run(args: Args) -> Result<CommandOutcome> {
    refuse_postlist_above_window(args.postlist, args.window)?;
    let nic = OpenNic::open(&args.nic, &args.port)?;
    let config = ClientConfig {
        server: args.server,
        nic: nic.config,
        window: args.window,
        batch: args.postlist,
        reconnect_timeout_ms: millis(args.reconnect),
        ..ClientConfig::default()
    };
    let until = args
        .count
        .map_or(RunLimit::DurationMs(millis(args.duration)), RunLimit::Count);
    let mut clients: Vec<Client> = (0..args.threads)
        .map(|_| Client::connect(config.clone()).context("is the server running?"))
        .collect::<Result<_>>()?;
    let start = clients
        .iter()
        .map(Client::first_number_of_server)
        .min()
        .unwrap_or(0);

    let interruptible = InterruptibleLoad::start()?;
    let reports = run_all_clients(&mut clients, until, &config.server, args.json);
    interruptible.finish();

    let mut checker = NumberChecker::new(start);
    for (thread, report) in reports.iter().enumerate() {
        checker.add_report(&format!("thread {thread}"), report);
        if args.json {
            print_json(&ServeOrClientLine::Report(Box::new(report.clone())))?;
        } else {
            print_client_report(thread, report)?;
        }
    }
    // Other clients have received the numbers between these, so only the server can count skipped
    // numbers.
    let verdict = checker.verdict(None);
    let good = verdict.duplicates == 0 && verdict.not_increasing_numbers == 0;
    let some = any_answered_or_print_error(verdict.checked_numbers, verdict.lost_messages);
    let ended = reports
        .iter()
        .filter_map(|report| report.failures.end_reason.as_ref());
    let ended: Vec<&String> = ended.collect();
    if args.json {
        print_json(&ServeOrClientLine::Verdict(verdict))?;
    } else {
        print_line(format_args!(
            "{} numbers, {} given twice, {} out of order: {}",
            verdict.checked_numbers,
            verdict.duplicates,
            verdict.not_increasing_numbers,
            match (good, some) {
                (false, _) => "NOT A SEQUENCE",
                (true, false) => "NOTHING VERIFIED",
                (true, true) => "verified",
            }
        ))?;
    }
    for why in &ended {
        eprintln!("error: ended early: {why}");
    }
    Ok(if good && some && ended.is_empty() {
        CommandOutcome::Done
    } else {
        CommandOutcome::NegativeAnswer
    })
}

/// Runs all clients, each in its own thread, with a common start.
fn run_all_clients(
    clients: &mut [Client],
    until: RunLimit,
    server: &str,
    json: bool,
) -> Vec<ClientReport> {
    let bar = output::activity_display(json);
    bar.set_message(format!("{} from {}", clients[0].design(), server));
    bar.enable_steady_tick(Duration::from_secs(1));
    let barrier = Barrier::new(clients.len());
    let reports = std::thread::scope(|scope| {
        let running: Vec<_> = clients
            .iter_mut()
            .map(|client| {
                scope.spawn(|| {
                    barrier.wait();
                    client.run_unless(until, is_interrupted)
                })
            })
            .collect();
        let ended = running.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        ended.collect()
    });
    bar.finish_and_clear();
    reports
}

fn print_client_report(thread: usize, report: &ClientReport) -> Result<()> {
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let [median, p99] =
        [report.latency.p50_ns, report.latency.p99_ns].map(|ns| format_time_ns(ns as f64));
    let failures = &report.failures;
    print_line(format_args!(
        "thread {thread}: {}, {} M/s ({} requests in {} s), latency {median} median, {p99} p99; \
         lost {}, reconnects {}, wrong guesses {}",
        report.design,
        format_three_digits(report.rate / 1e6),
        report.received_number_count,
        format_three_digits(report.seconds),
        failures.lost,
        failures.reconnects,
        report.wrong_guesses,
    ))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
