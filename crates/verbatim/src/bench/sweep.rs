//! `verbatim bench sweep`: one verb over a range of one of its knobs, as a table, a CSV file and a picture.

use std::fmt::Write;

use anyhow::{Context, Result, bail};
use bench::micro::{
    MAX_ATOMIC_COUNTERS, MAX_COUNTER_SPACING_BYTES, MAX_PAYLOAD_BYTES, MAX_QUEUE_PAIRS_PER_THREAD,
    MAX_THREADS, MAX_WINDOW, MeasuredRole, MeasurementTask, MicroParameters,
    TaskResult as Measured, Verb, VerbStream,
};
use bench::run_circumstances::RunCircumstances;
use chart::{Axis, Chart, Series};
use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use nicmodel::Profile;
use serde::Serialize;

use super::common::{
    JsonLineWriter, are_core_costs_unknown, format_median_and_range, note_if_core_costs_unknown,
    warn_of_debug_build_and_load,
};
use super::parameters::StreamArgs;
use super::verb::{RateMedians, describe_run, rate_medians};
use crate::CommandOutcome;
use crate::args;
use crate::output::{self, print_line, table};
use crate::picture::{axis_coordinate, chart_point_of_spread};
use crate::steps::CommandSteps;

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
    #[arg(default_value = "rc-write", value_parser = verb_value_parser())]
    verb: SweptVerb,
    /// The knob that is turned
    #[arg(long, value_enum, default_value_t = SweptSetting::Payload)]
    over: SweptSetting,
    /// Its values, with commas between them; bytes also with K (KiB) or M (MiB) behind [default: powers of two]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = args::byte_count_parser_up_to(MAX_PAYLOAD_BYTES))]
    values: Vec<usize>,
    #[command(flatten)]
    pub(super) stream: StreamArgs,
}

/// A verb, and the measured role that its name implies.
#[derive(Clone, Copy)]
struct SweptVerb {
    verb: Verb,
    measured_role: Option<MeasuredRole>,
}

/// The name for the responder's side of SENDs over UD.
const UD_RECV: &str = "ud-recv";

