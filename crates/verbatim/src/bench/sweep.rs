//! `verbatim bench sweep`: one verb over a range of one of its knobs, as a table, a CSV file and a picture.

use std::fmt::Write;

use anyhow::{Context, Result, bail};
use bench::micro::{
    Direction, MAX_ADDRESSES, MAX_PAYLOAD_BYTES, MAX_QUEUE_PAIRS, MAX_SPACING_BYTES, MAX_THREADS,
    MAX_WINDOW, Outcome as Measured, Parameters, Stream, Task, Verb,
};
use bench::record::Record;
use chart::{Axis, Chart, Series};
use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use nicmodel::Profile;
use serde::Serialize;

use super::common::{Lines, warn_of_circumstances, with_range};
use super::parameters::StreamArgs;
use super::verb::{RateResult, head, rate_result};
use crate::Outcome;
use crate::args;
use crate::output::{self, print, table};
use crate::picture::{place, spread_point};
use crate::progress::progress;
use crate::stop;

pub(super) const EXAMPLES: &str = "\
Examples:
  verbatim bench sweep                                    RC WRITEs of 8 bytes to 64 KiB
  verbatim bench sweep ud-send --over batch
  verbatim bench sweep rc-read --values 8,64,4K --csv reads.csv --svg reads.svg
  verbatim bench sweep uc-write --nic cib --svg cib.svg   on a simulated Connect-IB, in virtual time
  verbatim bench sweep ud-recv --over threads --nic cib
  verbatim bench sweep rc-read --nic cib --nic cx3 --svg reads.svg    two NICs in one picture
  verbatim bench sweep atomics --over addresses --direction inbound --nic cib
  verbatim bench sweep atomics --over spacing --addresses 512 --direction inbound --nic cib

The rounds of all points are interleaved, so that what disturbs the machine for a while disturbs all alike. In CSV, \
--json and --record there is every point's median with its least and most.";

/// Arguments of `verbatim bench sweep`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct Args {
    /// What is posted
    #[arg(default_value = "rc-write", value_parser = verb())]
    verb: Swept,
    /// The knob that is turned
    #[arg(long, value_enum, default_value_t = Over::Payload)]
    over: Over,
    /// Its values, with commas between them; bytes also with K (KiB) or M (MiB) behind [default: powers of two]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = args::bytes(MAX_PAYLOAD_BYTES))]
    values: Vec<usize>,
    #[command(flatten)]
    pub(super) stream: StreamArgs,
}

/// A verb, and the direction that its name implies.
#[derive(Clone, Copy)]
struct Swept {
    verb: Verb,
    direction: Option<Direction>,
}

/// The name for the responder's side of SENDs over UD.
const UD_RECV: &str = "ud-recv";

