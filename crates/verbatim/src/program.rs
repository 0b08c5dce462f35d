//! Commands that this process waits for, and the folder in which their processes leave counters.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use tempfile::TempDir;

use crate::CommandOutcome;

/// The preferred parent of the folder for the processes' counters; its files are in memory.
const PREFERRED_FOLDER_PARENT: &str = "/dev/shm";

/// Runs a command until it ends and returns its outcome. Signals that would end this process are
/// passed on, because this process still has to write results after the command has ended.
pub(crate) fn run_to_end(command: &mut Command, words: &str) -> Result<CommandOutcome> {
    let mut signals = SignalsInfo::<WithOrigin>::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP])?;
    let handle = signals.handle();
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot run {}{}", words, program_not_found_hint(command)))?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let forward = std::thread::spawn(move || {
        for origin in &mut signals {
            // The terminal sends SIGINT and SIGQUIT to the whole foreground process group. A process may send them
            // to this process only.
            let to_all = matches!(origin.signal, SIGINT | SIGQUIT) && origin.process.is_none();
            let signal = Signal::from_named_raw(origin.signal);
            if let (Some(pid), Some(signal), false) = (pid, signal, to_all) {
                let _ = kill_process(pid, signal);
            }
        }
    });
    let status = child.wait().context("cannot wait for the command")?;
    handle.close();
    let _ = forward.join();
    Ok(outcome_of_exit_status(status))
}

fn program_not_found_hint(command: &Command) -> &'static str {
    let program = Path::new(command.get_program());
    if program.components().count() > 1 && !program.exists() {
        "; there is no such program"
    } else {
        ""
    }
}

/// Creates a temporary folder, in memory if possible, which is removed when dropped.
pub(crate) fn temporary_memory_folder(prefix: &str) -> io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix);
    builder
        .tempdir_in(PREFERRED_FOLDER_PARENT)
        .or_else(|_| builder.tempdir())
}

/// Returns a command's outcome: its exit status, or 128 plus the signal number, as shells do.
fn outcome_of_exit_status(status: ExitStatus) -> CommandOutcome {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    match code {
        Some(0) => CommandOutcome::Done,
        code => CommandOutcome::ProgramExitStatus(
            code.and_then(|code| u8::try_from(code).ok()).unwrap_or(2),
        ),
    }
}
