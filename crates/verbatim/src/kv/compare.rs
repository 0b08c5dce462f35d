//! Compares every design: the main function of `verbatim kv`.
//!
//! Rounds are interleaved and use fresh processes, so that a temporary disturbance of the machine
//! affects all designs alike.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bench::peers::KillOnDrop;
use bench::stats::MedianAndSpread;
use kv::load::LoadReport;
use kv::{Design, ServerStats};
use serde::Serialize;
use verbs::Capabilities;

use super::arguments::Args;
use super::comparison_servers::{self, ComparisonServer};
use super::json_lines::ServeOrLoadLine;
use super::serve::DEFAULT_SINGLE_READ_GET_BYTES;
use crate::CommandOutcome;
use crate::args;
use crate::children::{ChildLines, ServerAndClientCores, start_on_cores, subcommand_with_nic};
use crate::nic::OpenNic;
use crate::output::{self, format_three_digits, format_time_ns, print_line, print_typed_json};
use crate::side_by_side::{
    assign_cores, format_or_empty, format_rate_mops, outcome_of_comparison, refuse_many_clients,
    run_interleaved, spread, yes_or_no,
};
use crate::sweeps::{self, DesignResult, SweepSetting, SweptResult};

/// A design that is measured, or its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    /// A design whose server answers in batches of `batch`.
    Store {
        design: Design,
        batch: usize,
        /// Number of bytes of a GET's only READ, for [`Design::Reads`].
        read_size: usize,
    },
    ComparisonServer(ComparisonServer),
}

impl Contender {
    fn name(self) -> String {
        match self {
            Contender::Store {
                design: Design::Herd,
                batch: 1,
                ..
            } => "herd, no batches".to_owned(),
            Contender::Store {
                design: Design::Reads,
                read_size: 1..,
                ..
            } => "reads, one READ".to_owned(),
            Contender::Store { design, .. } => design.to_string(),
            Contender::ComparisonServer(peer) => peer.name().to_owned(),
        }
    }

    fn summary(self) -> &'static str {
        match self {
            Contender::Store {
                design: Design::Herd,
                batch: 1,
                ..
            } => "the same with a doorbell an answer, and no prefetching",
            Contender::Store {
                design: Design::Reads,
                read_size: 1..,
                ..
            } => "a GET is one READ of a neighbourhood of records; changes are RPCs",
            Contender::Store { design, .. } => design.summary(),
            Contender::ComparisonServer(peer) => peer.summary(),
        }
    }
}

/// The results of one contender in one round.
#[derive(Debug, Serialize)]
struct Round {
    round: u32,
    name: String,
    /// The time that a cache line takes from the first client's core to the server's, measured just
    /// before the round.
    bounce_ns: Option<f64>,
    /// Requests per second with the full window.
    rate_per_s: f64,
    latency_ns_p50: f64,
    latency_ns_p99: Option<f64>,
    /// Median latency in nanoseconds with a window of one.
    #[serde(rename = "alone_ns_p50")]
    one_outstanding_ns_p50: f64,
    operations: u64,
    answers_per_doorbell: Option<f64>,
    misses: u64,
    #[serde(rename = "lost")]
    lost_requests: u64,
    /// Number of verified values; `wrong_values` is the number of wrong values and of versions that
    /// decreased.
    #[serde(rename = "verified")]
    verified_values: Option<u64>,
    #[serde(rename = "wrong")]
    wrong_values_and_versions: u64,
}