fn verb() -> impl TypedValueParser<Value = Swept> {
    let names = Verb::ALL.map(Verb::name).into_iter().chain([UD_RECV]);
    PossibleValuesParser::new(names).map(|name| {
        let named = Verb::ALL.into_iter().find(|verb| verb.name() == name);
        let inbound = (name == UD_RECV).then_some(Direction::Inbound);
        Swept {
            // The parser accepts no other names.
            verb: named.unwrap_or(Verb::UdSend),
            direction: inbound,
        }
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Over {
    /// Bytes of payload of each message
    Payload,
    /// Work requests that one doorbell announces
    Batch,
    /// Work requests outstanding at most
    Window,
    /// One work request in so many is signaled
    SignalEvery,
    /// Queue pairs of each thread
    QueuePairs,
    /// Threads of the measured side
    Threads,
    /// Counters of atomics
    Addresses,
    /// Bytes from one counter to the next
    Spacing,
}

impl Over {
    #[cfg(test)]
    const ALL: [Over; 8] = [
        Over::Payload,
        Over::Batch,
        Over::Window,
        Over::SignalEvery,
        Over::QueuePairs,
        Over::Threads,
        Over::Addresses,
        Over::Spacing,
    ];

    fn name(self) -> &'static str {
        match self {
            Over::Payload => "payload",
            Over::Batch => "batch",
            Over::Window => "window",
            Over::SignalEvery => "signal-every",
            Over::QueuePairs => "queue-pairs",
            Over::Threads => "threads",
            Over::Addresses => "addresses",
            Over::Spacing => "spacing",
        }
    }

    /// Returns the label of the axis.
    fn label(self) -> &'static str {
        match self {
            Over::Payload => "payload, bytes",
            Over::Batch => "work requests a doorbell",
            Over::Window => "work requests outstanding at most",
            Over::SignalEvery => "one signaled work request in",
            Over::QueuePairs => "queue pairs of each thread",
            Over::Threads => "threads",
            Over::Addresses => "counters",
            Over::Spacing => "bytes from one counter to the next",
        }
    }

    fn parameter_mut(self, parameters: &mut Parameters) -> &mut Option<usize> {
        match self {
            Over::Payload => &mut parameters.payload_bytes,
            Over::Batch => &mut parameters.batch,
            Over::Window => &mut parameters.window,
            Over::SignalEvery => &mut parameters.signal_every,
            Over::QueuePairs => &mut parameters.queue_pairs,
            Over::Threads => &mut parameters.threads,
            Over::Addresses => &mut parameters.addresses,
            Over::Spacing => &mut parameters.spacing_bytes,
        }
    }

    /// Returns the largest value of the knob.
    fn most(self) -> usize {
        match self {
            Over::Payload => MAX_PAYLOAD_BYTES,
            Over::Batch | Over::Window | Over::SignalEvery => MAX_WINDOW,
            Over::QueuePairs => MAX_QUEUE_PAIRS,
            Over::Threads => MAX_THREADS,
            Over::Addresses => MAX_ADDRESSES,
            Over::Spacing => MAX_SPACING_BYTES,
        }
    }

    /// Returns the default values: powers of two in a range that suits the verb.
    fn usual(self, verb: Verb) -> Vec<usize> {
        let (first, last) = match (self, verb) {
            (Over::Payload, Verb::Atomics) => (8, 8),
            // UD messages fit one packet of every MTU.
            (Over::Payload, Verb::UdSend) => (8, 1024),
            (Over::Payload, _) => (8, 64 << 10),
            (Over::Batch | Over::SignalEvery, _) => (1, 128),
            (Over::Window, _) => (2, 1024),
            (Over::QueuePairs, _) => (1, 16),
            (Over::Threads, _) => (1, 8),
            (Over::Addresses, _) => (1, 4096),
            (Over::Spacing, _) => (8, 8192),
        };
        let all = (0..).map(|power| 1usize << power);
        all.skip_while(|value| *value < first)
            .take_while(|value| *value <= last)
            .collect()
    }
}

/// The settings of the measurement, for the run record.
#[derive(Clone, Serialize)]
struct Settings {
    over: Over,
    rounds: u32,
    streams: Vec<Stream>,
}

/// One line of `--json` and of the run record.
#[derive(Serialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
enum Line<'a> {
    /// The circumstances of the run; the first line of a measured sweep.
    Record(&'a Record<Settings>),
    /// The profile of the NIC; the first line of a simulated sweep.
    Simulated {
        nic: &'a str,
        settings: &'a Settings,
    },
    /// One round of a point.
    Sample {
        value: usize,
        round: u32,
        outcome: &'a Measured,
    },
    /// The summary of a point, after its samples.
    Point {
        value: usize,
        #[serde(flatten)]
        result: &'a RateResult,
    },
}

/// Returns the knob's values, each with its stream.
fn streams(args: &Args, simulated: Option<&Profile>) -> Result<Vec<(usize, Stream)>> {
    let Swept { verb, direction } = args.verb;
    let mut parameters = args.stream.parameters(verb, direction, simulated)?;
    if args.over == Over::Threads && !args.stream.asks_for_threads() {
        parameters.threads = None;
    }
    if args.over == Over::Spacing && parameters.addresses.is_none() {
        bail!("one counter has no spacing; ask for several by --addresses");
    }
    if args.over.parameter_mut(&mut parameters).is_some() {
        let name = args.over.name();
        bail!(
            "--{name} is what is swept; give its values by --values, or sweep another knob by --over"
        );
    }
    let mut values = args.values.clone();
    if values.is_empty() {
        values = args.over.usual(verb);
    }
    values.sort_unstable();
    values.dedup();
    let most = args.over.most();
    if args.over != Over::Payload
        && let Some(wrong) = values.iter().find(|value| !(1..=most).contains(*value))
    {
        bail!("{} is from 1 to {most}, not {wrong}", args.over.name());
    }
    let stream = |value: usize| {
        *args.over.parameter_mut(&mut parameters) = Some(value);
        let duration_ms = args.stream.common.duration_ms(parameters.payload_bytes)?;
        let stream = Stream::new(verb, &parameters, duration_ms);
        Ok((
            value,
            stream.with_context(|| format!("{} of {value}", args.over.name()))?,
        ))
    };
    values.into_iter().map(stream).collect()
}

pub(super) fn run(args: &Args) -> Result<Outcome> {
    let common = &args.stream.common;
    let picture = &common.picture;
    let profiles = common.simulation.profiles()?;
    let mut swept = Vec::new();
    if profiles.is_empty() {
        let streams = streams(args, None)?;
        if common.ends.listens() {
            common.nic.settle()?;
            return common.ends.listen(&tasks(&streams), &common.nic_choice());
        }
        picture.check()?;
        swept.push(measure(args, &streams)?);
    } else {
        picture.check()?;
        let each = profiles.iter().map(|profile| streams(args, Some(profile)));
        let each: Vec<_> = each.collect::<Result<_>>()?;
        stop::end_early_on_interrupt(each.iter().map(|streams| streams.len() as u64).sum())?;
        for (profile, streams) in profiles.iter().zip(&each) {
            swept.push(simulate(args, streams, profile)?);
        }
    }
    if let Some(file) = &picture.csv {
        output::write_file(file, &csv(args.over, &swept))?;
    }
    picture.draw(&chart(args, &swept))?;
    if !common.json {
        for (number, one) in swept.iter().enumerate() {
            if number > 0 {
                print("")?;
            }
            print(&one.title)?;
            show(args.over, &one.points)?;
        }
    }
    Ok(Outcome::Done)
}

type Point = (usize, RateResult);

/// The results of a sweep on one NIC.
struct SweptOn {
    nic: String,
    /// The NIC and the circumstances of the run.
    title: String,
    points: Vec<Point>,
}

fn tasks(streams: &[(usize, Stream)]) -> Vec<Task> {
    streams
        .iter()
        .map(|(_, stream)| Task::Stream(*stream))
        .collect()
}

/// Returns the swept verb in words.
fn swept(args: &Args) -> String {
    match args.verb.direction {
        Some(_) => format!("{}, inbound", args.verb.verb.label()),
        None => args.verb.verb.label().to_owned(),
    }
}

fn settings(args: &Args, streams: &[(usize, Stream)], rounds: u32) -> Settings {
    Settings {
        over: args.over,
        rounds,
        streams: streams.iter().map(|(_, stream)| *stream).collect(),
    }
}

/// Simulates every point once.
fn simulate(args: &Args, streams: &[(usize, Stream)], profile: &Profile) -> Result<SweptOn> {
    let common = &args.stream.common;
    let mut lines = Lines::new(common.record.as_deref(), common.json)?;
    let title = format!("{}, simulated: {}", swept(args), profile.title);
    lines.tell(&Line::Simulated {
        nic: &profile.name,
        settings: &settings(args, streams, 1),
    })?;
    let bar = progress(streams.len() as u64);
    let mut points = Vec::new();
    for &(value, stream) in streams {
        if stop::is_interrupted() {
            break;
        }
        let outcome = bench::simulated::micro::run(profile, &Task::Stream(stream))?;
        let result = rate_result(&[outcome]);
        lines.tell(&Line::Point {
            value,
            result: &result,
        })?;
        points.push((value, result));
        bar.inc(1);
        stop::step_done();
    }
    bar.finish_and_clear();
    Ok(SweptOn {
        nic: profile.name.clone(),
        title,
        points,
    })
}

/// Measures every point in every round.
fn measure(args: &Args, streams: &[(usize, Stream)]) -> Result<SweptOn> {
    let common = &args.stream.common;
    common.nic.settle()?;
    let cores = common.cores.settle()?;
    let mut lines = Lines::new(common.record.as_deref(), common.json)?;
    let nic = common.nic_choice();
    let settings = settings(args, streams, common.rounds);
    let record = Record::new(cores, nic.provider.clone(), nic.device_name()?, settings);
    lines.tell(&Line::Record(&record))?;
    let mut runner = common.ends.runner(cores, &tasks(streams))?;
    let steps = u64::from(common.rounds) * streams.len() as u64;
    stop::end_early_on_interrupt(steps)?;
    let bar = progress(steps);
    let mut outcomes: Vec<Vec<Measured>> = streams.iter().map(|_| Vec::new()).collect();
    'rounds: for round in 0..common.rounds {
        for (&(value, stream), outcomes) in streams.iter().zip(&mut outcomes) {
            let outcome = runner.measure(&nic, &Task::Stream(stream));
            // An interrupt by the terminal stops the other process, too.
            if stop::is_interrupted() && outcome.is_err() {
                break 'rounds;
            }
            let outcome = outcome?;
            lines.tell(&Line::Sample {
                value,
                round,
                outcome: &outcome,
            })?;
            outcomes.push(outcome);
            bar.inc(1);
            stop::step_done();
            if stop::is_interrupted() {
                break 'rounds;
            }
        }
    }
    bar.finish_and_clear();
    warn_of_circumstances(&record);
    let mut points = Vec::new();
    for (&(value, _), outcomes) in streams.iter().zip(&outcomes) {
        let result = rate_result(outcomes);
        lines.tell(&Line::Point {
            value,
            result: &result,
        })?;
        points.push((value, result));
    }
    Ok(SweptOn {
        nic: record.device.clone(),
        title: format!("{}: {}", swept(args), head(&record, common.rounds)),
        points,
    })
}

