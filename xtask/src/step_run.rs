//! Runs one step of `cargo xtask test`: starts its command, prints its output, and counts its
//! tests.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::cargo_command::cargo;
use crate::cargo_output::{Findings, Parser, TestCounts};
use crate::paths::target_dir;
use crate::rxe;
use crate::steps::{Kind, Step};
use crate::summary::Outcome;

/// The way in which the output of a step is printed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printing {
    /// True to print to standard error, because standard output is for JSON.
    pub(crate) to_stderr: bool,
    /// True to print the step's name before each line, because other steps print at the same time.
    pub(crate) with_step_name: bool,
}

impl Printing {
    fn line(self, step: &Step, line: &[u8]) -> Result<()> {
        let mut whole = Vec::new();
        if self.with_step_name {
            whole.extend_from_slice(step.name.as_bytes());
            whole.extend_from_slice(b"| ");
        }
        whole.extend_from_slice(line);
        let mut out: Box<dyn Write> = if self.to_stderr {
            Box::new(std::io::stderr().lock())
        } else {
            Box::new(std::io::stdout().lock())
        };
        out.write_all(&whole)?;
        Ok(out.flush()?)
    }
}

/// Runs `step`.
///
/// # Errors
/// Returns an error if the command cannot be started.
pub(crate) fn run_step(step: &Step, printing: Printing) -> Result<Outcome> {
    let mut command = command(step)?;
    let shown = shown(step);
    let apart = if printing.with_step_name { "" } else { "\n" };
    printing.line(
        step,
        format!("{apart}== {}: {shown}\n", step.name).as_bytes(),
    )?;
    let begin = Instant::now();
    // Use one pipe for both streams, to keep the order of cargo's and the programs' lines.
    let (reader, writer) = std::io::pipe()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("cannot start {shown}"))?;
    // Drop the command, which holds the writing end of the pipe; otherwise reading would never end.
    drop(command);
    let mut parser = Parser::default();
    let mut lines = BufReader::new(reader);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        printing.line(step, &line)?;
        parser.parse_line(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']));
        line.clear();
    }
    let status = child.wait()?;
    let (counts, findings) = parser.finish();
    let (counts, note) = counts_and_note(step.kind, status.success(), counts, &findings);
    Ok(Outcome {
        step: step.name,
        what: step.what,
        ok: counts.failed == 0,
        counts,
        elapsed_s: begin.elapsed().as_secs_f64(),
        note,
        failures: findings.failed,
    })
}

/// Returns the test counts of a finished command, and a note for the summary.
fn counts_and_note(
    kind: Kind,
    success: bool,
    mut counts: TestCounts,
    findings: &Findings,
) -> (TestCounts, Option<String>) {
    if kind == Kind::Lint {
        return if success {
            (TestCounts::ONE_PASSED, None)
        } else {
            (
                TestCounts::ONE_FAILED,
                Some("see its messages above".to_owned()),
            )
        };
    }
    let mut notes = Vec::new();
    if !findings.passed_though_recorded_as_failing.is_empty() {
        notes.push(format!(
            "better than recorded: {}",
            findings.passed_though_recorded_as_failing.join(", ")
        ));
    }
    if !findings.failed.is_empty() {
        let names: Vec<&str> = findings.failed.iter().map(|f| f.name.as_str()).collect();
        notes.push(format!("failed: {}", names.join(", ")));
    }
    if !findings.programs_without_result.is_empty() {
        notes.push(format!(
            "ended without a result: {}",
            findings.programs_without_result.join(", ")
        ));
    }
    if !success && counts.failed == 0 {
        counts += TestCounts::ONE_FAILED;
        notes.push("did not build, or a program died".to_owned());
    } else if counts.executed_count() == 0 {
        counts += TestCounts::ONE_FAILED;
        notes.push("ran no test at all".to_owned());
    }
    (counts, (!notes.is_empty()).then(|| notes.join("; ")))
}

