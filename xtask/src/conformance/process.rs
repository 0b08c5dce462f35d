//! A program that runs on its own pseudo-terminal, so that its output is the output that a user sees.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::limit::LoadScaledTimeLimit;

/// A running program and all processes that it starts: dropping this value kills their process group.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    output: Arc<Mutex<Vec<u8>>>,
    /// The side of the pseudo-terminal to which programs write. While it is open, no byte of the terminal is lost.
    terminal_write_side: File,
    /// Receives a message when the reader has read a [`END_OF_OUTPUT_MARK`].
    end_of_output_marks: Receiver<()>,
}

/// The result of a program that has ended.
#[derive(Debug)]
pub(crate) struct EndedProgram {
    pub(crate) status: ExitStatus,
    /// Standard output and standard error together, in the order of writing; lines end with `\n`.
    pub(crate) output: String,
}

impl Program {
    /// Starts the command `words` in the folder `folder`.
    ///
    /// # Errors
    /// Returns an error if the program does not exist, or no pseudo-terminal is available.
    pub(crate) fn start(words: &[&str], folder: &Path) -> Result<Program> {
        let (name, args) = words.split_first().context("an empty command")?;
        let (terminal, screen) = pseudo_terminal().context("cannot open a pseudo-terminal")?;
        let child = Command::new(name)
            .args(args)
            .current_dir(folder)
            .env("TERM", "dumb")
            .env("LC_ALL", "C.UTF-8")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(screen.try_clone()?)
            .stderr(screen.try_clone()?)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let output = Arc::new(Mutex::new(Vec::new()));
        let (mark, marks) = mpsc::channel();
        let sink = Arc::clone(&output);
        std::thread::spawn(move || collect(terminal, &sink, &mark));
        Ok(Program {
            child,
            output,
            terminal_write_side: screen,
            end_of_output_marks: marks,
        })
    }

    /// Returns true if the program itself has ended; its children may still run.
    pub(crate) fn has_ended(&self) -> Result<bool> {
        // Leave the program a zombie, so that the number of its process group is not reused meanwhile.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = rustix::process::waitid(WaitId::Pid(self.pid()), options)?;
        Ok(status.is_some())
    }

    /// Returns the output of the program so far.
    pub(crate) fn output(&self) -> String {
        let bytes = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).replace("\r\n", "\n")
    }

    /// Returns the number of output bytes that are kept so far.
    pub(crate) fn output_len(&self) -> usize {
        let bytes = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.len()
    }

    /// Waits until the program has ended; returns false if it has not ended within `limit`.
    pub(crate) fn wait(&self, limit: &LoadScaledTimeLimit) -> Result<bool> {
        loop {
            if self.has_ended()? {
                return Ok(true);
            }
            if limit.is_over() {
                return Ok(false);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Sends SIGTERM to the process group, and kills it after a while. SIGINT would not do: a shell's background
    /// processes ignore it.
    pub(crate) fn terminate_and_collect_output(self) -> Result<EndedProgram> {
        if !self.has_ended()? {
            self.signal(Signal::TERM);
            self.wait(&LoadScaledTimeLimit::new(SIGTERM_GRACE))?;
        }
        self.kill_and_collect_output()
    }

    /// Waits until all output so far is collected. The function does not wait for processes that have left the
    /// process group, which may print more.
    pub(crate) fn wait_for_output(&self) {
        // The terminal delivers the mark after all earlier output, even if the reader is scheduled late. Writing or
        // receiving fails only if reading has failed; then no output can be collected.
        if (&self.terminal_write_side)
            .write_all(END_OF_OUTPUT_MARK)
            .is_ok()
        {
            let _ = self.end_of_output_marks.recv();
        }
    }

    /// Kills the process group, and returns the collected output.
    pub(crate) fn kill_and_collect_output(mut self) -> Result<EndedProgram> {
        self.signal(Signal::KILL);
        let status = self.child.wait()?;
        self.wait_for_output();
        Ok(EndedProgram {
            status,
            output: self.output(),
        })
    }

    fn signal(&self, signal: Signal) {
        // The call fails if no process of the group is left; then nothing must be done.
        let _ = rustix::process::kill_process_group(self.pid(), signal);
    }

    /// Returns the process id of the program, which is a zombie once it has ended.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // After `end` the number of the process group may be reused.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

impl EndedProgram {
    /// Returns a description of the exit status, such as `exit status 1` or `killed by SIGSEGV`.
    pub(crate) fn describe_exit_status(&self) -> String {
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(11)) => "killed by SIGSEGV".to_owned(),
            (None, Some(6)) => "killed by SIGABRT".to_owned(),
            (None, Some(signal)) => format!("killed by signal {signal}"),
            (None, None) => "ended without a status".to_owned(),
        }
    }
}

/// Interval between checks of a program.
const POLL: Duration = Duration::from_millis(5);
/// Time that a program has to end after SIGTERM.
const SIGTERM_GRACE: Duration = Duration::from_secs(2);
/// Maximum number of output bytes that are kept, so that a program that prints endlessly does not fill the memory.
const KEEP_BYTES: usize = 4 << 20;
/// A text that no program prints; the terminal translates none of its bytes.
const END_OF_OUTPUT_MARK: &[u8] = b"\0the end of what was printed\0";

fn pseudo_terminal() -> Result<(File, File)> {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&terminal)?;
    unlockpt(&terminal)?;
    let name = ptsname(&terminal, Vec::new())?;
    let flags = i32::try_from(OFlags::NOCTTY.bits())?;
    let screen = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(OsStr::from_bytes(name.as_bytes()))?;
    Ok((File::from(terminal), screen))
}

