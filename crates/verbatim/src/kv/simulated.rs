//! `verbatim kv --nic`: the same server and clients on a simulated cluster, in virtual time.

use anyhow::{Context, Result, bail};
use bench::simulated::check_costs_of_cores;
use bench::simulated::kv::{KvParameters, KvResult as Simulated, run};
use chart::{Axis, Chart, Point};
use kv::Design;
use nicmodel::profile::Profile;
use nicmodel::published::{self, PublishedNumber};
use serde::Serialize;

use super::arguments::Args;
use super::serve::DEFAULT_SINGLE_READ_GET_BYTES;
use crate::CommandOutcome;
use crate::args::PublishedExperiment;
use crate::output::{format_three_digits, format_time_ns, print_line, print_typed_json, table};
use crate::picture::axis_coordinate;
use crate::side_by_side::{
    format_or_empty, format_relative_error, outcome_of_comparison, run_simulations as simulate,
    yes_or_no,
};
use crate::sweeps::{SweepSetting, join_distinct, profiles, series};

/// A line of the table: one setup.
#[derive(Serialize)]
struct Row {
    nic: String,
    #[serde(rename = "kind")]
    nic_kind: &'static str,
    #[serde(flatten)]
    setup: KvParameters,
    #[serde(flatten)]
    outcome: Simulated,
    #[serde(rename = "published")]
    published_number: Option<&'static PublishedNumber>,
    /// The simulated rate divided by the published rate, minus 1.
    relative_error: Option<f64>,
    /// `atomics`: the rate divided by the rate with GETs only.
    #[serde(rename = "to_gets")]
    rate_ratio_to_gets_only: Option<f64>,
    /// The value of the swept knob.
    #[serde(skip)]
    #[serde(rename = "at")]
    swept_value: usize,
}

/// Runs all simulations of `verbatim kv --nic`.
pub(super) fn run_all(args: &Args) -> Result<CommandOutcome> {
    let simulation = &args.simulation;
    args.picture.check_files_writable()?;
    let profiles = profiles(&simulation.nic, simulation.nic_file.as_ref())?;
    let w = &args.workload;
    if w.ycsb.is_some() || w.zipf.is_some() {
        bail!("simulated keys are chosen alike: leave out --ycsb and --zipf");
    }
    if simulation.experiment.is_some() && args.design.iter().any(|d| *d != Design::Herd) {
        bail!(
            "--experiment: of the stores only herd has the loops of atc16; leave out --design or --experiment"
        );
    }
    let runs = planned_runs(args, &profiles)?;
    let running = |(profile, setup, _): &(&Profile, KvParameters, usize)| {
        format!(
            "{} on {} cores, {}",
            run_name(setup),
            setup.server_cores,
            profile.name
        )
    };
    let rows = simulate(runs, running, |(profile, setup, at), rows: &[Row]| {
        let mut row = Row {
            swept_value: at,
            ..simulate_setup(profile, setup)?
        };
        // Divide by the rate of the same setup with GETs only.
        let gets = rows.iter().find(|gets| {
            let same = KvParameters {
                put_share: 0.0,
                measured_time: gets.setup.measured_time,
                ..row.setup.clone()
            };
            row.setup.design == Design::Atomics && gets.setup == same && gets.nic == row.nic
        });
        row.rate_ratio_to_gets_only =
            gets.map(|gets| row.outcome.rate_mops / gets.outcome.rate_mops);
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
    Ok(outcome_of_comparison(
        rows.iter().all(|row| row.outcome.are_values_right),
    ))
}

/// Returns all runs: every design on every NIC, over cores or over the swept knob. Each run has the
/// knob's value.
fn planned_runs<'p>(
    args: &Args,
    profiles: &'p [Profile],
) -> Result<Vec<(&'p Profile, KvParameters, usize)>> {
    let mut runs = Vec::new();
    for profile in profiles {
        let mut args = args.clone();
        if args.sweep.over.is_some() && args.simulation.cores.is_empty() {
            args.simulation.cores = vec![profile.host.cores.value as usize];
        }
        for &design in designs_to_simulate(&args, profile) {
            for (value, args) in args.sweep.settings_to_run(&args, Args::set_knob_if_known)? {
                for setup in setups_to_simulate(profile, design, &args) {
                    let at = value.unwrap_or(setup.server_cores);
                    runs.push((profile, setup, at));
                }
            }
        }
    }
    Ok(runs)
}

/// Returns the designs that the user has named, or HERD. The atomics-based store needs no costs of cores, so it is
/// there, too, if the profile lacks these.
fn designs_to_simulate<'a>(args: &'a Args, profile: &Profile) -> &'a [Design] {
    match &args.design[..] {
        [] if args.simulation.experiment.is_none() && check_costs_of_cores(profile).is_err() => {
            &[Design::Herd, Design::Atomics]
        }
        [] => &[Design::Herd],
        some => some,
    }
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
            &|row| Some(run_name(&row.setup)),
            &|row| Some(row.nic.clone()),
            &cores,
            &|row| {
                Some(format!(
                    "{} % PUTs",
                    format_three_digits(100.0 * row.setup.put_share)
                ))
            },
        ],
        |row| Point::from((axis_coordinate(row.swept_value), row.outcome.rate_mops)),
        |row| row.published_number.map(|published| published.value),
    );
    let titles: Vec<_> = profiles.iter().map(|p| p.title.as_str()).collect();
    Chart {
        title: format!("Key-value stores over {}", args.sweep.axis().label),
        caption: format!("simulated in virtual time: {}", titles.join("; ")),
        x: args.sweep.axis(),
        y: Axis::auto("10⁶ requests a second"),
        series,
        constant_levels: Vec::new(),
    }
}

