//! Leave-one-out predictions: each published number that was used in a fit, predicted by a fit without it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use nicmodel::bounds::Resource;
use nicmodel::{Bounds, mixes};
use serde::Serialize;

use super::digits::{plain, published};
use super::fit;
use super::loops::Errors;
use super::model::same;
use super::nics::Nics;
use super::number::{Kind, Relation};
use super::parameters::{elasticities, fitted_to};
use super::rows::{self, Parameter, Row};
use super::simulated::Simulated;
use crate::output::{print, print_json, table};
use crate::progress::progress;

/// Least share of a parameter's change by which a published number must change to count as fitted to the parameter. A
/// smaller change shows that another NIC's profile borrowed the number.
const LINKED: f64 = 0.03;

/// Least elasticity with which a rate helps to fit a parameter.
const HELPS: f64 = 0.2;

/// Numbers that the study seems to have swapped: their errors are no evidence about the model.
const SWAPPED: [&str; 2] = ["dpu_bt_local_256m", "dpu_bt_rpc_256m"];

/// The outcome of a fit without one published number.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LeftOut {
    id: &'static str,
    nic: &'static str,
    published: f64,
    /// Error of the original profile, which was fitted to this number.
    fitted_error: f64,
    /// The parameters that are fitted again.
    parameters: Vec<String>,
    /// The published numbers that these parameters are fitted to.
    rest: Vec<&'static str>,
    /// The prediction for the number that was left out. `None` if no other number determines a parameter.
    predicted: Option<f64>,
    error: Option<f64>,
    /// The bottleneck by the model.
    bottleneck: Option<Resource>,
}

/// Elasticities of all rows with respect to all fitted parameters.
struct Sensitivities {
    rows: Vec<Row>,
    parameters: Vec<Parameter>,
    /// Elasticities by parameter, then by row.
    columns: Vec<Vec<Option<f64>>>,
}

impl Sensitivities {
    fn of(nics: &Nics, rows: Vec<Row>) -> Result<Self> {
        let mut parameters = Vec::new();
        for profile in nics.all() {
            for number in profile.numbers() {
                if number.evidence.fitted_to().next().is_some() {
                    parameters.push(Parameter::of(profile, &number.key));
                }
            }
        }
        let bar = progress(parameters.len() as u64);
        let columns = rows::in_parallel(
            &parameters,
            |parameter| elasticities(nics, parameter, &rows),
            |_| bar.inc(1),
        )?;
        bar.finish_and_clear();
        Ok(Self {
            rows,
            parameters,
            columns,
        })
    }

    fn elasticity(&self, row: usize, parameter: &Parameter) -> f64 {
        let at = self.parameters.iter().position(|p| p == parameter);
        let column = at.and_then(|at| self.columns.get(at));
        let moved = column.and_then(|column| column.get(row).copied().flatten());
        moved.unwrap_or(0.0)
    }

    fn vector(&self, row: usize, parameters: &[Parameter]) -> Vec<f64> {
        let of = parameters
            .iter()
            .map(|parameter| self.elasticity(row, parameter));
        of.collect()
    }
}

/// Parameters and the rows that they were fitted to together.
struct Component {
    parameters: Vec<Parameter>,
    rows: Vec<usize>,
}

/// Returns all parameters and rows that were fitted together with a row: parameters with a common row belong
/// together.
fn component(all: &Sensitivities, nics: &Nics, row: usize) -> Component {
    let links: Vec<(Vec<Parameter>, bool)> = all
        .rows
        .iter()
        .enumerate()
        .map(|(at, row)| {
            let mut to = fitted_to(nics, row.id());
            // Another NIC's profile may have borrowed the number: such parameters do not count.
            to.retain(|parameter| all.elasticity(at, parameter).abs() >= LINKED);
            (to, row.published.id == same(row.published.id))
        })
        .collect();
    let mut found = Component {
        parameters: links[row].0.clone(),
        rows: vec![row],
    };
    loop {
        let before = (found.parameters.len(), found.rows.len());
        for (at, (to, first_name)) in links.iter().enumerate() {
            let linked = to
                .iter()
                .any(|parameter| found.parameters.contains(parameter));
            if linked && *first_name && !found.rows.contains(&at) {
                found.rows.push(at);
            }
            if linked && *first_name {
                for parameter in to {
                    if !found.parameters.contains(parameter) {
                        found.parameters.push(parameter.clone());
                    }
                }
            }
        }
        if before == (found.parameters.len(), found.rows.len()) {
            return found;
        }
    }
}

