//! Starts a crowd, connects its members, and runs its pairs all at once or in turn.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use verbs::QpEndpoint;

use super::config::{CrowdConfig, CrowdPattern};
use super::member::{MemberJob, MemberResult, RoleTowardPeer};
use crate::core_pinning::{CorePair, pin_thread_to_cores};
use crate::job::Job;
use crate::link::{WorkerCommand, WorkerLink};
use crate::open_nic::NicChoice;

/// Time and messages of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunResult {
    /// Time from the first member's start to the last member's end. For pairs in turn, the sum over
    /// the pairs.
    pub elapsed_ns: u64,
    /// Messages that arrived in order and were answered.
    #[serde(rename = "verified")]
    pub verified_messages: u64,
}

/// The processes of a crowd.
#[derive(Debug)]
pub struct Crowd {
    cores: CorePair,
    nic: NicChoice,
    config: CrowdConfig,
    links: Vec<WorkerLink>,
}

impl Crowd {
    /// Starts the processes with the program `worker`.
    ///
    /// # Errors
    /// When a process cannot be started.
    pub fn start(
        cores: CorePair,
        worker: &WorkerCommand,
        nic: &NicChoice,
        config: &CrowdConfig,
    ) -> Result<Crowd> {
        let links = (0..config.processes).map(|_| WorkerLink::spawn(worker, cores.requester));
        Ok(Crowd {
            cores,
            nic: nic.clone(),
            config: *config,
            links: links.collect::<Result<_>>()?,
        })
    }

    /// Starts a crowd whose members are threads of this process.
    #[cfg(test)]
    pub(super) fn start_as_threads(
        cores: CorePair,
        nic: &NicChoice,
        config: &CrowdConfig,
    ) -> Result<Crowd> {
        let mut links = Vec::new();
        for _ in 0..config.processes {
            let (here, mut there) = WorkerLink::pair()?;
            std::thread::spawn(move || crate::worker::run_jobs(&mut there, None));
            links.push(here);
        }
        Ok(Crowd {
            cores,
            nic: nic.clone(),
            config: *config,
            links,
        })
    }

    /// Runs all pairs at once on both cores, where the scheduler places the processes.
    ///
    /// # Errors
    /// When a verb fails, messages are out of order, or no message arrives for 30 s.
    pub fn run_all_pairs_at_once(&mut self) -> Result<RunResult> {
        let pairs = self.config.process_pairs();
        let both = [self.cores.requester, self.cores.responder];
        if self.config.pattern != CrowdPattern::BesideBusy {
            return self.run_pairs(&pairs, [&both, &both]);
        }
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let busy = scope.spawn(|| {
                let pinned = pin_thread_to_cores(&both);
                let mut work = 1u64;
                while !over.load(Ordering::Relaxed) {
                    work = std::hint::black_box(work.wrapping_mul(3));
                }
                pinned
            });
            let result = self.run_pairs(&pairs, [&both, &both]);
            over.store(true, Ordering::Relaxed);
            busy.join().expect("a loop does not panic")?;
            result
        })
    }

    /// Runs each pair alone, with a core for each of its two members.
    ///
    /// # Errors
    /// As [`run_all_pairs_at_once`](Self::run_all_pairs_at_once).
    pub fn run_one_by_one(&mut self) -> Result<RunResult> {
        let (one, other) = ([self.cores.requester], [self.cores.responder]);
        let mut sum = RunResult::default();
        for pair in self.config.process_pairs() {
            let result = self.run_pairs(&[pair], [&one, &other])?;
            sum.elapsed_ns += result.elapsed_ns;
            sum.verified_messages += result.verified_messages;
        }
        Ok(sum)
    }

    /// Runs `pairs` at once. The first members of the pairs run on `cores[0]`, the second members
    /// on `cores[1]`.
    fn run_pairs(&mut self, pairs: &[(usize, usize)], cores: [&[usize]; 2]) -> Result<RunResult> {
        // For each member: its peers, the index of the queue pair at the peer, and the member's
        // role.
        let mut peers = vec![Vec::new(); self.links.len()];
        for &(one, other) in pairs {
            let places = (peers[one].len(), peers[other].len());
            let (asks, answers) = (true, self.config.is_bidirectional());
            peers[one].push((
                other,
                places.1,
                RoleTowardPeer {
                    sends_requests: asks,
                    sends_answers: answers,
                },
            ));
            let (asks, answers) = (answers, asks);
            peers[other].push((
                one,
                places.0,
                RoleTowardPeer {
                    sends_requests: asks,
                    sends_answers: answers,
                },
            ));
        }
        let members: Vec<usize> = (0..peers.len()).filter(|m| !peers[*m].is_empty()).collect();
        for &member in &members {
            let second = pairs.iter().any(|pair| pair.1 == member);
            let order = MemberJob {
                nic: self.nic.clone(),
                flow_control: self.config.flow_control(),
                messages_per_peer: self.config.messages_per_peer,
                roles: peers[member].iter().map(|(_, _, role)| *role).collect(),
                cores: cores[usize::from(second)].to_vec(),
            };
            self.links[member].send(&Job::Crowd(order))?;
        }
        self.forward_endpoints(&members, &peers)?;
        let done = self.start_and_collect_results(&members)?;
        let begin = done.iter().map(|done| done.begin_ns).min();
        let end = done.iter().map(|done| done.end_ns).max();
        let elapsed = begin.zip(end).context("a crowd of nobody")?;
        Ok(RunResult {
            elapsed_ns: elapsed.1.saturating_sub(elapsed.0),
            verified_messages: done.iter().map(|done| done.verified_messages).sum(),
        })
    }

    /// Passes the endpoints of the members' queue pairs on to their peers.
    fn forward_endpoints(
        &mut self,
        members: &[usize],
        peers: &[Vec<(usize, usize, RoleTowardPeer)>],
    ) -> Result<()> {
        let mut endpoints: Vec<Vec<QpEndpoint>> = vec![Vec::new(); self.links.len()];
        for &member in members {
            endpoints[member] = self.links[member].recv()?;
        }
        for &member in members {
            let theirs = peers[member].iter();
            let theirs = theirs.map(|(peer, place, _)| endpoints[*peer].get(*place));
            let theirs: Option<Vec<_>> = theirs.collect();
            let theirs = theirs.context("a member has too few queue pairs")?;
            self.links[member].send(&theirs)?;
        }
        Ok(())
    }

    /// Starts all members together, collects their results, and lets them end together.
    fn start_and_collect_results(&mut self, members: &[usize]) -> Result<Vec<MemberResult>> {
        self.barrier(members)?;
        let mut done = Vec::new();
        for &member in members {
            done.push(self.links[member].recv()?);
        }
        self.barrier(members)?;
        Ok(done)
    }

    /// Waits until all members have reached this point, then lets them continue.
    fn barrier(&mut self, members: &[usize]) -> Result<()> {
        for &member in members {
            let _: String = self.links[member].recv()?;
        }
        for &member in members {
            self.links[member].send(&"go on")?;
        }
        Ok(())
    }
}
