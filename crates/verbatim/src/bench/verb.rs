//! `verbatim bench rc-write` and its like: one verb with every knob.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use bench::micro::{
    self, Knobs, Latency, MAX_PAYLOAD_BYTES, MAX_WINDOW, Outcome as Measured, PingPong, Rate,
    Runner, Stream, Task, Verb,
};
use bench::record::Record;
use bench::stats::Spread;
use bench::workload::NicChoice;
use clap::ValueEnum;
use nicmodel::Profile;
use serde::Serialize;

use super::{CoresArgs, Lines, bytes, nic_choice, warn_of_circumstances, with_range, worker};
use crate::Outcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::model::NicProfileArgs;
use crate::output::{self, figure, print, print_typed};

pub(super) const EXAMPLES: &str = "\
Examples:
  verbatim bench rc-write
  verbatim bench rc-send --payload 64 --batch 1
  verbatim bench rc-read --payload 1M --window 4 --json
  verbatim bench ud-send --payload 0 --provider system --device rxe0
  verbatim bench ud-send --payload 60 --nic cib         one core on a simulated Connect-IB, in virtual time

Every SEND, READ and atomic is checked, and of WRITEs what came last to each place. The time is the
receiver's for SENDs and the requester's for the others; the first tenth is warm-up.";

pub(super) const LATENCY_EXAMPLES: &str = "\
Examples:
  verbatim bench latency --verb write --payload 64
  verbatim bench latency --verb read --payload 4K --provider system --json
  verbatim bench latency --verb write --nic cib

Every exchange is timed into a histogram, less what reading the clock takes.";

/// What every measurement of one verb takes.
#[derive(clap::Args)]
pub(super) struct Common {
    /// Bytes of payload, also with K (KiB) or M (MiB) behind; SENDs take 0 for header-only messages
    /// [default: 8]
    #[arg(long, value_name = "BYTES", value_parser = args::bytes(MAX_PAYLOAD_BYTES))]
    payload: Option<usize>,
    /// Payload inside the work request [default: up to 64 bytes]
    #[arg(long, overrides_with = "no_inline")]
    inline: bool,
    /// Payload from registered memory, however short
    #[arg(long)]
    no_inline: bool,
    /// How long a round takes [default: 500ms; on a simulated NIC 1ms of virtual time, more with long payloads]
    #[arg(long, value_name = "TIME", value_parser = args::duration)]
    duration: Option<Duration>,
    /// Rounds, whose median is printed
    #[arg(long, value_name = "N", default_value = "5", value_parser = args::number("a count of rounds", 1..=1000u32))]
    pub(super) rounds: u32,
    #[command(flatten)]
    pub(super) cores: CoresArgs,
    /// Print one JSON object per line: record, sample, result
    #[arg(long)]
    pub(super) json: bool,
    /// Keep the run record with all raw samples in this file, as JSON lines
    #[arg(long, value_name = "FILE")]
    pub(super) record: Option<PathBuf>,
    #[command(flatten)]
    pub(super) nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
    #[command(flatten)]
    pub(super) simulation: SimulationArgs,
}

/// What puts a measurement on a simulated NIC.
#[derive(clap::Args)]
#[command(next_help_heading = "Simulation")]
pub(super) struct SimulationArgs {
    /// Run on two simulated machines with this NIC, in virtual time: cx, cx3 or cib. One round is measured: the others
    /// would be the same
    #[arg(long = "nic", id = "simulated_nic", value_name = "NAME", conflicts_with_all = ["nic_file", "provider", "device", "rounds", "record", "cores"])]
    name: Option<String>,
    /// The same with a NIC of your own, described by a profile (verbatim model --template)
    #[arg(long = "nic-file", id = "nic_file", value_name = "FILE", conflicts_with_all = ["provider", "device", "rounds", "record", "cores"])]
    file: Option<PathBuf>,
}

impl SimulationArgs {
    /// The profile of the simulated NIC, if one was asked for.
    pub(super) fn profile(&self) -> Result<Option<Profile>> {
        if self.name.is_none() && self.file.is_none() {
            return Ok(None);
        }
        let chosen = NicProfileArgs {
            nic: self.name.clone(),
            nic_file: self.file.clone(),
        };
        chosen.chosen().map(Some)
    }
}

