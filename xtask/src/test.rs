//! `cargo xtask test` and `cargo xtask check`: run steps, count tests and print a summary.

use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow};
use clap::builder::PossibleValuesParser;

use crate::cargo_output::TestCounts;
use crate::packages::{self, DebianPackage};
use crate::rxe;
use crate::step_run::{Printing, run_step};
use crate::steps::{BUILD, CHECK_STEPS, Kind, STEPS, STEPS_SHARED_WITH_CHECK, Step, StepGroup};
use crate::summary::{self, Outcome};

/// Arguments of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run this step only (may be given several times)
    #[arg(long, value_name = "STEP", value_parser = PossibleValuesParser::new(step_names()))]
    only: Vec<String>,
    /// Print one JSON object per line on standard output; what cargo prints goes to standard error
    #[arg(long)]
    json: bool,
}

fn step_names() -> Vec<&'static str> {
    let steps = STEPS.iter().map(|step| step.name);
    std::iter::once(PACKAGES_STEP).chain(steps).collect()
}

/// The name of the step that installs packages, which runs before all other steps.
const PACKAGES_STEP: &str = "packages";

/// Arguments of `cargo xtask check`.
#[derive(clap::Args)]
pub(crate) struct CheckArgs {
    /// Print one JSON object per line on standard output; what cargo prints goes to standard error
    #[arg(long)]
    json: bool,
}

/// Runs `cargo xtask test`; returns false if a step failed.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let runs_tests = |step: &Step| step.kind == Kind::Tests && wanted(step.name);
    let needs_packages = STEPS.iter().any(runs_tests);
    // Steps with their own build folder do not need the build step.
    let needs_build = |step: &Step| runs_tests(step) && step.lane != StepGroup::OwnBuildFolder;
    let needs_build = STEPS.iter().any(needs_build);
    let steps = STEPS.iter();
    let steps: Vec<&Step> = steps
        .filter(|step| wanted(step.name) || (step.name == BUILD && needs_build))
        .collect();
    let packages = (wanted(PACKAGES_STEP) || needs_packages).then(|| {
        let needed = packages::FOR_TESTS.iter().chain(rxe::PACKAGES);
        needed.chain(packages::FOR_CONFORMANCE).collect()
    });
    run_all(packages, &steps, args.json)
}

/// Runs `cargo xtask check`; returns false if a step failed.
pub(crate) fn check(args: &CheckArgs) -> Result<bool> {
    let of_test = STEPS
        .iter()
        .filter(|step| STEPS_SHARED_WITH_CHECK.contains(&step.name));
    let steps: Vec<&Step> = of_test.chain(CHECK_STEPS).collect();
    let packages = packages::FOR_TESTS.iter().collect();
    run_all(Some(packages), &steps, args.json)
}

/// Installs `packages`, runs `steps`, and prints the outcomes.
fn run_all(packages: Option<Vec<&DebianPackage>>, steps: &[&Step], json: bool) -> Result<bool> {
    let begin = Instant::now();
    let mut outcomes = Vec::new();
    if let Some(packages) = packages {
        let outcome = install(packages);
        print_if_json(&outcome, json)?;
        outcomes.push(outcome);
    }
    let packages_ok = outcomes.iter().all(|outcome| outcome.ok);
    outcomes.extend(run_steps(steps, packages_ok, json)?);
    summary::print_summary_and_check_ok(&outcomes, begin.elapsed(), json)
}

