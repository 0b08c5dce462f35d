//! Brings a crowd together, and lets its pairs have the cores in turn.

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

/// What some work took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// From the first one that began to the last one that was done; of pairs in turn the sum.
    pub elapsed_ns: u64,
    /// Messages that came in order and were answered.
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
    /// Starts the processes by `worker`.
    ///
    /// # Errors
    /// When one cannot be started.
    pub fn start(cores: Cores, worker: &Exe, nic: &NicChoice, scene: &Scene) -> Result<Crowd> {
        let links = (0..scene.processes).map(|_| Link::spawn(worker, cores.requester));
        Ok(Crowd {
            cores,
            nic: nic.clone(),
            scene: *scene,
            links: links.collect::<Result<_>>()?,
        })
    }

    /// The same with a thread of this process for each of them.
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

    /// All at once, on both cores, where the scheduler puts them.
    ///
    /// # Errors
    /// When a verb fails, messages are not in order, or nothing comes for 30 s.
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

    /// Each pair alone, a core for each of the two.
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

    /// Lets these pairs do their work at once; the first and the second ones have these cores.
    fn run(&mut self, pairs: &[(usize, usize)], cores: [&[usize]; 2]) -> Result<Taken> {
        // What each member has to do with whom, and the place of the queue pair there.
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

    /// Hands the members' queue pairs on to their peers.
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

    /// Lets the members begin together and leave together.
    fn wait_for(&mut self, members: &[usize]) -> Result<Vec<Done>> {
        self.meet(members)?;
        let mut done = Vec::new();
        for &member in members {
            done.push(self.links[member].recv()?);
        }
        self.meet(members)?;
        Ok(done)
    }

    /// All members come here before any goes on.
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
