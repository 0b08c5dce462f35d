//! Child processes of a command: servers and clients on their own cores, which print a JSON object
//! per line.

use std::io::{BufRead, BufReader};
use std::marker::PhantomData;
use std::os::unix::process::CommandExt;
use std::process::{ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use bench::cache_line_bounce::one_way_bounce_ns;
use bench::core_pinning::{CorePair, spawn_on_cores};
use bench::peers::KillOnDrop;
use serde::de::DeserializeOwned;

use crate::args::{NicArgs, PortArgs};

/// The cores of a server and its clients, chosen so that a server and its clients never share one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ServerAndClientCores {
    pub(crate) server: Vec<usize>,
    pub(crate) clients: Vec<Vec<usize>>,
}

impl ServerAndClientCores {
    /// Gives the server's workers the last cores and the clients' threads the first cores. If
    /// threads outnumber the cores, every process may use all cores.
    pub(crate) fn new(
        cores: &[usize],
        workers: usize,
        clients: usize,
        threads: usize,
    ) -> ServerAndClientCores {
        if workers + clients * threads > cores.len() {
            return ServerAndClientCores {
                server: cores.to_vec(),
                clients: vec![cores.to_vec(); clients],
            };
        }
        let (front, back) = cores.split_at(cores.len() - workers);
        ServerAndClientCores {
            server: back.to_vec(),
            clients: front
                .chunks(threads)
                .take(clients)
                .map(<[_]>::to_vec)
                .collect(),
        }
    }

    /// Measures the time that a cache line takes from a client's core to the server's core. Returns
    /// `None` if both use the same core.
    pub(crate) fn measure_cache_line_transfer_ns(&self) -> Result<Option<f64>> {
        let server = *self.server.last().context("no core to run on")?;
        let client = self.clients.first().and_then(|cores| cores.first());
        let requester = *client.context("no core to run on")?;
        if requester == server {
            return Ok(None);
        }
        let cores = CorePair {
            requester,
            responder: server,
        };
        one_way_bounce_ns(cores, 50_000).map(Some)
    }

    pub(crate) fn shares_cores(&self) -> bool {
        self.clients.contains(&self.server)
    }
}

/// Returns the command `verbatim COMMAND NAME --json` with the NIC's arguments.
pub(crate) fn subcommand_with_nic(
    command: &str,
    name: &str,
    nic: &NicArgs,
    port: &PortArgs,
) -> Result<Command> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut part = Command::new(program);
    part.args([command, name, "--json", "--provider", nic.provider.name()]);
    if let Some(device) = &nic.device {
        part.args(["--device", device]);
    }
    part.args(["--port-num", &port.port_num.to_string()]);
    if let Some(index) = port.gid_index {
        part.args(["--gid-index", &index.to_string()]);
    }
    Ok(part)
}

/// Starts a program on the given cores, and returns the process and the reader of its output.
///
/// The process has its own process group: a SIGINT of the terminal does not reach the process, so the
/// current step completes.
pub(crate) fn start_on_cores<L: DeserializeOwned>(
    mut command: Command,
    cores: &[usize],
    who: &'static str,
) -> Result<(KillOnDrop, ChildLines<L>)> {
    let child = spawn_on_cores(cores, command.process_group(0).stdout(Stdio::piped()));
    let mut child = KillOnDrop(child?);
    let out = child.0.stdout.take().context("a child without output")?;
    Ok((child, ChildLines::new(out, who)))
}

/// A reader of the JSON lines that a child process prints.
pub(crate) struct ChildLines<L> {
    line_type: PhantomData<L>,
    reader: BufReader<ChildStdout>,
    process_name: &'static str,
}

impl<L: DeserializeOwned> ChildLines<L> {
    pub(crate) fn new(out: ChildStdout, who: &'static str) -> ChildLines<L> {
        ChildLines {
            line_type: PhantomData,
            reader: BufReader::new(out),
            process_name: who,
        }
    }

    /// Reads the next line; `None` when the child has closed its output.
    pub(crate) fn next_line(&mut self) -> Result<Option<L>> {
        let mut text = String::new();
        let read = self.reader.read_line(&mut text);
        if read.with_context(|| format!("cannot hear the {}", self.process_name))? == 0 {
            return Ok(None);
        }
        let line = serde_json::from_str(&text)
            .with_context(|| format!("the {} said {:?}", self.process_name, text.trim_end()))?;
        Ok(Some(line))
    }

    /// Reads lines until `says` returns a value. Returns an error if the output ends before.
    pub(crate) fn read_until_some<T>(&mut self, mut says: impl FnMut(L) -> Option<T>) -> Result<T> {
        loop {
            if let Some(said) = says(self.next_line_or_error()?) {
                return Ok(said);
            }
        }
    }

    /// Reads the next line. Returns an error if the output has ended.
    pub(crate) fn next_line_or_error(&mut self) -> Result<L> {
        match self.next_line()? {
            Some(line) => Ok(line),
            None => bail!(
                "the {} ended early; its message is above",
                self.process_name
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_clients_have_cores_of_their_own_where_there_are_enough() {
        let placement = ServerAndClientCores::new(&[0, 1], 1, 1, 1);
        assert_eq!(
            (placement.server.as_slice(), placement.clients.as_slice()),
            (&[1][..], &[vec![0]][..])
        );
        assert!(!placement.shares_cores());
        let placement = ServerAndClientCores::new(&[0, 1, 2, 4, 6, 7], 2, 2, 2);
        assert_eq!(placement.server, [6, 7]);
        assert_eq!(placement.clients, [[0, 1], [2, 4]]);
        let placement = ServerAndClientCores::new(&[0, 1], 1, 2, 1);
        assert_eq!(placement.clients, [[0, 1], [0, 1]]);
        assert!(placement.shares_cores());
    }
}
