//! Experiments on a simulated cluster (`simnic`), in virtual time: the same code as on a real NIC.

pub mod adaptive;
pub mod btree;
pub mod collective;
pub mod drtm;
pub mod kv;
pub mod micro;
#[cfg(test)]
mod places;
pub mod sequencer;
pub mod windows;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nicmodel::Profile;
use nicmodel::profile::Place;
use simnic::{Cluster, Machine};
use verbs::{Context, Provider, Waiter};

/// Costs that a design needs and a profile does not have.
///
/// Other designs may do without them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "profile {profile} has no {}, so a server's cores would cost nothing; give them in a profile of your own (verbatim \
     model --template prints one)",
    .missing.join(", ")
)]
pub struct UnknownCosts {
    /// The profile.
    pub profile: String,
    /// Its keys.
    pub missing: Vec<&'static str>,
}

/// A cluster with its devices open.
struct Bed {
    cluster: Cluster,
    /// Those of the hosts, by machine.
    contexts: Vec<Context>,
    /// Those of the DPUs, by machine; none if the NIC has no DPU.
    dpus: Vec<Context>,
}

impl Bed {
    fn new(profile: &Profile, machines: usize, seed: u64) -> Result<Self> {
        let cluster = Cluster::new(profile, machines, seed)?;
        let devices = Provider::simnic().devices()?;
        let contexts = devices.iter().map(verbs::Device::open);
        let mut contexts = contexts.collect::<Result<Vec<_>, _>>()?;
        let dpus = contexts.split_off(machines);
        Ok(Self {
            cluster,
            contexts,
            dpus,
        })
    }

    /// Refuses a profile by which what a server's cores do would cost nothing.
    fn check_costs_of_cores(&self, profile: &Profile) -> Result<(), UnknownCosts> {
        let missing = self.cluster.unknown_of_cores();
        if missing.is_empty() {
            return Ok(());
        }
        Err(UnknownCosts {
            profile: profile.name.clone(),
            missing: missing.to_vec(),
        })
    }

    /// The device of a place, and where its threads run.
    ///
    /// # Errors
    /// When the NIC has no DPU.
    fn at(&self, machine: usize, place: Place) -> Result<(&Context, Machine)> {
        let contexts = match place {
            Place::Host => &self.contexts,
            Place::Dpu => &self.dpus,
        };
        let place = self.cluster.at(machine, place);
        contexts
            .get(machine)
            .zip(place)
            .context("this NIC has no DPU: its profile has no section [dpu]")
    }

    /// Starts a thread on a machine.
    fn spawn(&self, machine: usize, name: String, body: impl FnOnce() + 'static) {
        self.cluster
            .spawn(self.cluster.machine(machine), name, body);
    }

    /// Lets time pass until `ready`.
    fn run_until(&self, ready: impl Fn() -> bool) -> Result<()> {
        let step = Duration::from_micros(10);
        for _ in 0..MOST_STEPS {
            if ready() {
                return Ok(());
            }
            self.cluster.run_until(self.cluster.now() + step);
        }
        bail!(
            "nothing was ready within {:?} of virtual time",
            step * MOST_STEPS
        )
    }

    /// Lets time pass for so long.
    fn pass(&self, time: Duration) {
        self.cluster.run_until(self.cluster.now() + time);
    }

    /// Lets time pass until all threads have ended.
    fn finish(&self) -> Result<()> {
        self.cluster.run().context("the simulation stalled")
    }
}

/// Steps of 10 µs for what must come soon.
const MOST_STEPS: u32 = 100_000;

/// Threads that begin together: each comes here, and goes on when all may.
#[derive(Clone, Debug, Default)]
struct Gate {
    came: Rc<Cell<usize>>,
    open: Rc<Cell<bool>>,
}

impl Gate {
    /// Waits in a simulated thread.
    fn pass(&self) {
        self.came.set(self.came.get() + 1);
        let mut waiter = Waiter::new();
        while !self.open.get() {
            waiter.idle();
        }
    }
}
