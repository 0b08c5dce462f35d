//! The numbers of the profiles on which each published number depends.
//!
//! Each number of a profile is raised by 8 %, and the published numbers of the same NIC are computed and simulated
//! again.

use anyhow::Result;
use serde::Serialize;

use super::model::canonical_id;
use super::nics::PublicationNicProfiles;
use super::number::OurNumberKind;
use super::rows::{self, ProfileParameter, PublishedNumberRow};
use super::simulated::SimulationResults;
use crate::output::{print_json, print_line};
use crate::steps::is_interrupted;

/// Factor by which each number of a profile is raised.
const PERTURBATION_FACTOR: f64 = 1.08;

/// Minimum elasticity that counts as a dependence. Results of simulations change by about this much when any number
/// changes.
const MIN_DEPENDENCE_ELASTICITY: f64 = 0.05;

/// A number of a profile on which a published number depends.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ParameterDependence {
    pub(super) parameter: String,
    /// Percent by which our number changes when the parameter grows by 1 %.
    pub(super) elasticity: f64,
    /// Evidence for the parameter: `published`, `derived`, `fitted` or `assumed`.
    pub(super) source: &'static str,
    /// True if the parameter was fitted to this published number.
    #[serde(rename = "to_this")]
    pub(super) is_fitted_to_this_number: bool,
}

/// A published number, with the parameters on which it depends.
#[derive(Debug, Serialize)]
struct DependentNumber {
    id: &'static str,
    kind: OurNumberKind,
    published: f64,
    ours: f64,
    /// Dependences, the largest elasticity first.
    depends_on: Vec<ParameterDependence>,
}

/// Returns the numbers of the profiles that were fitted to a published number.
pub(super) fn parameters_fitted_to(
    nics: &PublicationNicProfiles,
    id: &str,
) -> Vec<ProfileParameter> {
    let mut all = Vec::new();
    for profile in nics.all() {
        for number in profile.numbers() {
            let mut to = number.evidence.fitted_to();
            if to.any(|to| canonical_id(to) == canonical_id(id)) {
                all.push(ProfileParameter::of(profile, &number.key));
            }
        }
    }
    all
}

/// Prints the parameters on which each published number depends.
///
/// # Errors
/// Returns an error if a simulation cannot run.
pub(super) fn print_dependences(json: bool) -> Result<()> {
    let rows = rows::compute_all_rows()?;
    let mut dependent = find_dependences(&rows)?;
    if is_interrupted() {
        // It is not known on what the others depend.
        dependent.retain(|row| !row.depends_on.is_empty());
    }
    if json {
        return dependent.iter().try_for_each(print_json);
    }
    print_line(format_args!(
        "Profiles {}.",
        PublicationNicProfiles::default().fingerprint()
    ))?;
    print_line(
        "Percent by which each number changes when a number of the profile grows by 1 %; * fitted to this number, f fitted to \
         others, a assumed\n",
    )?;
    dependent
        .iter()
        .map(dependence_line)
        .try_for_each(print_line)
}

fn dependence_line(row: &DependentNumber) -> String {
    let one = |of: &ParameterDependence| {
        let mark = match of.source {
            _ if of.is_fitted_to_this_number => "*",
            "fitted" => " f",
            "assumed" => " a",
            _ => "",
        };
        format!("{} {:+.2}{mark}", of.parameter, of.elasticity)
    };
    let all: Vec<_> = row.depends_on.iter().map(one).collect();
    let all = match all.is_empty() {
        true => "no number of a profile".to_owned(),
        false => all.join(", "),
    };
    format!("{} ({}): {all}", row.id, row.kind.name())
}

