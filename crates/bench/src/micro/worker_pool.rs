//! Worker processes of the other side.

use anyhow::{Context, Result};

use super::lanes::measure_with_workers;
use super::outcome::TaskResult;
use super::task::MeasurementTask;
use crate::core_pinning::CorePair;
use crate::link::{WorkerCommand, WorkerLink};
use crate::open_nic::NicChoice;
use crate::remote;

/// Owner of the links to the worker processes. They are started or connected to on first use, and
/// again after a failure.
#[derive(Debug)]
pub struct WorkerPool {
    cores: CorePair,
    worker_host: WorkerHost,
    links: Vec<WorkerLink>,
}

/// Location of the worker processes.
#[derive(Debug)]
enum WorkerHost {
    /// On this host: this program, started again.
    Local(WorkerCommand),
    /// On a host that listens for connections.
    Remote(remote::ListeningPeer),
}

impl WorkerPool {
    /// Creates a runner that starts its workers with the program `worker`.
    #[must_use]
    pub fn new(cores: CorePair, worker: WorkerCommand) -> WorkerPool {
        WorkerPool {
            cores,
            worker_host: WorkerHost::Local(worker),
            links: Vec::new(),
        }
    }

    /// Creates a runner whose workers are started by [`remote::serve_one_peer`] on another host, or on this
    /// one.
    #[must_use]
    pub fn with_remote_peer(cores: CorePair, peer: remote::ListeningPeer) -> WorkerPool {
        WorkerPool {
            cores,
            worker_host: WorkerHost::Remote(peer),
            links: Vec::new(),
        }
    }

    /// Returns links to at least `count` workers on this host, or to all workers of the peer.
    fn take_or_start_links(&mut self, count: usize) -> Result<Vec<WorkerLink>> {
        let mut links = std::mem::take(&mut self.links);
        match &self.worker_host {
            WorkerHost::Local(exe) => {
                while links.len() < count {
                    links.push(WorkerLink::spawn(exe, self.cores.responder)?);
                }
            }
            WorkerHost::Remote(peer) if links.is_empty() => links = peer.connect()?,
            WorkerHost::Remote(_) => {}
        }
        Ok(links)
    }

    /// Measures once.
    ///
    /// # Errors
    /// When a verb fails, wrong data arrive, or nothing arrives for 10 s.
    pub fn measure(&mut self, nic: &NicChoice, task: &MeasurementTask) -> Result<TaskResult> {
        let (threads, processes) = task.threads_and_processes();
        let mut links = self.take_or_start_links(processes)?;
        let (here, there) = match &self.worker_host {
            WorkerHost::Local(_) => self.cores.thread_cores_of_both_sides(threads)?,
            WorkerHost::Remote(_) => (self.cores.own_side_cores(threads)?, Vec::new()),
        };
        let used = links.get_mut(..processes);
        let used = used.context("the other host has too few processes for this")?;
        let outcome = measure_with_workers(used, nic, task, &here, &there)?;
        // Keep the links only after success. After an error, workers may be in any state, so the
        // links are dropped.
        self.links = links;
        Ok(outcome)
    }
}
