//! `verbatim bench rc-write` and similar commands: the rate or latency of one verb.

use anyhow::Result;
use bench::micro::{
    MeasuredRole, MeasurementTask, PingPong, PingPongLatency, StreamRate, TaskResult as Measured,
    Verb, VerbStream,
};
use bench::run_circumstances::RunCircumstances;
use bench::stats::MedianAndSpread;
use chart::{Axis, Chart, Series};
use clap::ValueEnum;
use nicmodel::Profile;
use serde::Serialize;

use super::common::{
    JsonLineWriter, format_byte_count, format_median_and_range, note_if_core_costs_unknown,
    warn_of_debug_build_and_load,
};
use super::parameters::{CommonArgs, MIN_VIRTUAL_DURATION_MS, StreamArgs};
use crate::CommandOutcome;
use crate::output::{format_three_digits, print_line};
use crate::picture::axis_coordinate;
use crate::steps::CommandSteps;

pub(super) const EXAMPLES: &str = "\
Examples:
  verbatim bench rc-write
  verbatim bench rc-send --payload 64 --batch 1
  verbatim bench rc-read --payload 1M --window 4 --json
  verbatim bench ud-send --payload 0 --provider system --device rxe0
  verbatim bench ud-send --payload 60 --nic cib         one core on a simulated Connect-IB, in virtual time
  verbatim bench ud-recv --header-only --nic cib        all its cores, as the responder of as many machines
  verbatim bench atomics --direction inbound --addresses 4096 --spacing 64 --nic cib
  verbatim bench rc-write --threads 2 --queue-pairs 4 --pages huge
  verbatim bench rc-read --listen                       the other side; on another host, with the same settings:
  verbatim bench rc-read --connect HOST --provider system

Every SEND, READ and atomic is checked, and of WRITEs what came last to each place. The time is the \
receiver's for SENDs and the requester's for the others; the first tenth is warm-up.";

pub(super) const LATENCY_EXAMPLES: &str = "\
Examples:
  verbatim bench latency --verb write --payload 64
  verbatim bench latency --verb read --payload 4K --provider system --json
  verbatim bench latency --verb write --nic cib

Every exchange is timed into a histogram, less what reading the clock takes.";

/// Arguments of `verbatim bench latency`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct LatencyArgs {
    /// What is posted
    #[arg(long, value_enum, default_value_t = LatencyVerb::Send)]
    verb: LatencyVerb,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum LatencyVerb {
    /// SEND over RC, sent back
    Send,
    /// SEND over UD, sent back
    UdSend,
    /// SEND over UC, sent back
    UcSend,
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
            LatencyVerb::UcSend => Verb::UcSend,
            LatencyVerb::Write => Verb::RcWrite,
            LatencyVerb::UcWrite => Verb::UcWrite,
            LatencyVerb::Read => Verb::RcRead,
            LatencyVerb::Atomics => Verb::Atomics,
        }
    }
}

/// Measures a rate.
pub(super) fn run_rate(
    verb: Verb,
    measured_role: Option<MeasuredRole>,
    args: &StreamArgs,
) -> Result<CommandOutcome> {
    let profile = args.common.simulation.profile()?;
    let parameters = args.parameters(verb, measured_role, profile.as_ref())?;
    let stream = args.common.verb_stream(verb, &parameters)?;
    measure(
        &MeasurementTask::Stream(stream),
        &args.common,
        profile.as_ref(),
    )
}

/// Measures a latency.
pub(super) fn run_latency(args: &LatencyArgs) -> Result<CommandOutcome> {
    let common = &args.common;
    let ping = PingPong::new(
        args.verb.verb(),
        &common.parameters(),
        common.round_duration_ms(MIN_VIRTUAL_DURATION_MS)?,
    )?;
    measure(
        &MeasurementTask::PingPong(ping),
        common,
        common.simulation.profile()?.as_ref(),
    )
}

/// The settings of the measurement, for the run record.
#[derive(Serialize)]
struct Settings {
    rounds: u32,
    task: MeasurementTask,
}