/// Formats a CSV line for each point; the NIC is the last column.
fn csv(over: Over, swept: &[SweptOn]) -> String {
    let mut text = format!(
        "{},rate_mops,rate_mops_min,rate_mops_max,gbytes_per_s,gbytes_per_s_min,gbytes_per_s_max,verified_ops,lost_ops,nic\n",
        over.name()
    );
    let points = swept
        .iter()
        .flat_map(|one| one.points.iter().map(|point| (&one.nic, point)));
    for (nic, (value, result)) in points {
        let _ = write!(text, "{value}");
        for spread in [result.rate_mops, result.bandwidth_gbytes_per_s] {
            match spread {
                Some(s) => {
                    let _ = write!(text, ",{},{},{}", s.median, s.min, s.max);
                }
                None => text.push_str(",,,"),
            }
        }
        let _ = writeln!(text, ",{},{},{nic}", result.verified_ops, result.lost_ops);
    }
    text
}

fn chart(args: &Args, all: &[SweptOn]) -> Chart {
    let point = |(value, result): &Point| Some(spread_point(place(*value), result.rate_mops?, 1.0));
    let axis = Axis::log(args.over.label());
    Chart {
        title: format!("{} over the {}", swept(args), args.over.label()),
        caption: all
            .iter()
            .map(|one| one.title.as_str())
            .collect::<Vec<_>>()
            .join("; "),
        x: match args.over {
            Over::Payload | Over::Spacing => axis.in_bytes(),
            _ => axis,
        },
        y: Axis::auto("10⁶ messages a second"),
        series: all
            .iter()
            .map(|one| Series::new(&one.nic, one.points.iter().filter_map(point)))
            .collect(),
        levels: Vec::new(),
    }
}

