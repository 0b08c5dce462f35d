//! A cluster: machines on which programs are started.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nicmodel::profile::CorePlace;
use nicmodel::{PayloadDestination, Profile};

use crate::costs::{MissingCosts, NicParameters};
use crate::event_queue::Ps;
use crate::machine::NicCounters;
use crate::network_faults::{NetworkFaults, UnsupportedRule};
use crate::simulation::Simulation;
use crate::threads;

/// Number of LIDs that are not multicast LIDs (IBTA vol. 1, 4.1.3).
const MAX_MACHINES: usize = 0xbfff;

/// A cluster of equal machines in virtual time. Dropping it ends the simulation.
///
/// A cluster stays on the thread that makes it, and each thread has at most one.
#[derive(Debug)]
pub struct Cluster {
    /// Makes the type `!Send`, since the simulation is a thread-local variable.
    not_send: PhantomData<*const ()>,
}

/// A device of a cluster: the host of a machine, or its DPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostOrDpu(u32);

impl HostOrDpu {
    /// Returns the index of the device in the provider's list, from 0.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The reason why no cluster could be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateClusterError {
    /// The profile lacks numbers that the simulation needs.
    #[error(transparent)]
    MissingCosts(#[from] MissingCosts),
    /// This thread already has a simulated cluster.
    #[error("this thread has a simulated cluster already: drop that one first")]
    ThreadHasCluster,
    /// More machines than LIDs in a subnet; a machine with a DPU takes two LIDs.
    #[error("{0} machines take more than the {MAX_MACHINES} LIDs that an InfiniBand subnet has")]
    TooManyMachines(usize),
}

/// Threads that wait for ever: no event is left.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the simulation cannot go on, and these threads have not ended: {}", .0.join(", "))]
pub struct DeadlockedThreads(pub Vec<String>);

impl Cluster {
    /// Makes a cluster of `machines` machines with the profile's NIC.
    ///
    /// # Errors
    /// See [`CreateClusterError`].
    pub fn new(profile: &Profile, machines: usize, seed: u64) -> Result<Self, CreateClusterError> {
        static NEXT_SIMULATION_ID: AtomicU64 = AtomicU64::new(1);
        let places = if profile.dpu.is_some() { 2 } else { 1 };
        let count = u32::try_from(machines).ok();
        let Some(count) = count.filter(|_| machines <= MAX_MACHINES / places) else {
            return Err(CreateClusterError::TooManyMachines(machines));
        };
        let costs = NicParameters::from_profile(profile)?;
        let mut world = Simulation::new(
            NEXT_SIMULATION_ID.fetch_add(1, Ordering::Relaxed),
            profile,
            costs,
            seed,
        );
        world.add_machines(profile, count);
        if !threads::install_simulation(Box::new(world)) {
            return Err(CreateClusterError::ThreadHasCluster);
        }
        Ok(Self {
            not_send: PhantomData,
        })
    }

    /// Returns the number of machines, each with a NIC; DPUs are not counted.
    #[must_use]
    pub fn machine_count(&self) -> usize {
        self.with_simulation(|world| world.nics.len())
    }

    /// Returns machine `index`, counted from 0; for a machine with a DPU, this is the host.
    ///
    /// # Panics
    /// `index` is too large.
    #[must_use]
    pub fn host_of_machine(&self, index: usize) -> HostOrDpu {
        let count = self.machine_count();
        assert!(index < count, "machine {index} of {count}");
        HostOrDpu(u32::try_from(index).expect("fewer machines than LIDs"))
    }

    /// Returns the host or the DPU of a machine. Each is a device with its own cores and memory, and both share the
    /// machine's NIC. `None` if the profile has no DPU.
    ///
    /// # Panics
    /// `index` is too large.
    #[must_use]
    pub fn host_or_dpu_of_machine(&self, index: usize, place: CorePlace) -> Option<HostOrDpu> {
        let host = self.host_of_machine(index);
        match place {
            CorePlace::Host => Some(host),
            CorePlace::Dpu => self.with_simulation(|world| {
                let dpu = host.index() + world.nics.len();
                world.machines.get(dpu)?;
                u32::try_from(dpu).ok().map(HostOrDpu)
            }),
        }
    }