/// Returns the setups of a design. HERD: over cores, with and without batches (Figure 9).
/// READ-based: both ways to READ. Atomics-based: over the share of PUTs (Figure 10).
fn setups_to_simulate(profile: &Profile, design: Design, args: &Args) -> Vec<KvParameters> {
    let (w, simulation) = (&args.workload, &args.simulation);
    let all = profile.host.cores.value as usize;
    let asked = |paper: KvParameters| KvParameters {
        clients: args.clients.unwrap_or(paper.clients),
        window: w.window.unwrap_or(paper.window),
        put_share: w.puts.unwrap_or(paper.put_share),
        value_bytes: w.value_size,
        seed: simulation.seed.unwrap_or(paper.seed),
        measured_time: args.duration.unwrap_or(paper.measured_time),
        lock_placement: args.records.locks,
        record_align_bytes: args.records.record_align,
        ..paper
    };
    // The numbers of cores that the user has named, or those default numbers that the profile's
    // host has.
    let cores_or = |usual: &[usize]| match &simulation.cores[..] {
        [] => usual.iter().copied().filter(|n| *n <= all).collect(),
        some => some.to_vec(),
    };
    match design {
        Design::Herd => {
            let cores = cores_or(&[1, 2, 4, 8, 12, 14]);
            let both = [false, true].into_iter();
            let paper = match simulation.experiment {
                Some(PublishedExperiment::Atc16) => KvParameters::rdma_bench_setup,
                None => KvParameters::paper_setup,
            };
            let setups =
                both.flat_map(|batched| cores.iter().map(move |n| asked(paper(*n, batched))));
            setups.collect()
        }
        Design::Reads => {
            let sizes = match args.records.read_size {
                Some(size) => vec![size],
                None => vec![0, DEFAULT_SINGLE_READ_GET_BYTES],
            };
            let of = |(read_size, cores)| {
                asked(KvParameters {
                    design,
                    single_read_bytes: read_size,
                    ..KvParameters::paper_setup(cores, true)
                })
            };
            let cores = cores_or(&[all]);
            let each = |size| cores.iter().map(move |n| (size, *n));
            sizes.into_iter().flat_map(each).map(of).collect()
        }
        Design::Atomics => {
            let shares = match w.puts {
                Some(puts) => vec![puts],
                None => vec![0.0, 0.05, 0.1, 0.2, 0.5, 1.0],
            };
            let of = |(puts, cores)| KvParameters {
                put_share: puts,
                ..asked(KvParameters {
                    server_cores: cores,
                    single_read_bytes: args.records.read_size.unwrap_or(0),
                    ..KvParameters::drtm_setup(puts)
                })
            };
            let cores = cores_or(&[1]);
            let each = |puts| cores.iter().map(move |n| (puts, *n));
            shares.into_iter().flat_map(each).map(of).collect()
        }
    }
}

/// Returns the name of a run.
fn run_name(setup: &KvParameters) -> String {
    match setup.design {
        Design::Herd if setup.max_answers_per_doorbell > 1 => "herd".to_owned(),
        Design::Herd => "herd, no batches".to_owned(),
        Design::Reads if setup.single_read_bytes > 0 => {
            format!("reads of {}", setup.single_read_bytes)
        }
        Design::Reads => "reads".to_owned(),
        Design::Atomics => "atomics".to_owned(),
    }
}

