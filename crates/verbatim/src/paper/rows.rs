//! The published numbers that need the model or a simulation; counts and sums of a profile's numbers are not among
//! them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, anyhow};
use nicmodel::profile::Profile;
use nicmodel::published::{self, PublishedNumber};

use super::model;
use super::nics::PublicationNicProfiles;
use super::number::{OurNumber, OurNumberKind, PublishedRelation};
use super::simulated::SimulationResults;
use crate::steps::CommandSteps;

/// A published number, and the profile from which our number is computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct PublishedNumberRow {
    pub(super) published_number: &'static PublishedNumber,
    /// Name of the profile.
    pub(super) profile_name: &'static str,
    pub(super) kind: OurNumberKind,
    pub(super) relation: PublishedRelation,
    /// Our number.
    pub(super) our_value: f64,
}

impl PublishedNumberRow {
    /// Returns the id of the published number.
    pub(super) fn id(&self) -> &'static str {
        self.published_number.id
    }

    /// Returns true if the number is a rate in 10^6 a second, and not a ratio of rates.
    pub(super) fn is_rate(&self) -> bool {
        ["Mrps", "Mops", "M/s", "MOps"].contains(&self.published_number.unit)
    }
}

/// Returns true if the number is the position of a maximum: a core count, a window, a share or a power of two of
/// bytes. Such a number jumps or stays constant when a number of the profile changes a little.
fn is_position_of_maximum(id: &str) -> bool {
    id == "seq_rpc_peak_cores"
        || id == "dpu_bt_best_share"
        || id.starts_with("out_read_best_window_")
        || id.starts_with("in_read_transition_")
}

/// Runs the simulations that the rows need, and returns all rows.
///
/// # Errors
/// Returns an error if a simulation cannot run.
pub(super) fn compute_all_rows() -> Result<Vec<PublishedNumberRow>> {
    let name = |nic: &&str| format!("the numbers of {nic}");
    let rows = run_jobs_in_parallel(&NICS, name, |nic| compute_rows_for_nic(nic))?;
    Ok(rows.into_iter().flatten().flatten().collect())
}

/// Returns the rows that are computed from one profile.
///
/// # Errors
/// Returns an error if a simulation cannot run.
pub(super) fn compute_rows_for_nic(nic: &'static str) -> Result<Vec<PublishedNumberRow>> {
    let mut simulated = SimulationResults::default();
    let of_nic = published::all_published_numbers()
        .iter()
        .filter(|published| profile_name_of_number(published) == nic);
    let rows = of_nic.map(|published| row(&mut simulated, published, nic));
    Ok(rows
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .flatten()
        .collect())
}

const NICS: [&str; 4] = ["cib", "bf2", "cx3", "cx"];

/// Returns the name of the profile from which our number is computed.
fn profile_name_of_number(published: &PublishedNumber) -> &'static str {
    match published.nic {
        "CX" => "cx",
        "CX3" => "cx3",
        "BF2" => "bf2",
        _ => "cib",
    }
}

fn row(
    simulated: &mut SimulationResults,
    published: &'static PublishedNumber,
    nic: &'static str,
) -> Result<Option<PublishedNumberRow>> {
    let id = published.id;
    if is_position_of_maximum(id) || super::profiles::our_number_for(simulated.nics(), id).is_some()
    {
        return Ok(None);
    }
    let ours = simulated_or_modelled(simulated, id)?;
    Ok(ours.map(|ours| PublishedNumberRow {
        published_number: published,
        profile_name: nic,
        kind: ours.kind,
        relation: ours.relation,
        our_value: ours.value,
    }))
}

fn simulated_or_modelled(simulated: &mut SimulationResults, id: &str) -> Result<Option<OurNumber>> {
    let ours = simulated.simulate_our_number(id)?;
    Ok(ours.or_else(|| model::our_number_for(simulated.nics(), id)))
}

/// Runs the simulations that a row needs, and returns our number of the row.
///
/// # Errors
/// Returns an error if a simulation cannot run, or this program computes no number for the row.
pub(super) fn compute_our_value(
    simulated: &mut SimulationResults,
    id: &'static str,
) -> Result<f64> {
    let ours = simulated_or_modelled(simulated, id)?;
    Ok(ours
        .ok_or_else(|| anyhow!("{id} has no number of ours"))?
        .value)
}

/// A number of a profile, named by profile and key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ProfileParameter {
    pub(super) nic: String,
    pub(super) key: String,
}

