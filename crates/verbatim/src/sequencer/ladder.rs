//! Every design side by side: the main job of `verbatim sequencer`.
//!
//! Rounds are interleaved (every design once, then every design again), with a fresh server
//! process and fresh client processes each time, so that what disturbs the machine for a while
//! disturbs every design alike.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bench::peers::KillOnDrop;
use bench::stats::Spread;
use sequencer::{Checker, ClientReport, Design, ServerStats, Unsupported, Verdict};
use serde::Serialize;
use verbs::Capabilities;

use super::lines::Line;
use super::simulated::SimulationArgs;
use crate::Outcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::children::{Lines, Placement, part_of, start};
use crate::nic::Nic;
use crate::output::{self, figure, print, print_typed, time};
use crate::side_by_side::{
    check_clients, check_postlist, interleaved, outcome, place, rate, spread, yes_or_no,
};

/// Arguments of `verbatim sequencer`.
#[derive(clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Run this design only (may be given several times): atomics, rpc, rpc-batch, rpc-batch-mq,
    /// spec-s0 [default: all that the device can run]
    #[arg(long, value_name = "DESIGN")]
    pub(super) design: Vec<Design>,
    /// How long each round of each design runs [default: 500ms; 1ms of virtual time on a simulated NIC]
    #[arg(long, value_name = "TIME", value_parser = args::run_time)]
    pub(super) duration: Option<Duration>,
    /// How often each design runs, in turn with the others
    #[arg(long, value_name = "N", default_value = "3", value_parser = args::number("a count of rounds", 1..=1000u32))]
    rounds: u32,
    /// Client processes, at most 64 [default: 1]; on a simulated NIC clients, at most 16384 [default: 70]
    #[arg(long, value_name = "N", value_parser = args::number("a count of clients", 1..=sequencer::counter::MAX_CLIENTS))]
    pub(super) clients: Option<usize>,
    /// Threads of each client process, each a client of its own
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::number("a count of threads", 1..=64usize))]
    threads: usize,
    /// Worker threads of the server
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::number("a count of workers", 1..=64usize))]
    workers: usize,
    /// Requests that a client has outstanding [default: 256; 32 on a simulated NIC]
    #[arg(long, value_name = "N", value_parser = args::number("a window", 1..=4096usize))]
    pub(super) window: Option<usize>,
    /// Requests that a client posts with one doorbell
    #[arg(long, value_name = "N", default_value = "16", value_parser = args::number("a postlist", 1..=64usize))]
    pub(super) postlist: usize,
    /// Requests that a worker answers with one doorbell, at most [default: 64; 16 on a simulated NIC]
    #[arg(long, value_name = "N", value_parser = args::number("a batch", 1..=64usize))]
    pub(super) batch: Option<usize>,
    /// UD queue pairs of a worker: batches of rpc designs rotate over them, and each has clients of its
    /// own in spec-s0 [default: 3 in rpc-batch-mq, else 1; on a simulated NIC for each of its ports, and 3 in
    /// spec-s0, too]
    #[arg(long, value_name = "N", value_parser = args::number("a count of queue pairs", 1..=64usize))]
    pub(super) queues: Option<usize>,
    /// The first number
    #[arg(long, value_name = "N", default_value = "0", value_parser = args::word)]
    pub(super) start: u64,
    /// Print one JSON object per line: skipped, round, design
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) simulation: SimulationArgs,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

/// Clients that a server process takes at the most: each costs it a thread.
const MAX_CLIENTS: usize = 256;

/// One round of one design.
#[derive(Debug, Serialize)]
struct Round {
    round: u32,
    design: Design,
    /// How long a cache line took between the cores of the first client and the server, one way,
    /// just before; null when they share their only core.
    bounce_ns: Option<f64>,
    requests: u64,
    rate_per_s: f64,
    latency_ns_p50: u64,
    latency_ns_p99: u64,
    client_doorbells: u64,
    server_doorbells: u64,
    wrong_guesses: u64,
    lost: u64,
    verdict: Verdict,
}

