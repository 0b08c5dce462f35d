//! `cargo xtask test`: runs the steps, counts, and says what came of it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;
use comfy_table::{CellAlignment, Table, TableComponent, presets};
use serde::Serialize;

use crate::cargo_output::{Counts, Findings, Parser};
use crate::packages;
use crate::paths::{target_dir, workspace};
use crate::rxe;
use crate::steps::{BUILD, Kind, STEPS, Step};

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
    std::iter::once(PACKAGES).chain(steps).collect()
}

/// The step before the others: what they need is installed.
const PACKAGES: &str = "packages";

/// What came of one step.
#[derive(Debug, Serialize)]
struct Outcome {
    step: &'static str,
    what: &'static str,
    ok: bool,
    #[serde(flatten)]
    counts: Counts,
    elapsed_s: f64,
    /// Why it failed, when the tests' own output does not say.
    note: Option<String>,
}

/// One line of `--json`.
#[derive(Serialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
enum Line<'a> {
    Step(&'a Outcome),
    Total(Counts),
}

/// Runs the chore; false when something failed.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let runs_tests = |step: &Step| step.kind == Kind::Tests && wanted(step.name);
    let needs_packages = STEPS.iter().any(runs_tests);
    let steps = STEPS.iter();
    let steps: Vec<&Step> = steps
        .filter(|step| wanted(step.name) || (step.name == BUILD && needs_packages))
        .collect();
    let mut outcomes = Vec::new();
    let mut report = |outcome: Outcome| -> Result<()> {
        if args.json {
            print_json(&Line::Step(&outcome))?;
        }
        outcomes.push(outcome);
        Ok(())
    };

    let mut packages_ok = true;
    if wanted(PACKAGES) || needs_packages {
        let outcome = install();
        packages_ok = outcome.ok;
        report(outcome)?;
    }
    for step in steps {
        if step.kind == Kind::Tests && !packages_ok {
            report(Outcome {
                step: step.name,
                what: step.what,
                ok: false,
                counts: Counts::FAIL,
                elapsed_s: 0.0,
                note: Some("not run: packages are missing".to_owned()),
            })?;
        } else {
            report(run_step(step, args.json)?)?;
        }
    }

    let mut total = Counts::default();
    for outcome in &outcomes {
        total += outcome.counts;
    }
    let ok = outcomes.iter().all(|outcome| outcome.ok);
    if args.json {
        print_json(&Line::Total(total))?;
    } else {
        print_table(&outcomes, total)?;
    }
    Ok(ok)
}

fn install() -> Outcome {
    let begin = Instant::now();
    let needed = packages::FOR_TESTS
        .iter()
        .chain(rxe::PACKAGES)
        .chain(packages::FOR_CONFORMANCE);
    let (ok, note) = match packages::ensure(needed) {
        Ok(installed) if installed.is_empty() => (true, None),
        Ok(installed) => (true, Some(format!("installed {}", installed.join(" ")))),
        Err(err) => {
            eprintln!("error: {err:#}");
            (false, Some(format!("{err:#}")))
        }
    };
    Outcome {
        step: PACKAGES,
        what: "system packages of the tests",
        ok,
        counts: if ok { Counts::PASS } else { Counts::FAIL },
        elapsed_s: begin.elapsed().as_secs_f64(),
        note,
    }
}

fn run_step(step: &Step, json: bool) -> Result<Outcome> {
    let mut command = command(step)?;
    let shown = shown(step);
    let mut out: Box<dyn Write> = if json {
        Box::new(std::io::stderr())
    } else {
        Box::new(std::io::stdout())
    };
    writeln!(out, "\n== {}: {shown}", step.name)?;
    let begin = Instant::now();
    // One pipe for both streams: the order of cargo's lines and the programs' must hold.
    let (reader, writer) = std::io::pipe()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("cannot start {shown}"))?;
    // The command holds the pipe's writing end; reading would never end with it alive.
    drop(command);
    let mut parser = Parser::default();
    let mut lines = BufReader::new(reader);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        out.write_all(&line)?;
        out.flush()?;
        parser.line(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']));
        line.clear();
    }
    let status = child.wait()?;
    let (counts, findings) = parser.finish();
    let (counts, note) = judge(step.kind, status.success(), counts, &findings);
    Ok(Outcome {
        step: step.name,
        what: step.what,
        ok: counts.failed == 0,
        counts,
        elapsed_s: begin.elapsed().as_secs_f64(),
        note,
    })
}

/// What a finished command counts as, and what to say about it.
fn judge(
    kind: Kind,
    success: bool,
    mut counts: Counts,
    findings: &Findings,
) -> (Counts, Option<String>) {
    if kind == Kind::Lint {
        return if success {
            (Counts::PASS, None)
        } else {
            (Counts::FAIL, Some("see its messages above".to_owned()))
        };
    }
    let mut notes = Vec::new();
    if !findings.better.is_empty() {
        notes.push(format!(
            "better than recorded: {}",
            findings.better.join(", ")
        ));
    }
    if !findings.failed.is_empty() {
        notes.push(format!("failed: {}", findings.failed.join(", ")));
    }
    if !findings.crashed.is_empty() {
        notes.push(format!(
            "ended without a result: {}",
            findings.crashed.join(", ")
        ));
    }
    if !success && counts.failed == 0 {
        counts += Counts::FAIL;
        notes.push("did not build, or a program died".to_owned());
    } else if counts.ran() == 0 {
        counts += Counts::FAIL;
        notes.push("ran no test at all".to_owned());
    }
    (counts, (!notes.is_empty()).then(|| notes.join("; ")))
}

