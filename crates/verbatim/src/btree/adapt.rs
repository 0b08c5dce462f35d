//! `verbatim btree adapt`: a split between host and DPU that follows a moving hot spot, simulated
//! in virtual time.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use bench::simulated::adaptive_split::{
    self, AdaptiveSplitParameters, AdaptiveSplitResult as Course,
};
use chart::{Axis, Chart, Series};
use serde::Serialize;

use crate::CommandOutcome;
use crate::args;
use crate::model::NicProfileChoice;
use crate::output::{self, format_three_digits, print_line, print_typed_json, write_file};
use crate::picture::svg_with_interrupt_note;
use crate::side_by_side::outcome_of_comparison;
use crate::steps::CommandSteps;

/// Arguments of `verbatim btree adapt`.
#[derive(clap::Args)]
#[command(after_help = "\
The keys are shared by a server on the host and one on the DPU of the same simulated machine. Popular keys are neighbours, and
jump. A controller measures both servers and has ranges of keys moved until both are equally loaded; beside it runs a split
that stays, and the best split that stays for one place of the hot spot.

Examples:
  verbatim btree adapt
  verbatim btree adapt --every 20ms --jumps 2 --svg split.svg
  verbatim btree adapt --exponent 0.5 --json")]
pub(crate) struct Args {
    /// The NIC, which has a DPU: bf2, or the file of a profile of your own
    #[arg(long, value_name = "NAME", default_value = "bf2")]
    nic: String,
    /// A profile of a NIC of your own, which has a DPU (verbatim model --template)
    #[arg(long, value_name = "FILE", conflicts_with = "nic")]
    nic_file: Option<PathBuf>,
    /// How long the same keys are popular, in virtual time
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = args::parse_duration_from_10ms)]
    every: Duration,
    /// How often other keys become popular
    #[arg(long, value_name = "N", default_value = "3", value_parser = args::integer_parser_in_range("a count of jumps", 1..=100u32))]
    jumps: u32,
    /// Keys are popular by Zipf's law with this exponent
    #[arg(long, value_name = "EXPONENT", default_value = "0.99", value_parser = args::decimal_parser_in_range("an exponent", 0.01..=5.0))]
    exponent: f64,
    /// What the simulation starts its random numbers from: the same seed gives the same output
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::parse_decimal_or_hex_u64)]
    seed: u64,
    /// Draw the rates over time into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON object per line: course (adaptive, fixed), result
    #[arg(long)]
    json: bool,
}

/// The results of the simulation, with an adaptive split and with a fixed split.
#[derive(Debug, Serialize)]
struct AdaptSummary {
    /// The rate of the best fixed split, in 10^6 a second, and the share of requests that the DPU
    /// serves with this split.
    #[serde(rename = "best_mops")]
    best_fixed_split_mops: f64,
    #[serde(rename = "best_dpu_share")]
    best_fixed_split_dpu_share: f64,
    /// Time from each jump until the mean rate of the next 5 ms is within 5 % of `best_mops`, in
    /// ms.
    convergence_ms: Vec<Option<f64>>,
    /// Mean rates from 10 ms after the last jump on, with the adaptive split and with the fixed
    /// split.
    settled_mops: f64,
    fixed_mops: f64,
    /// The mean loss in the 10 ms after a jump, as a share of the best rate, 0 to 1.
    #[serde(rename = "lost_while_moving")]
    rate_loss_share_after_jump: f64,
    /// Number of bytes of keys and values that moved between host and DPU.
    moved_bytes: u64,
    #[serde(rename = "redirected")]
    redirected_requests: u64,
    #[serde(rename = "verified")]
    all_verified: bool,
}

/// Runs `verbatim btree adapt`.
pub(crate) fn run(args: &Args) -> Result<CommandOutcome> {
    let chosen = NicProfileChoice {
        nic: Some(args.nic.clone()),
        nic_file: args.nic_file.clone(),
    };
    let profile = chosen.chosen_or_default_profile()?;
    let setup = AdaptiveSplitParameters {
        phase_duration: args.every,
        phase_count: args.jumps,
        zipf_exponent: args.exponent,
        seed: args.seed,
        ..AdaptiveSplitParameters::default()
    };
    let steps = CommandSteps::new(3)?;
    let best = steps.run_unless_interrupted("splits that stay", || {
        adaptive_split::best_fixed_split_mops_and_dpu_share(&profile, &setup)
    })?;
    let Some(best) = best else {
        return Ok(CommandOutcome::Done);
    };
    let follows = steps.run_unless_interrupted("the adaptive split", || {
        adaptive_split::run(&profile, &setup)
    })?;
    let still = AdaptiveSplitParameters {
        controller_period: None,
        initial_dpu_request_share: best.1,
        ..setup.clone()
    };
    let name = "the split of the beginning";
    let stays = steps.run_unless_interrupted(name, || adaptive_split::run(&profile, &still))?;
    drop(steps);
    let (Some(follows), Some(stays)) = (follows.as_ref(), stays.as_ref()) else {
        return print_partial_results(args, best, follows.as_ref());
    };
    let summary = summary(best, follows, stays);
    if let Some(file) = &args.svg {
        write_file(
            file,
            &rates_over_time_svg(&profile.name, best.0, follows, stays),
        )?;
    }
    if args.json {
        print_typed_json("course", &("adaptive", follows))?;
        print_typed_json("course", &("fixed", stays))?;
        print_typed_json("result", &summary)?;
    } else {
        print_summary(&profile.name, &setup, &summary)?;
    }
    Ok(outcome_of_comparison(summary.all_verified))
}