    /// Makes RECVs take payload from within their completion, if the payload fits and the NIC supports this
    /// (`inline_recv_bytes` of its profile). Drivers enable this for a whole queue pair. Must be called before the
    /// first message is sent.
    pub fn enable_inline_receive(&self) {
        self.with_simulation(|world| {
            world.cost_table.recv_payload_destination = PayloadDestination::Inline
        });
    }

    /// Makes the network lose and delay packets by a plan, from now on. The same plan, seed and program give the same
    /// faults. Times of the plan count from the start of the simulation. Addresses are GIDs of machines. Queue pairs
    /// are numbered in the order of their creation in the cluster.
    ///
    /// # Errors
    /// The plan has a rule other than `drop`, `corrupt`, `delay`, `rate` and `partition`.
    pub fn inject_faults(&self, plan: &faults::Plan, seed: u64) -> Result<(), UnsupportedRule> {
        let network = NetworkFaults::new(plan, seed)?;
        self.with_simulation(|world| world.network_faults = Some(Box::new(network)));
        Ok(())
    }

    /// Returns how many packets each rule of the plan matched and struck; empty without a plan.
    #[must_use]
    pub fn fault_counts(&self) -> Vec<faults::RuleCounts> {
        self.with_simulation(|world| {
            let network = world.network_faults.as_ref();
            network.map_or_else(Vec::new, |network| network.rule_counts())
        })
    }

    /// Returns the number of cores of a host or DPU.
    #[must_use]
    pub fn core_count(&self, machine: HostOrDpu) -> u32 {
        self.with_simulation(|world| world.machine(machine.0).costs.core_count)
    }

    /// Starts a simulated thread on a core of its own.
    pub fn spawn(
        &self,
        machine: HostOrDpu,
        name: impl Into<String>,
        body: impl FnOnce() + 'static,
    ) {
        self.with_simulation(|world| world.spawn(machine.0, name.into(), body));
    }

    /// Runs the simulation until `until`, or until no event is left.
    ///
    /// # Panics
    /// A simulated thread panics.
    pub fn run_until(&self, until: Duration) {
        threads::run_events(
            Ps::try_from(until.as_nanos())
                .unwrap_or(Ps::MAX / 2000)
                .saturating_mul(1000),
        );
    }

    /// Runs the simulation until all threads have ended.
    ///
    /// # Errors
    /// Returns the names of threads that wait for ever.
    ///
    /// # Panics
    /// A simulated thread panics.
    pub fn run_until_threads_end(&self) -> Result<(), DeadlockedThreads> {
        threads::run_events(Ps::MAX);
        let names = self.with_simulation(|world| {
            let threads = world.threads.iter().zip(&world.thread_names);
            let waiting = threads.filter(|(thread, _)| !thread.is_done());
            waiting.map(|(_, name)| name.clone()).collect::<Vec<_>>()
        });
        if names.is_empty() {
            Ok(())
        } else {
            Err(DeadlockedThreads(names))
        }
    }

    /// Returns the virtual time since the start.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.with_simulation(|world| Duration::from_nanos(world.now / 1000))
    }

    /// Returns the counters of a machine's NIC, for host and DPU together.
    #[must_use]
    pub fn nic_counters(&self, machine: HostOrDpu) -> NicCounters {
        self.with_simulation(|world| world.nic(machine.0).counters)
    }

    /// Returns the next random number of the simulation's generator.
    #[must_use]
    pub fn next_random(&self) -> u64 {
        self.with_simulation(Simulation::next_random)
    }

    fn with_simulation<R>(&self, with: impl FnOnce(&mut Simulation) -> R) -> R {
        threads::with_simulation(with)
            .expect("the cluster's simulation is on this thread while the cluster is")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        threads::remove_simulation();
    }
}