fn command(step: &Step) -> Result<Command> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    if step.rxe {
        // Cargo starts what it has built by this program, and so in the virtual machine.
        let runner = serde_json::to_string(&rxe::runner()?)?;
        command.args(["--config", &format!("target.'cfg(all())'.runner={runner}")]);
    }
    let target = target_dir();
    let target = target
        .to_str()
        .context("the build folder's name is not UTF-8")?;
    command
        .args(step.args.iter().map(|arg| arg.replace("{target}", target)))
        .current_dir(workspace())
        // The parser reads plain text.
        .env("CARGO_TERM_COLOR", "never")
        .env("CARGO_TERM_PROGRESS_WHEN", "never");
    if step.kind == Kind::Tests {
        // Tests need not build the libraries that they load.
        command.env("VERBATIM_BUILT", "1");
    }
    if std::env::var_os("CI").is_some() && std::env::var_os("CARGO_INCREMENTAL").is_none() {
        // Nothing will be built a second time there.
        command.env("CARGO_INCREMENTAL", "0");
    }
    for (name, value) in step.env {
        let value = match std::env::var(name) {
            Ok(before) if name.ends_with("FLAGS") => format!("{before} {value}"),
            _ => (*value).to_owned(),
        };
        command.env(name, value);
    }
    if let Some(folder) = step.target {
        command.env("CARGO_TARGET_DIR", target_dir().join(folder));
    }
    Ok(command)
}

fn shown(step: &Step) -> String {
    let env = step
        .env
        .iter()
        .map(|(name, value)| format!("{name}=\"{value}\" "));
    let target = step
        .target
        .map(|folder| format!("CARGO_TARGET_DIR=target/{folder} "));
    let env: String = env.chain(target).collect();
    let place = if step.rxe {
        " (by cargo xtask rxe)"
    } else {
        ""
    };
    format!("{env}cargo {}{place}", step.args.join(" "))
}

fn print_json(line: &Line<'_>) -> Result<()> {
    let mut out = std::io::stdout();
    serde_json::to_writer(&mut out, line)?;
    writeln!(out)?;
    Ok(())
}

fn print_table(outcomes: &[Outcome], total: Counts) -> Result<()> {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_style(TableComponent::HeaderLines, '─')
        .set_style(TableComponent::MiddleHeaderIntersections, '─')
        .set_header([
            "step", "what", "", "passed", "failed", "skipped", "time", "",
        ]);
    for outcome in outcomes {
        table.add_row([
            outcome.step.to_owned(),
            outcome.what.to_owned(),
            if outcome.ok { "ok" } else { "FAILED" }.to_owned(),
            outcome.counts.passed.to_string(),
            outcome.counts.failed.to_string(),
            outcome.counts.skipped.to_string(),
            time(outcome.elapsed_s),
        ]);
    }
    for column in 3..=6 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut out = std::io::stdout();
    writeln!(out, "\n{table}")?;
    for outcome in outcomes {
        if let Some(note) = &outcome.note {
            writeln!(out, "{}: {note}", outcome.step)?;
        }
    }
    writeln!(
        out,
        "{} passed, {} failed, {} skipped",
        total.passed, total.failed, total.skipped
    )?;
    Ok(())
}

fn time(seconds: f64) -> String {
    let duration = Duration::from_secs_f64(seconds);
    match duration.as_secs() {
        0..60 => format!("{seconds:.1} s"),
        whole => format!("{} min {:02} s", whole / 60, whole % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(passed: u64, failed: u64) -> Counts {
        Counts {
            passed,
            failed,
            skipped: 0,
        }
    }

    #[test]
    fn a_lint_is_one_check() {
        assert_eq!(
            judge(Kind::Lint, true, counts(0, 0), &Findings::default()).0,
            Counts::PASS
        );
        assert_eq!(
            judge(Kind::Lint, false, counts(0, 0), &Findings::default()).0,
            Counts::FAIL
        );
    }

    #[test]
    fn a_test_step_that_runs_nothing_fails() {
        let (judged, note) = judge(Kind::Tests, true, counts(0, 0), &Findings::default());
        assert_eq!(judged, Counts::FAIL);
        assert_eq!(note.as_deref(), Some("ran no test at all"));
    }

    #[test]
    fn a_failed_command_never_counts_as_good() {
        assert_eq!(
            judge(Kind::Tests, false, counts(9, 0), &Findings::default()).0,
            counts(9, 1)
        );
        assert_eq!(
            judge(Kind::Tests, false, counts(9, 2), &Findings::default()).0,
            counts(9, 2)
        );
        assert_eq!(
            judge(Kind::Tests, true, counts(9, 0), &Findings::default()).0,
            counts(9, 0)
        );
    }

    #[test]
    fn every_step_can_be_asked_for() {
        assert_eq!(step_names().len(), STEPS.len() + 1);
        for step in STEPS {
            assert!(shown(step).contains("cargo "), "{}", step.name);
        }
    }
}
