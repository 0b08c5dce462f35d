//! A cluster: what programs are put on and run.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nicmodel::profile::Place;
use nicmodel::{Profile, Receive};

use crate::costs::{Costs, MissingCosts, SideCosts};
use crate::machine::Counters;
use crate::queue::Ps;
use crate::threads;
use crate::world::World;

/// LIDs of ports that are no multicast groups (IBTA vol. 1, 4.1.3).
const MAX_MACHINES: usize = 0xbfff;

/// A cluster of equal machines in virtual time. Dropping it ends the simulation.
///
/// It lives on the thread that makes it, and there is one at a time.
#[derive(Debug)]
pub struct Cluster {
    unknown_of_cores: Vec<&'static str>,
    /// The simulation is the thread's.
    not_send: PhantomData<*const ()>,
}

/// A machine of a cluster: its host, or its DPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Machine(u32);

impl Machine {
    /// Its place among the devices that the provider lists, from 0.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Why there is no cluster.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The profile lacks numbers.
    #[error(transparent)]
    Missing(#[from] MissingCosts),
    /// This thread simulates already.
    #[error("this thread has a simulated cluster already: drop that one first")]
    Occupied,
    /// More machines than a subnet has addresses for; one with a DPU takes two.
    #[error("{0} machines take more than the {MAX_MACHINES} LIDs that an InfiniBand subnet has")]
    TooMany(usize),
}

/// Threads that wait for ever: nothing can happen any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the simulation cannot go on, and these threads have not ended: {}", .0.join(", "))]
pub struct Unfinished(pub Vec<String>);

impl Cluster {
    /// A cluster of so many machines with the profile's NIC.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub fn new(profile: &Profile, machines: usize, seed: u64) -> Result<Self, ClusterError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let places = if profile.dpu.is_some() { 2 } else { 1 };
        let count = u32::try_from(machines).ok();
        let Some(count) = count.filter(|_| machines <= MAX_MACHINES / places) else {
            return Err(ClusterError::TooMany(machines));
        };
        let costs = Costs::of(profile)?;
        let mut world = World::new(NEXT.fetch_add(1, Ordering::Relaxed), profile, costs, seed);
        world.add_machines(profile, count);
        let unknown_of_cores = SideCosts::of(profile, 1.0).unknown_of_cores;
        if !threads::install(Box::new(world)) {
            return Err(ClusterError::Occupied);
        }
        Ok(Self {
            unknown_of_cores,
            not_send: PhantomData,
        })
    }

    /// Machines, each with a NIC: DPUs do not count.
    #[must_use]
    pub fn machines(&self) -> usize {
        self.with(|world| world.nics.len())
    }

    /// A machine, counted from 0: its host, if it has a DPU.
    ///
    /// # Panics
    /// When there are not so many.
    #[must_use]
    pub fn machine(&self, index: usize) -> Machine {
        let count = self.machines();
        assert!(index < count, "machine {index} of {count}");
        Machine(u32::try_from(index).expect("fewer machines than LIDs"))
    }

    /// A place of a machine: a device of its own, with its own cores and memory, on the machine's NIC. Nothing for a DPU
    /// that the profile does not have.
    ///
    /// # Panics
    /// When there are not so many machines.
    #[must_use]
    pub fn at(&self, index: usize, place: Place) -> Option<Machine> {
        let host = self.machine(index);
        match place {
            Place::Host => Some(host),
            Place::Dpu => self.with(|world| {
                let dpu = host.index() + world.nics.len();
                world.machines.get(dpu)?;
                u32::try_from(dpu).ok().map(Machine)
            }),
        }
    }

    /// From here on RECVs take payload within their completion where it fits and the NIC can (`inline_recv_bytes` of
    /// its profile), which drivers switch on for a whole queue pair. For a cluster that has sent nothing yet.
    pub fn receive_inline(&self) {
        self.with(|world| world.shapes.receive = Receive::Inline);
    }

    /// Cores of a machine's host, or of its DPU.
    #[must_use]
    pub fn cores(&self, machine: Machine) -> u32 {
        self.with(|world| world.machine(machine.0).costs.cores)
    }

    /// Costs of cores that the profile does not have: simulated cores do these in no time.
    #[must_use]
    pub fn unknown_of_cores(&self) -> &[&'static str] {
        &self.unknown_of_cores
    }

    /// Starts a thread on a core of its own.
    pub fn spawn(&self, machine: Machine, name: impl Into<String>, body: impl FnOnce() + 'static) {
        self.with(|world| world.spawn(machine.0, name.into(), body));
    }

    /// Lets time pass until `until`, or until nothing can happen any more.
    ///
    /// # Panics
    /// When a simulated thread panics.
    pub fn run_until(&self, until: Duration) {
        threads::run(
            Ps::try_from(until.as_nanos())
                .unwrap_or(Ps::MAX / 2000)
                .saturating_mul(1000),
        );
    }

    /// Lets time pass until all threads have ended.
    ///
    /// # Errors
    /// Names threads that wait for what never comes.
    ///
    /// # Panics
    /// When a simulated thread panics.
    pub fn run(&self) -> Result<(), Unfinished> {
        threads::run(Ps::MAX);
        let names = self.with(|world| {
            let threads = world.threads.iter().zip(&world.thread_names);
            let waiting = threads.filter(|(thread, _)| !thread.is_done());
            waiting.map(|(_, name)| name.clone()).collect::<Vec<_>>()
        });
        if names.is_empty() {
            Ok(())
        } else {
            Err(Unfinished(names))
        }
    }

    /// Virtual time since the start.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.with(|world| Duration::from_nanos(world.now / 1000))
    }

    /// What a machine's NIC counted, for host and DPU together.
    #[must_use]
    pub fn counters(&self, machine: Machine) -> Counters {
        self.with(|world| world.nic(machine.0).counters)
    }

    /// A number of the simulation's generator.
    #[must_use]
    pub fn random(&self) -> u64 {
        self.with(World::random)
    }

    fn with<R>(&self, with: impl FnOnce(&mut World) -> R) -> R {
        threads::world(with)
            .expect("the cluster's simulation is on this thread while the cluster is")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        threads::remove();
    }
}
