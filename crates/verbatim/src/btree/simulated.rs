//! `verbatim btree --nic`: the same server and clients on a simulated cluster, in virtual time.

use anyhow::{Context, Result, bail};
use bench::simulated::btree::{
    BtreeParameters, BtreeResult as Simulated, run, run_local_lookups_mops,
};
use btree::AccessDesign;
use chart::{Axis, Chart, Point};
use nicmodel::profile::{CorePlace, Profile};
use nicmodel::published::{self, PublishedNumber};
use serde::Serialize;

use super::compare::{Args, CACHED_INNER_NODES};
use crate::CommandOutcome;
use crate::output::{format_three_digits, format_time_ns, print_line, print_typed_json, table};
use crate::picture::axis_coordinate;
use crate::side_by_side::{
    format_or_empty, format_relative_error, outcome_of_comparison, run_simulations as simulate,
    yes_or_no,
};
use crate::sweeps::{SweepSetting, profiles, series};

/// A line of the table: one setup.
#[derive(Serialize)]
struct Row {
    nic: String,
    #[serde(rename = "kind")]
    nic_kind: &'static str,
    name: &'static str,
    #[serde(flatten)]
    setup: BtreeParameters,
    #[serde(flatten)]
    outcome: Simulated,
    /// The median latency in ns of one client that has one request outstanding.
    #[serde(rename = "alone_ns_p50")]
    one_outstanding_ns_p50: u64,
    /// Rate of look-ups of all cores of the server on local memory, without network, in 10^6 a
    /// second.
    local_mops: f64,
    #[serde(rename = "published")]
    published_number: Option<&'static PublishedNumber>,
    /// The simulated rate divided by the published rate, minus 1.
    relative_error: Option<f64>,
    /// The value of the swept knob.
    #[serde(skip)]
    #[serde(rename = "at")]
    swept_value: usize,
}

