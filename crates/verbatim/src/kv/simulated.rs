//! `verbatim kv --nic`: the same server and clients on a simulated cluster, in virtual time.

use anyhow::{Context, Result, bail};
use bench::simulated::kv::{Outcome as Simulated, Setup, run};
use kv::Design;
use nicmodel::profile::Profile;
use nicmodel::published::{self, Published};
use serde::Serialize;

use super::compare;
use crate::Outcome;
use crate::args;
use crate::model::NicProfileArgs;
use crate::output::{self, figure, print, print_typed, table, time};

/// What only simulations have.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Simulation")]
pub(crate) struct SimulationArgs {
    /// Run on a simulated cluster of this NIC, in virtual time: cx, cx3, cib or bf2, as far as its profile goes. Clients
    /// and windows are the paper's unless told otherwise
    #[arg(long, value_name = "NAME", conflicts_with_all = ["provider", "device", "rounds", "workers"])]
    nic: Option<String>,
    /// Cores of the server, a worker each [default: several, from one to all of the profile]
    #[arg(long, value_name = "N", value_parser = args::number("a count of cores", 1..=64usize), requires = "nic")]
    cores: Option<usize>,
    /// What the simulation starts its random numbers from [default: 1]: the same seed gives the same output
    #[arg(long, value_name = "N", value_parser = args::word, requires = "nic")]
    seed: Option<u64>,
}

impl SimulationArgs {
    pub(super) fn is_asked_for(&self) -> bool {
        self.nic.is_some()
    }
}

/// A line of the table.
#[derive(Serialize)]
struct Row {
    nic: String,
    kind: &'static str,
    design: Design,
    #[serde(flatten)]
    setup: Setup,
    #[serde(flatten)]
    outcome: Simulated,
    published: Option<&'static Published>,
    /// Ours over the published rate, less one.
    relative_error: Option<f64>,
}

/// Runs the command.
pub(super) fn run_all(args: &compare::Args) -> Result<Outcome> {
    let simulation = &args.simulation;
    let chosen = NicProfileArgs {
        nic: simulation.nic.clone(),
        nic_file: None,
    };
    let profile = chosen.chosen()?;
    if let Some(design) = args.design.iter().find(|design| **design != Design::Herd) {
        bail!("design {design} is not simulated: herd is");
    }
    let all = profile.host.cores.value as usize;
    let cores: Vec<usize> = match simulation.cores {
        Some(cores) => vec![cores],
        None => [1, 2, 4, 8, 12, 14]
            .into_iter()
            .filter(|n| *n <= all)
            .collect(),
    };
    let w = &args.workload;
    if w.ycsb.is_some() || w.zipf.is_some() {
        bail!("simulated keys are chosen alike: leave out --ycsb and --zipf");
    }
    let bar = output::progress(2 * cores.len() as u64);
    let mut rows = Vec::new();
    for batched in [false, true] {
        for &cores in &cores {
            let paper = Setup::paper(cores, batched);
            let setup = Setup {
                clients: args.clients.unwrap_or(paper.clients),
                window: w.window.unwrap_or(paper.window),
                puts: w.puts.unwrap_or(paper.puts),
                value_bytes: w.value_size,
                seed: simulation.seed.unwrap_or(paper.seed),
                time: args.duration.unwrap_or(paper.time),
                ..paper
            };
            bar.set_message(format!("{cores} cores"));
            let row = one(&profile, setup, batched)?;
            if args.json {
                print_typed("simulated", &row)?;
            }
            rows.push(row);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    if !args.json {
        show(&profile, &rows)?;
    }
    Ok(if rows.iter().all(|row| row.outcome.verified) {
        Outcome::Done
    } else {
        Outcome::No
    })
}

fn one(profile: &Profile, setup: Setup, batched: bool) -> Result<Row> {
    let outcome = run(profile, &setup).with_context(|| format!("herd on {} cores", setup.cores))?;
    let paper = Setup {
        seed: setup.seed,
        time: setup.time,
        ..Setup::paper(setup.cores, batched)
    };
    let id = match (setup.cores, batched) {
        (1, false) => Some("herd_base_1c"),
        (1, true) => Some("herd_batch_1c"),
        (14, false) => Some("herd_base_peak"),
        (12, true) => Some("herd_batch_peak"),
        _ => None,
    };
    let as_published = profile.name == "cib" && paper == setup;
    let published = id.filter(|_| as_published).and_then(published::get);
    Ok(Row {
        nic: profile.name.clone(),
        kind: "simulated",
        design: Design::Herd,
        relative_error: published.map(|p| outcome.rate_mops / p.value - 1.0),
        published,
        outcome,
        setup,
    })
}

fn show(profile: &Profile, rows: &[Row]) -> Result<()> {
    print(format_args!(
        "Simulated in virtual time, not measured: {}\n",
        profile.title
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
        "verified",
    ];
    let mut shown = table(header, &[1, 2, 3, 4, 5, 6, 7]);
    for row in rows {
        let outcome = &row.outcome;
        #[allow(clippy::cast_precision_loss)] // times far below 2^52 ns
        let latency = |ns: u64| time(ns as f64);
        shown.add_row([
            if row.setup.batch > 1 {
                "herd"
            } else {
                "herd, no batches"
            }
            .to_owned(),
            row.setup.cores.to_string(),
            figure(outcome.rate_mops),
            row.published
                .map_or_else(String::new, |p| p.value.to_string()),
            row.relative_error
                .map_or_else(String::new, |e| format!("{:+.1} %", 100.0 * e)),
            format!("{:.1}", outcome.answers_per_doorbell),
            latency(outcome.latency_ns_p50),
            latency(outcome.latency_ns_p99),
            if outcome.verified { "yes" } else { "NO" }.to_owned(),
        ]);
    }
    print(shown)?;
    let Some(Row { setup, .. }) = rows.first() else {
        return Ok(());
    };
    print(format_args!(
        "\n{} clients with {} requests outstanding each, values of {} bytes, {} % PUTs. The server's and the clients' own \
         code ran; costs are the profile's, and those of a look-up were fitted to one core of the paper's.",
        setup.clients,
        setup.window,
        setup.value_bytes,
        100.0 * setup.puts,
    ))
}
