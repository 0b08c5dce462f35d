//! Experiments on a simulated cluster (`simnic`), in virtual time: the same code as on a real NIC.

pub mod adaptive_split;
pub mod btree;
mod clients;
pub mod collective;
pub mod depth;
pub mod drtm;
pub mod kv;
pub mod micro;
mod network_faults;
#[cfg(test)]
mod place_tests;
pub mod read_write_windows;
pub mod sequencer;

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nicmodel::Profile;
use nicmodel::profile::CorePlace;
use simnic::{Cluster, HostOrDpu};
use verbs::{Context, Provider};

/// Error: the profile lacks costs that a design needs.
///
/// Other designs may not need these costs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "profile {profile} has no {}, so a server's cores would cost nothing; give them in a profile of your own (verbatim \
     model --template prints one)",
    .missing_keys.join(", ")
)]
pub struct UnknownCostsError {
    /// Name of the profile.
    pub profile: String,
    /// Missing keys of the profile.
    pub missing_keys: Vec<&'static str>,
}

/// Fails for a profile that lacks the costs of a server's cores.
///
/// # Errors
/// The costs that it lacks.
pub fn check_costs_of_cores(profile: &Profile) -> Result<(), UnknownCostsError> {
    let missing_keys = simnic::unknown_core_costs(profile);
    if missing_keys.is_empty() {
        return Ok(());
    }
    Err(UnknownCostsError {
        profile: profile.name.clone(),
        missing_keys,
    })
}

/// A simulated cluster with its devices open.
struct SimulatedCluster {
    simulation: Cluster,
    /// Devices of the hosts, by machine.
    host_contexts: Vec<Context>,
    /// Devices of the DPUs, by machine; empty if the NIC has no DPU.
    dpu_contexts: Vec<Context>,
}

impl Drop for SimulatedCluster {
    fn drop(&mut self) {
        network_faults::add_fault_counts_and_write_sums(&self.simulation.fault_counts());
    }
}

impl SimulatedCluster {
    fn new(profile: &Profile, machines: usize, seed: u64) -> Result<Self> {
        let simulation = Cluster::new(profile, machines, seed)?;
        network_faults::inject_from_environment(&simulation)?;
        let devices = Provider::simnic().devices()?;
        let contexts = devices.iter().map(verbs::Device::open);
        let mut contexts = contexts.collect::<Result<Vec<_>, _>>()?;
        let dpus = contexts.split_off(machines);
        Ok(Self {
            simulation,
            host_contexts: contexts,
            dpu_contexts: dpus,
        })
    }

    /// Returns the device of a place, and the machine that runs its threads.
    ///
    /// # Errors
    /// When the NIC has no DPU.
    fn context_and_machine(
        &self,
        machine: usize,
        place: CorePlace,
    ) -> Result<(&Context, HostOrDpu)> {
        let contexts = match place {
            CorePlace::Host => &self.host_contexts,
            CorePlace::Dpu => &self.dpu_contexts,
        };
        let place = self.simulation.host_or_dpu_of_machine(machine, place);
        contexts
            .get(machine)
            .zip(place)
            .context("this NIC has no DPU: its profile has no section [dpu]")
    }

    /// Starts a thread on a machine.
    fn spawn(&self, machine: usize, name: String, body: impl FnOnce() + 'static) {
        self.simulation
            .spawn(self.simulation.host_of_machine(machine), name, body);
    }

    /// Runs the simulation until `ready` returns true.
    fn run_until(&self, ready: impl Fn() -> bool) -> Result<()> {
        let step = Duration::from_micros(10);
        for _ in 0..MAX_RUN_UNTIL_STEPS {
            if ready() {
                return Ok(());
            }
            self.simulation.run_until(self.simulation.now() + step);
        }
        bail!(
            "nothing was ready within {:?} of virtual time",
            step * MAX_RUN_UNTIL_STEPS
        )
    }

    /// Runs the simulation for `time`.
    fn advance_time(&self, time: Duration) {
        self.simulation.run_until(self.simulation.now() + time);
    }

    /// Runs the simulation for `warm_up` and then for `time`, and reads values at the begin and at the end of `time`.
    fn run_and_read_before_after<T>(
        &self,
        warm_up: Duration,
        time: Duration,
        read: impl Fn() -> T,
    ) -> ReadingsAround<T> {
        self.advance_time(warm_up);
        let (begin, before) = (self.simulation.now(), read());
        self.advance_time(time);
        ReadingsAround {
            before,
            after: read(),
            elapsed: self.simulation.now() - begin,
        }
    }

    /// Runs the simulation until all threads have ended.
    fn run_until_threads_end(&self) -> Result<()> {
        self.simulation
            .run_until_threads_end()
            .context("the simulation stalled")
    }
}

/// Minimum warm-up. Clients begin simultaneously with whole windows, and a server needs some round trips to reach a
/// steady state. At 98 M/s, a round trip of 128 clients with 32 requests each takes 42 µs.
const MIN_WARM_UP: Duration = Duration::from_micros(150);

/// Returns the time that precedes a measurement of `time`.
fn warm_up_duration(time: Duration) -> Duration {
    (time / 5).max(MIN_WARM_UP)
}

/// Values that were read at the begin and at the end of a measurement.
struct ReadingsAround<T> {
    before: T,
    after: T,
    /// Virtual time in between.
    elapsed: Duration,
}

/// Returns a count in a time as a rate, in 10^6 per second.
#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn rate_mops(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64() * 1e-6
}

/// Maximum steps of 10 µs in [`SimulatedCluster::run_until`].
const MAX_RUN_UNTIL_STEPS: u32 = 100_000;
