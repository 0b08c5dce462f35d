//! Leave-one-out predictions: each published number that was used in a fit is predicted by a fit without it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use nicmodel::bounds::Resource;
use nicmodel::{Bounds, mixes};
use serde::Serialize;

use super::digits::{format_all_significant, format_published};
use super::fit;
use super::model::canonical_id;
use super::nics::PublicationNicProfiles;
use super::number::{OurNumberKind, PublishedRelation};
use super::original_loops_comparison::RelativeErrorStatistics;
use super::parameters::{elasticities, parameters_fitted_to};
use super::rows::{self, ProfileParameter, PublishedNumberRow};
use super::simulated::SimulationResults;
use crate::output::{print_json, print_line, table};

/// Minimum elasticity with which a published number counts as fitted to a parameter. A smaller elasticity shows that
/// the parameter belongs to the profile of another NIC, which took its value from this one.
const MIN_FITTED_ELASTICITY: f64 = 0.03;

/// Minimum elasticity with which a rate helps to fit a parameter.
const MIN_HELPFUL_ELASTICITY: f64 = 0.2;

/// Published numbers that the study seems to have swapped; their errors say nothing about the model.
const SWAPPED_PUBLISHED_IDS: [&str; 2] = ["dpu_bt_local_256m", "dpu_bt_rpc_256m"];

/// The outcome of a fit without one published number.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LeftOutPrediction {
    id: &'static str,
    nic: &'static str,
    published: f64,
    /// Error of the original profile, which was fitted to this number.
    fitted_error: f64,
    /// The parameters that are fitted again.
    #[serde(rename = "parameters")]
    refitted_parameters: Vec<String>,
    /// The published numbers to which these parameters are fitted again.
    #[serde(rename = "rest")]
    refit_published_ids: Vec<&'static str>,
    /// The prediction for the number that was left out. `None` if no other number determines a parameter.
    predicted: Option<f64>,
    error: Option<f64>,
    /// The bottleneck of the published rate, according to the model.
    bottleneck: Option<Resource>,
}

/// Elasticities of all rows with respect to all fitted parameters.
struct ElasticitiesOfRows {
    rows: Vec<PublishedNumberRow>,
    parameters: Vec<ProfileParameter>,
    /// Elasticities of each parameter, by row.
    elasticities_by_parameter: Vec<Vec<Option<f64>>>,
}

impl ElasticitiesOfRows {
    /// Returns the elasticities; `None` after SIGINT.
    fn compute_unless_interrupted(
        nics: &PublicationNicProfiles,
        rows: Vec<PublishedNumberRow>,
    ) -> Result<Option<Self>> {
        let mut parameters = Vec::new();
        for profile in nics.all() {
            for number in profile.numbers() {
                if number.evidence.fitted_to().next().is_some() {
                    parameters.push(ProfileParameter::of(profile, &number.key));
                }
            }
        }
        let columns =
            rows::run_jobs_in_parallel(&parameters, ProfileParameter::to_string, |parameter| {
                elasticities(nics, parameter, &rows)
            })?;
        let columns: Option<Vec<_>> = columns.into_iter().collect();
        Ok(columns.map(|columns| Self {
            rows,
            parameters,
            elasticities_by_parameter: columns,
        }))
    }

    fn elasticity(&self, row: usize, parameter: &ProfileParameter) -> f64 {
        let at = self.parameters.iter().position(|p| p == parameter);
        let column = at.and_then(|at| self.elasticities_by_parameter.get(at));
        let moved = column.and_then(|column| column.get(row).copied().flatten());
        moved.unwrap_or(0.0)
    }

    fn row_elasticities(&self, row: usize, parameters: &[ProfileParameter]) -> Vec<f64> {
        let of = parameters
            .iter()
            .map(|parameter| self.elasticity(row, parameter));
        of.collect()
    }
}

/// Parameters that share result rows, and these rows: one connected component of the fit.
struct JointFitGroup {
    parameters: Vec<ProfileParameter>,
    row_indices: Vec<usize>,
}

/// Returns the group that contains the row `row`.
fn joint_fit_group_of_row(
    all: &ElasticitiesOfRows,
    nics: &PublicationNicProfiles,
    row: usize,
) -> JointFitGroup {
    let links: Vec<(Vec<ProfileParameter>, bool)> = all
        .rows
        .iter()
        .enumerate()
        .map(|(at, row)| {
            let mut to = parameters_fitted_to(nics, row.id());
            // The profile of another NIC may have taken over a parameter of this one. A parameter on which this number
            // does not depend is left out.
            to.retain(|parameter| all.elasticity(at, parameter).abs() >= MIN_FITTED_ELASTICITY);
            (
                to,
                row.published_number.id == canonical_id(row.published_number.id),
            )
        })
        .collect();
    let mut group = JointFitGroup {
        parameters: links[row].0.clone(),
        row_indices: vec![row],
    };
    loop {
        let before = (group.parameters.len(), group.row_indices.len());
        for (at, (to, first_name)) in links.iter().enumerate() {
            let linked = to
                .iter()
                .any(|parameter| group.parameters.contains(parameter));
            if linked && *first_name && !group.row_indices.contains(&at) {
                group.row_indices.push(at);
            }
            if linked && *first_name {
                for parameter in to {
                    if !group.parameters.contains(parameter) {
                        group.parameters.push(parameter.clone());
                    }
                }
            }
        }
        if before == (group.parameters.len(), group.row_indices.len()) {
            return group;
        }
    }
}

