//! `verbatim sequencer --nic`: the same server and clients on a simulated cluster, in virtual time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bench::simulated::sequencer::{self as simulated, SequencerParameters};
use chart::{Axis, Chart, Point};
use nicmodel::profile::{CorePlace, Profile};
use nicmodel::published::{self, PublishedNumber};
use sequencer::Design;
use serde::Serialize;

use super::arguments::{Args, SimulationArgs};
use crate::CommandOutcome;
use crate::args::PublishedExperiment;
use crate::output::{format_three_digits, format_time_ns, print_line, print_typed_json, table};
use crate::picture::axis_coordinate;
use crate::side_by_side::{
    format_or_empty, format_relative_error, outcome_of_comparison, refuse_postlist_above_window,
    run_simulations as simulate, yes_or_no,
};
use crate::sweeps::{SweepSetting, join_distinct, profiles, series};

/// A row of the table of designs.
#[derive(Serialize)]
struct Row {
    nic: String,
    #[serde(rename = "kind")]
    nic_kind: &'static str,
    #[serde(flatten)]
    setup: SequencerParameters,
    queues_per_worker: usize,
    #[serde(flatten)]
    outcome: simulated::SequencerResult,
    #[serde(rename = "published")]
    published_number: Option<&'static PublishedNumber>,
    /// The simulated rate divided by the published rate, minus 1.
    relative_error: Option<f64>,
    /// The value of the swept knob.
    #[serde(skip)]
    #[serde(rename = "at")]
    swept_value: usize,
    /// The real time that the simulation took. It differs in every run and is no result.
    #[serde(skip)]
    #[serde(rename = "took")]
    simulation_wall_time: Duration,
}

/// Runs all simulations of `verbatim sequencer --nic`.
pub(super) fn run(args: &Args) -> Result<CommandOutcome> {
    let simulation = &args.simulation;
    args.picture.check_files_writable()?;
    let profiles = profiles(&simulation.nic, simulation.nic_file.as_ref())?;
    let runs = planned_runs(args, &profiles)?;
    let name = |(profile, setup, _): &(&Profile, SequencerParameters, usize)| {
        format!(
            "{} on {} cores, {}",
            setup.design, setup.server_cores, profile.name
        )
    };
    let rows = simulate(runs, name, |(profile, setup, at), _| {
        let row = Row {
            swept_value: at,
            ..simulate_setup(profile, setup)?
        };
        if args.json {
            print_typed_json("simulated", &row)?;
        }
        Ok(row)
    })?;
    if !args.json {
        print_rows(args, &profiles, &rows)?;
    }
    args.picture
        .write_requested_files(&chart(args, &profiles, &rows))?;
    for row in rows.iter().filter(|row| !row.outcome.are_numbers_right) {
        eprintln!("error: {}: {}", row.setup.design, row.outcome.verdict_text);
    }
    Ok(outcome_of_comparison(
        rows.iter().all(|row| row.outcome.are_numbers_right),
    ))
}

/// Returns all runs: every design on every NIC, over cores or over the swept knob. Each run has the
/// knob's value.
fn planned_runs<'p>(
    args: &Args,
    profiles: &'p [Profile],
) -> Result<Vec<(&'p Profile, SequencerParameters, usize)>> {
    let designs = if args.design.is_empty() {
        &Design::ALL[..]
    } else {
        &args.design[..]
    };
    let mut runs = Vec::new();
    for profile in profiles {
        let there = profile.as_seen_from(args.simulation.place.unwrap_or_default());
        let Some(there) = there else {
            bail!(
                "{} has no DPU: leave out --place, or take a NIC whose profile has a section [dpu], such as --nic bf2",
                profile.name
            );
        };
        let mut args = args.clone();
        if args.sweep.over.is_some() && args.simulation.cores.is_empty() {
            args.simulation.cores = vec![there.host.cores.value as usize];
        }
        for &design in designs {
            for (value, args) in args.sweep.settings_to_run(&args, Args::set_knob_if_known)? {
                for cores in core_counts_to_simulate(profile, &args.simulation, design) {
                    runs.push((profile, setup(&args, design, cores), value.unwrap_or(cores)));
                }
            }
        }
    }
    for (_, setup, _) in &runs {
        refuse_postlist_above_window(setup.max_requests_per_doorbell, setup.window)?;
    }
    Ok(runs)
}