/// A row of the table: one contender with one setting.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    summary: &'static str,
    #[serde(rename = "kind")]
    nic_or_peer_kind: &'static str,
    rate_per_s: MedianAndSpread,
    /// The rate divided by Redis's in the same round.
    #[serde(rename = "ratio_to_redis")]
    rate_ratio_to_redis: Option<MedianAndSpread>,
    latency_ns_p50: f64,
    latency_ns_p99: Option<f64>,
    #[serde(rename = "alone_ns_p50")]
    one_outstanding_ns_p50: f64,
    /// The latency with a window of one, divided by Redis's in the same round.
    #[serde(rename = "alone_ratio_to_redis")]
    one_outstanding_latency_ratio_to_redis: Option<f64>,
    answers_per_doorbell: Option<f64>,
    misses: u64,
    #[serde(rename = "lost")]
    lost_requests: u64,
    /// True if no wrong value was found. For a peer, only the checks of the peer's own tool count.
    #[serde(rename = "verified")]
    all_verified: bool,
}

/// Runs `verbatim kv` without a subcommand.
pub(crate) fn run(args: Args) -> Result<CommandOutcome> {
    args.simulation.refuse_simulation_only_arguments()?;
    args::refuse_too_short_for_real_time(args.duration)?;
    let settings = args.sweep.settings_to_run(&args, Args::set_knob_if_known)?;
    settings
        .iter()
        .try_for_each(|(_, args)| refuse_many_clients(args.clients()))?;
    args.picture.check_files_writable()?;
    let nic = OpenNic::open(&args.nic, &args.port)?;
    let (contenders, notes) = contenders_and_unsupported_notes(&args, nic.context.capabilities()?)?;
    if args.json {
        for note in &notes {
            print_typed_json("skipped", note)?;
        }
    }
    let rounds = measure(&args, &settings, &contenders)?;
    let kind = args.nic.provider.nic_description();
    let device = nic.context.device_name();
    let (mut points, mut verified) = (Vec::new(), true);
    for ((value, setting), rounds) in settings.iter().zip(&rounds) {
        let measured = |contender: &&Contender| rounds.iter().any(|r| r.name == contender.name());
        let rows: Vec<Row> = contenders
            .iter()
            .filter(measured)
            .map(|&contender| row(contender, kind, rounds))
            .collect::<Result<_>>()?;
        if args.json {
            for row in &rows {
                print_typed_json("row", &SweptResult::new(0, *value, row))?;
            }
        } else if value.is_none() {
            let bounces: Vec<f64> = rounds.iter().filter_map(|round| round.bounce_ns).collect();
            show_setup(setting, kind, device, MedianAndSpread::of(&bounces))?;
            print_rows(&rows)?;
        }
        verified &= rows.iter().all(|row| row.all_verified);
        let at = value.unwrap_or(args.workers);
        points.extend(rows.iter().map(|row| design_result(at, row)));
    }
    let caption = args.sweep.caption_with_knob(&caption(&args, kind, device));
    if !args.json {
        if args.sweep.over.is_some() {
            print_line(format_args!("{caption}\n"))?;
            sweeps::print_rows(&args.sweep, &points)?;
        }
        for note in &notes {
            print_line(format_args!("- Left out: {note}."))?;
        }
    }
    let chart = sweeps::chart("Key-value stores", caption, &args.sweep, &points);
    args.picture.write_requested_files(&chart)?;
    Ok(outcome_of_comparison(verified))
}

/// Measures all rounds of each setting; the contenders run in turn.
fn measure(
    args: &Args,
    settings: &[(Option<usize>, Args)],
    contenders: &[Contender],
) -> Result<Vec<Vec<Round>>> {
    let place = |(_, args): &(_, Args)| assign_cores(args.workers, args.clients(), 1, "clients");
    let placements: Vec<_> = settings.iter().map(place).collect::<Result<_>>()?;
    let indices = 0..settings.len();
    let all: Vec<_> = indices
        .flat_map(|at| contenders.iter().map(move |contender| (at, *contender)))
        .collect();
    let name = |(at, contender): (usize, Contender)| match settings[at].0 {
        Some(value) => format!("{} at {value}", contender.name()),
        None => contender.name(),
    };
    let done = run_interleaved(
        args.rounds,
        &all,
        args.json,
        name,
        |round, (at, contender)| {
            let (value, args) = &settings[at];
            let round = measure_once(args, &placements[at], round, contender);
            Ok(SweptResult::new(
                at,
                *value,
                round.with_context(|| contender.name())?,
            ))
        },
    )?;
    Ok(SweptResult::grouped_by_setting(done, settings.len()))
}