/// Reads the terminal until no process has its other side open. Sends a message to `marks` for each
/// [`END_OF_OUTPUT_MARK`], which is not kept.
fn collect(mut terminal: File, sink: &Mutex<Vec<u8>>, marks: &Sender<()>) {
    let mut buffer = vec![0; 16 << 10];
    let mut unsorted = Vec::new();
    loop {
        match terminal.read(&mut buffer) {
            Ok(0) => return,
            Ok(n) => unsorted.extend_from_slice(&buffer[..n]),
            Err(err) if err.raw_os_error() == Some(Errno::INTR.raw_os_error()) => continue,
            // The error is EIO: the last process has closed the terminal.
            Err(_) => return,
        }
        while let Some(at) = unsorted
            .windows(END_OF_OUTPUT_MARK.len())
            .position(|w| w == END_OF_OUTPUT_MARK)
        {
            append_up_to_limit(sink, &unsorted[..at]);
            unsorted.drain(..at + END_OF_OUTPUT_MARK.len());
            // The receiver `marks` may have been dropped meanwhile.
            let _ = marks.send(());
        }
        let begun = (0..END_OF_OUTPUT_MARK.len())
            .rev()
            .find(|&n| unsorted.ends_with(&END_OF_OUTPUT_MARK[..n]));
        let sure = unsorted.len() - begun.unwrap_or(0);
        append_up_to_limit(sink, &unsorted[..sure]);
        unsorted.drain(..sure);
    }
}

fn append_up_to_limit(sink: &Mutex<Vec<u8>>, printed: &[u8]) {
    let mut bytes = sink.lock().unwrap_or_else(PoisonError::into_inner);
    let room = KEEP_BYTES.saturating_sub(bytes.len()).min(printed.len());
    bytes.extend_from_slice(&printed[..room]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str) -> Program {
        Program::start(&["sh", "-c", script], Path::new("/")).unwrap()
    }

    fn soon() -> LoadScaledTimeLimit {
        LoadScaledTimeLimit::new(Duration::from_secs(60))
    }

    #[test]
    fn output_and_status_are_collected() {
        let program = start("tty <&1 >&2; echo one; echo two >&2; exit 3");
        assert!(program.wait(&soon()).unwrap());
        let ended = program.kill_and_collect_output().unwrap();
        assert_eq!(ended.describe_exit_status(), "exit status 3");
        let lines: Vec<&str> = ended.output.lines().collect();
        assert!(lines[0].starts_with("/dev/pts/"), "{lines:?}");
        assert_eq!(lines[1..], ["one", "two"]);
    }

    #[test]
    fn a_line_is_seen_while_the_program_runs() {
        let program = start("echo ready; exec sleep 1000");
        let limit = soon();
        while program.output() != "ready\n" {
            assert!(!limit.is_over(), "{:?}", program.output());
            std::thread::sleep(POLL);
        }
        assert!(
            !program
                .wait(&LoadScaledTimeLimit::new(Duration::ZERO))
                .unwrap()
        );
        assert_eq!(
            program
                .terminate_and_collect_output()
                .unwrap()
                .describe_exit_status(),
            "killed by signal 15"
        );
    }

    #[test]
    fn nothing_printed_is_lost_however_slowly_it_is_read() {
        let (mut terminal, screen) = pseudo_terminal().unwrap();
        let output = Arc::new(Mutex::new(Vec::new()));
        let (mark, marks) = mpsc::channel();
        // A terminal that delivers three bytes at a time cuts every mark.
        let (read, write) = rustix::pipe::pipe().unwrap();
        let (read, mut write) = (File::from(read), File::from(write));
        let sink = Arc::clone(&output);
        std::thread::spawn(move || collect(read, &sink, &mark));
        std::thread::spawn(move || {
            let mut few = [0; 3];
            while let Ok(n) = terminal.read(&mut few) {
                std::thread::sleep(Duration::from_micros(100));
                if write.write_all(&few[..n]).is_err() {
                    return;
                }
            }
        });
        let child = Command::new("true").spawn().unwrap();
        let program = Program {
            child,
            output,
            terminal_write_side: screen,
            end_of_output_marks: marks,
        };
        // The pipe holds less than these bytes, so the writer waits for the reader.
        let printed = "\0the end\0 of what was".repeat(1000);
        (&program.terminal_write_side)
            .write_all(printed.as_bytes())
            .unwrap();
        program.wait_for_output();
        assert_eq!(program.output(), printed);
        (&program.terminal_write_side).write_all(b"more").unwrap();
        assert_eq!(
            program.kill_and_collect_output().unwrap().output,
            printed + "more"
        );
    }

    #[test]
    fn children_end_with_their_program_and_no_politeness_is_demanded() {
        let program = start("trap '' TERM; sleep 1000 & echo $!; wait; wait; sleep 1000");
        let limit = soon();
        while !program.output().ends_with('\n') {
            assert!(!limit.is_over());
            std::thread::sleep(POLL);
        }
        let child = program.output().trim().to_owned();
        assert_eq!(
            program
                .terminate_and_collect_output()
                .unwrap()
                .describe_exit_status(),
            "killed by signal 9"
        );
        let gone = || match std::fs::read_to_string(format!("/proc/{child}/stat")) {
            Ok(stat) => stat.contains(") Z "),
            Err(_) => true,
        };
        while !gone() {
            assert!(!limit.is_over(), "{child} lives");
            std::thread::sleep(POLL);
        }
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        let err = Program::start(&["/nonexistent/program"], Path::new("/")).unwrap_err();
        assert!(
            format!("{err:#}").contains("/nonexistent/program"),
            "{err:#}"
        );
        assert!(Program::start(&[], Path::new("/")).is_err());
    }
}