fn show(over: Over, points: &[Point]) -> Result<()> {
    let mut rows = table(
        [over.name(), "message rate", "bandwidth", "checked", "lost"],
        &[0, 1, 2, 3, 4],
    );
    for (value, result) in points {
        rows.add_row([
            value.to_string(),
            with_range(result.rate_mops, "M/s"),
            with_range(result.bandwidth_gbytes_per_s, "GB/s"),
            result.verified_ops.to_string(),
            result.lost_ops.to_string(),
        ]);
    }
    print(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_values_fit_their_verbs() {
        for verb in Verb::ALL {
            for over in Over::ALL {
                if verb != Verb::Atomics && matches!(over, Over::Addresses | Over::Spacing) {
                    continue;
                }
                let values = over.usual(verb);
                assert!(!values.is_empty());
                for value in values {
                    let mut parameters = Parameters::default();
                    *over.parameter_mut(&mut parameters) = Some(value);
                    let stream = Stream::new(verb, &parameters, 1);
                    assert!(stream.is_ok(), "{verb:?} {over:?} {value}: {stream:?}");
                }
            }
        }
    }

    #[test]
    fn a_point_without_a_rate_is_an_empty_cell() {
        let nothing = rate_result(&[]);
        let swept = SweptOn {
            nic: "cib".to_owned(),
            title: String::new(),
            points: vec![(4, nothing)],
        };
        let text = csv(Over::Batch, &[swept]);
        let last = text.lines().last().expect("a line");
        assert!(text.starts_with("batch,"));
        assert_eq!(last, "4,,,,,,,0,0,cib");
        assert_eq!(
            last.split(',').count(),
            text.lines().next().expect("a head").split(',').count()
        );
    }
}
