//! Compares every access design: the main function of `verbatim btree`.
//!
//! Rounds are interleaved and use fresh processes, so that a temporary disturbance of the machine
//! affects all designs alike.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bench::core_pinning::run_pinned;
use bench::link::WorkerLink;
use bench::peers::KillOnDrop;
use bench::peers::lmdb::{self, LmdbEntryKind, LmdbPeer};
use bench::stats::MedianAndSpread;
use btree::AccessDesign;
use btree::load::{LoadReport, value_of};
use serde::Serialize;
use verbs::Capabilities;

use super::arguments::SimulationArgs;
use super::json_lines::ServeOrLoadLine;
use super::strings::{StringArgs, strings_for_key_numbers};
use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::bench::worker_command;
use crate::children::{ChildLines, ServerAndClientCores, start_on_cores, subcommand_with_nic};
use crate::nic::OpenNic;
use crate::output::{self, format_three_digits, format_time_ns, print_line, print_typed_json};
use crate::picture::PictureArgs;
use crate::side_by_side::{
    assign_cores, format_or_empty, format_rate_mops, outcome_of_comparison, run_interleaved,
    spread, yes_or_no,
};
use crate::sweeps::{
    self, DesignResult, SweepArgs, SweepSetting, SweptResult, value_within_knob_limit,
};

/// Arguments of `verbatim btree` without a subcommand.
#[derive(clap::Args, Clone)]
#[group(skip)]
pub(crate) struct Args {
    /// Run this access design only (may be given several times): rpc, read, auto [default: all]
    #[arg(long, value_name = "ACCESS")]
    pub(super) access: Vec<AccessDesign>,
    /// Keys in the tree
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = args::integer_parser_in_range("a count of keys", 64..=1u64 << 34))]
    pub(super) keys: u64,
    #[command(flatten)]
    pub(super) strings: StringArgs,
    /// Bytes of a node: 256, 512, 1024, 2048 or 4096 [default: 1K, or more if keys and values are long; 2K on a
    /// simulated NIC]
    #[arg(long, value_name = "BYTES", value_parser = args::byte_count_parser_up_to(btree::MAX_NODE_BYTES))]
    pub(super) node_size: Option<usize>,
    /// Requests that a client has outstanding [default: 64; 16 on a simulated NIC]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a window", 1..=4096usize))]
    pub(super) window: Option<usize>,
    /// Entries of a scan
    #[arg(long, value_name = "N", default_value = "100", value_parser = args::integer_parser_in_range("a count of entries", 1..=65_535u32))]
    scan_length: u32,
    /// Worker threads of the server
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::integer_parser_in_range("a count of workers", 1..=64usize))]
    workers: usize,
    /// How long each measurement runs [default: 300ms; 500 µs to 2 ms of virtual time on a simulated NIC]
    #[arg(long, value_name = "TIME", value_parser = args::parse_duration_from_10us)]
    pub(super) duration: Option<Duration>,
    /// How often everything runs, in turn
    #[arg(long, value_name = "N", default_value = "3", value_parser = args::integer_parser_in_range("a count of rounds", 1..=1000u32))]
    rounds: u32,
    /// Leave LMDB out
    #[arg(long)]
    no_peers: bool,
    /// Print one JSON object per line: skipped, round, row; simulated
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) picture: PictureArgs,
    #[command(flatten)]
    pub(super) sweep: SweepArgs,
    #[command(flatten)]
    pub(super) simulation: SimulationArgs,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