fn design_result(at: usize, row: &Row) -> DesignResult {
    DesignResult {
        name: row.name.clone(),
        swept_value: at,
        rate_per_s: row.rate_per_s,
        latency_ns_p50: Some(row.latency_ns_p50),
        latency_ns_p99: row.latency_ns_p99,
        all_verified: row.all_verified,
    }
}

/// Formats the command's settings and the NIC for the caption.
fn caption(args: &Args, kind: &str, device: &str) -> String {
    let value = |knob, value: usize| args.sweep.value_or_n(knob, value);
    format!(
        "{kind} {device}: {} keys, values of {} bytes; {} clients with {} outstanding each, {} workers; median of {} rounds of {} ms, \
         interleaved",
        args.workload.keys,
        value(SweepSetting::ValueSize, args.workload.value_size),
        value(SweepSetting::Clients, args.clients()),
        value(SweepSetting::Window, args.workload.window()),
        value(SweepSetting::Cores, args.workers),
        args.rounds,
        args.duration().as_millis(),
    )
}

/// Returns the contenders that a device can run, and a note for each contender that it cannot run.
fn contenders_and_unsupported_notes(
    args: &Args,
    device: &Capabilities,
) -> Result<(Vec<Contender>, Vec<String>)> {
    let (asked, all) = (&args.design[..], &Design::ALL[..]);
    let (mut contenders, mut notes) = (Vec::new(), Vec::new());
    for &design in if asked.is_empty() { all } else { asked } {
        match design.check(device) {
            Ok(()) => contenders.extend(contenders_of(args, design)),
            Err(unsupported) if asked.is_empty() => notes.push(unsupported.to_string()),
            Err(unsupported) => return Err(unsupported.into()),
        }
    }
    if contenders.is_empty() {
        bail!(
            "no design runs here: {}; `verbatim devices` lists other devices",
            notes.join("; ")
        );
    }
    for peer in ComparisonServer::FOREIGN_SERVERS
        .into_iter()
        .filter(|_| !args.no_peers)
    {
        match peer.missing_program() {
            None => contenders.push(Contender::ComparisonServer(peer)),
            Some(program) => notes.push(format!("{}: {program} is not installed", peer.name())),
        }
    }
    Ok((contenders, notes))
}

/// Returns the variants of a design that take part in the comparison.
fn contenders_of(args: &Args, design: Design) -> Vec<Contender> {
    let with = |batch, read_size| Contender::Store {
        design,
        batch,
        read_size,
    };
    let (batch, asked) = (args.batch, args.records.read_size);
    match design {
        Design::Herd if batch > 1 => vec![with(batch, 0), with(1, 0)],
        Design::Herd => vec![with(batch, 0)],
        Design::Reads => match asked {
            None => vec![with(batch, 0), with(batch, DEFAULT_SINGLE_READ_GET_BYTES)],
            Some(size) => vec![with(batch, size)],
        },
        Design::Atomics => vec![with(batch, asked.unwrap_or(0))],
    }
}

fn measure_once(
    args: &Args,
    placement: &ServerAndClientCores,
    round: u32,
    contender: Contender,
) -> Result<Round> {
    let bounce_ns = placement.measure_cache_line_transfer_ns()?;
    match contender {
        Contender::Store {
            design,
            batch,
            read_size,
        } => measure_design(args, placement, (design, batch, read_size), round),
        Contender::ComparisonServer(peer) => {
            measure_comparison_server(args, placement, peer, round)
        }
    }
    .map(|done| Round {
        bounce_ns,
        name: contender.name(),
        ..done
    })
}