fn command(step: &Step) -> Result<Command> {
    let mut command = cargo();
    if step.runs_programs_in_rxe_vm {
        // Cargo starts the built programs through this runner, in the virtual machine.
        let runner = serde_json::to_string(&rxe::vm_runner_command()?)?;
        command.args(["--config", &format!("target.'cfg(all())'.runner={runner}")]);
    }
    let target = target_dir();
    let target = target
        .to_str()
        .context("the build folder's name is not UTF-8")?;
    command
        .args(step.args.iter().map(|arg| arg.replace("{target}", target)))
        // The parser needs text without colours.
        .env("CARGO_TERM_COLOR", "never")
        .env("CARGO_TERM_PROGRESS_WHEN", "never");
    if step.kind == Kind::Tests {
        // The programs are built, so tests must not build the libraries that they load.
        command.env("VERBATIM_BUILT", "1");
    }
    if std::env::var_os("CARGO_INCREMENTAL").is_none()
        && !has_incremental_builds(&target_dir().join("debug/incremental"))
    {
        // On a fresh clone everything is compiled once, and incremental compilation takes a fifth longer.
        command.env("CARGO_INCREMENTAL", "0");
    }
    for (name, value) in step.env {
        let value = match std::env::var(name) {
            Ok(before) if name.ends_with("FLAGS") => format!("{before} {value}"),
            _ => (*value).to_owned(),
        };
        command.env(name, value);
    }
    if let Some(folder) = step.own_build_folder {
        command.env("CARGO_TARGET_DIR", target_dir().join(folder));
    }
    Ok(command)
}

/// Returns true if cargo's folder of incremental builds has an entry of another package than this program's own, which
/// cargo builds before the program runs.
fn has_incremental_builds(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name());
    names.any(|name| !name.to_string_lossy().starts_with("xtask-"))
}

fn shown(step: &Step) -> String {
    let env = step
        .env
        .iter()
        .map(|(name, value)| format!("{name}=\"{value}\" "));
    let target = step
        .own_build_folder
        .map(|folder| format!("CARGO_TARGET_DIR=target/{folder} "));
    let env: String = env.chain(target).collect();
    let place = if step.runs_programs_in_rxe_vm {
        " (by cargo xtask rxe)"
    } else {
        ""
    };
    format!("{env}cargo {}{place}", step.args.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::{CHECK_STEPS, STEPS};

    fn counts(passed: u64, failed: u64) -> TestCounts {
        TestCounts {
            passed,
            failed,
            skipped: 0,
        }
    }

    #[test]
    fn a_lint_is_one_check() {
        assert_eq!(
            counts_and_note(Kind::Lint, true, counts(0, 0), &Findings::default()).0,
            TestCounts::ONE_PASSED
        );
        assert_eq!(
            counts_and_note(Kind::Lint, false, counts(0, 0), &Findings::default()).0,
            TestCounts::ONE_FAILED
        );
    }

    #[test]
    fn a_test_step_that_runs_nothing_fails() {
        let (judged, note) = counts_and_note(Kind::Tests, true, counts(0, 0), &Findings::default());
        assert_eq!(judged, TestCounts::ONE_FAILED);
        assert_eq!(note.as_deref(), Some("ran no test at all"));
    }

    #[test]
    fn a_failed_command_never_counts_as_good() {
        assert_eq!(
            counts_and_note(Kind::Tests, false, counts(9, 0), &Findings::default()).0,
            counts(9, 1)
        );
        assert_eq!(
            counts_and_note(Kind::Tests, false, counts(9, 2), &Findings::default()).0,
            counts(9, 2)
        );
        assert_eq!(
            counts_and_note(Kind::Tests, true, counts(9, 0), &Findings::default()).0,
            counts(9, 0)
        );
    }

    #[test]
    fn a_fresh_build_folder_has_no_incremental_builds() {
        let folder = tempfile::tempdir().unwrap();
        let incremental = folder.path().join("incremental");
        assert!(!has_incremental_builds(&incremental));
        std::fs::create_dir_all(incremental.join("xtask-1x2y3z")).unwrap();
        assert!(!has_incremental_builds(&incremental));
        std::fs::create_dir(incremental.join("verbatim-1x2y3z")).unwrap();
        assert!(has_incremental_builds(&incremental));
    }

    #[test]
    fn every_step_shows_its_command() {
        for step in STEPS.iter().chain(CHECK_STEPS) {
            assert!(shown(step).contains("cargo "), "{}", step.name);
        }
    }
}
