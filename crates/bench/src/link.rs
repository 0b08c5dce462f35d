//! How the two processes of a benchmark talk besides the verbs: JSON, one value per line.
//!
//! A line that begins with `!` says why its sender has failed.

mod fan;
mod gate;
mod gone;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::child::KillOnDrop;
use crate::pin::spawn_on;

pub(crate) use gate::Gate;
use gone::Gone;
pub(crate) use gone::cause;

/// Begins a line that says why its sender has failed.
const FAILED: char = '!';

/// How to start the other process: this program again, in its worker's role.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Exe {
    /// The program.
    pub path: PathBuf,
    /// The arguments that make it call [`crate::worker::serve`].
    pub args: Vec<String>,
    /// Environment variables that it gets beside those of this process.
    pub envs: Vec<(String, String)>,
}

impl Exe {
    /// The same with further environment variables.
    #[must_use]
    pub(crate) fn with_envs<'a>(&self, envs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Exe {
        let mut exe = self.clone();
        let owned = envs
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        exe.envs.extend(owned);
        exe
    }
}

/// One end of the connection between driver and worker.
pub struct Link {
    reader: Box<dyn BufRead + Send>,
    writer: Box<dyn Write + Send>,
    /// The worker, at the driver's end.
    child: Option<KillOnDrop>,
    /// Where this end waits for others of its own side, when it meets the other end.
    gate: Option<Arc<Gate>>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("child", &self.child)
            .finish_non_exhaustive()
    }
}

impl Link {
    /// The worker's end, over standard input and output. From here on this process ends when the
    /// one that started it does, even if that is killed.
    #[must_use]
    pub fn stdio() -> Link {
        // Where the kernel has no such signal, a closed pipe ends the worker when it next listens.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        Link {
            reader: Box::new(BufReader::new(std::io::stdin())),
            writer: Box::new(std::io::stdout()),
            child: None,
            gate: None,
        }
    }

    /// An end of a connection to another host.
    ///
    /// # Errors
    /// When the system has no descriptor to give.
    pub fn tcp(stream: TcpStream) -> Result<Link> {
        // Lines are short, and each is waited for.
        stream.set_nodelay(true)?;
        Ok(Link {
            reader: Box::new(BufReader::new(stream.try_clone()?)),
            writer: Box::new(stream),
            child: None,
            gate: None,
        })
    }

    /// Starts a worker on `core`; it is killed when the link is dropped.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn(exe: &Exe, core: usize) -> Result<Link> {
        let mut child = KillOnDrop(spawn_on(
            core,
            Command::new(&exe.path)
                .args(&exe.args)
                .envs(exe.envs.iter().map(|(name, value)| (name, value)))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped()),
        )?);
        let reader = child.0.stdout.take().context("the worker has no output")?;
        let writer = child.0.stdin.take().context("the worker has no input")?;
        Ok(Link {
            reader: Box::new(BufReader::new(reader)),
            writer: Box::new(writer),
            child: Some(child),
            gate: None,
        })
    }

    /// Two connected ends inside one process, for a worker that is a thread.
    ///
    /// # Errors
    /// When the system has no pipe to give.
    pub fn pair() -> Result<(Link, Link)> {
        let (left_reader, right_writer) = std::io::pipe()?;
        let (right_reader, left_writer) = std::io::pipe()?;
        let end = |reader, writer| Link {
            reader: Box::new(BufReader::new(reader)),
            writer: Box::new(writer),
            child: None,
            gate: None,
        };
        Ok((
            end(left_reader, left_writer),
            end(right_reader, right_writer),
        ))
    }

    /// Two connected ends for two threads of a simulated cluster, which share a thread of this process: who waits for
    /// the other one lets virtual time pass.
    #[must_use]
    pub fn simulated_pair() -> (Link, Link) {
        let (there, back) = (Pipe::default(), Pipe::default());
        let end = |reader: &Pipe, writer: &Pipe| Link {
            reader: Box::new(BufReader::new(reader.clone())),
            writer: Box::new(Closing(writer.clone())),
            child: None,
            gate: None,
        };
        (end(&back, &there), end(&there, &back))
    }

    /// The worker's process id, at the driver's end of a spawned one.
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
            .map_err(|_| Gone("the other process of the benchmark is gone".to_owned()).into())
    }

    /// Says why this end goes no further; to one that is gone already nothing.
    pub fn fail(&mut self, error: &anyhow::Error) {
        if let Ok(reason) = serde_json::to_string(&format!("{error:#}")) {
            // At once, since a lane of a fan takes each write for a line.
            let line = format!("{FAILED}{reason}\n");
            let _ = self.writer.write_all(line.as_bytes());
            let _ = self.writer.flush();
        }
    }

    /// Both ends come here before either goes on; an end with a gate waits there in between.
    ///
    /// # Errors
    /// When the other end is gone, or one behind the gate has given up.
    pub(crate) fn meet(&mut self) -> Result<()> {
        let Some(gate) = self.gate.clone() else {
            self.send(&"ready")?;
            let _: String = self.recv()?;
            return Ok(());
        };
        let _: String = self.recv()?;
        gate.pass()?;
        self.send(&"ready")
    }

    /// Puts a gate where this end meets the other one.
    pub(crate) fn through(&mut self, gate: &Arc<Gate>) {
        self.gate = Some(Arc::clone(gate));
    }

    /// Receives one value.
    ///
    /// # Errors
    /// When the other end is gone, or said something else.
    pub fn recv<T: DeserializeOwned>(&mut self) -> Result<T> {
        match self.recv_or_end()? {
            Some(value) => Ok(value),
            None => Err(Gone(
                "the other process of the benchmark ended early; its messages are above".to_owned(),
            )
            .into()),
        }
    }

    /// Receives one value; `None` when the other end is gone.
    ///
    /// # Errors
    /// When the other end said something else, or that it has failed.
    pub fn recv_or_end<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let mut line = String::new();
        let read = self.reader.read_line(&mut line).map_err(|error| {
            Gone(format!(
                "cannot hear the other process of the benchmark: {error}"
            ))
        })?;
        if read == 0 {
            return Ok(None);
        }
        if let Some(reason) = line.strip_prefix(FAILED) {
            let reason = serde_json::from_str(reason).unwrap_or_else(|_| reason.to_owned());
            return Err(Gone(format!("the other end of the benchmark failed: {reason}")).into());
        }
        serde_json::from_str(&line)
            .map(Some)
            .with_context(|| format!("the other process said {:?}", line.trim_end()))
    }
}

/// Bytes from one simulated thread to another, and whether that is all.
#[derive(Clone, Default)]
struct Pipe(Arc<Mutex<(VecDeque<u8>, bool)>>);

/// The end that writes; dropping it ends what the other one reads.
struct Closing(Pipe);

impl Read for Pipe {
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

impl Write for Closing {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut shared = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_cross_and_a_closed_end_is_an_error() {
        let (mut left, mut right) = Link::pair().unwrap();
        left.send(&vec![1, 2, 3]).unwrap();
        assert_eq!(right.recv::<Vec<u32>>().unwrap(), [1, 2, 3]);
        right.send(&"text").unwrap();
        assert!(left.recv::<u32>().is_err());
        drop(right);
        let err = left.recv::<u32>().unwrap_err().to_string();
        assert!(err.contains("ended early"), "{err}");
    }
}