/// Measures a design once. Starts a server, a client that fills the store, clients with the full
/// window, and then one client with a window of one.
fn measure_design(
    args: &Args,
    placement: &ServerAndClientCores,
    what: (Design, usize, usize),
    round: u32,
) -> Result<Round> {
    let (mut server, mut said) = start_server(args, &placement.server, what)?;
    let ServeOrLoadLine::Listening { address, .. } = said.next_line_or_error()? else {
        bail!("the server did not say where it listens");
    };
    let window = args.workload.window();
    let begin = |cores: &[usize], window: usize, more: &[&str]| {
        let mut command = subcommand_with_nic("kv", "load", &args.nic, &args.port)?;
        command
            .arg(&address)
            .args(args.workload.to_command_line_flags(window))
            .args(more)
            .stdin(Stdio::null());
        start_on_cores::<ServeOrLoadLine>(command, cores, "client")
    };
    let (_filler, lines) = begin(&placement.clients[0], 64, &["--fill-only"])?;
    read_reports(lines)?;
    let duration = format!("--duration={}ms", args.duration().as_millis());
    let mut running = Vec::new();
    for (i, cores) in placement.clients.iter().enumerate() {
        running.push(begin(
            cores,
            window,
            &[&duration, &format!("--seed={}", i + 1)],
        )?);
    }
    let mut all = Vec::new();
    for (_child, lines) in running {
        all.extend(read_reports(lines)?);
    }
    let short = format!("--duration={}ms", (args.duration().as_millis() / 4).max(20));
    let (_alone, lines) = begin(&placement.clients[0], 1, &[&short, "--seed=77"])?;
    let alone = read_reports(lines)?;
    // The server ends when its standard input ends.
    drop(server.0.stdin.take());
    let ServeOrLoadLine::Stats(stats) = said.next_line_or_error()? else {
        bail!("the server did not say what it did");
    };
    let alone = alone.first().context("a client said nothing")?;
    Ok(round_from_reports(round, &all, alone, &stats))
}

#[allow(clippy::cast_precision_loss)] // counts and times far below 2^52
fn round_from_reports(
    round: u32,
    all: &[LoadReport],
    alone: &LoadReport,
    stats: &ServerStats,
) -> Round {
    let mut medians: Vec<u64> = all.iter().map(|r| r.latency.p50_ns).collect();
    medians.sort_unstable();
    let sum = |of: fn(&LoadReport) -> u64| all.iter().chain([alone]).map(of).sum::<u64>();
    Round {
        round,
        name: String::new(),
        bounce_ns: None,
        rate_per_s: all.iter().map(|r| r.operations_per_s).sum(),
        latency_ns_p50: medians.get(medians.len() / 2).copied().unwrap_or(0) as f64,
        latency_ns_p99: all.iter().map(|r| r.latency.p99_ns as f64).reduce(f64::max),
        one_outstanding_ns_p50: alone.latency.p50_ns as f64,
        operations: sum(|r| r.operations),
        answers_per_doorbell: (stats.doorbells > 0)
            .then(|| stats.answer_messages as f64 / stats.doorbells as f64),
        misses: sum(|r| r.misses),
        lost_requests: sum(|r| r.unanswered_requests),
        verified_values: Some(sum(|r| r.checked_values)),
        wrong_values_and_versions: sum(|r| r.wrong_values + r.wrong_versions),
    }
}

fn start_server(
    args: &Args,
    cores: &[usize],
    (design, batch, read_size): (Design, usize, usize),
) -> Result<(KillOnDrop, ChildLines<ServeOrLoadLine>)> {
    let mut command: Command = subcommand_with_nic("kv", "serve", &args.nic, &args.port)?;
    command
        .args([
            "--design",
            design.name(),
            "--listen",
            "127.0.0.1:0",
            "--until-eof",
            "--store",
        ])
        .args(["--workers", &args.workers.to_string()])
        .args(["--batch", &batch.to_string()])
        .args(["--queues", &args.queues.to_string()])
        .args(["--keys", &args.workload.keys.to_string()])
        .args(["--key-size", &args.workload.key_size.to_string()])
        .args(["--value-size", &args.workload.value_size.to_string()])
        .args(args.records.to_command_line_flags(read_size))
        .args(["--max-window", &args.workload.window().max(64).to_string()])
        .stdin(Stdio::piped());
    start_on_cores(command, cores, "server")
}