impl Common {
    /// The NIC that is measured.
    pub(super) fn nic_choice(&self) -> NicChoice {
        nic_choice(&self.nic, &self.port)
    }

    fn knobs(&self) -> Knobs {
        let inline = match (self.inline, self.no_inline) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        };
        Knobs {
            payload_bytes: self.payload,
            inline,
            ..Knobs::default()
        }
    }

    /// How long a round with such a payload takes.
    pub(super) fn duration_ms(&self, payload_bytes: Option<usize>) -> u64 {
        let simulated = self.simulation.name.is_some() || self.simulation.file.is_some();
        let usual = if simulated {
            simulated_ms(payload_bytes.unwrap_or(0))
        } else {
            500
        };
        self.duration.map_or(usual, |duration| {
            u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
        })
    }
}

/// Virtual time in which 32 windows pass at 10 GB/s, in ms: with fewer, what is still on its way when the time begins and
/// ends is a part of the rate. At least 1 ms.
fn simulated_ms(payload_bytes: usize) -> u64 {
    let window_bytes = (256 * payload_bytes).min((8 << 20).max(2 * payload_bytes));
    (32 * window_bytes as u64 / 10_000_000).max(1)
}

/// Arguments of a command that measures a rate.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct StreamArgs {
    /// Work requests that one doorbell announces [default: 16, or less in a small window]
    #[arg(long, value_name = "N", value_parser = args::number("a batch", 1..=MAX_WINDOW))]
    batch: Option<usize>,
    /// Work requests outstanding at most [default: 256, or less with long payloads]
    #[arg(long, value_name = "N", value_parser = args::number("a window", 1..=MAX_WINDOW))]
    window: Option<usize>,
    /// One work request in so many is signaled [default: 16, or less in a small window]
    #[arg(long, value_name = "N", value_parser = args::number("a signaled period", 1..=MAX_WINDOW))]
    signal_every: Option<usize>,
    #[command(flatten)]
    pub(super) common: Common,
}

impl StreamArgs {
    /// What was asked for of the knobs.
    pub(super) fn knobs(&self) -> Knobs {
        Knobs {
            batch: self.batch,
            window: self.window,
            signal_every: self.signal_every,
            ..self.common.knobs()
        }
    }
}

/// Arguments of `verbatim bench latency`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct LatencyArgs {
    /// What is posted
    #[arg(long, value_enum, default_value_t = LatencyVerb::Send)]
    verb: LatencyVerb,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, ValueEnum)]
enum LatencyVerb {
    /// SEND over RC, sent back
    Send,
    /// SEND over UD, sent back
    UdSend,
    /// RDMA WRITE over RC, written back
    Write,
    /// RDMA WRITE over UC, written back
    UcWrite,
    /// RDMA READ, from post to completion
    Read,
    /// Fetch-and-add, from post to completion
    Atomics,
}

impl LatencyVerb {
    fn verb(self) -> Verb {
        match self {
            LatencyVerb::Send => Verb::RcSend,
            LatencyVerb::UdSend => Verb::UdSend,
            LatencyVerb::Write => Verb::RcWrite,
            LatencyVerb::UcWrite => Verb::UcWrite,
            LatencyVerb::Read => Verb::RcRead,
            LatencyVerb::Atomics => Verb::Atomics,
        }
    }
}

/// Measures a rate.
pub(super) fn stream(verb: Verb, args: &StreamArgs) -> Result<Outcome> {
    let stream = Stream::new(
        verb,
        &args.knobs(),
        args.common.duration_ms(args.common.payload),
    )?;
    measure(&Task::Stream(stream), &args.common)
}

/// Measures a latency.
pub(super) fn latency(args: &LatencyArgs) -> Result<Outcome> {
    let common = &args.common;
    let ping = PingPong::new(args.verb.verb(), &common.knobs(), common.duration_ms(None))?;
    measure(&Task::PingPong(ping), common)
}