/// Returns the rows for a fit without row `left`; `None` if they do not determine row `left`. The rows are the other
/// rows to which the parameters of row `left` were fitted. If these rows do not
/// suffice, published rates to which no number was fitted are added.
fn row_indices_for_refit_if_determined(
    all: &ElasticitiesOfRows,
    group: &JointFitGroup,
    left: usize,
) -> Option<Vec<usize>> {
    if group.parameters.is_empty() {
        return None;
    }
    let id = canonical_id(all.rows[left].id());
    let measures_another = |at: &usize| canonical_id(all.rows[*at].id()) != id;
    let mut rest: Vec<usize> = group
        .row_indices
        .iter()
        .copied()
        .filter(measures_another)
        .collect();
    let wanted = all.row_elasticities(left, &group.parameters);
    let determined = |rest: &[usize]| {
        let known: Vec<_> = rest
            .iter()
            .map(|at| all.row_elasticities(*at, &group.parameters))
            .collect();
        fit::known_elasticities_span_wanted(&known, &wanted)
    };
    if determined(&rest) {
        return Some(rest);
    }
    for (at, row) in all.rows.iter().enumerate() {
        let depends = all.row_elasticities(at, &group.parameters);
        let helps = depends
            .iter()
            .any(|elasticity| elasticity.abs() >= MIN_HELPFUL_ELASTICITY);
        let is_rate = row.is_rate() && row.relation == PublishedRelation::Equal;
        if row.kind == OurNumberKind::Predicted
            && is_rate
            && helps
            && measures_another(&at)
            && !rest.contains(&at)
        {
            rest.push(at);
        }
    }
    determined(&rest).then_some(rest)
}

/// Fits the parameters again without a row and predicts it.
fn predict_left_out_row(
    all: &ElasticitiesOfRows,
    nics: &PublicationNicProfiles,
    left: usize,
) -> Result<LeftOutPrediction> {
    let row = all.rows[left];
    let group = joint_fit_group_of_row(all, nics, left);
    let rest = row_indices_for_refit_if_determined(all, &group, left);
    let predicted = match &rest {
        Some(rest) => {
            let parameters = &group.parameters;
            let slopes: Vec<_> = rest
                .iter()
                .map(|at| all.row_elasticities(*at, parameters))
                .collect();
            let rest: Vec<PublishedNumberRow> = rest.iter().map(|at| all.rows[*at]).collect();
            let fitted = fit::fit_profiles_by_least_squares(nics, parameters, &rest, &slopes)?;
            Some(rows::compute_our_value(
                &mut SimulationResults::with_profiles(fitted),
                row.id(),
            )?)
        }
        None => None,
    };
    let ids = |rest: Vec<usize>| rest.into_iter().map(|at| all.rows[at].id()).collect();
    Ok(LeftOutPrediction {
        id: row.id(),
        nic: row.profile_name,
        published: row.published_number.value,
        fitted_error: row.our_value / row.published_number.value - 1.0,
        refitted_parameters: group.parameters.iter().map(|p| p.key.clone()).collect(),
        refit_published_ids: rest.map_or_else(Vec::new, ids),
        predicted,
        error: predicted.map(|value| value / row.published_number.value - 1.0),
        bottleneck: bottleneck(nics, &row),
    })
}

/// Returns the bottleneck of a published rate by the model.
fn bottleneck(nics: &PublicationNicProfiles, row: &PublishedNumberRow) -> Option<Resource> {
    let profile = nics.profile_by_name(row.profile_name);
    let mixes = mixes::executable_mixes(profile);
    let id = canonical_id(row.id());
    let named = mixes
        .iter()
        .find(|named| named.published_rate.is_some_and(|p| p.id == id));
    let bounds = match named {
        Some(named) => Bounds::of(profile, &named.mix),
        None => Bounds::of(profile, &mixes::mix_of_rpc_benchmark(profile, id)?),
    };
    bounds.ok()?.bottleneck()
}