fn simulate_setup(profile: &Profile, setup: KvParameters) -> Result<Row> {
    let outcome = run(profile, &setup)
        .with_context(|| format!("{} on {} cores", run_name(&setup), setup.server_cores))?;
    let published = if setup.uses_rdma_bench_loops {
        KvParameters::rdma_bench_setup
    } else {
        KvParameters::paper_setup
    };
    let paper = KvParameters {
        seed: setup.seed,
        measured_time: setup.measured_time,
        ..published(setup.server_cores, setup.max_answers_per_doorbell > 1)
    };
    let id = match (setup.server_cores, setup.max_answers_per_doorbell > 1) {
        (1, false) => Some("herd_base_1c"),
        (1, true) => Some("herd_batch_1c"),
        (14, false) => Some("herd_base_peak"),
        (12, true) => Some("herd_batch_peak"),
        _ => None,
    };
    let as_published = profile.name == "cib" && paper == setup;
    let published = id
        .filter(|_| as_published)
        .and_then(published::published_number_by_id);
    Ok(Row {
        nic: profile.name.clone(),
        nic_kind: "simulated",
        relative_error: published.map(|p| outcome.rate_mops / p.value - 1.0),
        published_number: published,
        rate_ratio_to_gets_only: None,
        swept_value: setup.server_cores,
        outcome,
        setup,
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
    format!("{}{nic}{turned}", run_name(&row.setup))
}

fn print_rows(args: &Args, profiles: &[Profile], rows: &[Row]) -> Result<()> {
    let titles: Vec<_> = profiles.iter().map(|p| p.title.as_str()).collect();
    print_line(format_args!(
        "Simulated in virtual time, not measured: {}\n",
        titles.join("; ")
    ))?;
    let header = [
        "design",
        "cores",
        "PUTs",
        "M/s",
        "to GETs alone",
        "published",
        "error",
        "answers/doorbell",
        "p50",
        "p99",
        "verified",
    ];
    let mut shown = table(header, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    for row in rows {
        let outcome = &row.outcome;
        #[allow(clippy::cast_precision_loss)] // times far below 2^52 ns
        let latency = |ns: u64| format_time_ns(ns as f64);
        shown.add_row([
            row_label(profiles, args, row),
            row.setup.server_cores.to_string(),
            format!("{} %", format_three_digits(100.0 * row.setup.put_share)),
            format_three_digits(outcome.rate_mops),
            format_or_empty(row.rate_ratio_to_gets_only, |r| {
                format!("{:.1} %", 100.0 * r)
            }),
            format_or_empty(row.published_number, |p| p.value),
            format_relative_error(row.relative_error),
            match row.setup.design {
                Design::Herd => format!("{:.1}", outcome.answers_per_doorbell),
                Design::Reads | Design::Atomics => String::new(),
            },
            latency(outcome.latency_ns_p50),
            latency(outcome.latency_ns_p99),
            yes_or_no(outcome.are_values_right).to_owned(),
        ]);
    }
    print_line(shown)?;
    let Some(Row { setup: first, .. }) = rows.first() else {
        return Ok(());
    };
    // Rows of one design differ only in the swept knob; rows of different designs differ in more.
    let alike = rows.iter().filter(|row| row.setup.design == first.design);
    let of = |setting: fn(&KvParameters) -> usize| {
        join_distinct(alike.clone().map(|row| setting(&row.setup)))
    };
    print_line(format_args!(
        "\n{} clients with {} requests outstanding each, values of {} bytes. The server's and the clients' own code ran; costs \
         are the profile's, and those of a look-up by RPC were fitted to one core of the paper's.",
        of(|setup| setup.clients),
        of(|setup| setup.window),
        of(|setup| setup.value_bytes),
    ))?;
    let atomics = rows.iter().find(|row| row.setup.design == Design::Atomics);
    if let Some(Row { setup, .. }) = atomics {
        print_line(format_args!(
            "atomics: {} requests outstanding each; locks: {}, records aligned to {}; published (Figure 10): on cib 10 % PUTs \
             cost 31 %, on cx3 PUTs alone are 4 % of GETs alone",
            setup.window, setup.lock_placement, setup.record_align_bytes
        ))?;
    }
    Ok(())
}