/// Runs all simulations of `verbatim btree --nic`.
pub(super) fn run_all(args: &Args) -> Result<CommandOutcome> {
    let simulation = &args.simulation;
    args.picture.check_files_writable()?;
    let profiles = profiles(&simulation.nic, simulation.nic_file.as_ref())?;
    let mut runs = Vec::new();
    for profile in &profiles {
        for (value, args) in args.sweep.settings_to_run(args, Args::set_knob_if_known)? {
            for (name, setup) in setups_to_simulate(profile, &args)? {
                let at = value.unwrap_or(setup.cores_per_server);
                runs.push((profile, name, setup, at));
            }
        }
    }
    let name = |(profile, name, setup, _): &(&Profile, &str, BtreeParameters, usize)| {
        format!("{name} on the {}, {}", setup.server_place, profile.name)
    };
    let rows = simulate(runs, name, |(profile, name, setup, at), _| {
        let place = format!("{name} on the {}", setup.server_place);
        let row = simulate_row(profile, name, setup).with_context(|| place)?;
        let row = Row {
            swept_value: at,
            ..row
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
    Ok(outcome_of_comparison(
        rows.iter().all(|row| row.outcome.are_values_right),
    ))
}

/// Draws the rates as one series per design.
fn chart(args: &Args, profiles: &[Profile], rows: &[Row]) -> Chart {
    let cores = |row: &Row| {
        let is_axis = matches!(args.sweep.over, None | Some(SweepSetting::Cores));
        (!is_axis).then(|| format!("{} cores", row.setup.cores_per_server))
    };
    let series = series(
        rows,
        &[
            &|row| Some(row.name.to_owned()),
            &|row| Some(row.setup.server_place.to_string()),
            &|row| Some(row.nic.clone()),
            &cores,
        ],
        |row| Point::from((axis_coordinate(row.swept_value), row.outcome.rate_mops)),
        |row| row.published_number.map(|published| published.value),
    );
    let titles: Vec<_> = profiles.iter().map(|p| p.title.as_str()).collect();
    Chart {
        title: format!(
            "Look-ups in a remote B-tree over {}",
            args.sweep.axis().label
        ),
        caption: format!("simulated in virtual time: {}", titles.join("; ")),
        x: args.sweep.axis(),
        y: Axis::auto("10⁶ look-ups a second"),
        series,
        constant_levels: Vec::new(),
    }
}

/// Returns the setups for each place: RPCs singly and in batches, READs without a cache and with
/// one.
fn setups_to_simulate(
    profile: &Profile,
    args: &Args,
) -> Result<Vec<(&'static str, BtreeParameters)>> {
    let simulation = &args.simulation;
    let places = match simulation.place {
        Some(place) if profile.as_seen_from(place).is_none() => bail!(
            "{} has no DPU: leave out --place, or take a NIC whose profile has a section [dpu], such as --nic bf2",
            profile.name
        ),
        Some(place) => vec![place],
        None => [CorePlace::Host, CorePlace::Dpu]
            .into_iter()
            .filter(|place| profile.as_seen_from(*place).is_some())
            .collect(),
    };
    let accesses = match &args.access[..] {
        [] => &[AccessDesign::Rpc, AccessDesign::Read],
        some => some,
    };
    let strings = args.strings.sizes();
    let mut setups = Vec::new();
    for place in places {
        let there = profile
            .as_seen_from(place)
            .map_or(1, |at| at.host.cores.value);
        let usual = [(there as usize).min(8)];
        let all_cores = match &simulation.cores[..] {
            [] => &usual[..],
            some => some,
        };
        let kinds = accesses
            .iter()
            .flat_map(|access| access_variants(*access, place));
        let runs = kinds.flat_map(|(name, setup)| {
            all_cores
                .iter()
                .map(move |cores| (name, setup.clone(), *cores))
        });
        for (name, setup, cores) in runs {
            let setup = BtreeParameters {
                cost_tree_key_count: args.keys,
                node_bytes: args.node_size.unwrap_or_else(|| {
                    strings.map_or(setup.node_bytes, |sizes| {
                        setup.node_bytes.max(sizes.suggested_node_bytes())
                    })
                }),
                string_sizes: strings,
                window: args.window.unwrap_or(setup.window),
                measured_time: args.duration.unwrap_or(setup.measured_time),
                clients: simulation.clients.unwrap_or(setup.clients),
                seed: simulation.seed.unwrap_or(setup.seed),
                cores_per_server: cores,
                ..setup
            };
            let client_cores = profile.host.cores.value as usize;
            let machines = setup.clients.div_ceil(client_cores).max(1);
            setups.push((
                name,
                BtreeParameters {
                    client_machines: machines,
                    ..setup
                },
            ));
        }
    }
    Ok(setups)
}

/// Returns the variants of an access design, with their names.
fn access_variants(access: AccessDesign, place: CorePlace) -> Vec<(&'static str, BtreeParameters)> {
    let rpc = BtreeParameters::bluefield2_study(place, 0);
    let batched = BtreeParameters {
        max_requests_per_doorbell: 16,
        max_answers_per_doorbell: 16,
        ..rpc.clone()
    };
    let read = BtreeParameters {
        max_requests_per_doorbell: 16,
        ..BtreeParameters::bluefield2_study_one_sided(place, 2048)
    };
    let cached = |setup: BtreeParameters, access| BtreeParameters {
        access_design: access,
        cached_inner_nodes: CACHED_INNER_NODES,
        ..setup
    };
    match access {
        AccessDesign::Rpc => vec![("rpc, no batches", rpc), ("rpc", batched)],
        AccessDesign::Read => vec![
            (
                "read, no cache",
                BtreeParameters::bluefield2_study_one_sided(place, 2048),
            ),
            ("read", cached(read, access)),
        ],
        AccessDesign::Auto => vec![("auto", cached(batched, access))],
    }
}

fn simulate_row(profile: &Profile, name: &'static str, setup: BtreeParameters) -> Result<Row> {
    let outcome = run(profile, &setup)?;
    let alone = run(profile, &setup.clone().with_one_outstanding_request())?;
    let published = published_rate(profile, &setup);
    Ok(Row {
        nic: profile.name.clone(),
        nic_kind: "simulated",
        name,
        relative_error: published.map(|p| outcome.rate_mops / p.value - 1.0),
        published_number: published,
        one_outstanding_ns_p50: alone.latency_ns_p50,
        local_mops: run_local_lookups_mops(profile, &setup)?,
        swept_value: setup.cores_per_server,
        outcome: Simulated {
            are_values_right: outcome.are_values_right && alone.are_values_right,
            ..outcome
        },
        setup,
    })
}

/// Returns the study's published rate for this setup, if the study measured it.
fn published_rate(profile: &Profile, setup: &BtreeParameters) -> Option<&'static PublishedNumber> {
    let as_in_study = |study: BtreeParameters| {
        let study = BtreeParameters {
            seed: setup.seed,
            measured_time: setup.measured_time,
            ..study
        };
        profile.name == "bf2" && study == *setup
    };
    if as_in_study(BtreeParameters::bluefield2_study(CorePlace::Dpu, 1_000_000)) {
        return published::published_number_by_id("dpu_bt_rpc_small");
    }
    let one_sided = BtreeParameters {
        cores_per_server: setup.cores_per_server,
        ..BtreeParameters::bluefield2_study_one_sided(setup.server_place, 2048)
    };
    as_in_study(one_sided)
        .then(|| published::published_number_by_id("dpu_os_best"))
        .flatten()
}

/// Formats the access design, with the NIC if several are simulated, and with the swept knob.
fn row_label(profiles: &[Profile], args: &Args, row: &Row) -> String {
    let nic = if profiles.len() > 1 {
        format!(", {}", row.nic)
    } else {
        String::new()
    };
    let turned = match args.sweep.over {
        None if args.simulation.cores.len() > 1 => format!(", cores {}", row.swept_value),
        None => String::new(),
        Some(knob) => format!(", {} {}", knob.name(), row.swept_value),
    };
    format!("{}{nic}{turned}", row.name)
}

fn print_rows(args: &Args, profiles: &[Profile], rows: &[Row]) -> Result<()> {
    let titles: Vec<_> = profiles.iter().map(|p| p.title.as_str()).collect();
    let Some(Row { setup, .. }) = rows.first() else {
        return Ok(());
    };
    let (key_bytes, value_bytes) = args.strings.key_and_value_bytes();
    print_line(format_args!(
        "Simulated in virtual time, not measured: {}\n{} keys of {key_bytes} bytes with values of {value_bytes}, nodes of {} bytes\n",
        titles.join("; "),
        setup.cost_tree_key_count,
        setup.node_bytes
    ))?;
    let header = [
        "access",
        "server",
        "clients x window",
        "lookups M/s",
        "published",
        "error",
        "p50",
        "p99",
        "window 1",
        "READs",
        "answers/doorbell",
        "local M/s",
        "verified",
    ];
    let mut shown = table(header, &[2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    for row in rows {
        let (setup, outcome) = (&row.setup, &row.outcome);
        #[allow(clippy::cast_precision_loss)] // times far below 2^52 ns
        let latency = |ns: u64| format_time_ns(ns as f64);
        let reads = (outcome.reads_per_lookup > 0.0).then_some(outcome.reads_per_lookup);
        let answers =
            (setup.access_design != AccessDesign::Read).then_some(outcome.answers_per_doorbell);
        shown.add_row([
            row_label(profiles, args, row),
            setup.server_place.to_string(),
            format!("{} x {}", setup.clients, setup.window),
            format_three_digits(outcome.rate_mops),
            format_or_empty(row.published_number, |p| p.value),
            format_relative_error(row.relative_error),
            latency(outcome.latency_ns_p50),
            latency(outcome.latency_ns_p99),
            latency(row.one_outstanding_ns_p50),
            format_or_empty(reads, |n| format!("{n:.1}")),
            format_or_empty(answers, |n| format!("{n:.1}")),
            format_three_digits(row.local_mops),
            yes_or_no(outcome.are_values_right).to_owned(),
        ]);
    }
    print_line(shown)?;
    print_line(format_args!(
        "\nwindow 1: median of a lookup alone; READs: of a lookup; local: lookups by the {} cores of the server without network\n\
         The server's and the clients' own code ran; costs are the profile's (verbatim model --profiles), and those of a walk are \
         those of a tree of so many keys.",
        setup.cores_per_server
    ))?;
    for profile in profiles.iter().filter(|p| p.host.memory_ns.is_none()) {
        let name = if profiles.len() > 1 {
            &profile.name
        } else {
            ""
        };
        let space = if name.is_empty() { "" } else { " " };
        print_line(format_args!(
            "The profile{space}{name} has no latency of memory: no walk waits for a cache line."
        ))?;
    }
    Ok(())
}