/// Runs `steps`: first the steps of [`StepGroup::First`] one at a time, then all other lanes at the same
/// time. Returns the outcomes in the order of the steps.
fn run_steps(steps: &[&Step], packages_ok: bool, json: bool) -> Result<Vec<Outcome>> {
    let of_lane = |lane: &[StepGroup]| {
        let steps = steps.iter().filter(|step| lane.contains(&step.lane));
        steps.copied().collect::<Vec<&Step>>()
    };
    let run_lane = |steps: &[&Step], named: bool| -> Result<Vec<Outcome>> {
        let printing = Printing {
            to_stderr: json,
            with_step_name: named,
        };
        let outcomes = steps.iter().map(|step| {
            let outcome = if step.kind == Kind::Tests && !packages_ok {
                outcome_for_missing_packages(step)
            } else {
                run_step(step, printing)?
            };
            print_if_json(&outcome, json)?;
            Ok(outcome)
        });
        outcomes.collect()
    };
    let mut outcomes = run_lane(&of_lane(&[StepGroup::First]), false)?;
    let mut lanes: Vec<Vec<&Step>> = StepGroup::CONCURRENT.map(of_lane).into();
    lanes.retain(|lane| !lane.is_empty());
    let named = lanes.len() > 1;
    let beside = thread::scope(|scope| {
        let begun: Vec<_> = lanes
            .iter()
            .map(|lane| scope.spawn(|| run_lane(lane, named)))
            .collect();
        let died = |_| Err(anyhow!("running a step failed"));
        let ended = begun
            .into_iter()
            .map(|lane| lane.join().unwrap_or_else(died));
        ended.collect::<Result<Vec<_>>>()
    })?;
    outcomes.extend(beside.into_iter().flatten());
    let place = |outcome: &Outcome| steps.iter().position(|step| step.name == outcome.step);
    outcomes.sort_by_key(place);
    Ok(outcomes)
}

fn print_if_json(outcome: &Outcome, json: bool) -> Result<()> {
    if json {
        summary::print_step(outcome)?;
    }
    Ok(())
}

fn outcome_for_missing_packages(step: &Step) -> Outcome {
    Outcome {
        step: step.name,
        what: step.what,
        ok: false,
        counts: TestCounts::ONE_FAILED,
        elapsed_s: 0.0,
        note: Some("not run: packages are missing".to_owned()),
        failures: Vec::new(),
    }
}

fn install(needed: Vec<&DebianPackage>) -> Outcome {
    let begin = Instant::now();
    let (ok, note) = match packages::install_missing(needed) {
        Ok(installed) if installed.is_empty() => (true, None),
        Ok(installed) => (true, Some(format!("installed {}", installed.join(" ")))),
        Err(err) => {
            eprintln!("error: {err:#}");
            (false, Some(format!("{err:#}")))
        }
    };
    Outcome {
        step: PACKAGES_STEP,
        what: "system packages of the tests",
        ok,
        counts: if ok {
            TestCounts::ONE_PASSED
        } else {
            TestCounts::ONE_FAILED
        },
        elapsed_s: begin.elapsed().as_secs_f64(),
        note,
        failures: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_can_be_asked_for() {
        assert_eq!(step_names().len(), STEPS.len() + 1);
    }

    #[test]
    fn the_lanes_run_after_the_first_steps_and_all_steps_are_reported_in_order() {
        let step = |name, lane| Step {
            name,
            lane,
            args: &["--version"],
            ..step_like_first()
        };
        let steps = [
            ("fmt", StepGroup::First),
            ("build", StepGroup::First),
            ("test", StepGroup::ThisMachine),
            ("loom", StepGroup::OwnBuildFolder),
            ("programs", StepGroup::ThisMachine),
            ("rxe-verbs", StepGroup::VirtualMachine),
        ];
        let owned = steps.map(|(name, lane)| step(name, lane));
        let steps: Vec<&Step> = owned.iter().collect();
        let outcomes = run_steps(&steps, true, true).unwrap();
        let names: Vec<&str> = outcomes.iter().map(|outcome| outcome.step).collect();
        let expected: Vec<&str> = steps.iter().map(|step| step.name).collect();
        assert_eq!(names, expected);
        assert!(outcomes.iter().all(|outcome| outcome.ok));
    }

    #[test]
    fn without_packages_no_test_counts_as_passed() {
        let step = Step {
            kind: Kind::Tests,
            lane: StepGroup::ThisMachine,
            args: &["--version"],
            ..step_like_first()
        };
        let outcomes = run_steps(&[&step], false, true).unwrap();
        assert_eq!(outcomes[0].counts, TestCounts::ONE_FAILED);
    }

    fn step_like_first() -> Step {
        Step {
            name: "fmt",
            what: "",
            kind: Kind::Lint,
            lane: StepGroup::First,
            args: &[],
            env: &[],
            runs_programs_in_rxe_vm: false,
            own_build_folder: None,
        }
    }
}