/// Prints the steps that were complete at an interrupt.
fn print_partial_results(
    args: &Args,
    (best_mops, best_dpu_share): (f64, f64),
    follows: Option<&Course>,
) -> Result<CommandOutcome> {
    if args.json {
        if let Some(follows) = follows {
            print_typed_json("course", &("adaptive", follows))?;
        }
        return Ok(outcome_of_comparison(
            follows.is_none_or(|course| course.are_values_right),
        ));
    }
    print_line(format_args!(
        "the best split that stays: {} M look-ups/s with {} % of them on the DPU",
        format_three_digits(best_mops),
        format_three_digits(100.0 * best_dpu_share)
    ))?;
    if let Some(rate) = follows.and_then(mean_mops) {
        print_line(format_args!(
            "adaptive: {} M look-ups/s on average, jumps included",
            format_three_digits(rate)
        ))?;
    }
    Ok(outcome_of_comparison(
        follows.is_none_or(|course| course.are_values_right),
    ))
}

/// Returns the mean rate of a whole course.
fn mean_mops(course: &Course) -> Option<f64> {
    let end = course.points.last()?.step_end_ms;
    Some(course.mean_rate_mops(0.0, end))
}

fn summary((best, share): (f64, f64), follows: &Course, stays: &Course) -> AdaptSummary {
    let last = follows.phase_start_times_ms.last().copied().unwrap_or(0.0);
    let end = follows.points.last().map_or(0.0, |p| p.step_end_ms);
    let settled =
        |course: &Course| course.mean_rate_mops(last + 10.0, (end - last - 10.0).max(1.0));
    // The first entry is the start of the simulation, when the split is right.
    let jumps = follows.phase_start_times_ms.iter().skip(1);
    let lost: Vec<f64> = jumps
        .map(|at| (1.0 - follows.mean_rate_mops(*at, 10.0) / best).max(0.0))
        .collect();
    #[allow(clippy::cast_precision_loss)] // a small number
    let lost = lost.iter().sum::<f64>() / lost.len().max(1) as f64;
    AdaptSummary {
        best_fixed_split_mops: best,
        best_fixed_split_dpu_share: share,
        convergence_ms: follows.convergence_ms(best, 0.95),
        settled_mops: settled(follows),
        fixed_mops: settled(stays),
        rate_loss_share_after_jump: lost,
        moved_bytes: 16 * follows.points.last().map_or(0, |p| p.moved_entries_total),
        redirected_requests: follows.redirected_requests,
        all_verified: follows.are_values_right && stays.are_values_right,
    }
}

fn print_summary(nic: &str, setup: &AdaptiveSplitParameters, s: &AdaptSummary) -> Result<()> {
    print_line(format_args!(
        "simulated {nic}: keys shared by host and DPU; popular ones are neighbours (Zipf {}) and jump every {} ms of virtual \
         time\n",
        setup.zipf_exponent,
        setup.phase_duration.as_millis()
    ))?;
    let mut table = output::table(["split", "look-ups/s after 10 ms", "of the best"], &[1, 2]);
    for (name, rate) in [
        ("the best that stays", s.best_fixed_split_mops),
        ("adaptive", s.settled_mops),
        ("that of the beginning", s.fixed_mops),
    ] {
        let share = format!(
            "{} %",
            format_three_digits(100.0 * rate / s.best_fixed_split_mops)
        );
        table.add_row([
            name.to_owned(),
            format!("{} M", format_three_digits(rate)),
            share,
        ]);
    }
    print_line(table)?;
    let after = s.convergence_ms.iter();
    let after: Vec<String> = after
        .map(|ms| {
            ms.map_or_else(
                || "never".to_owned(),
                |ms| format!("{} ms", format_three_digits(ms)),
            )
        })
        .collect();
    print_line(format_args!(
        "\nwithin 5 % of the best (mean of the 5 ms that follow) after each jump: {}; in the 10 ms after a jump {} % of the best rate are lost\n\
         {} KB of keys and values moved, {} requests redirected; every answer {}",
        after.join(", "),
        format_three_digits(100.0 * s.rate_loss_share_after_jump),
        s.moved_bytes / 1000,
        s.redirected_requests,
        if s.all_verified {
            "right"
        } else {
            "WAS NOT RIGHT"
        }
    ))
}

/// Draws the rates over time of the adaptive and of the fixed split.
fn rates_over_time_svg(nic: &str, best: f64, follows: &Course, stays: &Course) -> String {
    // Take the average of two steps for each point, to smooth the curve.
    let curve = |course: &Course| {
        let pairs = course.points.chunks(2);
        let points = pairs.filter_map(|pair| {
            let last = pair.last()?;
            #[allow(clippy::cast_precision_loss)] // one or two
            let mean = pair.iter().map(|p| p.rate_mops).sum::<f64>() / pair.len() as f64;
            Some((last.step_end_ms, mean))
        });
        points.collect::<Vec<_>>()
    };
    svg_with_interrupt_note(&Chart {
        title: "Look-ups in a tree shared by host and DPU; the hot spot jumps".to_owned(),
        caption: format!("{nic}, simulated in virtual time"),
        x: Axis::linear("virtual time, ms").with_ticks_at_round_numbers(),
        y: Axis::linear("10⁶ look-ups a second"),
        series: vec![
            Series::without_markers("adaptive split", curve(follows)),
            Series::without_markers("split that stays", curve(stays)),
        ],
        constant_levels: vec![("best for one place".to_owned(), best)],
    })
}
