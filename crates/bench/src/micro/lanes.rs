//! The threads of a measurement. A *lane* is a thread that posts and the thread that it posts to, on two NICs, with a
//! link between them. On this side all lanes are in one process with the measured NIC; on the other side they are dealt
//! out to processes. All lanes begin together, and what they give is added up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use verbs::{Access, MemoryRegion, RemoteMemory};

use super::{Direction, Outcome, Rate, Stream, Task, Verb, drive_on, work_on};
use crate::link::{Exe, Gate, Link, cause};
use crate::pin::{Cores, pinned};
use crate::remote;
use crate::worker::Job;
use crate::workload::{Nic, NicChoice};

/// A part of a measurement, as the driver tells it to a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The worker's NIC.
    pub(crate) nic: NicChoice,
    task: Task,
    lanes: usize,
    /// Cores for the lanes' threads, in turn; on another host those that it chooses itself.
    pub(crate) cores: Vec<usize>,
}

/// What a worker says when its lanes have ended.
#[derive(Debug, Serialize, Deserialize)]
struct End {
    wrong: Option<String>,
}

/// What the responders of a process have in common: the counters of atomics, which all requesters use.
#[derive(Debug)]
pub(crate) struct Target {
    counters: Option<MemoryRegion>,
    spacing_bytes: usize,
    added: AtomicU64,
}

impl Target {
    /// Of a process that responds to `task`.
    pub(crate) fn new(nic: &Nic, task: &Task) -> Result<Target> {
        let (counters, spacing_bytes) = match task {
            Task::Stream(stream) if stream.verb == Verb::Atomics => {
                let bytes = stream.addresses * stream.spacing_bytes;
                let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
                let memory = nic.alloc(bytes, access, stream.pages)?;
                (Some(memory), stream.spacing_bytes)
            }
            _ => (None, 8),
        };
        Ok(Target {
            counters,
            spacing_bytes,
            added: AtomicU64::new(0),
        })
    }

    pub(super) fn counters(&self) -> Result<RemoteMemory> {
        let counters = self.counters.as_ref().context("no counters for atomics")?;
        Ok(counters.remote())
    }

    /// A requester has added so much.
    pub(super) fn added(&self, count: u64) {
        self.added.fetch_add(count, Ordering::Relaxed);
    }

    /// When all have ended: what is wrong in the counters, if anything.
    pub(crate) fn wrong(&self) -> Result<Option<String>> {
        let Some(counters) = &self.counters else {
            return Ok(None);
        };
        let mut sum = 0u64;
        for at in (0..counters.len()).step_by(self.spacing_bytes) {
            sum = sum.wrapping_add(counters.read_u64(at)?);
        }
        let added = self.added.load(Ordering::Relaxed);
        Ok((sum != added).then(|| format!("counters of {sum} together, not {added}")))
    }
}

/// The thread of a lane on the measured side; what its requester measured.
pub(crate) fn near(link: &mut Link, nic: &Nic, task: &Task, target: &Target) -> Result<Outcome> {
    match task.direction() {
        Direction::Outbound => drive_on(link, nic, task),
        Direction::Inbound => {
            work_on(link, nic, task, target)?;
            link.recv()
        }
    }
}

/// The thread of a lane on the other side.
pub(crate) fn far(link: &mut Link, nic: &Nic, task: &Task, target: &Target) -> Result<()> {
    match task.direction() {
        Direction::Outbound => work_on(link, nic, task, target),
        Direction::Inbound => {
            let outcome = drive_on(link, nic, task)?;
            link.send(&outcome)
        }
    }
}

/// The outcomes of all lanes, or the error that ended them.
pub(crate) fn together(results: Vec<Result<Outcome>>) -> Result<Outcome> {
    let (mut outcomes, mut errors) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(outcome) => outcomes.push(outcome),
            Err(error) => errors.push(error),
        }
    }
    if let Some(error) = cause(errors) {
        return Err(error);
    }
    let mut rates = outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Rate(rate) => Some(*rate),
        Outcome::Latency(_) => None,
    });
    match rates.next() {
        Some(first) => Ok(Outcome::Rate(rates.fold(first, Rate::plus))),
        None => outcomes.into_iter().next().context("nothing was measured"),
    }
}

/// What is wrong in a target, as an error.
pub(crate) fn check(wrong: Option<String>) -> Result<()> {
    match wrong {
        Some(wrong) => bail!("the target found {wrong}"),
        None => Ok(()),
    }
}

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