impl std::fmt::Display for ProfileParameter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.nic, self.key)
    }
}

impl ProfileParameter {
    /// The number of this profile with this key.
    pub(super) fn of(profile: &Profile, key: &str) -> Self {
        Self {
            nic: profile.name.clone(),
            key: key.to_owned(),
        }
    }

    /// Returns the value of the number; 0 if the profile lacks it.
    pub(super) fn value(&self, nics: &PublicationNicProfiles) -> f64 {
        let numbers = nics.profile_by_name(&self.nic).numbers();
        let found = numbers.iter().find(|number| number.key == self.key);
        found.map_or(0.0, |number| number.value)
    }

    /// Returns profiles in which the number is multiplied by `times`, and the change of the number's logarithm. A
    /// whole number changes by at least 1. Returns `None` if no number changes.
    pub(super) fn profiles_with_scaled_value(
        &self,
        nics: &PublicationNicProfiles,
        times: f64,
    ) -> Option<(PublicationNicProfiles, f64)> {
        let now = self.value(nics);
        let changed = nics.with_changed_number(&self.nic, &self.key, now * times)?;
        let then = self.value(&changed);
        if now <= 0.0 {
            return None;
        }
        if then != now {
            return Some((changed, (then / now).ln()));
        }
        let by_one = now + f64::from(i8::from(times > 1.0)) * 2.0 - 1.0;
        let changed = nics.with_changed_number(&self.nic, &self.key, by_one)?;
        let then = self.value(&changed);
        (then != now && then > 0.0).then(|| (changed, (then / now).ln()))
    }
}

/// Runs each job as a step, on as many threads as there are processors. Returns `None` for jobs that
/// did not run since SIGINT came before.
///
/// # Errors
/// Returns the first error of a job.
pub(super) fn run_jobs_in_parallel<J: Sync, T: Send>(
    jobs: &[J],
    name: impl Fn(&J) -> String + Sync,
    work: impl Fn(&J) -> Result<T> + Sync,
) -> Result<Vec<Option<T>>> {
    type Results<T> = Vec<Option<Result<Option<T>>>>;
    let steps = CommandSteps::new(jobs.len() as u64)?;
    let next = AtomicUsize::new(0);
    let results: Mutex<Results<T>> = Mutex::new(jobs.iter().map(|_| None).collect());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(jobs.len()) {
            scope.spawn(|| {
                while let Some((at, job)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    jobs.get(at).map(|job| (at, job))
                } {
                    let result = steps.run_unless_interrupted(name(job), || work(job));
                    let mut results = results.lock().unwrap_or_else(|e| e.into_inner());
                    results[at] = Some(result);
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_else(|e| e.into_inner());
    results
        .into_iter()
        .map(|result| result.unwrap_or_else(|| Err(anyhow!("a thread ended early"))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_change_by_one_at_least_and_unknown_ones_not_at_all() {
        let nics = PublicationNicProfiles::default();
        let of = |key: &str| ProfileParameter::of(nics.profile_by_name("cib"), key);
        let value = |key: &str, times| {
            let scaled = of(key).profiles_with_scaled_value(&nics, times);
            scaled.map(|(changed, _)| of(key).value(&changed))
        };
        assert_eq!(value("processing.units", 1.04), Some(20.0));
        assert_eq!(value("processing.units", 0.99), Some(18.0));
        assert_eq!(value("atomics.lock_bits", 1.04), Some(13.0));
        assert_eq!(value("processing.wqe_line_ns", 1.04), None);
        assert_eq!(value("host.memory_ns", 1.04), None);
        assert_eq!(value("host.nothing", 1.04), None);
        let (_, by) = of("host.request_ns")
            .profiles_with_scaled_value(&nics, 1.04)
            .expect("known");
        assert!((by - 1.04f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn jobs_keep_their_order_and_report_the_first_error() {
        let jobs: Vec<u32> = (0..20).collect();
        let twice = run_jobs_in_parallel(&jobs, u32::to_string, |job| Ok(2 * job)).expect("works");
        assert_eq!(twice[7], Some(14));
        let odd = |job: &u32| match job {
            13 | 17 => Err(anyhow!("job {job}")),
            _ => Ok(()),
        };
        let failed = run_jobs_in_parallel(&jobs, u32::to_string, odd).expect_err("fails");
        assert_eq!(failed.to_string(), "job 13");
    }
}
