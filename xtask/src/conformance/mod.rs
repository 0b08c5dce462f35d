//! `cargo xtask conformance`: RDMA programs and suites of other projects, each run as its users run it.
//!
//! The data files of `conformance/` list the cases. The README in that folder describes their format.
//!
//! - [`suite`]: the data files;
//! - [`process`], [`ready`], [`limit`]: a program, the readiness of a server for its client, and time limits;
//! - [`mod@run`]: runs a case;
//! - [`pool`]: runs all cases, several at a time;
//! - [`judge`], [`unittest`]: the outcomes of cases;
//! - [`mod@line`]: the lines of JSON about cases;
//! - [`place`]: runs the cases on the machine of a target;
//! - [`record`]: the recorded results.

mod args;
mod judge;
mod limit;
mod line;
mod place;
mod pool;
mod process;
mod ready;
mod record;
mod results_page;
mod run;
mod suite;
mod unittest;

use std::io::Write;

use anyhow::{Context, Result, ensure};
use comfy_table::{CellAlignment, Table, TableComponent, presets};
use regex::Regex;

pub(crate) use args::Args;

use crate::cargo_output::{OUTPUT_ENDS, TestCounts, output_begins};
use judge::Outcome;
use line::{CaseLine, JsonLine};
use record::{CaseResult, Comparison, PackageVersions, TargetRecord};
use suite::{Conformance, Machine, Suite, Target, folder};

/// Runs `cargo xtask conformance`; returns false if a case shows less than is recorded.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let mut conformance = Conformance::load(&folder())?;
    if let Some(program) = &args.verbatim {
        // Programs run in folders of their own, so they need the absolute path.
        let program = std::fs::canonicalize(program)
            .with_context(|| format!("no such program: {}", program.display()))?;
        conformance.set_verbatim_program(
            program
                .to_str()
                .context("the program's path is not UTF-8")?,
        );
    }
    if let Some(cases) = &args.cases {
        conformance.keep_cases(cases);
    }
    let targets = conformance.targets(&args.on)?;
    let suites = conformance.select(&args.only)?;
    if args.in_place {
        for target in targets {
            let suites = for_target(&suites, target);
            place::run_on_this_machine(target, &suites, args.jobs, &mut |line| print_line(&line))?;
        }
        return Ok(true);
    }
    let mut good = true;
    let mut total = TestCounts::default();
    for target in targets {
        let mut suites = for_target(&suites, target);
        ensure!(
            !suites.is_empty(),
            "none of these suites is for {}",
            target.name
        );
        let before = TargetRecord::load(&folder(), &target.name)?;
        if args.sample_if_unchanged && before.is_of(&place::installed_versions(target, &suites)?) {
            suites.retain(|suite| target.sample.contains(&suite.name));
            eprintln!(
                "{}: the kernel and all packages are those of the record, so only {} run; all: cargo xtask conformance \
                 --on {}",
                target.name,
                target.sample.join(" and "),
                target.name
            );
        }
        let mut now = run_on(target, &suites, args, &before)?;
        if args.check && target.machine == Machine::Rxe {
            run_worse_cases_again(target, &suites, args, &before, &mut now)?;
        }
        total += record::counts(&now.results);
        good &= print_or_record_results(args, &conformance, target, &suites, (before, now))?;
    }
    if args.json {
        print_line(&JsonLine::Total(total))?;
    }
    Ok(good)
}

/// Returns those of `suites` that run on `target`.
fn for_target<'a>(suites: &[&'a Suite], target: &Target) -> Vec<&'a Suite> {
    let suites = suites.iter().copied();
    suites.filter(|suite| suite.is_for(target)).collect()
}