/// Returns the rows for a fit without row `left`; `None` if they do not determine row `left`. They are the other rows
/// that its parameters were fitted to. If these do not suffice, predicted rates are added.
fn rest(all: &Sensitivities, together: &Component, left: usize) -> Option<Vec<usize>> {
    if together.parameters.is_empty() {
        return None;
    }
    let id = same(all.rows[left].id());
    let measures_another = |at: &usize| same(all.rows[*at].id()) != id;
    let mut rest: Vec<usize> = together
        .rows
        .iter()
        .copied()
        .filter(measures_another)
        .collect();
    let wanted = all.vector(left, &together.parameters);
    let determined = |rest: &[usize]| {
        let known: Vec<_> = rest
            .iter()
            .map(|at| all.vector(*at, &together.parameters))
            .collect();
        fit::determine(&known, &wanted)
    };
    if determined(&rest) {
        return Some(rest);
    }
    for (at, row) in all.rows.iter().enumerate() {
        let depends = all.vector(at, &together.parameters);
        let helps = depends.iter().any(|elasticity| elasticity.abs() >= HELPS);
        let is_rate = row.is_rate() && row.relation == Relation::Equal;
        if row.kind == Kind::Predicted
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
fn leave_out(all: &Sensitivities, nics: &Nics, left: usize) -> Result<LeftOut> {
    let row = all.rows[left];
    let together = component(all, nics, left);
    let rest = rest(all, &together, left);
    let predicted = match &rest {
        Some(rest) => {
            let rest: Vec<Row> = rest.iter().map(|at| all.rows[*at]).collect();
            let fitted = fit::to(nics, &together.parameters, &rest)?;
            Some(rows::value(&mut Simulated::on(fitted), row.id())?)
        }
        None => None,
    };
    let ids = |rest: Vec<usize>| rest.into_iter().map(|at| all.rows[at].id()).collect();
    Ok(LeftOut {
        id: row.id(),
        nic: row.nic,
        published: row.published.value,
        fitted_error: row.value / row.published.value - 1.0,
        parameters: together.parameters.iter().map(|p| p.key.clone()).collect(),
        rest: rest.map_or_else(Vec::new, ids),
        predicted,
        error: predicted.map(|value| value / row.published.value - 1.0),
        bottleneck: bottleneck(nics, &row),
    })
}

/// Returns the bottleneck of a published rate by the model.
fn bottleneck(nics: &Nics, row: &Row) -> Option<Resource> {
    let profile = nics.nic(row.nic);
    let mixes = mixes::all(profile);
    let id = same(row.id());
    let named = mixes
        .iter()
        .find(|named| named.published.is_some_and(|p| p.id == id));
    let bounds = match named {
        Some(named) => Bounds::of(profile, &named.mix),
        None => Bounds::of(profile, &mixes::of_benchmark(profile, id)?),
    };
    bounds.ok()?.bottleneck()
}

/// Fits again without each number and prints the predictions. Writes the errors by bottleneck to a file.
///
/// # Errors
/// A simulation cannot run, or a file cannot be written.
pub(super) fn show(json: bool, csv: Option<&Path>) -> Result<()> {
    let nics = Nics::default();
    let all = Sensitivities::of(&nics, rows::all()?)?;
    let is_left = |at: &usize| {
        let row = &all.rows[*at];
        // Other names of a measurement are no evidence of their own.
        same(row.id()) == row.id() && !fitted_to(&nics, row.id()).is_empty()
    };
    let left: Vec<usize> = (0..all.rows.len()).filter(is_left).collect();
    let bar = progress(left.len() as u64);
    let outcomes = rows::in_parallel(&left, |at| leave_out(&all, &nics, *at), |_| bar.inc(1))?;
    bar.finish_and_clear();
    if let Some(path) = csv {
        std::fs::write(path, errors(&nics, &all, &outcomes))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if json {
        return outcomes.iter().try_for_each(print_json);
    }
    print(format_args!("Profiles {}.\n", nics.fingerprint()))?;
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
            published(row.published),
            percent(row.fitted_error),
            row.predicted.map_or_else(|| "-".to_owned(), plain),
            row.error.map_or_else(String::new, percent),
            match row.rest.len() {
                0 => "-".to_owned(),
                count => count.to_string(),
            },
            row.parameters.join(", "),
        ]);
    }
    print(shown)?;
    print(summary(&outcomes))
}

fn summary(outcomes: &[LeftOut]) -> String {
    let predicted = Errors::of(outcomes.iter().filter_map(|row| row.error));
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
fn errors(nics: &Nics, all: &Sensitivities, outcomes: &[LeftOut]) -> String {
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
        found.is_some_and(Row::is_rate) && !SWAPPED.contains(&id)
    };
    for row in outcomes.iter().filter(|row| is_rate(row.id)) {
        if let Some(error) = row.error {
            lines.insert(row.id, (name(row.bottleneck), "left-out", error));
        }
    }
    for row in &all.rows {
        let rate =
            is_rate(row.id()) && row.relation == Relation::Equal && same(row.id()) == row.id();
        if row.kind == Kind::Predicted && rate {
            let error = row.value / row.published.value - 1.0;
            lines.insert(row.id(), (name(bottleneck(nics, row)), "predicted", error));
        }
    }
    let mut text = "id,bottleneck,how,error\n".to_owned();
    for (id, (bottleneck, how, error)) in lines {
        text.push_str(&format!("{id},{bottleneck},{how},{error:.4}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the model without simulations. Two numbers of the same rate predict each other; a number that is the
    /// only evidence is not predicted.
    #[test]
    fn a_number_is_predicted_where_others_determine_it() {
        let nics = Nics::default();
        let rows = rows::all_of("cx").expect("runs");
        let all = Sensitivities::of(&nics, rows).expect("runs");
        let row = |id: &str| all.rows.iter().position(|row| row.id() == id).expect(id);
        let left = leave_out(&all, &nics, row("t5_cx_send0")).expect("fits");
        // The other number is the same rate.
        assert_eq!(left.rest, ["t5_cx_send1"]);
        assert!(left.error.expect("predicted").abs() < 0.01, "{left:?}");
        let alone = leave_out(&all, &nics, row("t5_cx_recv1")).expect("fits");
        assert_eq!((alone.predicted, alone.rest.len()), (None, 0));
    }
}