impl Args {
    /// Sets a knob; returns false if this command has no such knob.
    pub(super) fn set_knob_if_known(&mut self, knob: SweepSetting, value: usize) -> Result<bool> {
        let simulated = self.simulation.is_asked_for();
        let limit = |most| value_within_knob_limit(value, most);
        match knob {
            SweepSetting::Cores if simulated => self.simulation.cores = vec![limit(64)?],
            SweepSetting::Cores => self.workers = limit(64)?,
            SweepSetting::Clients if simulated => self.simulation.clients = Some(limit(1024)?),
            SweepSetting::Window => self.window = Some(limit(4096)?),
            SweepSetting::Keys if value < 64 => bail!("--values: a tree has 64 keys or more"),
            SweepSetting::Keys => self.keys = value as u64,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn node_size(&self) -> usize {
        self.strings.node_bytes(self.node_size)
    }

    fn window(&self) -> usize {
        self.window.unwrap_or(64)
    }

    fn duration(&self) -> Duration {
        self.duration.unwrap_or(Duration::from_millis(300))
    }
}

/// An access design that is measured, or its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    /// The server walks the tree, in batches of `batch` requests.
    Rpc { batch: usize },
    /// The client walks the tree by READs and caches `cache` inner nodes.
    Read { cache: usize },
    /// The client chooses between RPC and READs for each request.
    AutoRpcOrRead,
    /// LMDB behind a TCP server, with pipelining.
    Lmdb,
}

/// Number of inner nodes that a client caches: all inner nodes of a tree with 100 million keys.
pub(super) const CACHED_INNER_NODES: usize = 1 << 15;

impl Contender {
    fn contenders_of_access(access: AccessDesign) -> &'static [Self] {
        match access {
            AccessDesign::Rpc => &[Self::Rpc { batch: 64 }, Self::Rpc { batch: 1 }],
            AccessDesign::Read => &[
                Self::Read {
                    cache: CACHED_INNER_NODES,
                },
                Self::Read { cache: 0 },
            ],
            AccessDesign::Auto => &[Self::AutoRpcOrRead],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Rpc { batch: 1 } => "rpc, no batches",
            Self::Rpc { .. } => "rpc",
            Self::Read { cache: 0 } => "read, no cache",
            Self::Read { .. } => "read",
            Self::AutoRpcOrRead => "auto",
            Self::Lmdb => "lmdb",
        }
    }

    fn summary(self) -> &'static str {
        match self {
            Self::Rpc { batch: 1 } => "the same with a doorbell an answer, and one walk at a time",
            Self::Rpc { .. } => AccessDesign::Rpc.summary(),
            Self::Read { cache: 0 } => "the same without a cache: a READ for each level",
            Self::Read { .. } => AccessDesign::Read.summary(),
            Self::AutoRpcOrRead => AccessDesign::Auto.summary(),
            Self::Lmdb => {
                "LMDB in memory behind a TCP server, pipelined, a transaction for all requests that came together"
            }
        }
    }

    fn access(self) -> AccessDesign {
        match self {
            Self::Rpc { .. } => AccessDesign::Rpc,
            Self::Read { .. } => AccessDesign::Read,
            Self::AutoRpcOrRead | Self::Lmdb => AccessDesign::Auto,
        }
    }
}

/// The results of one contender in one round.
#[derive(Debug, Serialize)]
struct Round {
    round: u32,
    name: &'static str,
    /// The time that a cache line takes from the client's core to the server's, measured just
    /// before the round.
    bounce_ns: Option<f64>,
    /// The duration of the bulk load in seconds.
    load_s: f64,
    /// Bytes of all nodes in use after the load, divided by the bytes of keys and values.
    memory_ratio: Option<f64>,
    /// Look-ups per second with the full window.
    lookups_per_s: f64,
    /// Median latency of a look-up in ns; `None` for a peer, which reports only the mean.
    lookup_ns_p50: Option<f64>,
    lookup_ns_p99: Option<f64>,
    /// Latency in ns with a window of one: the median, or the mean of a peer.
    #[serde(rename = "alone_ns_p50")]
    one_outstanding_ns_p50: f64,
    /// Entries per second that scans returned.
    #[serde(rename = "scanned_per_s")]
    scanned_entries_per_s: f64,
    /// Inserts and deletes per second.
    changes_per_s: f64,
    #[serde(rename = "verified")]
    verified_answers: u64,
    #[serde(rename = "wrong")]
    wrong_answers: u64,
    #[serde(rename = "lost")]
    lost_or_refused_requests: u64,
}

