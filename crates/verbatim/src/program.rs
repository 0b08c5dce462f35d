//! Commands that this process waits for, and the folder in which their processes leave counters.

use std::ffi::{OsStr, c_int};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use tempfile::TempDir;

use crate::CommandOutcome;

/// The preferred parent of the folder for the processes' counters; its files are in memory.
const PREFERRED_FOLDER_PARENT: &str = "/dev/shm";

/// Signals that a process which waits for a command passes on to the command. Slurm and others send the last two.
const PASSED_ON_SIGNALS: [c_int; 6] = [SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];

/// Maximum number of bytes of a script's first line in which the kernel looks for the interpreter
/// (`linux:include/uapi/linux/binfmts.h`, `BINPRM_BUF_SIZE`).
const MAX_SHEBANG_BYTES: u64 = 256;

/// Runs a command until it ends and returns its outcome. Signals that would end this process are
/// passed on, because this process still has to write results after the command has ended.
pub(crate) fn run_to_end(command: &mut Command, words: &str) -> Result<CommandOutcome> {
    // A signal that is ignored stays ignored, so that nohup(1) protects the command, too.
    let ignored = ignored_signal_mask(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    let passed_on = PASSED_ON_SIGNALS.into_iter();
    let passed_on = passed_on.filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let mut signals = SignalsInfo::<WithOrigin>::new(passed_on)?;
    let handle = signals.handle();
    let mut child = command.spawn().map_err(|err| {
        let hint = not_found_hint(command.get_program(), &err);
        anyhow::Error::new(err).context(format!("cannot run {words}{hint}"))
    })?;
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

/// Returns the ignored signals of a process from its `/proc/PID/status`: bit 0 for signal 1, and so on.
fn ignored_signal_mask(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// Returns what to add to the message about a program that could not be started.
pub(crate) fn not_found_hint(program: &OsStr, err: &io::Error) -> String {
    if err.kind() != io::ErrorKind::NotFound {
        return String::new();
    }
    let file = file_that_execvp_runs(program, std::env::var_os("PATH").as_deref());
    let Some(file) = file.filter(|file| file.exists()) else {
        return "; there is no such program (in PATH)".to_owned();
    };
    let line = first_line(&file).unwrap_or_default();
    let interpreter = line
        .strip_prefix("#!")
        .and_then(|words| words.split_ascii_whitespace().next());
    match interpreter {
        Some(interpreter) => format!("; the script's interpreter {interpreter} does not exist"),
        None => "; the program exists, but not the loader that it names".to_owned(),
    }
}

/// Returns the file that `execvp(3)` runs for this program.
pub(crate) fn file_that_execvp_runs(program: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    let given = Path::new(program);
    if given.components().count() > 1 {
        return Some(given.to_owned());
    }
    std::env::split_paths(path?)
        .map(|folder| folder.join(given))
        .find(|file| file.is_file())
}

/// Returns the first line of a file, as far as the kernel looks for an interpreter there.
pub(crate) fn first_line(file: &Path) -> Option<String> {
    let mut begin = Vec::new();
    let file = File::open(file).ok()?;
    file.take(MAX_SHEBANG_BYTES).read_to_end(&mut begin).ok()?;
    let line = begin.split(|byte| *byte == b'\n').next()?;
    Some(String::from_utf8_lossy(line).into_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_those_of_the_status_file() {
        let status =
            "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000002\n";
        assert_eq!(ignored_signal_mask(status), 1 << (SIGHUP - 1) | 1 << 12);
        assert_eq!(ignored_signal_mask("Name:\tsh\n"), 0);
    }

    #[test]
    fn the_hint_names_what_is_missing() {
        let folder = tempfile::tempdir().expect("a folder");
        let hint = |content: &str| {
            let file = folder.path().join("job");
            fs::write(&file, content).expect("written");
            not_found_hint(file.as_os_str(), &io::ErrorKind::NotFound.into())
        };
        assert!(hint("#!/nowhere/sh -e\n").contains("interpreter /nowhere/sh does not exist"));
        assert!(hint("\u{7f}ELF").contains("the loader"));
        let missing = folder.path().join("no job");
        let hint = |kind: io::ErrorKind| not_found_hint(missing.as_os_str(), &kind.into());
        assert!(hint(io::ErrorKind::NotFound).contains("there is no such program"));
        assert_eq!(hint(io::ErrorKind::PermissionDenied), "");
    }

    #[test]
    fn programs_are_found_in_the_search_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("job");
        fs::write(&file, "").expect("written");
        let path = std::env::join_paths([Path::new("/nowhere"), folder.path()]).expect("a path");
        assert_eq!(
            file_that_execvp_runs(OsStr::new("job"), Some(&path)),
            Some(file)
        );
        assert_eq!(
            file_that_execvp_runs(OsStr::new("other"), Some(&path)),
            None
        );
        assert_eq!(file_that_execvp_runs(OsStr::new("job"), None), None);
    }
}