/// Runs `suites` on `target`, and prints the outcome of each case to standard error. The results are in the order
/// of the suites. A check does not print the output of a case that already failed in the record `before`, because
/// this output would hide new failures.
fn run_on(
    target: &Target,
    suites: &[&Suite],
    args: &Args,
    before: &TargetRecord,
) -> Result<TargetRecord> {
    let mut environment = PackageVersions::new();
    let mut cases = Vec::new();
    let elapsed = std::time::Instant::now();
    place::run_on_target_machine(target, suites, args, &mut |line| {
        if args.json {
            print_line(&line)?;
        }
        match line {
            JsonLine::Environment(versions) => environment = versions,
            JsonLine::Case(case) => {
                print_case_outcome(&case, !args.check || !before.has_same_outcome(&case.result));
                cases.push(case);
            }
            JsonLine::Total(_) => {}
        }
        Ok(())
    })?;
    ensure!(!cases.is_empty(), "no case was run");
    eprintln!(
        "{}: {} cases in {:.0} s",
        target.name,
        cases.len(),
        elapsed.elapsed().as_secs_f64()
    );
    let place = |name: &str| suites.iter().position(|suite| suite.name == name);
    cases.sort_by_key(|case| (place(&case.result.suite), case.number));
    Ok(TargetRecord {
        environment,
        results: cases.into_iter().map(|case| case.result).collect(),
    })
}

/// The largest number of cases that [`run_worse_cases_again`] runs. More failures have a common cause, which is not the
/// speed of the machine.
const RUN_AGAIN_MAX: usize = 8;

/// Runs the cases again that are worse than in the record `before`, and puts better results into `now`.
///
/// The virtual machine is emulated, so programs with time limits of their own may fail in it while the host is busy. An
/// example is qperf: it prints a bandwidth of 0 if its second passes before the first message arrives. A case that
/// fails in both runs fails.
fn run_worse_cases_again(
    target: &Target,
    suites: &[&Suite],
    args: &Args,
    before: &TargetRecord,
    now: &mut TargetRecord,
) -> Result<()> {
    let compared = before.compare(&target.name, suites, &now.results);
    let worse: Vec<CaseResult> = compared
        .into_iter()
        .filter(|(_, comparison)| matches!(comparison, Comparison::WorseOrUnrecorded(_)))
        .map(|(result, _)| result)
        .collect();
    if worse.is_empty() || worse.len() > RUN_AGAIN_MAX {
        return Ok(());
    }
    let suites: Vec<&Suite> = suites
        .iter()
        .copied()
        .filter(|suite| worse.iter().any(|result| result.suite == suite.name))
        .collect();
    let names: Vec<String> = worse
        .iter()
        .map(|result| regex::escape(&result.case))
        .collect();
    let args = Args {
        cases: Some(Regex::new(&format!("^(?:{})$", names.join("|")))?),
        ..args.clone()
    };
    eprintln!("{}: {} cases run again", target.name, worse.len());
    let again = run_on(target, &suites, &args, before)?;
    for first in &worse {
        if let Some(second) = now.replace_by_better(first, &again.results) {
            let CaseResult { suite, case, .. } = first;
            let why = first.outcome.reason().unwrap_or_default();
            let word = second.outcome.word();
            eprintln!(
                "{}: {word} in a second run: {suite}: {case}: first: {why}",
                target.name
            );
        }
    }
    Ok(())
}

/// Prints or records the results of `target`, compared with the record `before`. Returns false if a case shows less
/// than is recorded.
fn print_or_record_results(
    args: &Args,
    conformance: &Conformance,
    target: &Target,
    suites: &[&Suite],
    (before, now): (TargetRecord, TargetRecord),
) -> Result<bool> {
    let folder = folder();
    let compared = before.compare(&target.name, suites, &now.results);
    if args.check {
        return print_in_libtest_format(&target.name, &compared);
    }
    if !args.json {
        print_table(&target.title, suites, &now.results)?;
    }
    if args.write {
        let mut after = before;
        after.update(conformance, suites, now);
        after.store(&folder, &target.name)?;
        results_page::write_results_page_and_docs_totals(&folder, conformance)?;
        return Ok(true);
    }
    let mut good = true;
    let compared = compared.iter().filter(|_| args.cases.is_none());
    for (result, comparison) in compared {
        let (what, how) = match comparison {
            Comparison::PassedAsRecorded | Comparison::NotPassedAsExpected(_) => continue,
            Comparison::Better(how) => ("better than recorded", how),
            Comparison::WorseOrUnrecorded(how) => {
                good = false;
                ("not as recorded", how)
            }
        };
        let CaseResult { suite, case, .. } = result;
        eprintln!("{}: {what}: {suite}: {case}: {how}", target.name);
    }
    Ok(good)
}

