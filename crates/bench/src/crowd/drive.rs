//! Starts a crowd, connects its members, and runs its pairs all at once or in turn.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use verbs::QpEndpoint;

use super::member::{Done, MemberOrder, Role};
use super::scene::{Kind, Scene};
use crate::job::Job;
use crate::link::{Exe, Link};
use crate::nic::NicChoice;
use crate::pin::{Cores, pin_to};

/// Time and messages of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// Time from the first member's start to the last member's end. For pairs in turn, the sum over
    /// the pairs.
    pub elapsed_ns: u64,
    /// Messages that arrived in order and were answered.
    pub verified: u64,
}

/// The processes of a crowd.
#[derive(Debug)]
pub struct Crowd {
    cores: Cores,
    nic: NicChoice,
    scene: Scene,
    links: Vec<Link>,
}

impl Crowd {
    /// Starts the processes with the program `worker`.
    ///
    /// # Errors
    /// When a process cannot be started.
    pub fn start(cores: Cores, worker: &Exe, nic: &NicChoice, scene: &Scene) -> Result<Crowd> {
        let links = (0..scene.processes).map(|_| Link::spawn(worker, cores.requester));
        Ok(Crowd {
            cores,
            nic: nic.clone(),
            scene: *scene,
            links: links.collect::<Result<_>>()?,
        })
    }

    /// Starts a crowd whose members are threads of this process.
    #[cfg(test)]
    pub(super) fn of_threads(cores: Cores, nic: &NicChoice, scene: &Scene) -> Result<Crowd> {
        let mut links = Vec::new();
        for _ in 0..scene.processes {
            let (near, mut far) = Link::pair()?;
            std::thread::spawn(move || crate::worker::serve(&mut far, None));
            links.push(near);
        }
        Ok(Crowd {
            cores,
            nic: nic.clone(),
            scene: *scene,
            links,
        })
    }

    /// Runs all pairs at once on both cores, where the scheduler places the processes.
    ///
    /// # Errors
    /// When a verb fails, messages are out of order, or no message arrives for 30 s.
    pub fn together(&mut self) -> Result<Taken> {
        let pairs = self.scene.pairs();
        let both = [self.cores.requester, self.cores.responder];
        if self.scene.kind != Kind::BesideBusy {
            return self.run(&pairs, [&both, &both]);
        }
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let busy = scope.spawn(|| {
                let pinned = pin_to(&both);
                let mut work = 1u64;
                while !over.load(Ordering::Relaxed) {
                    work = std::hint::black_box(work.wrapping_mul(3));
                }
                pinned
            });
            let taken = self.run(&pairs, [&both, &both]);
            over.store(true, Ordering::Relaxed);
            busy.join().expect("a loop does not panic")?;
            taken
        })
    }

    /// Runs each pair alone, with a core for each of its two members.
    ///
    /// # Errors
    /// As [`together`](Self::together).
    pub fn in_turn(&mut self) -> Result<Taken> {
        let (one, other) = ([self.cores.requester], [self.cores.responder]);
        let mut sum = Taken::default();
        for pair in self.scene.pairs() {
            let taken = self.run(&[pair], [&one, &other])?;
            sum.elapsed_ns += taken.elapsed_ns;
            sum.verified += taken.verified;
        }
        Ok(sum)
    }

    /// Runs `pairs` at once. The first members of the pairs run on `cores[0]`, the second members
    /// on `cores[1]`.
    fn run(&mut self, pairs: &[(usize, usize)], cores: [&[usize]; 2]) -> Result<Taken> {
        // For each member: its peers, the index of the queue pair at the peer, and the member's
        // role.
        let mut peers = vec![Vec::new(); self.links.len()];
        for &(one, other) in pairs {
            let places = (peers[one].len(), peers[other].len());
            let (asks, answers) = (true, self.scene.both_ask());
            peers[one].push((other, places.1, Role { asks, answers }));
            let (asks, answers) = (answers, asks);
            peers[other].push((one, places.0, Role { asks, answers }));
        }
        let members: Vec<usize> = (0..peers.len()).filter(|m| !peers[*m].is_empty()).collect();
        for &member in &members {
            let second = pairs.iter().any(|pair| pair.1 == member);
            let order = MemberOrder {
                nic: self.nic.clone(),
                pace: self.scene.pace(),
                messages_each: self.scene.messages_each,
                roles: peers[member].iter().map(|(_, _, role)| *role).collect(),
                cores: cores[usize::from(second)].to_vec(),
            };
            self.links[member].send(&Job::Crowd(order))?;
        }
        self.introduce(&members, &peers)?;
        let done = self.wait_for(&members)?;
        let begin = done.iter().map(|done| done.begin_ns).min();
        let end = done.iter().map(|done| done.end_ns).max();
        let elapsed = begin.zip(end).context("a crowd of nobody")?;
        Ok(Taken {
            elapsed_ns: elapsed.1.saturating_sub(elapsed.0),
            verified: done.iter().map(|done| done.verified).sum(),
        })
    }

    /// Passes the endpoints of the members' queue pairs on to their peers.
    fn introduce(&mut self, members: &[usize], peers: &[Vec<(usize, usize, Role)>]) -> Result<()> {
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
    fn wait_for(&mut self, members: &[usize]) -> Result<Vec<Done>> {
        self.meet(members)?;
        let mut done = Vec::new();
        for &member in members {
            done.push(self.links[member].recv()?);
        }
        self.meet(members)?;
        Ok(done)
    }

    /// Waits until all members have reached this point, then lets them continue.
    fn meet(&mut self, members: &[usize]) -> Result<()> {
        for &member in members {
            let _: String = self.links[member].recv()?;
        }
        for &member in members {
            self.links[member].send(&"go on")?;
        }
        Ok(())
    }
}