/// Returns all reports of a client, until its end.
fn read_reports(mut lines: ChildLines<ServeOrLoadLine>) -> Result<Vec<LoadReport>> {
    let mut all = Vec::new();
    while let Some(line) = lines.next_line()? {
        match line {
            ServeOrLoadLine::Report(report) => all.push(report),
            ServeOrLoadLine::Filled(report) => {
                if report.changes_refused_as_full > 0 || report.unanswered_requests > 0 {
                    bail!("the store could not be filled: {report:?}");
                }
                all.push(report);
            }
            ServeOrLoadLine::Listening { .. }
            | ServeOrLoadLine::Resp(_)
            | ServeOrLoadLine::Stats(_) => {}
        }
    }
    if all.is_empty() {
        bail!("a client ended early; its message is above");
    }
    Ok(all)
}

/// Measures a peer once.
fn measure_comparison_server(
    args: &Args,
    placement: &ServerAndClientCores,
    peer: ComparisonServer,
    round: u32,
) -> Result<Round> {
    let core = |cores: &[usize]| cores.first().copied().context("no core to run on");
    let setup = comparison_servers::MeasurementSettings {
        server_core: core(&placement.server)?,
        client_core: core(&placement.clients[0])?,
        key_count: args.workload.keys,
        value_bytes: args.workload.value_size,
        window: args.workload.window(),
        duration: args.duration(),
    };
    let all = comparison_servers::fill_and_measure_gets(peer, &setup)?;
    let one = comparison_servers::MeasurementSettings {
        window: 1,
        duration: (args.duration() / 4).max(Duration::from_millis(20)),
        ..setup
    };
    let alone = comparison_servers::fill_and_measure_gets(peer, &one)?;
    Ok(Round {
        round,
        name: String::new(),
        bounce_ns: None,
        rate_per_s: all.rate_per_s,
        latency_ns_p50: all.latency_ns_p50,
        latency_ns_p99: None,
        one_outstanding_ns_p50: alone.latency_ns_p50,
        operations: all.operations + alone.operations,
        answers_per_doorbell: None,
        misses: 0,
        lost_requests: 0,
        verified_values: None,
        wrong_values_and_versions: 0,
    })
}

fn row(contender: Contender, kind: &'static str, rounds: &[Round]) -> Result<Row> {
    let name = contender.name();
    let of = |name: &str| {
        let name = name.to_owned();
        rounds.iter().filter(move |round| round.name == name)
    };
    let median = |all: Vec<f64>| spread(all).map(|s| s.median);
    let own: Vec<&Round> = of(&name).collect();
    let to_redis = |figure: fn(&Round) -> f64| {
        let pairs = own.iter().zip(of(ComparisonServer::Redis.name()));
        let ratios: Vec<f64> = pairs.map(|(a, b)| figure(a) / figure(b)).collect();
        MedianAndSpread::of(&ratios)
    };
    let some = |figure: fn(&Round) -> Option<f64>| {
        let all: Vec<f64> = own.iter().filter_map(|r| figure(r)).collect();
        MedianAndSpread::of(&all).map(|s| s.median)
    };
    Ok(Row {
        rate_per_s: spread(own.iter().map(|r| r.rate_per_s))?,
        rate_ratio_to_redis: to_redis(|r| r.rate_per_s),
        latency_ns_p50: median(own.iter().map(|r| r.latency_ns_p50).collect())?,
        latency_ns_p99: some(|r| r.latency_ns_p99),
        one_outstanding_ns_p50: median(own.iter().map(|r| r.one_outstanding_ns_p50).collect())?,
        one_outstanding_latency_ratio_to_redis: to_redis(|r| r.one_outstanding_ns_p50)
            .map(|s| s.median),
        answers_per_doorbell: some(|r| r.answers_per_doorbell),
        misses: own.iter().map(|r| r.misses).sum(),
        lost_requests: own.iter().map(|r| r.lost_requests).sum(),
        all_verified: own
            .iter()
            // PUTs alone return no values, but versions.
            .all(|r| r.wrong_values_and_versions == 0 && r.misses == 0 && r.operations > 0),
        summary: contender.summary(),
        nic_or_peer_kind: match contender {
            Contender::Store { .. } => kind,
            Contender::ComparisonServer(_) => "peer",
        },
        name,
    })
}

