//! `verbatim bench wqe-cache`: windows of READs and WRITEs, and the PCIe reads that the NIC makes for them
//! (Figure 13 of the paper). A WQE that the processor writes to the NIC (BlueFlame) needs no DMA read. If too
//! many work requests are outstanding, the NIC's cache evicts some WQEs, and the NIC fetches these WQEs again.

use std::fmt::Write;

use anyhow::{Result, bail};
use bench::micro::{
    MAX_THREADS, MAX_WINDOW, MeasurementTask, MicroParameters, StreamRate, TaskResult as Measured,
    Verb, VerbStream,
};
use bench::run_circumstances::RunCircumstances;
use bench::stats::median;
use chart::{Axis, Chart, Series};
use clap::ValueEnum;
use nicmodel::Profile;
use serde::Serialize;

use super::common::{JsonLineWriter, warn_of_debug_build_and_load};
use super::parameters::CommonArgs;
use super::verb::describe_run;
use crate::CommandOutcome;
use crate::args;
use crate::model::NicProfileChoice;
use crate::output::{self, format_three_digits, print_line, table};
use crate::pcie_counters::PcieCounters;
use crate::steps::CommandSteps;

pub(super) const EXAMPLES: &str = "\
Examples:
  verbatim bench wqe-cache --nic cib --svg cib.svg        Figure 13 of the paper, simulated
  verbatim bench wqe-cache --verb rc-read --window 64,512,1024 --provider system --pcie-counters
  verbatim bench wqe-cache --connect HOST --threads 8 --provider system --pcie-counters

Each thread posts a window, with one doorbell for each work request. It waits for the whole window, then posts the next. \
Reads are cache lines that the NIC reads from memory: expected by the model, counted by a simulated NIC or by Intel's \
uncore counters (PCIeRdCur, of the whole machine). Reads beyond the expected ones fetch WQEs that the NIC's cache had lost.";

/// Arguments of `verbatim bench wqe-cache`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Work requests of a window, with commas between them
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,16,64,128,256,512,768,1024", value_parser = args::integer_parser_in_range("a window", 1..=MAX_WINDOW))]
    window: Vec<usize>,
    /// What is posted
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "rc-read,rc-write"
    )]
    verb: Vec<WindowVerb>,
    /// Threads, each with one of the other side [default: 1; on a simulated NIC all cores]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a number of threads", 1..=MAX_THREADS))]
    threads: Option<usize>,
    /// Count what devices read over PCIe, by this machine's Intel uncore counters
    #[arg(long, conflicts_with_all = ["simulated_nic", "nic_file"])]
    pcie_counters: bool,
    /// The NIC whose WQEs are expected, where the NIC is not simulated: cx, cx3, cib, bf2, or a profile's file
    #[arg(long = "expect", value_name = "NAME", default_value = "cib", conflicts_with_all = ["simulated_nic", "nic_file"])]
    expected_nic: String,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum WindowVerb {
    /// RDMA READ
    RcRead,
    /// RDMA WRITE over RC
    RcWrite,
}

/// The settings of the measurement, for the run record.
#[derive(Clone, Serialize)]
struct Settings {
    rounds: u32,
    #[serde(rename = "expected_of")]
    expected_nic_name: String,
    streams: Vec<VerbStream>,
}

