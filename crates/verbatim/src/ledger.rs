//! `--ledger FILE`: runs a command under the tap, and writes the counters of its processes at its
//! end.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use tap::Ledger;
use tempfile::NamedTempFile;

use crate::CommandOutcome;
use crate::pcie_counters::PcieCounters;
use crate::program::{run_to_end, temporary_memory_folder};

/// Argument of commands whose verbs can be counted.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct LedgerArgs {
    /// Count what the verbs do, in all processes, and write it to FILE (see `verbatim explain`)
    #[arg(long, value_name = "FILE", global = true)]
    ledger: Option<PathBuf>,
    /// Have the processor count the cache lines that PCIe devices read and write meanwhile (Intel, by perf)
    #[arg(long, requires = "ledger", global = true)]
    pcie_counters: bool,
}

impl LedgerArgs {
    /// Returns the path of the ledger, if the user wants one.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.ledger.as_deref()
    }

    /// Returns true if the user wants a ledger.
    pub(crate) fn is_wanted(&self) -> bool {
        self.ledger.is_some()
    }

    /// Runs this program again with the same arguments under the tap, if the user wants a ledger.
    ///
    /// The tap reads its environment variable when a provider is first used, and child processes
    /// inherit the variable. A ledger has an entry for each process. A simulated cluster is one
    /// process, so no ledger is possible.
    pub(crate) fn rerun_under_tap_if_wanted(
        &self,
        simulated: bool,
    ) -> Result<Option<CommandOutcome>> {
        let Some(file) = self.ledger.as_deref().filter(|_| !tap::is_counting()) else {
            return Ok(None);
        };
        if simulated {
            bail!(
                "--ledger counts the verbs of real processes, and a simulated cluster has none: leave out --ledger, or \
                 record it without --nic and read it by verbatim explain --nic"
            );
        }
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(program);
        command.args(std::env::args_os().skip(1));
        self.run_and_record(
            Some(file),
            command,
            &join_command_line(std::env::args_os()),
            None,
        )
        .map(Some)
    }

    /// Runs a program under the tap, if the user wants a ledger or a summary. `summary` receives the
    /// ledger.
    pub(crate) fn run_under_tap_or_return_command(
        &self,
        command: Command,
        words: &str,
        summary: Option<fn(&Ledger)>,
    ) -> Result<Result<CommandOutcome, Command>> {
        if self.ledger.is_none() && summary.is_none() {
            return Ok(Err(command));
        }
        self.run_and_record(self.ledger.as_deref(), command, words, summary)
            .map(Ok)
    }

    fn run_and_record(
        &self,
        file: Option<&Path>,
        command: Command,
        words: &str,
        summary: Option<fn(&Ledger)>,
    ) -> Result<CommandOutcome> {
        let counters = self.pcie_counters.then(PcieCounters::find).transpose()?;
        let (outcome, ledger) = match file {
            Some(file) => run_and_write_file(file, command, words, counters.as_ref())?,
            None => run_and_read_ledger(command, words, counters.as_ref())?,
        };
        if let Some(summary) = summary {
            summary(&ledger);
        } else if ledger.processes.is_empty() {
            eprintln!("note: no process of it opened an RDMA device, so the ledger is empty");
        }
        Ok(outcome)
    }
}

/// Joins the words of a command with spaces.
pub(crate) fn join_command_line(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
    let words = args.into_iter();
    let words: Vec<_> = words
        .map(|word| word.as_ref().to_string_lossy().into_owned())
        .collect();
    words.join(" ")
}

/// Runs a command until it ends, writes the ledger, and returns the command's outcome.
fn run_and_write_file(
    file: &Path,
    command: Command,
    words: &str,
    counters: Option<&PcieCounters>,
) -> Result<(CommandOutcome, Ledger)> {
    // Check the file first: hours of work must not be lost because a file cannot be written.
    if file.is_dir() {
        bail!(
            "cannot write {}: it is a folder; name a file in it",
            file.display()
        );
    }
    let place = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    // Do not show the original error, which names a temporary file and would confuse the user.
    let writing = NamedTempFile::new_in(place.unwrap_or(Path::new(".")))
        .map_err(|err| anyhow!("cannot write {}: {}", file.display(), err.kind()))?;
    let (outcome, ledger) = run_and_read_ledger(command, words, counters)?;
    write_ledger(writing, file, &ledger)
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok((outcome, ledger))
}

/// Runs a command until it ends; returns its outcome and the ledger of its processes.
fn run_and_read_ledger(
    command: Command,
    words: &str,
    counters: Option<&PcieCounters>,
) -> Result<(CommandOutcome, Ledger)> {
    let mut command = match counters {
        Some(counters) => counters.perf_stat_command(&command),
        None => command,
    };
    let folder = temporary_memory_folder("verbatim-tap-")
        .context("cannot make a folder for the counters")?;
    let outcome = run_to_end(command.env(tap::TAP_DIR_ENV_VAR, folder.path()), words)?;
    let mut ledger = Ledger::collect(folder.path(), words).context("cannot read the counters")?;
    ledger.pcie = counters.map(PcieCounters::read).transpose()?;
    Ok((outcome, ledger))
}

fn write_ledger(mut to: NamedTempFile, file: &Path, ledger: &Ledger) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut to, ledger)?;
    to.write_all(b"\n")?;
    // Give the file the usual mode, not the private one of a temporary file.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    to.as_file().set_permissions(mode)?;
    to.persist(file)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_comes_to_what_its_program_came_to() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("l.json");
        let run = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            run_and_write_file(&file, command, script, None)
                .expect("it runs")
                .0
        };
        assert_eq!(run("exit 0"), CommandOutcome::Done);
        assert_eq!(run("exit 7"), CommandOutcome::ProgramExitStatus(7));
        assert_eq!(run("kill -KILL $$"), CommandOutcome::ProgramExitStatus(137));
        let text = std::fs::read_to_string(&file).expect("written each time");
        let ledger = Ledger::parse(&text).expect("a ledger");
        assert_eq!(
            (ledger.command.as_str(), ledger.processes.len()),
            ("kill -KILL $$", 0)
        );
    }

    #[test]
    fn a_file_that_cannot_be_written_is_found_out_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let ran = folder.path().join("ran");
        let mut command = Command::new("touch");
        command.arg(&ran);
        let file = folder.path().join("missing/l.json");
        assert!(run_and_write_file(&file, command, "touch", None).is_err());
        assert!(!ran.exists());
    }
}
