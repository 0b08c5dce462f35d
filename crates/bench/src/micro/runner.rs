//! The processes of the other side.

use anyhow::{Context, Result};

use super::lanes::measure;
use super::outcome::Outcome;
use super::task::Task;
use crate::link::{Exe, Link};
use crate::nic::NicChoice;
use crate::pin::Cores;
use crate::remote;

/// The other processes, started or connected to when they are first needed, and again after a failure.
#[derive(Debug)]
pub struct Runner {
    cores: Cores,
    others: Others,
    links: Vec<Link>,
}

/// Where the other processes are.
#[derive(Debug)]
enum Others {
    /// Here: this program once more.
    Here(Exe),
    /// On a host that listens.
    There(remote::Peer),
}

impl Runner {
    /// One that starts its workers by `worker`.
    #[must_use]
    pub fn new(cores: Cores, worker: Exe) -> Runner {
        Runner {
            cores,
            others: Others::Here(worker),
            links: Vec::new(),
        }
    }

    /// One whose workers are started by [`remote::listen`] on another host, or this one.
    #[must_use]
    pub fn connecting(cores: Cores, peer: remote::Peer) -> Runner {
        Runner {
            cores,
            others: Others::There(peer),
            links: Vec::new(),
        }
    }

    /// Links to so many other processes.
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
    /// When a verb fails, something wrong arrived, or nothing came for 10 s.
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
        // After an error the others may wait for who knows what: then they are dropped.
        self.links = links;
        Ok(outcome)
    }
}