/// One line of `--json` and of the `--record` file.
#[derive(Serialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
enum JsonLine<'a> {
    /// The circumstances of the run; this is the first line of a measurement.
    Record(&'a RunCircumstances<Settings>),
    /// The profile of the NIC; this is the first line of a simulation.
    Simulated {
        nic: &'a str,
        settings: &'a Settings,
    },
    /// One round of a point.
    Sample {
        round: u32,
        sample: &'a WqeCacheSample,
    },
    /// The summary of a window, after its samples.
    Window(&'a WqeCachePoint),
}

/// One measurement.
#[derive(Clone, Serialize)]
struct WqeCacheSample {
    outcome: Measured,
    /// Number of cache lines that devices read over PCIe, if it was counted.
    #[serde(rename = "lines_read")]
    pcie_cache_lines_read: Option<f64>,
    wqe_cache_misses: Option<u64>,
}

/// The result of one window.
#[derive(Serialize)]
struct WqeCachePoint {
    verb: Verb,
    window: usize,
    /// Number of outstanding work requests of all threads.
    outstanding: usize,
    /// The median rate in 10^6 work requests a second; the fields below are medians, too.
    rate_mops: f64,
    /// Number of cache lines that the model expects the NIC to read, in 10^6 a second.
    #[serde(rename = "expected_reads_mops")]
    expected_pcie_reads_mops: f64,
    /// Number of cache lines that were read according to the counters, in 10^6 a second.
    #[serde(rename = "counted_reads_mops")]
    counted_pcie_reads_mops: Option<f64>,
    /// Number of WQEs that were fetched again, in 10^6 a second. A simulated NIC counts them. For a real NIC
    /// it is the number of counted reads less the number of expected reads.
    wqe_cache_misses_mops: Option<f64>,
}

pub(super) fn run(args: &Args) -> Result<CommandOutcome> {
    let profile = args.common.simulation.profile()?;
    let streams = streams(args, profile.as_ref())?;
    if args.common.ends.serves_as_other_side() {
        args.common.nic.apply_by_reexec()?;
        return args
            .common
            .ends
            .serve_other_side(&tasks(&streams), &args.common.nic_choice());
    }
    args.common.picture.check_files_writable()?;
    let (title, points) = match &profile {
        Some(profile) => simulate(args, &streams, profile)?,
        None => measure(args, &streams)?,
    };
    if let Some(file) = &args.common.picture.csv {
        output::write_file(file, &csv(&points))?;
    }
    args.common.picture.write_svg(&chart(title, &points))?;
    if !args.common.json {
        print_points(&points)?;
    }
    Ok(CommandOutcome::Done)
}

fn tasks(streams: &[VerbStream]) -> Vec<MeasurementTask> {
    streams
        .iter()
        .map(|stream| MeasurementTask::Stream(*stream))
        .collect()
}

fn streams(args: &Args, simulated: Option<&Profile>) -> Result<Vec<VerbStream>> {
    let cores = simulated.map(|profile| profile.host.cores.value as usize);
    let mut streams = Vec::new();
    for verb in &args.verb {
        for &window in &args.window {
            let parameters = MicroParameters {
                wrs_per_doorbell: Some(1),
                window: Some(window),
                signal_every: Some(window),
                waits_between_windows: true,
                threads: args.threads.or(cores),
                ..args.common.parameters()
            };
            let verb = match verb {
                WindowVerb::RcRead => Verb::RcRead,
                WindowVerb::RcWrite => Verb::RcWrite,
            };
            streams.push(args.common.verb_stream(verb, &parameters)?);
        }
    }
    Ok(streams)
}

fn step_name(stream: &VerbStream) -> String {
    format!("{}, windows of {}", stream.verb.label(), stream.window)
}

/// Simulates every window once.
fn simulate(
    args: &Args,
    streams: &[VerbStream],
    profile: &Profile,
) -> Result<(String, Vec<WqeCachePoint>)> {
    let mut lines = JsonLineWriter::new(args.common.record.as_deref(), args.common.json)?;
    lines.write_line(&JsonLine::Simulated {
        nic: &profile.name,
        settings: &Settings {
            rounds: 1,
            expected_nic_name: profile.name.clone(),
            streams: streams.to_vec(),
        },
    })?;
    let title = format!("Simulated in virtual time, not measured: {}", profile.title);
    if !args.common.json {
        print_line(&title)?;
    }
    let steps = CommandSteps::new(streams.len() as u64)?;
    let mut points = Vec::new();
    for stream in streams {
        let simulated = steps.run_unless_interrupted(step_name(stream), || {
            bench::simulated::micro::run_with_nic_counters(
                profile,
                &MeasurementTask::Stream(*stream),
            )
        })?;
        let Some((outcome, counted)) = simulated else {
            break;
        };
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let sample = WqeCacheSample {
            outcome,
            pcie_cache_lines_read: Some(
                counted.dma_read_bytes as f64 / f64::from(nicmodel::wqe::CACHE_LINE_BYTES),
            ),
            wqe_cache_misses: Some(counted.wqe_cache_misses),
        };
        let expected = stream.footprint(profile)?.requester.cache_lines_read();
        let point = median_point(stream, &[sample], expected);
        lines.write_line(&JsonLine::Window(&point))?;
        points.push(point);
    }
    drop(steps);
    Ok((title, points))
}

/// Measures every window in every round.
fn measure(args: &Args, streams: &[VerbStream]) -> Result<(String, Vec<WqeCachePoint>)> {
    let common = &args.common;
    let expect = NicProfileChoice {
        nic: Some(args.expected_nic.clone()),
        nic_file: None,
    };
    let expect = expect.chosen_or_default_profile()?;
    let counters = args.pcie_counters.then(PcieCounters::find).transpose()?;
    common.nic.apply_by_reexec()?;
    let nic = common.nic_choice();
    if counters.is_some() && nic.provider == "softnic" {
        bail!(
            "the software NIC is no PCIe device, so there is nothing to count; take --provider system"
        );
    }
    let cores = common.cores.choose_cores()?;
    let mut lines = JsonLineWriter::new(common.record.as_deref(), common.json)?;
    let settings = Settings {
        rounds: common.rounds,
        expected_nic_name: expect.name.clone(),
        streams: streams.to_vec(),
    };
    let record = RunCircumstances::new(cores, nic.provider.clone(), nic.device_name()?, settings);
    lines.write_line(&JsonLine::Record(&record))?;
    let tasks = tasks(streams);
    let mut runner = common.ends.worker_pool(cores, &tasks)?;
    let steps = CommandSteps::new(u64::from(common.rounds) * streams.len() as u64)?;
    let mut samples: Vec<Vec<WqeCacheSample>> = streams.iter().map(|_| Vec::new()).collect();
    'rounds: for round in 0..common.rounds {
        for ((task, stream), samples) in tasks.iter().zip(streams).zip(&mut samples) {
            let measured = steps.run_unless_interrupted(step_name(stream), || {
                let mut once = || runner.measure(&nic, task);
                Ok(match &counters {
                    Some(counters) => {
                        let (outcome, counted) = counters.count_during(once)?;
                        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
                        (outcome, Some(counted.rd_cur as f64))
                    }
                    None => (once()?, None),
                })
            })?;
            let Some((outcome, lines_read)) = measured else {
                break 'rounds;
            };
            let sample = WqeCacheSample {
                outcome,
                pcie_cache_lines_read: lines_read,
                wqe_cache_misses: None,
            };
            lines.write_line(&JsonLine::Sample {
                round,
                sample: &sample,
            })?;
            samples.push(sample);
        }
    }
    drop(steps);
    warn_of_debug_build_and_load(&record);
    let mut points = Vec::new();
    let measured = streams.iter().zip(&samples);
    for (stream, samples) in measured.filter(|(_, samples)| !samples.is_empty()) {
        let footprint = stream.footprint(&expect)?;
        let mut expected = footprint.requester.cache_lines_read();
        if !common.ends.starts_sides_separately() {
            // The counters include the reads of both sides.
            expected += footprint.responder.cache_lines_read();
        }
        let point = median_point(stream, samples, expected);
        lines.write_line(&JsonLine::Window(&point))?;
        points.push(point);
    }
    let title = describe_run(&record, common.rounds);
    if !common.json {
        print_line(&title)?;
        if counters.is_none() {
            eprintln!(
                "note: PCIe reads were not counted ({}); those expected are of a NIC like {}",
                if nic.provider == "softnic" {
                    "the software NIC is no PCIe device"
                } else {
                    "--pcie-counters does, where the machine can"
                },
                expect.name
            );
        }
    }
    Ok((title, points))
}