/// Prints the settings, the NIC and the distance of the cores.
fn show_setup(
    args: &Args,
    kind: &str,
    device: &str,
    bounce_ns: Option<MedianAndSpread>,
) -> Result<()> {
    let w = &args.workload;
    let what = match (w.ycsb, w.zipf) {
        (Some(letter), _) => format!("YCSB {letter:?}"),
        (None, Some(theta)) => format!("{} % PUTs, Zipf {theta}", 100.0 * w.puts.unwrap_or(0.05)),
        (None, None) => format!("{} % PUTs, uniform", 100.0 * w.puts.unwrap_or(0.05)),
    };
    let bounce = bounce_ns.map_or_else(
        || "both sides share their only core".to_owned(),
        |ns| {
            format!(
                "a cache line takes {} ns between the two sides' cores",
                format_three_digits(ns.median)
            )
        },
    );
    print_line(format_args!(
        "{kind} {device}: {} keys of {} bytes, values of {}; {what}; {} clients with {} outstanding each, {} workers; \
         peers do GETs alone\nmedian of {} rounds of {} ms, interleaved; {bounce}\n",
        w.keys,
        w.key_size,
        w.value_size,
        args.clients(),
        w.window(),
        args.workers,
        args.rounds,
        args.duration().as_millis(),
    ))
}

fn print_rows(rows: &[Row]) -> Result<()> {
    let header = [
        "design",
        "operations/s",
        "to redis",
        "median",
        "p99",
        "window 1",
        "to redis",
        "per doorbell",
        "verified",
    ];
    let mut table = output::table(header, &[1, 2, 3, 4, 5, 6, 7]);
    for row in rows {
        table.add_row([
            row.name.clone(),
            format_rate_mops(row.rate_per_s),
            format_or_empty(row.rate_ratio_to_redis, |r| {
                format!("{} x", format_three_digits(r.median))
            }),
            format_time_ns(row.latency_ns_p50),
            format_or_empty(row.latency_ns_p99, format_time_ns),
            format_time_ns(row.one_outstanding_ns_p50),
            format_or_empty(row.one_outstanding_latency_ratio_to_redis, |r| {
                format!("{} x", format_three_digits(r))
            }),
            format_or_empty(row.answers_per_doorbell, format_three_digits),
            match row.nic_or_peer_kind {
                "peer" => "counted",
                _ => yes_or_no(row.all_verified),
            }
            .to_owned(),
        ]);
    }
    print_line(table)?;
    print_line(
        "\nmedian, p99: with the whole window; window 1: median latency with one request outstanding\n\
         verified: every value is the key's and whole, no key is missing, no version goes back\n",
    )?;
    for row in rows {
        print_line(format_args!("{:<18} {}", row.name, row.summary))?;
    }
    for row in rows
        .iter()
        .filter(|row| row.lost_requests > 0 || row.misses > 0)
    {
        eprintln!(
            "note: {}: {} lost, {} missing",
            row.name, row.lost_requests, row.misses
        );
    }
    Ok(())
}