/// Fits again without each published number and prints the predictions. Writes the errors by bottleneck to a file.
///
/// # Errors
/// Returns an error if a simulation cannot run, or a file cannot be written.
pub(super) fn print_predictions(json: bool, csv: Option<&Path>) -> Result<()> {
    let nics = PublicationNicProfiles::default();
    let Some(all) =
        ElasticitiesOfRows::compute_unless_interrupted(&nics, rows::compute_all_rows()?)?
    else {
        return Ok(());
    };
    let is_left = |at: &usize| {
        let row = &all.rows[*at];
        // A measurement counts once, although it has several names.
        canonical_id(row.id()) == row.id() && !parameters_fitted_to(&nics, row.id()).is_empty()
    };
    let left: Vec<usize> = (0..all.rows.len()).filter(is_left).collect();
    let name = |at: &usize| format!("without {}", all.rows[*at].id());
    let outcomes =
        rows::run_jobs_in_parallel(&left, name, |at| predict_left_out_row(&all, &nics, *at))?;
    let outcomes: Vec<_> = outcomes.into_iter().flatten().collect();
    if let Some(path) = csv {
        std::fs::write(path, errors_by_bottleneck_csv(&nics, &all, &outcomes))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if json {
        return outcomes.iter().try_for_each(print_json);
    }
    print_line(format_args!("Profiles {}.\n", nics.fingerprint()))?;
    let header = [
        "left out",
        "NIC",
        "published",
        "fitted",
        "predicted",
        "error",
        "fitted to",
        "parameters",
    ];
    let mut shown = table(header, &[2, 3, 4, 5, 6]);
    let percent = |error: f64| format!("{:+.1} %", 100.0 * error);
    for row in &outcomes {
        shown.add_row([
            row.id.to_owned(),
            row.nic.to_owned(),
            format_published(row.published),
            percent(row.fitted_error),
            row.predicted
                .map_or_else(|| "-".to_owned(), format_all_significant),
            row.error.map_or_else(String::new, percent),
            match row.refit_published_ids.len() {
                0 => "-".to_owned(),
                count => count.to_string(),
            },
            row.refitted_parameters.join(", "),
        ]);
    }
    print_line(shown)?;
    print_line(summary(&outcomes))
}

fn summary(outcomes: &[LeftOutPrediction]) -> String {
    let predicted = RelativeErrorStatistics::of(outcomes.iter().filter_map(|row| row.error));
    let predicted = predicted.map_or_else(String::new, |errors| format!("{errors}"));
    let alone = outcomes
        .iter()
        .filter(|row| row.predicted.is_none())
        .count();
    format!(
        "\nleft out: {predicted}; {alone} of {} are the only evidence of a parameter, and nothing else predicts them",
        outcomes.len()
    )
}

/// Formats the errors of predictions by bottleneck, as CSV: numbers that were left out, and rates that no parameter
/// was fitted to.
fn errors_by_bottleneck_csv(
    nics: &PublicationNicProfiles,
    all: &ElasticitiesOfRows,
    outcomes: &[LeftOutPrediction],
) -> String {
    let mut lines = BTreeMap::new();
    let name = |resource: Option<Resource>| {
        let value = resource.and_then(|resource| serde_json::to_value(resource).ok());
        value
            .and_then(|value| value.as_str().map(str::to_owned))
            .unwrap_or_default()
    };
    let is_rate = |id: &str| {
        let mut rows = all.rows.iter();
        let found = rows.find(|row| row.id() == id);
        found.is_some_and(PublishedNumberRow::is_rate) && !SWAPPED_PUBLISHED_IDS.contains(&id)
    };
    for row in outcomes.iter().filter(|row| is_rate(row.id)) {
        if let Some(predicted) = row.predicted {
            let of = (row.bottleneck, "left-out", row.published, predicted);
            lines.insert(row.id, of);
        }
    }
    for row in &all.rows {
        let rate = is_rate(row.id())
            && row.relation == PublishedRelation::Equal
            && canonical_id(row.id()) == row.id();
        if row.kind == OurNumberKind::Predicted && rate {
            let binds = bottleneck(nics, row);
            let of = (
                binds,
                "predicted",
                row.published_number.value,
                row.our_value,
            );
            lines.insert(row.id(), of);
        }
    }
    let mut text = "id,bottleneck,how,published,predicted,error\n".to_owned();
    for (id, (bottleneck, how, published, predicted)) in lines {
        let (binds, error) = (name(bottleneck), predicted / published - 1.0);
        text.push_str(&format!(
            "{id},{binds},{how},{published},{predicted:.4},{error:.4}\n"
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the model without simulations. Two published numbers of the same rate predict each other. A number that
    /// is the only evidence for a parameter is not predicted.
    #[test]
    fn a_number_is_predicted_where_others_determine_it() {
        let nics = PublicationNicProfiles::default();
        let rows = rows::compute_rows_for_nic("cx").expect("runs");
        let all = ElasticitiesOfRows::compute_unless_interrupted(&nics, rows).expect("runs");
        let all = all.expect("not interrupted");
        let row = |id: &str| all.rows.iter().position(|row| row.id() == id).expect(id);
        let left = predict_left_out_row(&all, &nics, row("t5_cx_send0")).expect("fits");
        // The other number describes the same rate.
        assert_eq!(left.refit_published_ids, ["t5_cx_send1"]);
        assert!(left.error.expect("predicted").abs() < 0.01, "{left:?}");
        let alone = predict_left_out_row(&all, &nics, row("t5_cx_recv1")).expect("fits");
        assert_eq!(
            (alone.predicted, alone.refit_published_ids.len()),
            (None, 0)
        );
    }
}