fn median_point(stream: &VerbStream, samples: &[WqeCacheSample], expected: f64) -> WqeCachePoint {
    let rates: Vec<(StreamRate, &WqeCacheSample)> = samples
        .iter()
        .filter_map(|sample| match sample.outcome {
            Measured::Rate(rate) => Some((rate, sample)),
            Measured::Latency(_) => None,
        })
        .collect();
    let middle = |of: &dyn Fn(&StreamRate, &WqeCacheSample) -> Option<f64>| {
        let all: Vec<f64> = rates
            .iter()
            .filter_map(|(rate, sample)| of(rate, sample))
            .collect();
        median(&all)
    };
    // The count covers the whole run, as the number of verified work requests does.
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let a_second =
        |count: f64, rate: &StreamRate| rate.rate_mops * count / rate.verified_ops.max(1) as f64;
    let rate_mops = middle(&|rate, _| Some(rate.rate_mops)).unwrap_or(0.0);
    let expected_reads_mops = rate_mops * expected;
    let counted = middle(&|rate, sample| Some(a_second(sample.pcie_cache_lines_read?, rate)));
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let missed = middle(&|rate, sample| Some(a_second(sample.wqe_cache_misses? as f64, rate)));
    WqeCachePoint {
        verb: stream.verb,
        window: stream.window,
        outstanding: stream.window * stream.threads,
        rate_mops,
        expected_pcie_reads_mops: expected_reads_mops,
        counted_pcie_reads_mops: counted,
        wqe_cache_misses_mops: missed
            .or_else(|| counted.map(|counted| (counted - expected_reads_mops).max(0.0))),
    }
}

