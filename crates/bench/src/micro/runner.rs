//! Worker processes of the other side.

use anyhow::{Context, Result};

use super::lanes::measure;
use super::outcome::Outcome;
use super::task::Task;
use crate::link::{Exe, Link};
use crate::nic::NicChoice;
use crate::pin::Cores;
use crate::remote;

/// Owner of the links to the worker processes. They are started or connected to on first use, and
/// again after a failure.
#[derive(Debug)]
pub struct Runner {
    cores: Cores,
    others: Others,
    links: Vec<Link>,
}

/// Location of the worker processes.
#[derive(Debug)]
enum Others {
    /// On this host: this program, started again.
    Here(Exe),
    /// On a host that listens for connections.
    There(remote::Peer),
}

impl Runner {
    /// Creates a runner that starts its workers with the program `worker`.
    #[must_use]
    pub fn new(cores: Cores, worker: Exe) -> Runner {
        Runner {
            cores,
            others: Others::Here(worker),
            links: Vec::new(),
        }
    }

    /// Creates a runner whose workers are started by [`remote::listen`] on another host, or on this
    /// one.
    #[must_use]
    pub fn connecting(cores: Cores, peer: remote::Peer) -> Runner {
        Runner {
            cores,
            others: Others::There(peer),
            links: Vec::new(),
        }
    }

    /// Returns links to at least `count` workers on this host, or to all workers of the peer.
    fn links(&mut self, count: usize) -> Result<Vec<Link>> {
        let mut links = std::mem::take(&mut self.links);
        match &self.others {
            Others::Here(exe) => {
                while links.len() < count {
                    links.push(Link::spawn(exe, self.cores.responder)?);
                }
            }
            Others::There(peer) if links.is_empty() => links = peer.connect()?,
            Others::There(_) => {}
        }
        Ok(links)
    }

    /// Measures once.
    ///
    /// # Errors
    /// When a verb fails, wrong data arrive, or nothing arrives for 10 s.
    pub fn measure(&mut self, nic: &NicChoice, task: &Task) -> Result<Outcome> {
        let (threads, processes) = task.threads_and_processes();
        let mut links = self.links(processes)?;
        let (here, there) = match &self.others {
            Others::Here(_) => self.cores.shared_out(threads)?,
            Others::There(_) => (self.cores.all(threads)?, Vec::new()),
        };
        let used = links.get_mut(..processes);
        let used = used.context("the other host has too few processes for this")?;
        let outcome = measure(used, nic, task, &here, &there)?;
        // Keep the links only after success. After an error, workers may be in any state, so the
        // links are dropped.
        self.links = links;
        Ok(outcome)
    }
}
