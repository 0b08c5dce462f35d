//! The mixes of the publications on one NIC, beside the published rates.

use anyhow::Result;
use nicmodel::bounds::{Bound, Resource};
use nicmodel::mixes::{self, Basis};
use nicmodel::profile::Profile;
use nicmodel::published::Published;
use nicmodel::{Bounds, Mix};
use serde::Serialize;

use super::percent;
use crate::output::{figure, print, print_typed, table};

/// One line of the list.
#[derive(Serialize)]
struct Row {
    nic: String,
    name: &'static str,
    title: &'static str,
    mix: Mix,
    predicted_mops: Option<f64>,
    bottleneck: Option<Resource>,
    bounds: Vec<Bound>,
    unknown: Vec<Resource>,
    published: Option<&'static Published>,
    /// Relative error: our rate over the published one, minus 1.
    relative_error: Option<f64>,
    basis: Option<Basis>,
}

pub(super) fn show(profile: &Profile, json: bool) -> Result<()> {
    let rows = mixes::all(profile).into_iter().map(|named| {
        let bounds = Bounds::of(profile, &named.mix)?;
        let error = |published: &Published| {
            bounds
                .predicted_mops
                .map(|ours| ours / published.value - 1.0)
        };
        anyhow::Ok(Row {
            nic: profile.name.clone(),
            name: named.name,
            title: named.title,
            predicted_mops: bounds.predicted_mops,
            bottleneck: bounds.bottleneck(),
            published: named.published,
            relative_error: named.published.and_then(error),
            basis: named.published.and_then(|_| named.basis(profile)),
            bounds: bounds.bounds,
            unknown: bounds.unknown,
            mix: named.mix,
        })
    });
    let rows: Vec<_> = rows.collect::<Result<_>>()?;
    if json {
        return rows.iter().try_for_each(|row| print_typed("mix", row));
    }
    print(format_args!("{}\n", profile.title))?;
    let header = [
        "mix",
        "what",
        "model, M/s",
        "bottleneck",
        "published",
        "error",
        "",
    ];
    let mut shown = table(header, &[2, 4, 5]);
    for row in &rows {
        let at_most = if row.unknown.is_empty() { "" } else { "≤ " };
        let rate = row.predicted_mops.map_or_else(String::new, figure);
        let basis = match row.basis {
            Some(Basis::Fitted) => "fitted",
            Some(Basis::Predicted) => "predicted",
            None => "",
        };
        let error = row.relative_error.map(|error| percent(error, 1));
        shown.add_row([
            row.name.to_owned(),
            row.title.to_owned(),
            format!("{at_most}{rate}"),
            row.bottleneck.map_or_else(String::new, |b| b.to_string()),
            row.published
                .map_or_else(String::new, |p| p.value.to_string()),
            error.unwrap_or_default(),
            basis.to_owned(),
        ]);
    }
    print(shown)?;
    if rows.iter().any(|row| !row.unknown.is_empty()) {
        print("\n≤: something that the profile does not know may bound it further (--mix NAME)")?;
    }
    Ok(())
}
