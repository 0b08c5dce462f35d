//! Compares every design: the main function of `verbatim sequencer`.
//!
//! Rounds are interleaved and use a fresh server process and fresh client processes, so that a
//! temporary disturbance of the machine affects all designs alike.

use anyhow::{Context, Result, bail};
use bench::stats::MedianAndSpread;
use sequencer::{Design, UnsupportedDesign};
use verbs::Capabilities;

use super::arguments::Args;
use super::report::{Row, print_comparison, row};
use super::round::{Round, run_design_once};
use crate::CommandOutcome;
use crate::args;
use crate::nic::OpenNic;
use crate::output::{print_line, print_typed_json};
use crate::side_by_side::{
    assign_cores, outcome_of_comparison, refuse_many_clients, refuse_postlist_above_window,
    run_interleaved,
};
use crate::sweeps::{self, DesignResult, SweepSetting, SweptResult};

/// The maximum number of clients of a server process; each client costs the server a thread.
const MAX_CLIENTS: usize = 256;

/// Runs `verbatim sequencer` without a subcommand.
pub(crate) fn run(args: Args) -> Result<CommandOutcome> {
    let settings = args.sweep.settings_to_run(&args, Args::set_knob_if_known)?;
    settings
        .iter()
        .try_for_each(|(_, args)| refuse_impossible_args(args))?;
    args.picture.check_files_writable()?;
    let nic = OpenNic::open(&args.nic, &args.port)?;
    let (designs, skipped) = named_or_supported_designs(&args.design, nic.context.capabilities()?)?;
    if args.json {
        for unsupported in &skipped {
            print_typed_json("skipped", unsupported)?;
        }
    }
    let rounds = measure(&args, &settings, &designs)?;
    let kind = args.nic.provider.nic_description();
    let device = nic.context.device_name();
    let (mut points, mut verified) = (Vec::new(), true);
    for ((value, setting), rounds) in settings.iter().zip(&rounds) {
        let measured = |design: &&Design| rounds.iter().any(|round| round.design == **design);
        let measured = designs.iter().filter(measured);
        let rows: Vec<Row> = measured
            .map(|design| row(*design, designs[0], kind, rounds))
            .collect::<Result<_>>()?;
        if args.json {
            for row in &rows {
                print_typed_json("design", &SweptResult::new(0, *value, row))?;
            }
        } else if value.is_none() {
            let bounces: Vec<f64> = rounds.iter().filter_map(|round| round.bounce_ns).collect();
            print_comparison(setting, kind, device, MedianAndSpread::of(&bounces), &rows)?;
        }
        for round in rounds.iter().filter(|round| !round.verdict.ok) {
            eprintln!("error: {}: {}", round.design, round.verdict);
        }
        verified &= rows.iter().all(|row| row.all_verified);
        let at = value.unwrap_or(args.workers);
        points.extend(rows.iter().map(|row| design_result(at, row)));
    }
    let caption = args.sweep.caption_with_knob(&caption(&args, kind, device));
    if !args.json {
        if args.sweep.over.is_some() {
            print_line(format_args!("{caption}\n"))?;
            sweeps::print_rows(&args.sweep, &points)?;
        }
        for unsupported in &skipped {
            print_line(format_args!("- Left out: {unsupported}."))?;
        }
    }
    let chart = sweeps::chart("A networked sequencer", caption, &args.sweep, &points);
    args.picture.write_requested_files(&chart)?;
    Ok(outcome_of_comparison(verified))
}

/// Measures all rounds of each setting; the designs run in turn.
fn measure(
    args: &Args,
    settings: &[(Option<usize>, Args)],
    designs: &[Design],
) -> Result<Vec<Vec<Round>>> {
    let place = |(_, args): &(_, Args)| {
        assign_cores(args.workers, args.clients(), args.threads, "client threads")
    };
    let placements: Vec<_> = settings.iter().map(place).collect::<Result<_>>()?;
    let indices = 0..settings.len();
    let contenders: Vec<_> = indices
        .flat_map(|at| designs.iter().map(move |design| (at, *design)))
        .collect();
    let name = |(at, design): (usize, Design)| match settings[at].0 {
        Some(value) => format!("{design} at {value}"),
        None => design.to_string(),
    };
    let all = run_interleaved(
        args.rounds,
        &contenders,
        args.json,
        name,
        |round, (at, design)| {
            let (value, args) = &settings[at];
            let round = run_design_once(args, &placements[at], round, design);
            let round = round.with_context(|| format!("design {design}"))?;
            Ok(SweptResult::new(at, *value, round))
        },
    )?;
    Ok(SweptResult::grouped_by_setting(all, settings.len()))
}

fn design_result(at: usize, row: &Row) -> DesignResult {
    DesignResult {
        name: row.design.to_string(),
        swept_value: at,
        rate_per_s: row.rate_per_s,
        latency_ns_p50: Some(row.latency_ns_p50),
        latency_ns_p99: Some(row.latency_ns_p99),
        all_verified: row.all_verified,
    }
}