/// A row of the table: one contender with one setting.
#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    summary: &'static str,
    #[serde(rename = "kind")]
    nic_or_peer_kind: &'static str,
    lookups_per_s: MedianAndSpread,
    /// The rate of look-ups divided by LMDB's in the same round.
    #[serde(rename = "lookups_to_lmdb")]
    lookup_rate_ratio_to_lmdb: Option<f64>,
    lookup_ns_p50: Option<f64>,
    lookup_ns_p99: Option<f64>,
    #[serde(rename = "alone_ns_p50")]
    one_outstanding_ns_p50: f64,
    #[serde(rename = "scanned_per_s")]
    scanned_entries_per_s: MedianAndSpread,
    changes_per_s: MedianAndSpread,
    /// The rate of inserts divided by LMDB's in the same round.
    #[serde(rename = "changes_to_lmdb")]
    change_rate_ratio_to_lmdb: Option<f64>,
    load_s: f64,
    memory_ratio: Option<f64>,
    #[serde(rename = "lost")]
    lost_or_refused_requests: u64,
    #[serde(rename = "verified")]
    all_verified: bool,
}

/// Runs `verbatim btree` without a subcommand.
pub(crate) fn run(args: &Args) -> Result<CommandOutcome> {
    args.simulation.refuse_simulation_only_arguments()?;
    args::refuse_too_short_for_real_time(args.duration)?;
    let settings = args.sweep.settings_to_run(args, Args::set_knob_if_known)?;
    args.picture.check_files_writable()?;
    let nic = OpenNic::open(&args.nic, &args.port)?;
    let (contenders, notes) = contenders_and_unsupported_notes(args, nic.context.capabilities()?)?;
    if args.json {
        for note in &notes {
            print_typed_json("skipped", note)?;
        }
    }
    let rounds = measure(args, &settings, &contenders)?;
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
    let caption = args.sweep.caption_with_knob(&caption(args, kind, device));
    if !args.json {
        if args.sweep.over.is_some() {
            print_line(format_args!("{caption}\n"))?;
            sweeps::print_rows(&args.sweep, &points)?;
        }
        for note in &notes {
            print_line(format_args!("- Left out: {note}."))?;
        }
    }
    let chart = sweeps::chart("Look-ups in a remote B-tree", caption, &args.sweep, &points);
    args.picture.write_requested_files(&chart)?;
    Ok(outcome_of_comparison(verified))
}

/// Measures all rounds of each setting; the contenders run in turn.
fn measure(
    args: &Args,
    settings: &[(Option<usize>, Args)],
    contenders: &[Contender],
) -> Result<Vec<Vec<Round>>> {
    let place = |(_, args): &(_, Args)| assign_cores(args.workers, 1, 1, "a client");
    let placements: Vec<_> = settings.iter().map(place).collect::<Result<_>>()?;
    let indices = 0..settings.len();
    let all: Vec<_> = indices
        .flat_map(|at| contenders.iter().map(move |contender| (at, *contender)))
        .collect();
    let name = |(at, contender): (usize, Contender)| match settings[at].0 {
        Some(value) => format!("{} at {value}", contender.name()),
        None => contender.name().to_owned(),
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
        name: row.name.to_owned(),
        swept_value: at,
        rate_per_s: row.lookups_per_s,
        latency_ns_p50: row.lookup_ns_p50,
        latency_ns_p99: row.lookup_ns_p99,
        all_verified: row.all_verified,
    }
}