/// A row of the table.
#[derive(Debug, Serialize)]
struct Row {
    design: Design,
    summary: &'static str,
    /// What kind of NIC the figures are of.
    kind: &'static str,
    rate_per_s: Spread,
    /// To the first design of the table, round by round.
    ratio_to_first: Spread,
    latency_ns_p50: f64,
    latency_ns_p99: f64,
    /// Answers that left with one doorbell of the server; with atomics, where no server answers,
    /// requests that left with one doorbell of the client.
    requests_per_doorbell: f64,
    /// Of both sides.
    doorbells_per_request: f64,
    /// That carry a request and its answer between the two sides.
    cache_lines_per_request: f64,
    lost: u64,
    verified: bool,
}

impl Args {
    fn clients(&self) -> usize {
        self.clients.unwrap_or(1)
    }

    fn window(&self) -> usize {
        self.window.unwrap_or(256)
    }

    fn batch(&self) -> usize {
        self.batch.unwrap_or(64)
    }

    fn duration(&self) -> Duration {
        self.duration.unwrap_or(Duration::from_millis(500))
    }
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<Outcome> {
    check(&args)?;
    let nic = Nic::open(&args.nic, &args.port)?;
    let (designs, skipped) = choose(&args.design, nic.context.capabilities()?)?;
    if args.json {
        for unsupported in &skipped {
            print_typed("skipped", unsupported)?;
        }
    }
    let (clients, threads) = (args.clients(), args.threads);
    let placement = place(args.workers, clients, threads, "client threads")?;
    let name = |design: Design| design.to_string();
    let rounds = interleaved(args.rounds, &designs, args.json, name, |round, design| {
        one(&args, &placement, round, design).with_context(|| format!("design {design}"))
    })?;
    let kind = args.nic.provider.kind();
    let rows: Vec<Row> = designs
        .iter()
        .map(|design| row(*design, designs[0], kind, &rounds))
        .collect::<Result<_>>()?;
    if args.json {
        for row in &rows {
            print_typed("design", row)?;
        }
    } else {
        let bounces: Vec<f64> = rounds.iter().filter_map(|round| round.bounce_ns).collect();
        let device = nic.context.device_name();
        show(&args, kind, device, Spread::of(&bounces), &rows)?;
        for unsupported in &skipped {
            print(format_args!("- Left out: {unsupported}."))?;
        }
    }
    for round in rounds.iter().filter(|round| !round.verdict.ok) {
        eprintln!("error: {}: {}", round.design, round.verdict);
    }
    Ok(outcome(rows.iter().all(|row| row.verified)))
}

/// Refuses arguments that cannot work.
fn check(args: &Args) -> Result<()> {
    args.simulation.check_absent()?;
    args::check_real_time(args.duration)?;
    let wanted = if args.design.is_empty() {
        &Design::ALL
    } else {
        &args.design[..]
    };
    for design in wanted {
        let end = design.end_of_numbers();
        if args.start >= end {
            bail!(
                "--start {}: {design} gives numbers below {end}; start lower",
                args.start
            );
        }
    }
    check_postlist(args.postlist, args.window())?;
    check_clients(args.clients())?;
    let clients = args.clients() * args.threads;
    if clients > MAX_CLIENTS {
        bail!(
            "--clients {} with --threads {} are {clients} clients, and a server takes \
             {MAX_CLIENTS}; lower one of the two",
            args.clients(),
            args.threads
        );
    }
    Ok(())
}

/// The designs to run on a device, and those that it cannot run.
///
/// # Errors
/// A design that was asked for cannot run, or none can.
fn choose(asked: &[Design], device: &Capabilities) -> Result<(Vec<Design>, Vec<Unsupported>)> {
    for design in asked {
        design.check(device)?;
    }
    if !asked.is_empty() {
        return Ok((asked.to_vec(), Vec::new()));
    }
    let skipped: Vec<_> = Design::ALL
        .iter()
        .filter_map(|design| design.check(device).err())
        .collect();
    let runnable = Design::runnable(device);
    if runnable.is_empty() {
        let why: Vec<_> = skipped.iter().map(ToString::to_string).collect();
        bail!(
            "no design runs on {} ({}): {}; `verbatim devices` lists other devices",
            device.device,
            device.provider,
            why.join("; ")
        );
    }
    Ok((runnable, skipped))
}

/// Runs one design once: a server, its clients, the checker.
fn one(args: &Args, placement: &Placement, round: u32, design: Design) -> Result<Round> {
    let bounce_ns = placement.bounce_ns()?;
    let (mut server, mut server_lines) = start_server(args, &placement.server, design)?;
    let Line::Listening { address, next, .. } = server_lines.expect()? else {
        bail!("the server did not say where it listens");
    };
    let mut clients = Vec::new();
    for cores in &placement.clients {
        clients.push(start_client(args, cores, &address)?);
    }
    let mut checker = Checker::new(next);
    let mut reports = Vec::new();
    for (number, (_child, lines)) in clients.iter_mut().enumerate() {
        while let Some(line) = lines.next()? {
            if let Line::Report(report) = line {
                checker.add(&format!("client {number}"), &report);
                reports.push(*report);
            }
        }
    }
    // The end of its input ends the server.
    drop(server.0.stdin.take());
    let Line::Stats(stats) = server_lines.expect()? else {
        bail!("the server did not say what it did");
    };
    let wanted = args.clients() * args.threads;
    if reports.len() != wanted {
        bail!(
            "{} of {wanted} clients reported; messages of the others are above",
            reports.len()
        );
    }
    Ok(sum_up(
        round,
        design,
        bounce_ns,
        &reports,
        &stats,
        checker.verdict(Some(stats.next)),
    ))
}

fn sum_up(
    round: u32,
    design: Design,
    bounce_ns: Option<f64>,
    reports: &[ClientReport],
    stats: &ServerStats,
    verdict: Verdict,
) -> Round {
    let mut medians: Vec<u64> = reports.iter().map(|r| r.latency.p50_ns).collect();
    medians.sort_unstable();
    Round {
        round,
        design,
        bounce_ns,
        requests: reports.iter().map(|r| r.requests).sum(),
        rate_per_s: reports.iter().map(|r| r.rate).sum(),
        latency_ns_p50: medians[medians.len() / 2],
        latency_ns_p99: reports.iter().map(|r| r.latency.p99_ns).max().unwrap_or(0),
        client_doorbells: reports.iter().map(|r| r.doorbells).sum(),
        server_doorbells: stats.doorbells,
        wrong_guesses: reports.iter().map(|r| r.wrong_guesses).sum(),
        lost: reports.iter().map(|r| r.failures.lost).sum(),
        verdict,
    }
}

fn start_server(args: &Args, cores: &[usize], design: Design) -> Result<(KillOnDrop, Lines<Line>)> {
    let mut command = part("serve", args)?;
    command
        .args([
            "--design",
            design.name(),
            "--listen",
            "127.0.0.1:0",
            "--until-eof",
        ])
        .args(["--workers", &args.workers.to_string()])
        .args(["--batch", &args.batch().to_string()])
        .args(args.queues.map(|n| format!("--queues={n}")))
        .args(["--start", &args.start.to_string()])
        .args([
            "--max-clients",
            &(args.clients() * args.threads).to_string(),
        ])
        .stdin(Stdio::piped());
    start(command, cores, "server")
}

fn start_client(args: &Args, cores: &[usize], address: &str) -> Result<(KillOnDrop, Lines<Line>)> {
    let mut command = part("client", args)?;
    command
        .arg(address)
        .args(["--threads", &args.threads.to_string()])
        .args(["--window", &args.window().to_string()])
        .args(["--postlist", &args.postlist.to_string()])
        .args(["--duration", &format!("{}ms", args.duration().as_millis())])
        .stdin(Stdio::null());
    start(command, cores, "client")
}

fn part(name: &str, args: &Args) -> Result<Command> {
    part_of("sequencer", name, &args.nic, &args.port)
}

/// Cache lines that carry a request and its answer from one side to the other.
///
/// The software NIC writes 16 bytes for a message without payload, and 16 more for each 16 bytes
/// of inline payload; four such pieces share a cache line. An RDMA WRITE puts its bytes into the
/// target's memory and nothing else.
fn cache_lines_per_request(design: Design) -> f64 {
    const LINE: f64 = 64.0;
    const HEADER_ONLY: f64 = 16.0;
    const WITH_8_BYTES: f64 = 32.0;
    const REQUEST_SLOT: f64 = 8.0;
    match design {
        // The counter's line travels to whoever adds.
        Design::Atomics => 1.0,
        Design::Rpc | Design::RpcBatch | Design::RpcBatchMq => (REQUEST_SLOT + WITH_8_BYTES) / LINE,
        Design::SpecS0 => 2.0 * HEADER_ONLY / LINE,
    }
}

#[allow(clippy::cast_precision_loss)] // counts far below 2^52
fn row(design: Design, first: Design, kind: &'static str, rounds: &[Round]) -> Result<Row> {
    let of = |wanted: Design| rounds.iter().filter(move |round| round.design == wanted);
    let sum = |of: fn(&Round) -> u64| {
        rounds
            .iter()
            .filter(|r| r.design == design)
            .map(of)
            .sum::<u64>()
    };
    let requests = sum(|r| r.requests).max(1) as f64;
    let (client, server) = (
        sum(|r| r.client_doorbells) as f64,
        sum(|r| r.server_doorbells) as f64,
    );
    let answering = if server > 0.0 { server } else { client };
    Ok(Row {
        design,
        summary: design.summary(),
        kind,
        rate_per_s: spread(of(design).map(|r| r.rate_per_s))?,
        ratio_to_first: spread(
            of(design)
                .zip(of(first))
                .map(|(round, first)| round.rate_per_s / first.rate_per_s),
        )?,
        latency_ns_p50: spread(of(design).map(|r| r.latency_ns_p50 as f64))?.median,
        latency_ns_p99: spread(of(design).map(|r| r.latency_ns_p99 as f64))?.median,
        requests_per_doorbell: requests / answering.max(1.0),
        doorbells_per_request: (client + server) / requests,
        cache_lines_per_request: cache_lines_per_request(design),
        lost: sum(|r| r.lost),
        verified: of(design).all(|round| round.verdict.ok),
    })
}

fn show(
    args: &Args,
    kind: &str,
    device: &str,
    bounce_ns: Option<Spread>,
    rows: &[Row],
) -> Result<()> {
    show_setup(args, kind, device, bounce_ns)?;
    let header = [
        "design",
        "requests/s",
        "to first",
        "median",
        "p99",
        "per doorbell",
        "doorbells",
        "cache lines",
        "verified",
    ];
    let mut table = output::table(header, &[1, 2, 3, 4, 5, 6, 7]);
    for row in rows {
        table.add_row([
            row.design.to_string(),
            rate(row.rate_per_s),
            format!("{} x", figure(row.ratio_to_first.median)),
            time(row.latency_ns_p50),
            time(row.latency_ns_p99),
            figure(row.requests_per_doorbell),
            figure(row.doorbells_per_request),
            figure(row.cache_lines_per_request),
            yes_or_no(row.verified).to_owned(),
        ]);
    }
    print(table)?;
    print(
        "\nmedian, p99: from the doorbell of a postlist to the last of its answers\n\
         per doorbell: requests answered with one doorbell (atomics: posted with one)\n\
         doorbells, cache lines: of both sides, for one request and its answer\n",
    )?;
    for row in rows {
        print(format_args!("{:<13} {}", row.design.name(), row.summary))?;
    }
    print("")?;
    for line in lessons(rows) {
        print(format_args!("- {line}"))?;
    }
    for row in rows.iter().filter(|row| row.lost > 0) {
        eprintln!(
            "note: {}: {} answers were lost and asked for again",
            row.design, row.lost
        );
    }
    Ok(())
}

/// What ran, and where.
fn show_setup(args: &Args, kind: &str, device: &str, bounce_ns: Option<Spread>) -> Result<()> {
    let bounce = bounce_ns.map_or_else(
        || "both sides share their only core".to_owned(),
        |ns| {
            let [median, min, max] = [ns.median, ns.min, ns.max].map(figure);
            format!("a cache line takes {median} ns ({min}..{max}) between the two sides' cores")
        },
    );
    let plural = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    print(format_args!(
        "{kind} {device}: {} with {}, {} outstanding each, {} to a postlist; {}\n\
         median of {} rounds of {} ms, interleaved; {}\n",
        plural(args.clients(), "client process").replace("processs", "processes"),
        plural(args.threads, "thread"),
        args.window(),
        args.postlist,
        plural(args.workers, "worker"),
        args.rounds,
        args.duration().as_millis(),
        bounce,
    ))
}

/// What the figures teach, in their own numbers: what pays and, as frankly, what does not.
fn lessons(rows: &[Row]) -> Vec<String> {
    let of = |design: Design| rows.iter().find(|row| row.design == design);
    let gain = |to: &Row, from: &Row| to.rate_per_s.median / from.rate_per_s.median;
    let times = |gain: f64| match gain {
        gain if gain >= 1.05 => format!("{} x faster", figure(gain)),
        gain if gain <= 0.95 => format!("{} x slower here", figure(1.0 / gain)),
        _ => "no difference here".to_owned(),
    };
    let mut lines = Vec::new();
    if let (Some(from), Some(to)) = (of(Design::Rpc), of(Design::RpcBatch)) {
        lines.push(format!(
            "Doorbell batching: {} answers leave with one doorbell where rpc sends {}, and one \
             atomic add serves them all: {}.",
            figure(to.requests_per_doorbell),
            figure(from.requests_per_doorbell),
            times(gain(to, from)),
        ));
    }
    if let (Some(from), Some(to)) = (of(Design::RpcBatch), of(Design::RpcBatchMq)) {
        lines.push(format!(
            "Several queue pairs: a NIC's processing unit works on one queue pair at a time, so \
             rotating over several lets more units work: {}.",
            times(gain(to, from)),
        ));
    }
    if let (Some(from), Some(to)) = (
        of(Design::RpcBatchMq).or(of(Design::RpcBatch)),
        of(Design::SpecS0),
    ) {
        lines.push(format!(
            "Header-only messages: a request and its answer take {} cache lines instead of {}, \
             with the number in the immediate: {}.",
            figure(to.cache_lines_per_request),
            figure(from.cache_lines_per_request),
            times(gain(to, from)),
        ));
    }
    if let (Some(atomics), Some(best)) = (
        of(Design::Atomics),
        rows.iter()
            .filter(|row| row.design != Design::Atomics)
            .max_by(|a, b| a.rate_per_s.median.total_cmp(&b.rate_per_s.median)),
    ) {
        let gain = gain(best, atomics);
        let alone = if gain < 0.95 {
            " Few clients leave that line where it is; more of them (--clients) pull it to and fro."
        } else {
            ""
        };
        lines.push(format!(
            "Remote atomics need no server CPU, and each of them needs the counter's cache line to \
             itself: against them, {} is {}.{alone}",
            best.design,
            times(gain),
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::{Capability, Lack};

    fn round(number: u32, design: Design, rate_per_s: f64) -> Round {
        let mut checker = Checker::new(0);
        checker.add_numbers("a", &(0..10).collect());
        Round {
            round: number,
            design,
            bounce_ns: Some(30.0),
            requests: 100,
            rate_per_s,
            latency_ns_p50: 1500,
            latency_ns_p99: 9000,
            client_doorbells: 10,
            server_doorbells: if design == Design::Atomics { 0 } else { 50 },
            wrong_guesses: 0,
            lost: 0,
            verdict: checker.verdict(Some(10)),
        }
    }

    fn rows() -> Vec<Row> {
        let mut rounds = Vec::new();
        for number in 0..3 {
            for (place, design) in (1u32..).zip(Design::ALL) {
                rounds.push(round(number, design, f64::from(place * (number + 1)) * 1e6));
            }
        }
        Design::ALL
            .iter()
            .map(|design| row(*design, Design::Atomics, "software NIC", &rounds).unwrap())
            .collect()
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let rows = rows();
        let ratio = rows[4].ratio_to_first;
        assert_eq!((ratio.min, ratio.median, ratio.max), (5.0, 5.0, 5.0));
        assert_eq!(rows[0].ratio_to_first.median, 1.0);
    }

    #[test]
    fn doorbells_are_counted_on_both_sides() {
        let rows = rows();
        assert_eq!(rows[0].requests_per_doorbell, 10.0);
        assert_eq!(rows[1].requests_per_doorbell, 2.0);
        assert_eq!(rows[1].doorbells_per_request, 0.6);
    }

    #[test]
    fn a_header_only_exchange_takes_the_fewest_lines() {
        let lines = Design::ALL.map(cache_lines_per_request);
        assert!(lines[4] < lines[3] && lines[3] < lines[0], "{lines:?}");
    }

    /// What the software NIC can do, less `lacks`.
    fn device(lacks: &[Capability]) -> Capabilities {
        let context = verbs::Provider::softnic()
            .device(None)
            .and_then(|d| d.open());
        let context = context.unwrap();
        let lack = |&capability| Lack {
            capability,
            why: "so says the test".to_owned(),
        };
        Capabilities {
            lacks: lacks.iter().map(lack).collect(),
            ..context.capabilities().unwrap().clone()
        }
    }

    #[test]
    fn what_the_device_cannot_run_is_left_out_and_named() {
        let (designs, skipped) = choose(&[], &device(&[])).unwrap();
        assert_eq!(
            (designs.as_slice(), skipped.as_slice()),
            (&Design::ALL[..], &[][..])
        );
        let no_uc = device(&[Capability::Uc]);
        let (designs, skipped) = choose(&[], &no_uc).unwrap();
        assert_eq!(designs, [Design::Atomics, Design::SpecS0]);
        let names: Vec<_> = skipped.iter().map(|s| s.design).collect();
        assert_eq!(names, ["rpc", "rpc-batch", "rpc-batch-mq"]);
        let line = serde_json::to_value(&skipped[0]).unwrap();
        assert_eq!(line["design"], "rpc");
        assert_eq!(line["lacks"][0]["capability"], "uc");
        assert_eq!(line["lacks"][0]["why"], "so says the test");
    }

    #[test]
    fn a_design_that_was_asked_for_is_not_left_out_but_refused() {
        let no_uc = device(&[Capability::Uc]);
        let asked = [Design::SpecS0, Design::Rpc];
        assert_eq!(choose(&asked[..1], &no_uc).unwrap().0, asked[..1]);
        let error = choose(&asked, &no_uc).unwrap_err().to_string();
        let start =
            "design rpc needs UC, which softnic0 (softnic) does not have (so says the test)";
        assert!(error.starts_with(start), "{error}");
        assert!(
            error.ends_with("designs that run there: atomics, spec-s0"),
            "{error}"
        );
    }

    #[test]
    fn a_device_that_can_run_nothing_is_an_error() {
        let nothing = device(&[Capability::Atomics, Capability::Ud]);
        let error = choose(&[], &nothing).unwrap_err().to_string();
        assert!(
            error.starts_with("no design runs on softnic0 (softnic): design atomics needs atomics"),
            "{error}"
        );
    }

    #[test]
    fn lessons_speak_of_what_ran() {
        let rows = rows();
        assert_eq!(lessons(&rows).len(), 4);
        assert!(
            lessons(&rows)[0].contains("1.50 x faster"),
            "{:?}",
            lessons(&rows)
        );
        assert!(lessons(&rows[..1]).is_empty());
    }

    #[test]
    fn one_number_twice_and_the_design_is_not_verified() {
        let mut bad = round(0, Design::Rpc, 1e6);
        bad.verdict.ok = false;
        let rounds = [round(0, Design::Rpc, 1e6), bad];
        assert!(
            !row(Design::Rpc, Design::Rpc, "software NIC", &rounds)
                .unwrap()
                .verified
        );
    }
}