/// Measures with workers at the other ends of `links`.
pub(super) fn measure(
    links: &mut [Link],
    choice: &NicChoice,
    task: &Task,
    here: &[usize],
    there: &[usize],
) -> Result<Outcome> {
    let (threads, processes) = task.threads_and_processes();
    let nic = Nic::open(choice)?;
    let target = Target::new(&nic, task)?;
    let gate = Arc::new(Gate::new(threads));
    for (process, link) in links.iter_mut().enumerate() {
        link.send(&Job::Micro(Order {
            nic: choice.clone(),
            task: *task,
            lanes: lanes_of(process, threads, processes),
            cores: dealt(there, process, processes),
        }))?;
    }
    let lane = |lane: usize, link: &mut Link| {
        link.through(&gate);
        let done = on_core(here, lane, || near(link, &nic, task, &target));
        if done.is_err() {
            gate.give_up();
        }
        done
    };
    let results: Vec<_> = thread::scope(|scope| {
        let fans: Vec<_> = links
            .iter_mut()
            .enumerate()
            .map(|(process, link)| {
                let lanes = lanes_of(process, threads, processes);
                let lane = &lane;
                scope.spawn(move || {
                    link.fan(lanes, |number, link| {
                        lane(process + number * processes, link)
                    })
                })
            })
            .collect();
        let ended = fans.into_iter().map(|fan| fan.join());
        ended.flat_map(|fan| fan.unwrap_or_default()).collect()
    });
    let outcome = together(results)?;
    check(target.wrong()?)?;
    for link in links {
        let end: End = link.recv()?;
        check(end.wrong)?;
    }
    Ok(outcome)
}

/// The worker's part.
///
/// # Errors
/// When a verb fails, or the driver is gone.
pub(crate) fn work(link: &mut Link, order: &Order) -> Result<()> {
    let nic = Nic::open(&order.nic)?;
    let target = Target::new(&nic, &order.task)?;
    let results = link.fan(order.lanes, |lane, link| {
        on_core(&order.cores, lane, || far(link, &nic, &order.task, &target))
    });
    let errors = results.into_iter().filter_map(Result::err).collect();
    if let Some(error) = cause(errors) {
        return Err(error);
    }
    link.send(&End {
        wrong: target.wrong()?,
    })
}

/// Runs a lane's thread on its core, if any were chosen.
fn on_core<T>(cores: &[usize], lane: usize, work: impl FnOnce() -> Result<T>) -> Result<T> {
    match cores {
        [] => work(),
        cores => pinned(cores[lane % cores.len()], work),
    }
}

/// Lanes of a process of the other side.
fn lanes_of(process: usize, threads: usize, processes: usize) -> usize {
    (threads + processes - 1 - process) / processes
}

/// The cores of a process of the other side, of whose lanes each `processes`th is its own.
fn dealt(cores: &[usize], process: usize, processes: usize) -> Vec<usize> {
    if cores.is_empty() {
        return Vec::new();
    }
    let turns = cores.len();
    let of = |turn: usize| cores[(process + turn * processes) % cores.len()];
    (0..turns).map(of).collect()
}

impl Task {
    pub(super) fn threads_and_processes(&self) -> (usize, usize) {
        match self {
            Task::Stream(stream) => (stream.threads, stream.processes),
            Task::PingPong(_) => (1, 1),
        }
    }

    /// Processes of the other side.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.threads_and_processes().1
    }

    fn direction(&self) -> Direction {
        match self {
            Task::Stream(stream) => stream.direction,
            Task::PingPong(_) => Direction::Outbound,
        }
    }
}

impl Stream {
    /// Whether nobody else uses a requester's counters.
    pub(super) fn has_own_counters(&self) -> bool {
        self.queue_pairs == 1 && self.threads == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_dealt_out_evenly() {
        for threads in 1..20 {
            for processes in 1..=threads {
                let of = |process| lanes_of(process, threads, processes);
                let all: Vec<_> = (0..processes).map(of).collect();
                assert_eq!(all.iter().sum::<usize>(), threads);
                assert!(all[0] - all[processes - 1] <= 1, "{all:?}");
            }
        }
        // Lanes 0 to 3 on cores 1, 3, 1, 3: of two processes one has the first, the other the second.
        assert_eq!(dealt(&[1, 3], 0, 2), [1, 1]);
        assert_eq!(dealt(&[1, 3], 1, 2), [3, 3]);
        assert_eq!(dealt(&[1, 3], 0, 1), [1, 3]);
        assert_eq!(dealt(&[], 0, 1), Vec::<usize>::new());
    }
}