fn verb_value_parser() -> impl TypedValueParser<Value = SweptVerb> {
    let names = Verb::ALL.map(Verb::name).into_iter().chain([UD_RECV]);
    PossibleValuesParser::new(names).map(|name| {
        let named = Verb::ALL.into_iter().find(|verb| verb.name() == name);
        let inbound = (name == UD_RECV).then_some(MeasuredRole::Inbound);
        SweptVerb {
            // The parser accepts only names of verbs and [`UD_RECV`].
            verb: named.unwrap_or(Verb::UdSend),
            measured_role: inbound,
        }
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum SweptSetting {
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

impl SweptSetting {
    #[cfg(test)]
    const ALL: [SweptSetting; 8] = [
        SweptSetting::Payload,
        SweptSetting::Batch,
        SweptSetting::Window,
        SweptSetting::SignalEvery,
        SweptSetting::QueuePairs,
        SweptSetting::Threads,
        SweptSetting::Addresses,
        SweptSetting::Spacing,
    ];

    fn name(self) -> &'static str {
        match self {
            SweptSetting::Payload => "payload",
            SweptSetting::Batch => "batch",
            SweptSetting::Window => "window",
            SweptSetting::SignalEvery => "signal-every",
            SweptSetting::QueuePairs => "queue-pairs",
            SweptSetting::Threads => "threads",
            SweptSetting::Addresses => "addresses",
            SweptSetting::Spacing => "spacing",
        }
    }

    /// Returns the label of the axis.
    fn label(self) -> &'static str {
        match self {
            SweptSetting::Payload => "payload, bytes",
            SweptSetting::Batch => "work requests a doorbell",
            SweptSetting::Window => "work requests outstanding at most",
            SweptSetting::SignalEvery => "one signaled work request in",
            SweptSetting::QueuePairs => "queue pairs of each thread",
            SweptSetting::Threads => "threads",
            SweptSetting::Addresses => "counters",
            SweptSetting::Spacing => "bytes from one counter to the next",
        }
    }

    fn parameter_mut(self, parameters: &mut MicroParameters) -> &mut Option<usize> {
        match self {
            SweptSetting::Payload => &mut parameters.payload_bytes,
            SweptSetting::Batch => &mut parameters.wrs_per_doorbell,
            SweptSetting::Window => &mut parameters.window,
            SweptSetting::SignalEvery => &mut parameters.signal_every,
            SweptSetting::QueuePairs => &mut parameters.queue_pairs_per_thread,
            SweptSetting::Threads => &mut parameters.threads,
            SweptSetting::Addresses => &mut parameters.atomic_counters,
            SweptSetting::Spacing => &mut parameters.counter_spacing_bytes,
        }
    }

    /// Returns the largest value of the knob.
    fn max_value(self) -> usize {
        match self {
            SweptSetting::Payload => MAX_PAYLOAD_BYTES,
            SweptSetting::Batch | SweptSetting::Window | SweptSetting::SignalEvery => MAX_WINDOW,
            SweptSetting::QueuePairs => MAX_QUEUE_PAIRS_PER_THREAD,
            SweptSetting::Threads => MAX_THREADS,
            SweptSetting::Addresses => MAX_ATOMIC_COUNTERS,
            SweptSetting::Spacing => MAX_COUNTER_SPACING_BYTES,
        }
    }

    /// Returns the default values: powers of two in a range that suits the verb.
    fn default_values(self, verb: Verb) -> Vec<usize> {
        let (first, last) = match (self, verb) {
            (SweptSetting::Payload, Verb::Atomics) => (8, 8),
            // UD messages fit one packet of every MTU.
            (SweptSetting::Payload, Verb::UdSend) => (8, 1024),
            (SweptSetting::Payload, _) => (8, 64 << 10),
            (SweptSetting::Batch | SweptSetting::SignalEvery, _) => (1, 128),
            (SweptSetting::Window, _) => (2, 1024),
            (SweptSetting::QueuePairs, _) => (1, 16),
            (SweptSetting::Threads, _) => (1, 8),
            (SweptSetting::Addresses, _) => (1, 4096),
            (SweptSetting::Spacing, _) => (8, 8192),
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
    #[serde(rename = "over")]
    swept_setting: SweptSetting,
    rounds: u32,
    streams: Vec<VerbStream>,
}

/// One line of `--json` and of the `--record` file.
#[derive(Serialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
enum JsonLine<'a> {
    /// The circumstances of the run; this is the first line of a measured sweep.
    Record(&'a RunCircumstances<Settings>),
    /// The profile of the NIC; this is the first line of a simulated sweep.
    Simulated {
        nic: &'a str,
        /// True if rates are at most as printed.
        #[serde(rename = "at_most")]
        is_limit: bool,
        settings: &'a Settings,
    },
    /// The result of one round of a point.
    Sample {
        value: usize,
        round: u32,
        outcome: &'a Measured,
    },
    /// The summary of a point, after its samples.
    Point {
        value: usize,
        #[serde(flatten)]
        result: &'a RateMedians,
    },
}

/// Returns the knob's values, each with its stream.
fn values_and_streams(
    args: &Args,
    simulated: Option<&Profile>,
) -> Result<Vec<(usize, VerbStream)>> {
    let SweptVerb {
        verb,
        measured_role,
    } = args.verb;
    let mut parameters = args.stream.parameters(verb, measured_role, simulated)?;
    if args.over == SweptSetting::Threads && !args.stream.sets_thread_or_process_count() {
        parameters.threads = None;
    }
    if args.over == SweptSetting::Spacing && parameters.atomic_counters.is_none() {
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
        values = args.over.default_values(verb);
    }
    values.sort_unstable();
    values.dedup();
    let most = args.over.max_value();
    if args.over != SweptSetting::Payload
        && let Some(wrong) = values.iter().find(|value| !(1..=most).contains(*value))
    {
        bail!("{} is from 1 to {most}, not {wrong}", args.over.name());
    }
    let stream = |value: usize| {
        *args.over.parameter_mut(&mut parameters) = Some(value);
        let stream = args.stream.common.verb_stream(verb, &parameters);
        Ok((
            value,
            stream.with_context(|| format!("{} of {value}", args.over.name()))?,
        ))
    };
    values.into_iter().map(stream).collect()
}

pub(super) fn run(args: &Args) -> Result<CommandOutcome> {
    let common = &args.stream.common;
    let picture = &common.picture;
    let profiles = common.simulation.profiles()?;
    let mut swept = Vec::new();
    if profiles.is_empty() {
        let streams = values_and_streams(args, None)?;
        if common.ends.serves_as_other_side() {
            common.nic.apply_by_reexec()?;
            return common
                .ends
                .serve_other_side(&tasks(&streams), &common.nic_choice());
        }
        picture.check_files_writable()?;
        swept.push(measure(args, &streams)?);
    } else {
        picture.check_files_writable()?;
        let each = profiles
            .iter()
            .map(|profile| values_and_streams(args, Some(profile)));
        let each: Vec<_> = each.collect::<Result<_>>()?;
        let steps = CommandSteps::new(each.iter().map(|streams| streams.len() as u64).sum())?;
        let mut lines = JsonLineWriter::new(common.record.as_deref(), common.json)?;
        for (profile, streams) in profiles.iter().zip(&each) {
            swept.push(simulate(args, streams, profile, &steps, &mut lines)?);
        }
        profiles.iter().for_each(note_if_core_costs_unknown);
    }
    if let Some(file) = &picture.csv {
        output::write_file(file, &csv(args.over, &swept))?;
    }
    picture.write_svg(&chart(args, &swept))?;
    if !common.json {
        for (number, one) in swept.iter().enumerate() {
            if number > 0 {
                print_line("")?;
            }
            print_line(&one.title)?;
            print_points(args.over, &one.points)?;
        }
    }
    Ok(CommandOutcome::Done)
}

type SettingAndRate = (usize, RateMedians);

/// The results of a sweep on one NIC.
struct PerNicResult {
    nic: String,
    /// True if rates are at most as printed, because the profile lacks the costs of cores.
    is_limit: bool,
    /// The NIC and the circumstances of the run.
    title: String,
    points: Vec<SettingAndRate>,
}

fn tasks(streams: &[(usize, VerbStream)]) -> Vec<MeasurementTask> {
    streams
        .iter()
        .map(|(_, stream)| MeasurementTask::Stream(*stream))
        .collect()
}

/// Returns a description of the swept verb.
fn describe_verb(args: &Args) -> String {
    match args.verb.measured_role {
        Some(_) => format!("{}, inbound", args.verb.verb.label()),
        None => args.verb.verb.label().to_owned(),
    }
}

fn step_name(args: &Args, value: usize) -> String {
    format!("{}, {} of {value}", describe_verb(args), args.over.name())
}

fn settings(args: &Args, streams: &[(usize, VerbStream)], rounds: u32) -> Settings {
    Settings {
        swept_setting: args.over,
        rounds,
        streams: streams.iter().map(|(_, stream)| *stream).collect(),
    }
}

/// Simulates every point once.
fn simulate(
    args: &Args,
    streams: &[(usize, VerbStream)],
    profile: &Profile,
    steps: &CommandSteps,
    lines: &mut JsonLineWriter,
) -> Result<PerNicResult> {
    let is_limit = are_core_costs_unknown(profile);
    let limit = if is_limit {
        " (at most; unknown: processor costs)"
    } else {
        ""
    };
    let title = format!(
        "{}, simulated: {}{limit}",
        describe_verb(args),
        profile.title
    );
    lines.write_line(&JsonLine::Simulated {
        nic: &profile.name,
        is_limit,
        settings: &settings(args, streams, 1),
    })?;
    let mut points = Vec::new();
    for &(value, stream) in streams {
        let task = MeasurementTask::Stream(stream);
        let name = step_name(args, value);
        let Some(outcome) =
            steps.run_unless_interrupted(name, || bench::simulated::micro::run(profile, &task))?
        else {
            break;
        };
        let result = rate_medians(&[outcome]);
        lines.write_line(&JsonLine::Point {
            value,
            result: &result,
        })?;
        points.push((value, result));
    }
    Ok(PerNicResult {
        nic: profile.name.clone(),
        is_limit,
        title,
        points,
    })
}

/// Measures every point in every round.
fn measure(args: &Args, streams: &[(usize, VerbStream)]) -> Result<PerNicResult> {
    let common = &args.stream.common;
    common.nic.apply_by_reexec()?;
    let cores = common.cores.choose_cores()?;
    let mut lines = JsonLineWriter::new(common.record.as_deref(), common.json)?;
    let nic = common.nic_choice();
    let settings = settings(args, streams, common.rounds);
    let record = RunCircumstances::new(cores, nic.provider.clone(), nic.device_name()?, settings);
    lines.write_line(&JsonLine::Record(&record))?;
    let mut runner = common.ends.worker_pool(cores, &tasks(streams))?;
    let steps = CommandSteps::new(u64::from(common.rounds) * streams.len() as u64)?;
    let mut outcomes: Vec<Vec<Measured>> = streams.iter().map(|_| Vec::new()).collect();
    'rounds: for round in 0..common.rounds {
        for (&(value, stream), outcomes) in streams.iter().zip(&mut outcomes) {
            let task = MeasurementTask::Stream(stream);
            let name = step_name(args, value);
            let Some(outcome) =
                steps.run_unless_interrupted(name, || runner.measure(&nic, &task))?
            else {
                break 'rounds;
            };
            lines.write_line(&JsonLine::Sample {
                value,
                round,
                outcome: &outcome,
            })?;
            outcomes.push(outcome);
        }
    }
    drop(steps);
    warn_of_debug_build_and_load(&record);
    let mut points = Vec::new();
    let measured = streams.iter().zip(&outcomes);
    for (&(value, _), outcomes) in measured.filter(|(_, outcomes)| !outcomes.is_empty()) {
        let result = rate_medians(outcomes);
        lines.write_line(&JsonLine::Point {
            value,
            result: &result,
        })?;
        points.push((value, result));
    }
    Ok(PerNicResult {
        nic: record.device.clone(),
        is_limit: false,
        title: format!(
            "{}: {}",
            describe_verb(args),
            describe_run(&record, common.rounds)
        ),
        points,
    })
}

/// Formats a CSV line for each point. The last columns are the NIC, and whether rates are at most as printed.
fn csv(over: SweptSetting, swept: &[PerNicResult]) -> String {
    let mut text = format!(
        "{},rate_mops,rate_mops_min,rate_mops_max,gbytes_per_s,gbytes_per_s_min,gbytes_per_s_max,verified_ops,lost_ops,nic,at_most\n",
        over.name()
    );
    let points = swept
        .iter()
        .flat_map(|one| one.points.iter().map(move |point| (one, point)));
    for (one, (value, result)) in points {
        let _ = write!(text, "{value}");
        for spread in [result.rate_mops, result.bandwidth_gbytes_per_s] {
            match spread {
                Some(s) => {
                    let _ = write!(text, ",{},{},{}", s.median, s.min, s.max);
                }
                None => text.push_str(",,,"),
            }
        }
        let _ = writeln!(
            text,
            ",{},{},{},{}",
            result.verified_ops, result.lost_ops, one.nic, one.is_limit
        );
    }
    text
}

fn chart(args: &Args, all: &[PerNicResult]) -> Chart {
    let point = |(value, result): &SettingAndRate| {
        Some(chart_point_of_spread(
            axis_coordinate(*value),
            result.rate_mops?,
            1.0,
        ))
    };
    let axis = Axis::log(args.over.label());
    Chart {
        title: format!("{} over the {}", describe_verb(args), args.over.label()),
        caption: all
            .iter()
            .map(|one| one.title.as_str())
            .collect::<Vec<_>>()
            .join("; "),
        x: match args.over {
            SweptSetting::Payload | SweptSetting::Spacing => axis.in_bytes(),
            _ => axis,
        },
        y: Axis::auto("10⁶ messages a second"),
        series: all
            .iter()
            .map(|one| {
                let limit = if one.is_limit { ", at most" } else { "" };
                let name = format!("{}{limit}", one.nic);
                Series::new(name, one.points.iter().filter_map(point))
            })
            .collect(),
        constant_levels: Vec::new(),
    }
}

fn print_points(over: SweptSetting, points: &[SettingAndRate]) -> Result<()> {
    let mut rows = table(
        [over.name(), "message rate", "bandwidth", "checked", "lost"],
        &[0, 1, 2, 3, 4],
    );
    for (value, result) in points {
        rows.add_row([
            value.to_string(),
            format_median_and_range(result.rate_mops, "M/s"),
            format_median_and_range(result.bandwidth_gbytes_per_s, "GB/s"),
            result.verified_ops.to_string(),
            result.lost_ops.to_string(),
        ]);
    }
    print_line(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_values_fit_their_verbs() {
        for verb in Verb::ALL {
            for over in SweptSetting::ALL {
                if verb != Verb::Atomics
                    && matches!(over, SweptSetting::Addresses | SweptSetting::Spacing)
                {
                    continue;
                }
                let values = over.default_values(verb);
                assert!(!values.is_empty());
                for value in values {
                    let mut parameters = MicroParameters::default();
                    *over.parameter_mut(&mut parameters) = Some(value);
                    let stream = VerbStream::new(verb, &parameters, 1);
                    assert!(stream.is_ok(), "{verb:?} {over:?} {value}: {stream:?}");
                }
            }
        }
    }

    #[test]
    fn a_point_without_a_rate_is_an_empty_cell() {
        let nothing = rate_medians(&[]);
        let swept = PerNicResult {
            is_limit: true,
            nic: "cib".to_owned(),
            title: String::new(),
            points: vec![(4, nothing)],
        };
        let text = csv(SweptSetting::Batch, &[swept]);
        let last = text.lines().last().expect("a line");
        assert!(text.starts_with("batch,"));
        assert_eq!(last, "4,,,,,,,0,0,cib,true");
        assert_eq!(
            last.split(',').count(),
            text.lines().next().expect("a head").split(',').count()
        );
    }
}