/// Draws the rates as one series per design.
fn chart(args: &Args, profiles: &[Profile], rows: &[Row]) -> Chart {
    let cores = |row: &Row| {
        let is_axis = matches!(args.sweep.over, None | Some(SweepSetting::Cores));
        (!is_axis).then(|| format!("{} cores", row.setup.server_cores))
    };
    let series = series(
        rows,
        &[
            &|row| Some(row.setup.design.to_string()),
            &|row| Some(row.nic.clone()),
            &cores,
        ],
        |row| Point::from((axis_coordinate(row.swept_value), row.outcome.rate_mops)),
        |row| row.published_number.map(|published| published.value),
    );
    let titles: Vec<_> = profiles.iter().map(|p| p.title.as_str()).collect();
    Chart {
        title: format!("A networked sequencer over {}", args.sweep.axis().label),
        caption: format!("simulated in virtual time: {}", titles.join("; ")),
        x: args.sweep.axis(),
        y: Axis::auto("10⁶ requests a second"),
        series,
        constant_levels: Vec::new(),
    }
}

/// Returns the numbers of cores with which a design runs. With atomics, the server's cores are
/// idle.
fn core_counts_to_simulate(
    profile: &Profile,
    asked: &SimulationArgs,
    design: Design,
) -> Vec<usize> {
    let there = profile.as_seen_from(asked.place.unwrap_or_default());
    let all = there.map_or(1, |there| there.host.cores.value as usize);
    match (&asked.cores[..], design) {
        (_, Design::Atomics) => vec![1],
        ([], _) => (1..=all)
            .filter(|cores| *cores == 1 || cores % 2 == 0 || *cores == all)
            .collect(),
        (some, _) => some.to_vec(),
    }
}

fn setup(args: &Args, design: Design, cores: usize) -> SequencerParameters {
    if args.simulation.experiment == Some(PublishedExperiment::Atc16) {
        let atc16 = SequencerParameters::rdma_bench_setup(design, cores);
        return SequencerParameters {
            server_place: args.simulation.place,
            clients: args.clients.unwrap_or(atc16.clients),
            client_machines: args.simulation.machines,
            seed: args.simulation.seed.unwrap_or(atc16.seed),
            measured_time: args.duration.unwrap_or(atc16.measured_time),
            ..atc16
        };
    }
    let paper = SequencerParameters::paper_setup(design, cores);
    SequencerParameters {
        server_place: args.simulation.place,
        clients: args.clients.unwrap_or(paper.clients),
        client_machines: args.simulation.machines,
        window: args.window.unwrap_or(paper.window),
        max_requests_per_doorbell: args.postlist,
        max_requests_per_batch: args.batch.unwrap_or(paper.max_requests_per_batch),
        ud_qps_per_worker: args.queues,
        seed: args.simulation.seed.unwrap_or(paper.seed),
        measured_time: args.duration.unwrap_or(Duration::from_millis(1)),
        ..paper
    }
}

fn simulate_setup(profile: &Profile, setup: SequencerParameters) -> Result<Row> {
    let begun = Instant::now();
    let outcome = simulated::run(profile, &setup)
        .with_context(|| format!("{} with --cores {}", setup.design, setup.server_cores))?;
    let published = published_rate(profile, &setup);
    Ok(Row {
        nic: profile.name.clone(),
        nic_kind: "simulated",
        queues_per_worker: simulated::ud_qps_per_worker(profile, &setup),
        relative_error: published.map(|published| outcome.rate_mops / published.value - 1.0),
        published_number: published,
        outcome,
        swept_value: setup.server_cores,
        simulation_wall_time: begun.elapsed(),
        setup,
    })
}

/// Returns the paper's published rate for this setup, if the paper measured it.
fn published_rate(
    profile: &Profile,
    setup: &SequencerParameters,
) -> Option<&'static PublishedNumber> {
    let all = profile.host.cores.value as usize;
    let paper = SequencerParameters {
        server_place: setup.server_place,
        seed: setup.seed,
        measured_time: setup.measured_time,
        ..SequencerParameters::paper_setup(setup.design, setup.server_cores)
    };
    let on_dpu = setup.server_place == Some(CorePlace::Dpu);
    if profile.name == "bf2" && *setup == paper && on_dpu && setup.design == Design::Atomics {
        return published::published_number_by_id("dpu_seq_faa_rate");
    }
    let atc16 = SequencerParameters {
        server_place: setup.server_place,
        seed: setup.seed,
        measured_time: setup.measured_time,
        ..SequencerParameters::rdma_bench_setup(setup.design, setup.server_cores)
    };
    if profile.name != "cib" || (*setup != paper && *setup != atc16) {
        return None;
    }
    published::published_number_by_id(match (setup.design, setup.server_cores) {
        (Design::Atomics, _) => "seq_t3_atomics",
        (Design::Rpc, 1) => "seq_rpc_base_1c",
        (Design::Rpc, 3) => "bench_rpc_base_3c",
        (Design::Rpc, 5) => "bench_rpc_base_5c",
        (Design::RpcBatch, 3) => "bench_rpc_batch_3c",
        (Design::RpcBatch, 5) => "bench_rpc_batch_5c",
        (Design::RpcBatchMq, 3) => "bench_rpc_batch_mq_3c",
        (Design::RpcBatchMq, 5) => "bench_rpc_batch_mq_5c",
        (Design::Rpc, cores) if cores == all => "seq_t3_baseline",
        (Design::RpcBatch, 1) => "seq_rpc_batch_1c",
        (Design::RpcBatchMq, 1) => "seq_rpc_batch_mq_1c",
        (Design::RpcBatchMq, 6) => "seq_rpc_batch_mq_6c",
        (Design::SpecS0, 10) => "seq_t3_spec_s0",
        _ => return None,
    })
}

