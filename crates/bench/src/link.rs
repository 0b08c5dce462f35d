//! Control channel between the two processes of a benchmark: JSON, one value per line.
//!
//! A line that begins with `!` holds the reason why its sender has failed.

mod cancellable_barrier;
mod consequential_error;
mod lanes;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::child::KillOnDrop;
use crate::core_pinning::spawn_on_core;

pub(crate) use cancellable_barrier::CancellableBarrier;
use consequential_error::ConsequentialError;
pub(crate) use consequential_error::root_cause;

/// First character of a line that holds the reason why its sender has failed.
const FAILURE_MARK: char = '!';

/// Command that starts the other process: this program again, in the worker's role.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerCommand {
    /// Path of the program.
    pub path: PathBuf,
    /// Arguments that make the program call [`crate::worker::run_jobs`].
    pub args: Vec<String>,
    /// Environment variables that are added to those of this process.
    pub envs: Vec<(String, String)>,
}

impl WorkerCommand {
    /// Returns the same command with further environment variables.
    #[must_use]
    pub(crate) fn with_envs<'a>(
        &self,
        envs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> WorkerCommand {
        let mut exe = self.clone();
        let owned = envs
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        exe.envs.extend(owned);
        exe
    }
}

/// One end of the connection between driver and worker.
pub struct WorkerLink {
    reader: Box<dyn BufRead + Send>,
    writer: Box<dyn Write + Send>,
    /// The worker process, at the driver's end.
    child: Option<KillOnDrop>,
    /// Gate at which the threads of this side wait for each other whenever this end meets the other
    /// end.
    thread_barrier: Option<Arc<CancellableBarrier>>,
}

impl std::fmt::Debug for WorkerLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("child", &self.child)
            .finish_non_exhaustive()
    }
}

