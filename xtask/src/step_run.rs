//! Runs one step of `cargo xtask test`: starts its command, prints its output, and counts its
//! tests.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::cargo_output::{Counts, Findings, Parser};
use crate::paths::{target_dir, workspace};
use crate::rxe;
use crate::steps::{Kind, Step};
use crate::summary::Outcome;

/// The way in which the output of a step is printed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printing {
    /// True to print to standard error, because standard output is for JSON.
    pub(crate) aside: bool,
    /// True to print the step's name before each line, because other steps print at the same time.
    pub(crate) named: bool,
}

impl Printing {
    fn line(self, step: &Step, line: &[u8]) -> Result<()> {
        let mut whole = Vec::new();
        if self.named {
            whole.extend_from_slice(step.name.as_bytes());
            whole.extend_from_slice(b"| ");
        }
        whole.extend_from_slice(line);
        let mut out: Box<dyn Write> = if self.aside {
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
    let apart = if printing.named { "" } else { "\n" };
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
        failures: findings.failed,
    })
}

/// Returns the test counts of a finished command, and a note for the summary.
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
        let names: Vec<&str> = findings.failed.iter().map(|f| f.name.as_str()).collect();
        notes.push(format!("failed: {}", names.join(", ")));
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
        // Cargo starts the built programs through this runner, in the virtual machine.
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
        // The parser needs text without colours.
        .env("CARGO_TERM_COLOR", "never")
        .env("CARGO_TERM_PROGRESS_WHEN", "never");
    if step.kind == Kind::Tests {
        // The programs are built, so tests must not build the libraries that they load.
        command.env("VERBATIM_BUILT", "1");
    }
    if std::env::var_os("CI").is_some() && std::env::var_os("CARGO_INCREMENTAL").is_none() {
        // CI builds each crate only once, so incremental compilation has no use.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::{CHECK_STEPS, STEPS};

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
    fn every_step_shows_its_command() {
        for step in STEPS.iter().chain(CHECK_STEPS) {
            assert!(shown(step).contains("cargo "), "{}", step.name);
        }
    }
}
