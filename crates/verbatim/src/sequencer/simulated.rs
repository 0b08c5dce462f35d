//! `verbatim sequencer --nic`: the same server and clients on a simulated cluster, in virtual time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bench::simulated::sequencer::{self as simulated, Setup};
use nicmodel::profile::{Place, Profile};
use nicmodel::published::{self, Published};
use sequencer::Design;
use serde::Serialize;

use super::arguments::{Args, SimulationArgs};
use crate::Outcome;
use crate::model::NicProfileArgs;
use crate::output::{figure, print, print_typed, table, time};
use crate::side_by_side::{
    check_postlist, or_nothing, outcome, relative_error, simulated as simulate, yes_or_no,
};

/// A line of the ladder.
#[derive(Serialize)]
struct Row {
    nic: String,
    kind: &'static str,
    #[serde(flatten)]
    setup: Setup,
    queues_per_worker: usize,
    #[serde(flatten)]
    outcome: simulated::Outcome,
    published: Option<&'static Published>,
    /// Ours over the published rate, less one.
    relative_error: Option<f64>,
    /// How long the simulation took: no result, and different in every run.
    #[serde(skip)]
    took: Duration,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Result<Outcome> {
    let simulation = &args.simulation;
    let chosen = NicProfileArgs {
        nic: simulation.nic.clone(),
        nic_file: simulation.nic_file.clone(),
    };
    let profile = chosen.chosen()?;
    if profile.at(simulation.place.unwrap_or_default()).is_none() {
        bail!(
            "{} has no DPU: leave out --place, or take a NIC whose profile has a section [dpu], such as --nic bf2",
            profile.name
        );
    }
    let designs = if args.design.is_empty() {
        &Design::ALL[..]
    } else {
        &args.design[..]
    };
    let mut setups = Vec::new();
    for &design in designs {
        for cores in cores(&profile, simulation, design) {
            setups.push(setup(args, design, cores));
        }
    }
    for setup in &setups {
        check_postlist(setup.postlist, setup.window)?;
    }
    let name = |setup: &Setup| format!("{} on {} cores", setup.design, setup.cores);
    let rows = simulate(setups, name, |setup, _| {
        let row = one(&profile, setup)?;
        if args.json {
            print_typed("simulated", &row)?;
        }
        Ok(row)
    })?;
    if !args.json {
        show(&profile, &rows)?;
    }
    for row in rows.iter().filter(|row| !row.outcome.verified) {
        eprintln!("error: {}: {}", row.setup.design, row.outcome.verdict);
    }
    Ok(outcome(rows.iter().all(|row| row.outcome.verified)))
}

/// The counts of cores to run a design on. With atomics no core of the server does anything.
fn cores(profile: &Profile, asked: &SimulationArgs, design: Design) -> Vec<usize> {
    let there = profile.at(asked.place.unwrap_or_default());
    let all = there.map_or(1, |there| there.host.cores.value as usize);
    match (asked.cores, design) {
        (Some(cores), _) => vec![cores],
        (None, Design::Atomics) => vec![1],
        (None, _) => (1..=all)
            .filter(|cores| *cores == 1 || cores % 2 == 0 || *cores == all)
            .collect(),
    }
}

fn setup(args: &Args, design: Design, cores: usize) -> Setup {
    let paper = Setup::paper(design, cores);
    Setup {
        place: args.simulation.place,
        clients: args.clients.unwrap_or(paper.clients),
        machines: args.simulation.machines,
        window: args.window.unwrap_or(paper.window),
        postlist: args.postlist,
        batch: args.batch.unwrap_or(paper.batch),
        queues: args.queues,
        seed: args.simulation.seed.unwrap_or(paper.seed),
        time: args.duration.unwrap_or(Duration::from_millis(1)),
        ..paper
    }
}

fn one(profile: &Profile, setup: Setup) -> Result<Row> {
    let begun = Instant::now();
    let outcome = simulated::run(profile, &setup)
        .with_context(|| format!("{} with --cores {}", setup.design, setup.cores))?;
    let published = published_rate(profile, &setup);
    Ok(Row {
        nic: profile.name.clone(),
        kind: "simulated",
        queues_per_worker: simulated::queues(profile, &setup),
        relative_error: published.map(|published| outcome.rate_mops / published.value - 1.0),
        published,
        outcome,
        setup,
        took: begun.elapsed(),
    })
}

/// What the paper prints for this point, if it is one of the paper's.
fn published_rate(profile: &Profile, setup: &Setup) -> Option<&'static Published> {
    let all = profile.host.cores.value as usize;
    let paper = Setup {
        place: setup.place,
        seed: setup.seed,
        time: setup.time,
        ..Setup::paper(setup.design, setup.cores)
    };
    let on_dpu = setup.place == Some(Place::Dpu);
    if profile.name == "bf2" && *setup == paper && on_dpu && setup.design == Design::Atomics {
        return published::get("dpu_seq_faa_rate");
    }
    if profile.name != "cib" || *setup != paper {
        return None;
    }
    published::get(match (setup.design, setup.cores) {
        (Design::Atomics, _) => "seq_t3_atomics",
        (Design::Rpc, 1) => "seq_rpc_base_1c",
        (Design::Rpc, cores) if cores == all => "seq_t3_baseline",
        (Design::RpcBatch, 1) => "seq_rpc_batch_1c",
        (Design::RpcBatchMq, 1) => "seq_rpc_batch_mq_1c",
        (Design::RpcBatchMq, 6) => "seq_rpc_batch_mq_6c",
        (Design::SpecS0, 10) => "seq_t3_spec_s0",
        _ => return None,
    })
}

fn show(profile: &Profile, rows: &[Row]) -> Result<()> {
    print(format_args!(
        "Simulated in virtual time, not measured: {}{}\n",
        profile.title,
        match rows.first().and_then(|row| row.setup.place) {
            Some(Place::Dpu) => "; the server is on its DPU",
            Some(Place::Host) | None => "",
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
        let latency = |ns: u64| time(ns as f64);
        let atomics = row.setup.design == Design::Atomics;
        shown.add_row([
            row.setup.design.to_string(),
            if atomics {
                "-".to_owned()
            } else {
                row.setup.cores.to_string()
            },
            figure(outcome.rate_mops),
            or_nothing(row.published, |p| p.value),
            relative_error(row.relative_error),
            if atomics {
                "-".to_owned()
            } else {
                format!("{:.1}", outcome.answers_per_doorbell)
            },
            latency(outcome.latency_ns_p50),
            latency(outcome.latency_ns_p99),
            yes_or_no(outcome.verified).to_owned(),
        ]);
    }
    print(shown)?;
    let Some(Row { setup, .. }) = rows.first() else {
        return Ok(());
    };
    print(format_args!(
        "\n{} clients with {} requests outstanding each, postlists of {}, batches of at most {}; latency from the \
         doorbell of a postlist to its last answer. The server's and the clients' own code ran; \
         costs are the profile's (verbatim model --profiles).",
        setup.clients, setup.window, setup.postlist, setup.batch
    ))?;
    let requests: u64 = rows.iter().map(|row| row.outcome.requests).sum();
    let took: Duration = rows.iter().map(|row| row.took).sum();
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let rate = requests as f64 / took.as_secs_f64().max(1e-9) * 1e-6;
    print(format_args!(
        "\n{requests} requests were simulated in {:.2} s: {rate:.2} million a second.",
        took.as_secs_f64()
    ))
}