/// Formats the command's settings and the NIC for the caption.
fn caption(args: &Args, kind: &str, device: &str) -> String {
    let (key_bytes, value_bytes) = args.strings.key_and_value_bytes();
    let value = |knob, value: usize| args.sweep.value_or_n(knob, value);
    format!(
        "{kind} {device}: {} keys of {key_bytes} bytes, values of {value_bytes}, nodes of {} bytes; 1 client with {} outstanding; workers: {}; median of {} rounds of {} ms, interleaved",
        args.sweep.value_or_n(SweepSetting::Keys, args.keys),
        args.node_size(),
        value(SweepSetting::Window, args.window()),
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
    let (asked, all) = (&args.access[..], &AccessDesign::ALL[..]);
    let (mut contenders, mut notes) = (Vec::new(), Vec::new());
    for &access in if asked.is_empty() { all } else { asked } {
        match access.check(device) {
            Ok(()) => contenders.extend(Contender::contenders_of_access(access)),
            Err(unsupported) if asked.is_empty() => notes.push(unsupported.to_string()),
            Err(unsupported) => return Err(unsupported.into()),
        }
    }
    if contenders.is_empty() {
        bail!(
            "no access design runs here: {}; `verbatim devices` lists other devices",
            notes.join("; ")
        );
    }
    if !args.no_peers {
        contenders.push(Contender::Lmdb);
    }
    Ok((contenders, notes))
}

/// Measures an access design once: starts a server with a loaded tree, then clients one after the other.
fn measure_once(
    args: &Args,
    placement: &ServerAndClientCores,
    round: u32,
    contender: Contender,
) -> Result<Round> {
    let bounce_ns = placement.measure_cache_line_transfer_ns()?;
    if contender == Contender::Lmdb {
        return Ok(Round {
            bounce_ns,
            ..measure_lmdb(args, placement, round)?
        });
    }
    let (mut server, mut said) = start_server(args, &placement.server, contender)?;
    let ServeOrLoadLine::Loaded { seconds, bytes, .. } = said.next_line_or_error()? else {
        bail!("the server did not say that it loaded the tree");
    };
    let ServeOrLoadLine::Listening { address } = said.next_line_or_error()? else {
        bail!("the server did not say where it listens");
    };
    let client = |share: u32, more: &[&str]| {
        let mut command = subcommand_with_nic("btree", "load", &args.nic, &args.port)?;
        let time = (args.duration() / share).max(Duration::from_millis(20));
        let cache = match contender {
            Contender::Read { cache } => cache,
            _ => CACHED_INNER_NODES,
        };
        command
            .arg(&address)
            .args(["--access", contender.access().name()])
            .args(["--keys", &args.keys.to_string()])
            .args(["--cache", &cache.to_string()])
            .args(["--duration", &format!("{}ms", time.as_millis())])
            .args(["--seed", &round.to_string()])
            .args(more)
            .stdin(Stdio::null());
        let (_child, lines) =
            start_on_cores::<ServeOrLoadLine>(command, &placement.clients[0], "client")?;
        read_report(lines)
    };
    let window = format!("--window={}", args.window());
    let length = format!("--scan-length={}", args.scan_length);
    let lookups = client(1, &[&window])?;
    let alone = client(4, &["--window=1", "--postlist=1"])?;
    let scans = client(2, &[&window, "--scans=1", &length])?;
    let changes = client(2, &[&window, "--inserts=1"])?;
    // The server ends when its standard input ends.
    drop(server.0.stdin.take());
    said.next_line_or_error()?;
    let all = [&lookups, &alone, &scans, &changes];
    let (key_bytes, value_bytes) = args.strings.key_and_value_bytes();
    let sum = |of: fn(&LoadReport) -> u64| all.iter().map(|r| of(r)).sum::<u64>();
    #[allow(clippy::cast_precision_loss)] // counts and times far below 2^52
    Ok(Round {
        round,
        name: contender.name(),
        bounce_ns,
        load_s: seconds,
        memory_ratio: Some(bytes as f64 / (args.keys * (key_bytes + value_bytes) as u64) as f64),
        lookups_per_s: lookups.operations_per_s,
        lookup_ns_p50: Some(lookups.latency.p50_ns as f64),
        lookup_ns_p99: Some(lookups.latency.p99_ns as f64),
        one_outstanding_ns_p50: alone.latency.p50_ns as f64,
        scanned_entries_per_s: scans.scanned_entries as f64 / scans.seconds,
        changes_per_s: changes.changes as f64 / changes.seconds,
        verified_answers: sum(|r| r.checked_answers),
        wrong_answers: sum(LoadReport::wrong_answers),
        lost_or_refused_requests: sum(|r| r.unanswered_requests + r.changes_refused_as_full),
    })
}

/// Measures LMDB once, in a worker process of the benchmarks.
fn measure_lmdb(args: &Args, placement: &ServerAndClientCores, round: u32) -> Result<Round> {
    let core = |cores: &[usize]| cores.first().copied().context("no core to run on");
    let (server, client) = (core(&placement.server)?, core(&placement.clients[0])?);
    let mut link = WorkerLink::spawn(&worker_command()?, server)?;
    let value_of_key = |key| value_of(key, 0);
    let entries = match args.strings.sizes() {
        None => LmdbEntryKind::Numbers { value_of_key },
        Some(sizes) => LmdbEntryKind::Strings {
            strings: strings_for_key_numbers(sizes)?,
            value_of_key,
        },
    };
    let setup = |window| lmdb::LmdbParameters {
        loaded_key_count: args.keys,
        entry_kind: entries,
        window,
        seed: u64::from(round) + 1,
    };
    run_pinned(client, || {
        let mut all = LmdbPeer::start(&mut link, setup(args.window()))?;
        let load = all.measure_load()?;
        let lookups = all.measure_lookups(args.duration())?;
        let scans = all.measure_scans(args.scan_length, args.duration() / 2)?;
        let inserts = all.measure_inserts(args.duration() / 2)?;
        all.stop()?;
        let mut alone = LmdbPeer::start(&mut link, setup(1))?;
        alone.measure_load()?;
        let one = alone.measure_lookups(args.duration() / 4)?;
        alone.stop()?;
        Ok(Round {
            round,
            name: Contender::Lmdb.name(),
            bounce_ns: None,
            load_s: load.elapsed_seconds,
            memory_ratio: None,
            lookups_per_s: lookups.requests_per_s(),
            lookup_ns_p50: None,
            lookup_ns_p99: None,
            one_outstanding_ns_p50: 1e9 / one.requests_per_s(),
            scanned_entries_per_s: scans.requests_per_s() * f64::from(args.scan_length),
            changes_per_s: inserts.requests_per_s(),
            verified_answers: lookups.operations + scans.operations + inserts.operations,
            wrong_answers: 0,
            lost_or_refused_requests: 0,
        })
    })
}

fn start_server(
    args: &Args,
    cores: &[usize],
    contender: Contender,
) -> Result<(KillOnDrop, ChildLines<ServeOrLoadLine>)> {
    let batch = match contender {
        Contender::Rpc { batch } => batch,
        _ => 64,
    };
    let mut command = subcommand_with_nic("btree", "serve", &args.nic, &args.port)?;
    command
        .args(["--listen", "127.0.0.1:0", "--until-eof"])
        .args(["--load", &args.keys.to_string()])
        // Reserve room for twice the keys, because clients insert keys.
        .args(["--keys", &(2 * args.keys).to_string()])
        .args(["--node-size", &args.node_size().to_string()])
        .args(args.strings.to_arguments())
        .args(["--workers", &args.workers.to_string()])
        .args(["--batch", &batch.to_string()])
        .args(["--max-window", &args.window().to_string()])
        .args(matches!(contender, Contender::Read { .. }).then_some("--remote-writes"))
        .stdin(Stdio::piped());
    start_on_cores(command, cores, "server")
}

/// Returns the report of a client.
fn read_report(mut lines: ChildLines<ServeOrLoadLine>) -> Result<LoadReport> {
    while let Some(line) = lines.next_line()? {
        if let ServeOrLoadLine::Report(report) = line {
            return Ok(report);
        }
    }
    bail!("a client ended early; its message is above")
}

fn row(contender: Contender, kind: &'static str, rounds: &[Round]) -> Result<Row> {
    let name = contender.name();
    let own: Vec<&Round> = rounds.iter().filter(|round| round.name == name).collect();
    let of = |figure: fn(&Round) -> f64| spread(own.iter().map(|r| figure(r)));
    let median = |figure: fn(&Round) -> f64| of(figure).map(|s| s.median);
    let some = |figure: fn(&Round) -> Option<f64>| {
        let all: Vec<f64> = own.iter().filter_map(|r| figure(r)).collect();
        MedianAndSpread::of(&all).map(|s| s.median)
    };
    let to_lmdb = |figure: fn(&Round) -> f64| {
        let peers = rounds.iter().filter(|r| r.name == Contender::Lmdb.name());
        let ratios: Vec<f64> = own
            .iter()
            .zip(peers)
            .map(|(a, b)| figure(a) / figure(b))
            .collect();
        MedianAndSpread::of(&ratios).map(|s| s.median)
    };
    Ok(Row {
        name,
        summary: contender.summary(),
        nic_or_peer_kind: if contender == Contender::Lmdb {
            "peer"
        } else {
            kind
        },
        lookups_per_s: of(|r| r.lookups_per_s)?,
        lookup_rate_ratio_to_lmdb: to_lmdb(|r| r.lookups_per_s),
        lookup_ns_p50: some(|r| r.lookup_ns_p50),
        lookup_ns_p99: some(|r| r.lookup_ns_p99),
        one_outstanding_ns_p50: median(|r| r.one_outstanding_ns_p50)?,
        scanned_entries_per_s: of(|r| r.scanned_entries_per_s)?,
        changes_per_s: of(|r| r.changes_per_s)?,
        change_rate_ratio_to_lmdb: to_lmdb(|r| r.changes_per_s),
        load_s: median(|r| r.load_s)?,
        memory_ratio: some(|r| r.memory_ratio),
        lost_or_refused_requests: own.iter().map(|r| r.lost_or_refused_requests).sum(),
        all_verified: own
            .iter()
            .all(|r| r.wrong_answers == 0 && r.verified_answers > 0),
    })
}

/// Prints the settings, the NIC and the distance of the cores.
fn show_setup(
    args: &Args,
    kind: &str,
    device: &str,
    bounce_ns: Option<MedianAndSpread>,
) -> Result<()> {
    let bounce = bounce_ns.map_or_else(
        || "both sides share their only core".to_owned(),
        |ns| {
            let ns = format_three_digits(ns.median);
            format!("a cache line takes {ns} ns between the two sides' cores")
        },
    );
    let (key_bytes, value_bytes) = args.strings.key_and_value_bytes();
    print_line(format_args!(
        "{kind} {device}: {} keys of {key_bytes} bytes with values of {value_bytes}, nodes of {} bytes; 1 client with {} outstanding; workers: {}\n\
         median of {} rounds of {} ms, interleaved; {bounce}\n",
        args.keys,
        args.node_size(),
        args.window(),
        args.workers,
        args.rounds,
        args.duration().as_millis(),
    ))
}

fn print_rows(rows: &[Row]) -> Result<()> {
    let header = [
        "access",
        "lookups/s",
        "to lmdb",
        "median",
        "p99",
        "window 1",
        "scanned/s",
        "inserts+deletes/s",
        "to lmdb",
        "load",
        "memory",
        "verified",
    ];
    let mut table = output::table(header, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    for row in rows {
        table.add_row([
            row.name.to_owned(),
            format_rate_mops(row.lookups_per_s),
            format_or_empty(row.lookup_rate_ratio_to_lmdb, |r| {
                format!("{} x", format_three_digits(r))
            }),
            format_or_empty(row.lookup_ns_p50, format_time_ns),
            format_or_empty(row.lookup_ns_p99, format_time_ns),
            format_time_ns(row.one_outstanding_ns_p50),
            format_rate_mops(row.scanned_entries_per_s),
            format_rate_mops(row.changes_per_s),
            format_or_empty(row.change_rate_ratio_to_lmdb, |r| {
                format!("{} x", format_three_digits(r))
            }),
            format!("{} s", format_three_digits(row.load_s)),
            format_or_empty(row.memory_ratio, |r| {
                format!("{} x", format_three_digits(r))
            }),
            yes_or_no(row.all_verified).to_owned(),
        ]);
    }
    print_line(table)?;
    print_line(
        "\nmedian, p99: of lookups with the whole window; window 1: median of a lookup alone; scanned: entries\n\
         lmdb inserts alone; load, memory: of the bulk load (lmdb: by puts); nodes to keys and values\n\
         verified: values are their keys', no key is missing, deleted keys stay away, scans are complete and in order\n",
    )?;
    for row in rows {
        print_line(format_args!("{:<16} {}", row.name, row.summary))?;
    }
    for row in rows.iter().filter(|row| row.lost_or_refused_requests > 0) {
        let lost = format_or_empty(Some(row.lost_or_refused_requests), |n| n);
        eprintln!("note: {}: {lost} lost", row.name);
    }
    Ok(())
}