fn csv(points: &[WqeCachePoint]) -> String {
    let mut text = "verb,window,outstanding,rate_mops,expected_reads_mops,counted_reads_mops,wqe_cache_misses_mops\n".to_owned();
    for point in points {
        let known =
            |number: Option<f64>| number.map_or_else(String::new, |number| number.to_string());
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{}",
            point.verb.name(),
            point.window,
            point.outstanding,
            point.rate_mops,
            point.expected_pcie_reads_mops,
            known(point.counted_pcie_reads_mops),
            known(point.wqe_cache_misses_mops)
        );
    }
    text
}

fn chart(title: String, points: &[WqeCachePoint]) -> Chart {
    let mut curves = Vec::new();
    for verb in [Verb::RcRead, Verb::RcWrite] {
        let of = |name: &str, of: &dyn Fn(&WqeCachePoint) -> Option<f64>| {
            #[expect(clippy::cast_precision_loss, reason = "a place on an axis")]
            let curve: Vec<_> = points
                .iter()
                .filter(|point| point.verb == verb)
                .filter_map(|point| Some((point.window as f64, of(point)?)))
                .collect();
            (!curve.is_empty()).then(|| Series::new(format!("{}, {name}", verb.label()), curve))
        };
        curves.extend(of("rate", &|point| Some(point.rate_mops)));
        curves.extend(of("reads counted", &|point| point.counted_pcie_reads_mops));
        curves.extend(of("WQE cache misses", &|point| point.wqe_cache_misses_mops));
    }
    Chart {
        title: "Windows of READs and WRITEs, and what the WQE cache misses".to_owned(),
        caption: title,
        x: Axis::log("work requests of a window"),
        y: Axis::linear("10⁶ a second"),
        series: curves,
        constant_levels: Vec::new(),
    }
}

fn print_points(points: &[WqeCachePoint]) -> Result<()> {
    let heads = [
        "verb",
        "window",
        "outstanding",
        "rate, M/s",
        "reads expected, M/s",
        "counted, M/s",
        "WQE cache misses, M/s",
    ];
    let mut rows = table(heads, &[1, 2, 3, 4, 5, 6]);
    for point in points {
        let known =
            |number: Option<f64>| number.map_or_else(|| "-".to_owned(), format_three_digits);
        rows.add_row([
            point.verb.label().to_owned(),
            point.window.to_string(),
            point.outstanding.to_string(),
            format_three_digits(point.rate_mops),
            format_three_digits(point.expected_pcie_reads_mops),
            known(point.counted_pcie_reads_mops),
            known(point.wqe_cache_misses_mops),
        ]);
    }
    print_line(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_beyond_what_is_expected_was_missed() {
        let parameters = MicroParameters {
            threads: Some(2),
            window: Some(4),
            wrs_per_doorbell: Some(1),
            signal_every: Some(4),
            waits_between_windows: true,
            ..MicroParameters::default()
        };
        let stream = VerbStream::new(Verb::RcRead, &parameters, 1).expect("parameters that fit");
        let sample = |lines_read, wqe_cache_misses| WqeCacheSample {
            outcome: Measured::Rate(StreamRate {
                rate_mops: 10.0,
                bandwidth_gbytes_per_s: 0.08,
                verified_ops: 100,
                lost_datagrams: 0,
            }),
            pcie_cache_lines_read: lines_read,
            wqe_cache_misses,
        };
        let of = |sample| median_point(&stream, &[sample], 0.5);
        let counted = of(sample(Some(80.0), None));
        assert_eq!(
            (counted.expected_pcie_reads_mops, counted.outstanding),
            (5.0, 8)
        );
        assert_eq!(counted.counted_pcie_reads_mops, Some(8.0));
        assert_eq!(counted.wqe_cache_misses_mops, Some(3.0));
        let simulated = of(sample(Some(80.0), Some(20)));
        assert_eq!(simulated.wqe_cache_misses_mops, Some(2.0));
        let blind = of(sample(None, None));
        assert_eq!(blind.wqe_cache_misses_mops, None);
        assert!(csv(&[blind]).ends_with("rc-read,4,8,10,5,,\n"));
    }
}