fn print_line(line: &JsonLine) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, line)?;
    writeln!(out)?;
    out.flush()?;
    Ok(())
}

/// Prints the outcome of a case to standard error. If the case failed and `with_output` is set, its output follows.
fn print_case_outcome(case: &CaseLine, with_output: bool) {
    let CaseResult {
        suite,
        case: name,
        outcome,
    } = &case.result;
    let why = outcome
        .reason()
        .map_or_else(String::new, |why| format!(" ({why})"));
    eprintln!(
        "{} {suite}: {name}: {}{why}, {:.1} s",
        case.target,
        outcome.word(),
        case.elapsed_s
    );
    if let (Outcome::Failed { .. }, Some(output), true) = (outcome, &case.output, with_output) {
        let name = test_name(&case.target, &case.result);
        let output = output.trim_end();
        eprintln!(
            "{}\n{}\n{output}\n{OUTPUT_ENDS}",
            output_begins(&name),
            why.trim_start()
        );
    }
}

/// Returns the name of a case in the form of a test name.
fn test_name(target: &str, result: &CaseResult) -> String {
    format!("{target}::{}::{}", result.suite, result.case)
}

/// Prints the comparison in the format of libtest, so that a program that counts tests can count cases.
fn print_in_libtest_format(target: &str, compared: &[(CaseResult, Comparison)]) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    let mut counts = TestCounts::default();
    writeln!(out, "     Running conformance on {target}")?;
    writeln!(out, "running {} tests", compared.len())?;
    for (result, comparison) in compared {
        let name = test_name(target, result);
        match comparison {
            Comparison::PassedAsRecorded => {
                counts += TestCounts::ONE_PASSED;
                writeln!(out, "test {name} ... ok")?;
            }
            Comparison::Better(how) if result.outcome == Outcome::Passed => {
                counts += TestCounts::ONE_PASSED;
                writeln!(out, "test {name} ... ok, better: {how}")?;
            }
            Comparison::NotPassedAsExpected(why) | Comparison::Better(why) => {
                counts += TestCounts::ONE_SKIPPED;
                writeln!(out, "test {name} ... ignored, {why}")?;
            }
            Comparison::WorseOrUnrecorded(how) => {
                counts += TestCounts::ONE_FAILED;
                writeln!(out, "test {name} ... FAILED\n  {how}")?;
            }
        }
    }
    let verdict = if counts.failed == 0 { "ok" } else { "FAILED" };
    writeln!(
        out,
        "test result: {verdict}. {} passed; {} failed; {} ignored; 0 measured; 0 filtered out",
        counts.passed, counts.failed, counts.skipped
    )?;
    Ok(counts.failed == 0)
}

fn print_table(title: &str, suites: &[&Suite], results: &[CaseResult]) -> Result<()> {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_style(TableComponent::HeaderLines, '─')
        .set_style(TableComponent::MiddleHeaderIntersections, '─')
        .set_header(["suite", "what", "passed", "failed", "skipped"]);
    for suite in suites {
        let counts = record::counts(results.iter().filter(|r| r.suite == suite.name));
        table.add_row([
            suite.name.clone(),
            suite.title.clone(),
            counts.passed.to_string(),
            counts.failed.to_string(),
            counts.skipped.to_string(),
        ]);
    }
    for column in 2..=4 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let total = record::counts(results);
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "\n{title}\n\n{table}\n{} passed, {} failed, {} skipped",
        total.passed, total.failed, total.skipped
    )?;
    Ok(())
}