/// How much is measured, for the record.
#[derive(Serialize)]
struct Settings {
    rounds: u32,
    task: Task,
}

/// One line of `--json` and of the run record.
#[derive(Serialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
enum Line<'a> {
    /// The circumstances; first.
    Record(&'a Record<Settings>),
    /// One round.
    Sample { round: u32, outcome: &'a Measured },
    /// The summary of a rate; last.
    Rate(&'a RateResult),
    /// The summary of a latency; last.
    Latency(&'a LatencyResult),
}

/// Medians of the rounds of a stream.
#[derive(Serialize)]
pub(super) struct RateResult {
    pub(super) rate_mops: Option<Spread>,
    pub(super) bandwidth_gbytes_per_s: Option<Spread>,
    /// Of all rounds.
    pub(super) verified_ops: u64,
    /// Of all rounds.
    pub(super) lost_ops: u64,
}

/// Medians of the rounds of a ping-pong.
#[derive(Serialize)]
struct LatencyResult {
    latency_ns_p50: Option<Spread>,
    latency_ns_p99: Option<Spread>,
    latency_ns_p999: Option<Spread>,
    latency_ns_mean: Option<Spread>,
    /// Of all rounds.
    verified_ops: u64,
}

/// What came of a simulated measurement, as `--json` prints it.
#[derive(Serialize)]
struct Simulated<'a> {
    nic: &'a str,
    task: &'a Task,
    outcome: &'a Measured,
}

/// Measures on a simulated NIC.
fn simulate(profile: &Profile, task: &Task, args: &Common) -> Result<Outcome> {
    let outcome = bench::simulated::micro::run(profile, task)?;
    let nic = profile.name.as_str();
    if args.json {
        print_typed(
            "simulated",
            &Simulated {
                nic,
                task,
                outcome: &outcome,
            },
        )?;
        return Ok(Outcome::Done);
    }
    print(format_args!(
        "Simulated in virtual time, not measured, one core: {}",
        profile.title
    ))?;
    if profile.host.post_wqe_ns.is_none() {
        eprintln!("note: profile {nic} has no processor costs: its cores take no time for a verb");
    }
    match task {
        Task::Stream(stream) => show_rate(stream, &rate_result(&[outcome]))?,
        Task::PingPong(ping) => show_latency(ping, &latency_result(&[outcome]))?,
    }
    Ok(Outcome::Done)
}

fn measure(task: &Task, args: &Common) -> Result<Outcome> {
    if let Some(profile) = args.simulation.profile()? {
        return simulate(&profile, task, args);
    }
    args.nic.settle_link_layer()?;
    let cores = args.cores.settle()?;
    let mut lines = Lines::new(args.record.as_deref(), args.json)?;
    let nic = args.nic_choice();
    let settings = Settings {
        rounds: args.rounds,
        task: *task,
    };
    let record = Record::new(cores, nic.provider.clone(), nic.device_name()?, settings);
    lines.tell(&Line::Record(&record))?;
    let mut runner = Runner::new(cores, worker()?);
    let bar = output::progress(args.rounds.into());
    let mut outcomes = Vec::new();
    for round in 0..args.rounds {
        let outcome = runner.measure(&nic, task)?;
        lines.tell(&Line::Sample {
            round,
            outcome: &outcome,
        })?;
        outcomes.push(outcome);
        bar.inc(1);
    }
    bar.finish_and_clear();
    warn_of_circumstances(&record);
    match task {
        Task::Stream(stream) => {
            let result = rate_result(&outcomes);
            lines.tell(&Line::Rate(&result))?;
            if !args.json {
                print(head(&record, args.rounds))?;
                show_rate(stream, &result)?;
            }
        }
        Task::PingPong(ping) => {
            let result = latency_result(&outcomes);
            lines.tell(&Line::Latency(&result))?;
            if !args.json {
                print(head(&record, args.rounds))?;
                show_latency(ping, &result)?;
            }
        }
    }
    Ok(Outcome::Done)
}

/// Medians of a stream's rounds.
pub(super) fn rate_result(outcomes: &[Measured]) -> RateResult {
    let rates: Vec<&Rate> = outcomes
        .iter()
        .filter_map(|outcome| match outcome {
            Measured::Rate(rate) => Some(rate),
            Measured::Latency(_) => None,
        })
        .collect();
    let spread =
        |of: fn(&Rate) -> f64| Spread::of(&rates.iter().map(|r| of(r)).collect::<Vec<_>>());
    RateResult {
        rate_mops: spread(|r| r.rate_mops),
        bandwidth_gbytes_per_s: spread(|r| r.bandwidth_gbytes_per_s),
        verified_ops: rates.iter().map(|r| r.verified_ops).sum(),
        lost_ops: rates.iter().map(|r| r.lost_ops).sum(),
    }
}

fn latency_result(outcomes: &[Measured]) -> LatencyResult {
    let latencies: Vec<&Latency> = outcomes
        .iter()
        .filter_map(|outcome| match outcome {
            Measured::Latency(latency) => Some(latency),
            Measured::Rate(_) => None,
        })
        .collect();
    let spread =
        |of: fn(&Latency) -> f64| Spread::of(&latencies.iter().map(|l| of(l)).collect::<Vec<_>>());
    LatencyResult {
        latency_ns_p50: spread(|l| l.latency_ns_p50),
        latency_ns_p99: spread(|l| l.latency_ns_p99),
        latency_ns_p999: spread(|l| l.latency_ns_p999),
        latency_ns_mean: spread(|l| l.latency_ns_mean),
        verified_ops: latencies.iter().map(|l| l.verified_ops).sum(),
    }
}

/// Where and how a measurement was made.
pub(super) fn head<S>(record: &Record<S>, rounds: u32) -> String {
    format!(
        "{} {} on {}, {} (commit {}), cores {} and {}; median of {} rounds (min..max)",
        if record.provider == "softnic" {
            "software NIC"
        } else {
            "measured NIC"
        },
        record.device,
        record.cpu_model,
        record.kernel,
        record.commit,
        record.cores.requester,
        record.cores.responder,
        rounds,
    )
}

fn payload(verb: Verb, payload_bytes: usize, inline: bool) -> String {
    let inline = if inline { " inline" } else { "" };
    match payload_bytes {
        0 => format!("{}, header-only", verb.label()),
        n => format!("{}, {}{inline}", verb.label(), bytes(n)),
    }
}

fn show_rate(stream: &Stream, result: &RateResult) -> Result<()> {
    let micro::Stream {
        batch,
        window,
        signal_every,
        ..
    } = *stream;
    print(format_args!(
        "{}, {batch} a doorbell, {window} outstanding, 1 in {signal_every} signaled\n\
         message rate  {}\nbandwidth     {}\nchecked       {} messages",
        payload(stream.verb, stream.payload_bytes, stream.inline),
        with_range(result.rate_mops, "M/s"),
        with_range(result.bandwidth_gbytes_per_s, "GB/s"),
        result.verified_ops,
    ))?;
    if result.lost_ops > 0 {
        print(format_args!("lost          {} datagrams", result.lost_ops))?;
    }
    Ok(())
}

fn show_latency(ping: &PingPong, result: &LatencyResult) -> Result<()> {
    print(format_args!(
        "{}: {}",
        payload(ping.verb, ping.payload_bytes, ping.inline),
        if ping.is_one_way() {
            "half of a round trip"
        } else {
            "from post to completion"
        }
    ))?;
    let lines = [
        ("median ", result.latency_ns_p50),
        ("p99    ", result.latency_ns_p99),
        ("p99.9  ", result.latency_ns_p999),
        ("mean   ", result.latency_ns_mean),
    ];
    for (name, spread) in lines {
        let shown = spread.map_or_else(
            || "-".to_owned(),
            |s| {
                let [median, min, max] = [s.median, s.min, s.max].map(|ns| figure(ns / 1e3));
                format!("{median} ({min}..{max}) µs")
            },
        );
        print(format_args!("{name}  {shown}"))?;
    }
    print(format_args!("checked  {} exchanges", result.verified_ops))
}