/// Formats the design, with the NIC if several are simulated, and with the swept knob.
fn row_label(profiles: &[Profile], args: &Args, row: &Row) -> String {
    let nic = if profiles.len() > 1 {
        format!(", {}", row.nic)
    } else {
        String::new()
    };
    let turned = match args.sweep.over {
        None | Some(SweepSetting::Cores) => String::new(),
        Some(knob) => format!(", {} {}", knob.name(), row.swept_value),
    };
    format!("{}{nic}{turned}", row.setup.design)
}

fn print_rows(args: &Args, profiles: &[Profile], rows: &[Row]) -> Result<()> {
    let titles: Vec<_> = profiles.iter().map(|p| p.title.as_str()).collect();
    print_line(format_args!(
        "Simulated in virtual time, not measured: {}{}\n",
        titles.join("; "),
        match rows.first().and_then(|row| row.setup.server_place) {
            Some(CorePlace::Dpu) => "; the server is on its DPU",
            Some(CorePlace::Host) | None => "",
        }
    ))?;
    let header = [
        "design",
        "cores",
        "M/s",
        "published",
        "error",
        "answers/doorbell",
        "p50",
        "p99",
        "checked",
    ];
    let mut shown = table(header, &[1, 2, 3, 4, 5, 6, 7]);
    for row in rows {
        let outcome = &row.outcome;
        #[allow(clippy::cast_precision_loss)] // times far below 2^52 ns
        let latency = |ns: u64| format_time_ns(ns as f64);
        let atomics = row.setup.design == Design::Atomics;
        shown.add_row([
            row_label(profiles, args, row),
            if atomics {
                "-".to_owned()
            } else {
                row.setup.server_cores.to_string()
            },
            format_three_digits(outcome.rate_mops),
            format_or_empty(row.published_number, |p| p.value),
            format_relative_error(row.relative_error),
            if atomics {
                "-".to_owned()
            } else {
                format!("{:.1}", outcome.answers_per_doorbell)
            },
            latency(outcome.latency_ns_p50),
            latency(outcome.latency_ns_p99),
            yes_or_no(outcome.are_numbers_right).to_owned(),
        ]);
    }
    print_line(shown)?;
    let Some(Row { setup: first, .. }) = rows.first() else {
        return Ok(());
    };
    // Rows of one design differ only in the swept knob; rows of different designs differ in more.
    let alike = rows.iter().filter(|row| row.setup.design == first.design);
    let of = |setting: fn(&SequencerParameters) -> usize| {
        join_distinct(alike.clone().map(|row| setting(&row.setup)))
    };
    let loops = if first.loop_policies.is_default() {
        ""
    } else {
        " Loops are those of the paper's benchmark."
    };
    print_line(format_args!(
        "\n{} clients with {} requests outstanding each, postlists of {}, batches of at most {}; latency from the \
         doorbell of a postlist to its last answer. The server's and the clients' own code ran; \
         costs are the profile's (verbatim model --profiles).{loops}",
        of(|setup| setup.clients),
        of(|setup| setup.window),
        of(|setup| setup.max_requests_per_doorbell),
        of(|setup| setup.max_requests_per_batch)
    ))?;
    let requests: u64 = rows.iter().map(|row| row.outcome.received_numbers).sum();
    let took: Duration = rows.iter().map(|row| row.simulation_wall_time).sum();
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let rate = requests as f64 / took.as_secs_f64().max(1e-9) * 1e-6;
    print_line(format_args!(
        "\n{requests} requests were simulated in {:.2} s: {rate:.2} million a second.",
        took.as_secs_f64()
    ))
}