/// One line of `--json` and of the `--record` file.
#[derive(Serialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
enum JsonLine<'a> {
    /// The circumstances of the run; this is the first line.
    Record(&'a RunCircumstances<Settings>),
    /// All results of a simulated measurement.
    Simulated(SimulatedResult<'a>),
    /// The result of one round.
    Sample { round: u32, outcome: &'a Measured },
    /// The summary of a rate; this is the last line.
    Rate(&'a RateMedians),
    /// The summary of a latency; this is the last line.
    Latency(&'a LatencyMedians),
}

/// Medians of the rounds of a stream.
#[derive(Serialize)]
pub(super) struct RateMedians {
    pub(super) rate_mops: Option<MedianAndSpread>,
    pub(super) bandwidth_gbytes_per_s: Option<MedianAndSpread>,
    /// Number of verified operations in all rounds.
    pub(super) verified_ops: u64,
    /// Number of lost operations in all rounds.
    pub(super) lost_ops: u64,
}

/// Medians of the rounds of a ping-pong.
#[derive(Serialize)]
struct LatencyMedians {
    latency_ns_p50: Option<MedianAndSpread>,
    latency_ns_p99: Option<MedianAndSpread>,
    latency_ns_p999: Option<MedianAndSpread>,
    latency_ns_mean: Option<MedianAndSpread>,
    /// Number of verified operations in all rounds.
    verified_ops: u64,
}

/// The result of a simulated measurement, as `--json` prints it.
#[derive(Serialize)]
struct SimulatedResult<'a> {
    nic: &'a str,
    task: &'a MeasurementTask,
    outcome: &'a Measured,
}

/// Measures on a simulated NIC.
fn simulate(
    profile: &Profile,
    task: &MeasurementTask,
    args: &CommonArgs,
) -> Result<CommandOutcome> {
    args.picture.check_files_writable()?;
    let mut lines = JsonLineWriter::new(args.record.as_deref(), args.json)?;
    let outcome = bench::simulated::micro::run(profile, task)?;
    let nic = profile.name.as_str();
    lines.write_line(&JsonLine::Simulated(SimulatedResult {
        nic,
        task,
        outcome: &outcome,
    }))?;
    let caption = format!("simulated in virtual time: {}", profile.title);
    args.picture
        .write_requested_files(&chart(task, caption, std::slice::from_ref(&outcome)))?;
    if args.json {
        return Ok(CommandOutcome::Done);
    }
    print_line(format_args!(
        "Simulated in virtual time, not measured: {}",
        profile.title
    ))?;
    note_if_core_costs_unknown(profile);
    match task {
        MeasurementTask::Stream(stream) => show_rate(stream, &rate_medians(&[outcome]))?,
        MeasurementTask::PingPong(ping) => show_latency(ping, &latency_medians(&[outcome]))?,
    }
    Ok(CommandOutcome::Done)
}

fn measure(
    task: &MeasurementTask,
    args: &CommonArgs,
    profile: Option<&Profile>,
) -> Result<CommandOutcome> {
    if let Some(profile) = profile {
        return simulate(profile, task, args);
    }
    args.picture.check_files_writable()?;
    args.nic.apply_by_reexec()?;
    let tasks = std::slice::from_ref(task);
    if args.ends.serves_as_other_side() {
        return args.ends.serve_other_side(&tasks, &args.nic_choice());
    }
    let cores = args.cores.choose_cores()?;
    let mut lines = JsonLineWriter::new(args.record.as_deref(), args.json)?;
    let nic = args.nic_choice();
    let settings = Settings {
        rounds: args.rounds,
        task: *task,
    };
    let record = RunCircumstances::new(cores, nic.provider.clone(), nic.device_name()?, settings);
    lines.write_line(&JsonLine::Record(&record))?;
    let mut runner = args.ends.worker_pool(cores, tasks)?;
    let steps = CommandSteps::new(args.rounds.into())?;
    let mut outcomes = Vec::new();
    for round in 0..args.rounds {
        let name = format!("round {}", round + 1);
        let Some(outcome) = steps.run_unless_interrupted(name, || runner.measure(&nic, task))?
        else {
            break;
        };
        lines.write_line(&JsonLine::Sample {
            round,
            outcome: &outcome,
        })?;
        outcomes.push(outcome);
    }
    drop(steps);
    warn_of_debug_build_and_load(&record);
    args.picture.write_requested_files(&chart(
        task,
        describe_run(&record, args.rounds),
        &outcomes,
    ))?;
    match task {
        MeasurementTask::Stream(stream) => {
            let result = rate_medians(&outcomes);
            lines.write_line(&JsonLine::Rate(&result))?;
            if !args.json {
                print_line(describe_run(&record, args.rounds))?;
                show_rate(stream, &result)?;
            }
        }
        MeasurementTask::PingPong(ping) => {
            let result = latency_medians(&outcomes);
            lines.write_line(&JsonLine::Latency(&result))?;
            if !args.json {
                print_line(describe_run(&record, args.rounds))?;
                show_latency(ping, &result)?;
            }
        }
    }
    Ok(CommandOutcome::Done)
}

/// Makes a chart of the rounds, in the order in which they ran.
fn chart(task: &MeasurementTask, caption: String, outcomes: &[Measured]) -> Chart {
    let rounds = || (1..).map(axis_coordinate).zip(outcomes);
    let rates = rounds().filter_map(|(round, outcome)| match outcome {
        Measured::Rate(rate) => Some((round, rate.rate_mops)),
        Measured::Latency(_) => None,
    });
    let latency = |of: fn(&PingPongLatency) -> f64| {
        let points = rounds().filter_map(move |(round, outcome)| match outcome {
            Measured::Latency(latency) => Some((round, of(latency) / 1e3)),
            Measured::Rate(_) => None,
        });
        points.collect::<Vec<_>>()
    };
    let (title, y, series) = match task {
        MeasurementTask::Stream(stream) => (
            describe_payload(stream.verb, stream.payload_bytes, stream.inline)
                + &describe_changed_settings(stream),
            Axis::auto("10⁶ messages a second"),
            vec![Series::new("message rate", rates)],
        ),
        MeasurementTask::PingPong(ping) => (
            describe_payload(ping.verb, ping.payload_bytes, ping.inline),
            Axis::auto("µs"),
            vec![
                Series::new("median", latency(|l| l.latency_ns_p50)),
                Series::new("p99", latency(|l| l.latency_ns_p99)),
                Series::new("p99.9", latency(|l| l.latency_ns_p999)),
            ],
        ),
    };
    Chart {
        title: format!("{title}, round by round"),
        caption,
        x: Axis::linear("round"),
        y,
        series,
        constant_levels: Vec::new(),
    }
}

/// Returns the medians of a stream's rounds.
pub(super) fn rate_medians(outcomes: &[Measured]) -> RateMedians {
    let rates: Vec<&StreamRate> = outcomes
        .iter()
        .filter_map(|outcome| match outcome {
            Measured::Rate(rate) => Some(rate),
            Measured::Latency(_) => None,
        })
        .collect();
    let spread = |of: fn(&StreamRate) -> f64| {
        MedianAndSpread::of(&rates.iter().map(|r| of(r)).collect::<Vec<_>>())
    };
    RateMedians {
        rate_mops: spread(|r| r.rate_mops),
        bandwidth_gbytes_per_s: spread(|r| r.bandwidth_gbytes_per_s),
        verified_ops: rates.iter().map(|r| r.verified_ops).sum(),
        lost_ops: rates.iter().map(|r| r.lost_datagrams).sum(),
    }
}

fn latency_medians(outcomes: &[Measured]) -> LatencyMedians {
    let latencies: Vec<&PingPongLatency> = outcomes
        .iter()
        .filter_map(|outcome| match outcome {
            Measured::Latency(latency) => Some(latency),
            Measured::Rate(_) => None,
        })
        .collect();
    let spread = |of: fn(&PingPongLatency) -> f64| {
        MedianAndSpread::of(&latencies.iter().map(|l| of(l)).collect::<Vec<_>>())
    };
    LatencyMedians {
        latency_ns_p50: spread(|l| l.latency_ns_p50),
        latency_ns_p99: spread(|l| l.latency_ns_p99),
        latency_ns_p999: spread(|l| l.latency_ns_p999),
        latency_ns_mean: spread(|l| l.latency_ns_mean),
        verified_ops: latencies.iter().map(|l| l.verified_ops).sum(),
    }
}

/// Describes the machine, the NIC, the cores and the number of rounds of a measurement.
pub(super) fn describe_run<S>(record: &RunCircumstances<S>, rounds: u32) -> String {
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

fn describe_payload(verb: Verb, payload_bytes: usize, inline: bool) -> String {
    let inline = if inline { " inline" } else { "" };
    match payload_bytes {
        0 => format!("{}, header-only", verb.label()),
        n => format!("{}, {}{inline}", verb.label(), format_byte_count(n)),
    }
}

/// Describes the settings of a stream that differ from the defaults, without its payload.
fn describe_changed_settings(stream: &VerbStream) -> String {
    let mut text = String::new();
    if stream.measured_role == MeasuredRole::Inbound {
        text += ", inbound";
    }
    let many = [
        (stream.threads, "threads"),
        (stream.queue_pairs_per_thread, "queue pairs each"),
        (stream.atomic_counters, "counters"),
    ];
    for (count, name) in many {
        if count > 1 {
            text += &format!(", {count} {name}");
        }
    }
    if stream.atomic_counters > 1 {
        text += &format!(" {} apart", format_byte_count(stream.counter_spacing_bytes));
    }
    if stream.waits_between_windows {
        text += ", window after window";
    }
    if let Some(pages) = stream.page_size {
        text += &format!(", {} pages", pages.name());
    }
    text
}

fn show_rate(stream: &VerbStream, result: &RateMedians) -> Result<()> {
    let VerbStream {
        wrs_per_doorbell: batch,
        window,
        signal_every,
        ..
    } = *stream;
    print_line(format_args!(
        "{}, {batch} a doorbell, {window} outstanding, 1 in {signal_every} signaled{}\n\
         message rate  {}\nbandwidth     {}\nchecked       {} messages",
        describe_payload(stream.verb, stream.payload_bytes, stream.inline),
        describe_changed_settings(stream),
        format_median_and_range(result.rate_mops, "M/s"),
        format_median_and_range(result.bandwidth_gbytes_per_s, "GB/s"),
        result.verified_ops,
    ))?;
    if result.lost_ops > 0 {
        print_line(format_args!("lost          {} datagrams", result.lost_ops))?;
    }
    Ok(())
}

fn show_latency(ping: &PingPong, result: &LatencyMedians) -> Result<()> {
    print_line(format_args!(
        "{}: {}",
        describe_payload(ping.verb, ping.payload_bytes, ping.inline),
        if ping.has_one_way_latency() {
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
                let [median, min, max] =
                    [s.median, s.min, s.max].map(|ns| format_three_digits(ns / 1e3));
                format!("{median} ({min}..{max}) µs")
            },
        );
        print_line(format_args!("{name}  {shown}"))?;
    }
    print_line(format_args!("checked  {} exchanges", result.verified_ops))
}