impl WorkerLink {
    /// Returns the worker's end, over standard input and output. From this call on, the process is
    /// killed when its parent ends, even if the parent is killed.
    #[must_use]
    pub fn stdio() -> WorkerLink {
        // On a kernel without this signal, a closed pipe ends the worker at its next receive.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        WorkerLink {
            reader: Box::new(BufReader::new(std::io::stdin())),
            writer: Box::new(std::io::stdout()),
            child: None,
            thread_barrier: None,
        }
    }

    /// Makes an end of a connection to another host.
    ///
    /// # Errors
    /// When the system has no free file descriptor.
    pub fn tcp(stream: TcpStream) -> Result<WorkerLink> {
        // Lines are short, and each is awaited: disable Nagle's algorithm.
        stream.set_nodelay(true)?;
        Ok(WorkerLink {
            reader: Box::new(BufReader::new(stream.try_clone()?)),
            writer: Box::new(stream),
            child: None,
            thread_barrier: None,
        })
    }

    /// Starts a worker on `core`. Dropping the link kills the worker. The worker has a process
    /// group of its own: a SIGINT of the terminal does not reach it, so that the driver can
    /// complete the current measurement.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn(exe: &WorkerCommand, core: usize) -> Result<WorkerLink> {
        let mut child = KillOnDrop(spawn_on_core(
            core,
            Command::new(&exe.path)
                .args(&exe.args)
                .envs(exe.envs.iter().map(|(name, value)| (name, value)))
                .process_group(0)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped()),
        )?);
        let reader = child.0.stdout.take().context("the worker has no output")?;
        let writer = child.0.stdin.take().context("the worker has no input")?;
        Ok(WorkerLink {
            reader: Box::new(BufReader::new(reader)),
            writer: Box::new(writer),
            child: Some(child),
            thread_barrier: None,
        })
    }

    /// Makes two connected ends inside one process, for a worker that is a thread.
    ///
    /// # Errors
    /// When the system cannot create a pipe.
    pub fn pair() -> Result<(WorkerLink, WorkerLink)> {
        let (left_reader, right_writer) = std::io::pipe()?;
        let (right_reader, left_writer) = std::io::pipe()?;
        let end = |reader, writer| WorkerLink {
            reader: Box::new(BufReader::new(reader)),
            writer: Box::new(writer),
            child: None,
            thread_barrier: None,
        };
        Ok((
            end(left_reader, left_writer),
            end(right_reader, right_writer),
        ))
    }

    /// Makes two connected ends for two threads of a simulated cluster, which share a thread of
    /// this process. Waiting for the other end lets virtual time pass.
    #[must_use]
    pub fn simulated_pair() -> (WorkerLink, WorkerLink) {
        let (there, back) = (SimulatedPipe::default(), SimulatedPipe::default());
        let end = |reader: &SimulatedPipe, writer: &SimulatedPipe| WorkerLink {
            reader: Box::new(BufReader::new(reader.clone())),
            writer: Box::new(PipeWriter(writer.clone())),
            child: None,
            thread_barrier: None,
        };
        (end(&back, &there), end(&there, &back))
    }

    /// Returns the process id of a spawned worker, at the driver's end.
    #[must_use]
    pub fn worker_pid(&self) -> Option<u32> {
        self.child.as_ref().map(|child| child.0.id())
    }

    /// Sends one value.
    ///
    /// # Errors
    /// When the other end is gone.
    pub fn send<T: Serialize>(&mut self, value: &T) -> Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        self.writer
            .write_all(&line)
            .and_then(|()| self.writer.flush())
            .map_err(|_| {
                ConsequentialError("the other process of the benchmark is gone".to_owned()).into()
            })
    }

    /// Sends the reason why this end has failed. Errors are ignored, because the other end may be
    /// gone.
    pub fn send_failure(&mut self, error: &anyhow::Error) {
        if let Ok(reason) = serde_json::to_string(&format!("{error:#}")) {
            // One write, because a lane takes each write for a line.
            let line = format!("{FAILURE_MARK}{reason}\n");
            let _ = self.writer.write_all(line.as_bytes());
            let _ = self.writer.flush();
        }
    }

    /// Waits until both ends have called this function. An end with a gate also waits at the gate
    /// for the other threads of its side.
    ///
    /// # Errors
    /// When the other end is gone, or another thread of this side has given up.
    pub(crate) fn barrier(&mut self) -> Result<()> {
        let Some(gate) = self.thread_barrier.clone() else {
            self.send(&"ready")?;
            let _: String = self.recv()?;
            return Ok(());
        };
        let _: String = self.recv()?;
        gate.wait()?;
        self.send(&"ready")
    }

    /// Sets the gate at which this end waits in [`barrier`](Self::barrier).
    pub(crate) fn set_thread_barrier(&mut self, gate: &Arc<CancellableBarrier>) {
        self.thread_barrier = Some(Arc::clone(gate));
    }

    /// Receives one value.
    ///
    /// # Errors
    /// When the other end is gone, or sent a value of another type.
    pub fn recv<T: DeserializeOwned>(&mut self) -> Result<T> {
        match self.recv_or_end()? {
            Some(value) => Ok(value),
            None => Err(ConsequentialError(
                "the other process of the benchmark ended early; its messages are above".to_owned(),
            )
            .into()),
        }
    }

    /// Receives one value, or `None` when the other end is gone.
    ///
    /// # Errors
    /// When the other end sent a value of another type, or reported a failure.
    pub fn recv_or_end<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let mut line = String::new();
        let read = self.reader.read_line(&mut line).map_err(|error| {
            ConsequentialError(format!(
                "cannot hear the other process of the benchmark: {error}"
            ))
        })?;
        if read == 0 {
            return Ok(None);
        }
        if let Some(reason) = line.strip_prefix(FAILURE_MARK) {
            let reason = serde_json::from_str(reason).unwrap_or_else(|_| reason.to_owned());
            return Err(ConsequentialError(format!(
                "the other end of the benchmark failed: {reason}"
            ))
            .into());
        }
        serde_json::from_str(&line)
            .map(Some)
            .with_context(|| format!("the other process said {:?}", line.trim_end()))
    }
}

/// Bytes from one simulated thread to another, and whether the writer has closed.
#[derive(Clone, Default)]
struct SimulatedPipe(Arc<Mutex<(VecDeque<u8>, bool)>>);

/// The writing end of a pipe; dropping it ends the stream.
struct PipeWriter(SimulatedPipe);

impl Read for SimulatedPipe {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let mut waiter = verbs::Waiter::new();
        loop {
            let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if !shared.0.is_empty() || shared.1 {
                return shared.0.read(into);
            }
            drop(shared);
            waiter.idle();
        }
    }
}

impl Write for PipeWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut shared = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for PipeWriter {
    fn drop(&mut self) {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_cross_and_a_closed_end_is_an_error() {
        let (mut left, mut right) = WorkerLink::pair().unwrap();
        left.send(&vec![1, 2, 3]).unwrap();
        assert_eq!(right.recv::<Vec<u32>>().unwrap(), [1, 2, 3]);
        right.send(&"text").unwrap();
        assert!(left.recv::<u32>().is_err());
        drop(right);
        let err = left.recv::<u32>().unwrap_err().to_string();
        assert!(err.contains("ended early"), "{err}");
    }
}