fn find_dependences(rows: &[PublishedNumberRow]) -> Result<Vec<DependentNumber>> {
    let nics = PublicationNicProfiles::default();
    let mut jobs = Vec::new();
    for profile in nics.all() {
        let keys = profile.numbers().into_iter().map(|number| number.key);
        jobs.extend(keys.map(|key| ProfileParameter::of(profile, &key)));
    }
    let columns = rows::run_jobs_in_parallel(&jobs, ProfileParameter::to_string, |parameter| {
        elasticities(&nics, parameter, rows)
    })?;
    let all = rows.iter().enumerate().map(|(at, row)| {
        let of_row = jobs.iter().zip(&columns);
        let dependence = of_row.filter_map(|(parameter, column)| {
            let elasticity = column.as_ref()?.get(at).copied().flatten()?;
            (elasticity.abs() >= MIN_DEPENDENCE_ELASTICITY)
                .then(|| dependence(&nics, parameter, row, elasticity))
        });
        let mut depends_on: Vec<_> = dependence.collect();
        depends_on.sort_by(|a, b| b.elasticity.abs().total_cmp(&a.elasticity.abs()));
        DependentNumber {
            id: row.id(),
            kind: row.kind,
            published: row.published_number.value,
            ours: row.our_value,
            depends_on,
        }
    });
    Ok(all.collect())
}

fn dependence(
    nics: &PublicationNicProfiles,
    parameter: &ProfileParameter,
    row: &PublishedNumberRow,
    elasticity: f64,
) -> ParameterDependence {
    let numbers = nics.profile_by_name(&parameter.nic).numbers();
    let number = numbers.iter().find(|number| number.key == parameter.key);
    ParameterDependence {
        // The parameter's profile is the profile of the published number, so its name is omitted.
        parameter: parameter.key.clone(),
        elasticity,
        source: number.map_or("", |number| number.source),
        is_fitted_to_this_number: parameters_fitted_to(nics, row.id()).contains(parameter),
    }
}

/// Returns the percent by which each row changes when the number `parameter` of a profile grows by 1 %. Returns
/// `None` for rows of other NICs, and if the number cannot grow.
///
/// # Errors
/// Returns an error if a simulation cannot run.
pub(super) fn elasticities(
    nics: &PublicationNicProfiles,
    parameter: &ProfileParameter,
    rows: &[PublishedNumberRow],
) -> Result<Vec<Option<f64>>> {
    let Some((changed, by)) = parameter.profiles_with_scaled_value(nics, PERTURBATION_FACTOR)
    else {
        return Ok(vec![None; rows.len()]);
    };
    let mut simulated = SimulationResults::with_profiles(changed);
    let mut elasticity = |row: &PublishedNumberRow| {
        if row.profile_name != parameter.nic {
            return Ok(None);
        }
        let then = rows::compute_our_value(&mut simulated, row.id())?;
        let moved = (then / row.our_value).ln() / by;
        Ok(moved.is_finite().then_some(moved))
    };
    rows.iter().map(&mut elasticity).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_name_the_parameters_that_were_fitted_to_them() {
        let nics = PublicationNicProfiles::default();
        let of = |id| {
            let all = parameters_fitted_to(&nics, id).into_iter();
            all.map(|parameter| parameter.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(of("atomics_cib_zbig"), ["cib processing.atomic_ns"]);
        // Both ids name the same measurement.
        assert_eq!(of("t5_cib_send0"), of("ud_send_batched_ho_peak"));
        assert_eq!(of("herd_batch_1c"), ["cib host.batched_lookup_ns"]);
        assert_eq!(of("bench_rpc_base_3c"), [""; 0]);
    }

    /// The rates of ConnectX need no simulation.
    #[test]
    fn rates_depend_on_the_times_of_the_nic_that_were_fitted_to_them() {
        let rows = rows::compute_rows_for_nic("cx").expect("runs");
        let all = find_dependences(&rows).expect("runs");
        let of = |id: &str| {
            all.iter()
                .find(|row| row.id == id)
                .expect("there")
                .depends_on
                .clone()
        };
        let first = &of("t5_cx_send0")[0];
        assert_eq!(
            (first.parameter.as_str(), first.is_fitted_to_this_number),
            ("processing.send_ns", true)
        );
        assert!((first.elasticity + 1.0).abs() < 0.01, "{first:?}");
        let payload = of("t5_cx_recv1");
        let keys: Vec<_> = payload
            .iter()
            .map(|one| (one.parameter.as_str(), one.is_fitted_to_this_number))
            .collect();
        assert_eq!(
            keys,
            [
                ("processing.inbound_ns", false),
                ("processing.inbound_dma_ns", true)
            ]
        );
    }
}