/// Formats the command's settings and the NIC for the caption.
fn caption(args: &Args, kind: &str, device: &str) -> String {
    let value = |knob, value: usize| args.sweep.value_or_n(knob, value);
    format!(
        "{kind} {device}: {} client processes with {} threads, {} outstanding each, {} to a postlist, {} workers; median of {} rounds of \
         {} ms, interleaved",
        value(SweepSetting::Clients, args.clients()),
        value(SweepSetting::Threads, args.threads),
        value(SweepSetting::Window, args.window()),
        value(SweepSetting::Postlist, args.postlist),
        value(SweepSetting::Cores, args.workers),
        args.rounds,
        args.duration().as_millis(),
    )
}

/// Refuses combinations of arguments that cannot work.
fn refuse_impossible_args(args: &Args) -> Result<()> {
    args.simulation.refuse_simulation_only_arguments()?;
    args::refuse_too_short_for_real_time(args.duration)?;
    let wanted = if args.design.is_empty() {
        &Design::ALL
    } else {
        &args.design[..]
    };
    for design in wanted {
        let end = design.end_of_numbers();
        if args.start >= end {
            bail!(
                "--start {}: {design} gives numbers below {end}; start lower",
                args.start
            );
        }
    }
    refuse_postlist_above_window(args.postlist, args.window())?;
    refuse_many_clients(args.clients())?;
    let clients = args.clients() * args.threads;
    if clients > MAX_CLIENTS {
        bail!(
            "--clients {} with --threads {} are {clients} clients, and a server takes \
             {MAX_CLIENTS}; lower one of the two",
            args.clients(),
            args.threads
        );
    }
    Ok(())
}

/// Returns the designs that a device can run, and the designs that it does not support.
///
/// # Errors
/// Returns an error if the device does not support a design that was asked for, or supports none.
fn named_or_supported_designs(
    asked: &[Design],
    device: &Capabilities,
) -> Result<(Vec<Design>, Vec<UnsupportedDesign>)> {
    for design in asked {
        design.check(device)?;
    }
    if !asked.is_empty() {
        return Ok((asked.to_vec(), Vec::new()));
    }
    let skipped: Vec<_> = Design::ALL
        .iter()
        .filter_map(|design| design.check(device).err())
        .collect();
    let runnable = Design::runnable(device);
    if runnable.is_empty() {
        let why: Vec<_> = skipped.iter().map(ToString::to_string).collect();
        bail!(
            "no design runs on {} ({}): {}; `verbatim devices` lists other devices",
            device.device_name,
            device.provider_name,
            why.join("; ")
        );
    }
    Ok((runnable, skipped))
}

#[cfg(test)]
mod tests {
    use verbs::{Capability, MissingCapability};

    use super::*;

    /// Returns the software NIC's capabilities without `lacks`.
    fn device(lacks: &[Capability]) -> Capabilities {
        let context = verbs::Provider::softnic()
            .device(None)
            .expect("a device")
            .open()
            .expect("opens");
        let lack = |&capability| MissingCapability {
            capability,
            why: "so says the test".to_owned(),
        };
        Capabilities {
            missing_capabilities: lacks.iter().map(lack).collect(),
            ..context.capabilities().unwrap().clone()
        }
    }

    #[test]
    fn what_the_device_cannot_run_is_left_out_and_named() {
        let (designs, skipped) = named_or_supported_designs(&[], &device(&[])).unwrap();
        assert_eq!(
            (designs.as_slice(), skipped.as_slice()),
            (&Design::ALL[..], &[][..])
        );
        let no_uc = device(&[Capability::Uc]);
        let (designs, skipped) = named_or_supported_designs(&[], &no_uc).unwrap();
        assert_eq!(designs, [Design::Atomics, Design::SpecS0]);
        let names: Vec<_> = skipped.iter().map(|s| s.design).collect();
        assert_eq!(names, ["rpc", "rpc-batch", "rpc-batch-mq"]);
        let line = serde_json::to_value(&skipped[0]).unwrap();
        assert_eq!(line["design"], "rpc");
        assert_eq!(line["lacks"][0]["capability"], "uc");
        assert_eq!(line["lacks"][0]["why"], "so says the test");
    }

    #[test]
    fn a_design_that_was_asked_for_is_not_left_out_but_refused() {
        let no_uc = device(&[Capability::Uc]);
        let asked = [Design::SpecS0, Design::Rpc];
        assert_eq!(
            named_or_supported_designs(&asked[..1], &no_uc).unwrap().0,
            asked[..1]
        );
        let error = named_or_supported_designs(&asked, &no_uc)
            .unwrap_err()
            .to_string();
        let start =
            "design rpc needs UC, which softnic0 (softnic) does not have (so says the test)";
        assert!(error.starts_with(start), "{error}");
        assert!(
            error.ends_with("designs that run there: atomics, spec-s0"),
            "{error}"
        );
    }

    #[test]
    fn a_device_that_can_run_nothing_is_an_error() {
        let nothing = device(&[Capability::Atomics, Capability::Ud]);
        let error = named_or_supported_designs(&[], &nothing)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("no design runs on softnic0 (softnic): design atomics needs atomics"),
            "{error}"
        );
    }
}
