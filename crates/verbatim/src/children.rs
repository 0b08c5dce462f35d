//! Programs that a command starts: servers and clients, each on cores of its own, that print a JSON object a line.

use std::io::{BufRead, BufReader};
use std::marker::PhantomData;
use std::process::{ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use bench::bounce::bounce_ns;
use bench::peers::KillOnDrop;
use bench::pin::{Cores, spawn_on_cores};
use serde::de::DeserializeOwned;

use crate::args::{NicArgs, PortArgs};

/// Which cores each process gets, so that a server and its clients never take turns on one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) server: Vec<usize>,
    pub(crate) clients: Vec<Vec<usize>>,
}

impl Placement {
    /// The server's workers from the last core down, clients' threads from the first up; all on
    /// any core when there are more threads than cores.
    pub(crate) fn new(
        cores: &[usize],
        workers: usize,
        clients: usize,
        threads: usize,
    ) -> Placement {
        if workers + clients * threads > cores.len() {
            return Placement {
                server: cores.to_vec(),
                clients: vec![cores.to_vec(); clients],
            };
        }
        let (front, back) = cores.split_at(cores.len() - workers);
        Placement {
            server: back.to_vec(),
            clients: front
                .chunks(threads)
                .take(clients)
                .map(<[_]>::to_vec)
                .collect(),
        }
    }

    /// How long a cache line takes between a client and the server, one way; nothing if there is
    /// but one core.
    pub(crate) fn bounce_ns(&self) -> Result<Option<f64>> {
        let server = *self.server.last().context("no core to run on")?;
        let client = self.clients.first().and_then(|cores| cores.first());
        let requester = *client.context("no core to run on")?;
        if requester == server {
            return Ok(None);
        }
        let cores = Cores {
            requester,
            responder: server,
        };
        bounce_ns(cores, 50_000).map(Some)
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.clients.contains(&self.server)
    }
}

/// `verbatim COMMAND NAME --json` on a NIC.
pub(crate) fn part_of(
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

/// Starts a program on cores.
pub(crate) fn start<L: DeserializeOwned>(
    mut command: Command,
    cores: &[usize],
    who: &'static str,
) -> Result<(KillOnDrop, Lines<L>)> {
    let child = spawn_on_cores(cores, command.stdout(Stdio::piped()));
    let mut child = KillOnDrop(child?);
    let out = child.0.stdout.take().context("a child without output")?;
    Ok((child, Lines::new(out, who)))
}

/// Reads lines of a child.
pub(crate) struct Lines<L> {
    line: PhantomData<L>,
    reader: BufReader<ChildStdout>,
    who: &'static str,
}

impl<L: DeserializeOwned> Lines<L> {
    pub(crate) fn new(out: ChildStdout, who: &'static str) -> Lines<L> {
        Lines {
            line: PhantomData,
            reader: BufReader::new(out),
            who,
        }
    }

    /// The next line; `None` when the child has ended.
    pub(crate) fn next(&mut self) -> Result<Option<L>> {
        let mut text = String::new();
        let read = self.reader.read_line(&mut text);
        if read.with_context(|| format!("cannot hear the {}", self.who))? == 0 {
            return Ok(None);
        }
        let line = serde_json::from_str(&text)
            .with_context(|| format!("the {} said {:?}", self.who, text.trim_end()))?;
        Ok(Some(line))
    }

    /// What the first line that says it says; a line must.
    pub(crate) fn expect_some<T>(&mut self, mut says: impl FnMut(L) -> Option<T>) -> Result<T> {
        loop {
            if let Some(said) = says(self.expect()?) {
                return Ok(said);
            }
        }
    }

    /// The next line, which must be there.
    pub(crate) fn expect(&mut self) -> Result<L> {
        match self.next()? {
            Some(line) => Ok(line),
            None => bail!("the {} ended early; its message is above", self.who),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_clients_have_cores_of_their_own_where_there_are_enough() {
        let placement = Placement::new(&[0, 1], 1, 1, 1);
        assert_eq!(
            (placement.server.as_slice(), placement.clients.as_slice()),
            (&[1][..], &[vec![0]][..])
        );
        assert!(!placement.is_shared());
        let placement = Placement::new(&[0, 1, 2, 4, 6, 7], 2, 2, 2);
        assert_eq!(placement.server, [6, 7]);
        assert_eq!(placement.clients, [[0, 1], [2, 4]]);
        let placement = Placement::new(&[0, 1], 1, 2, 1);
        assert_eq!(placement.clients, [[0, 1], [0, 1]]);
        assert!(placement.is_shared());
    }
}
