//! The mixes of the publications on one NIC, beside the published rates.

use anyhow::Result;
use nicmodel::bounds::{Bound, Resource};
use nicmodel::mixes::{self, FittedOrPredicted};
use nicmodel::profile::Profile;
use nicmodel::published::PublishedNumber;
use nicmodel::uncertainty::{self, LikelyRange};
use nicmodel::{Bounds, Mix};
use serde::Serialize;

use super::format_bounds::{format_range, format_signed_percent};
use crate::output::{format_three_digits, print_line, print_typed_json, table};

/// One line of the list: a mix.
#[derive(Serialize)]
struct Row {
    nic: String,
    name: &'static str,
    title: &'static str,
    mix: Mix,
    predicted_mops: Option<f64>,
    /// The range in which the rate probably lies.
    #[serde(flatten)]
    #[serde(rename = "likely")]
    likely_rate: Option<LikelyRange>,
    bottleneck: Option<Resource>,
    bounds: Vec<Bound>,
    #[serde(rename = "unknown")]
    unknown_resources: Vec<Resource>,
    #[serde(rename = "published")]
    published_number: Option<&'static PublishedNumber>,
    /// Relative error: our rate divided by the published rate, minus 1.
    relative_error: Option<f64>,
    basis: Option<FittedOrPredicted>,
}

pub(super) fn print_mixes(profile: &Profile, json: bool) -> Result<()> {
    let rows = mixes::executable_mixes(profile).into_iter().map(|named| {
        let bounds = Bounds::of(profile, &named.mix)?;
        let error = |published: &PublishedNumber| {
            bounds
                .predicted_mops
                .map(|ours| ours / published.value - 1.0)
        };
        anyhow::Ok(Row {
            nic: profile.name.clone(),
            name: named.name,
            title: named.title,
            predicted_mops: bounds.predicted_mops,
            likely_rate: uncertainty::likely_range_of_mix(&bounds),
            bottleneck: bounds.bottleneck(),
            published_number: named.published_rate,
            relative_error: named.published_rate.and_then(error),
            basis: named.published_rate.and_then(|_| named.basis(profile)),
            bounds: bounds.bounds,
            unknown_resources: bounds.unknown_resources,
            mix: named.mix,
        })
    });
    let rows: Vec<_> = rows.collect::<Result<_>>()?;
    if json {
        return rows.iter().try_for_each(|row| print_typed_json("mix", row));
    }
    print_line(format_args!("{}\n", profile.title))?;
    let header = [
        "mix",
        "what",
        "model, M/s",
        "likely",
        "bottleneck",
        "published",
        "error",
        "",
    ];
    let mut shown = table(header, &[2, 3, 5, 6]);
    for row in &rows {
        let at_most = if row.unknown_resources.is_empty() {
            ""
        } else {
            "≤ "
        };
        let rate = row
            .predicted_mops
            .map_or_else(String::new, format_three_digits);
        let basis = match row.basis {
            Some(FittedOrPredicted::Fitted) => "fitted",
            Some(FittedOrPredicted::Predicted) => "predicted",
            None => "",
        };
        let error = row
            .relative_error
            .map(|error| format_signed_percent(error, 1));
        shown.add_row([
            row.name.to_owned(),
            row.title.to_owned(),
            format!("{at_most}{rate}"),
            row.likely_rate
                .as_ref()
                .map_or_else(String::new, format_range),
            row.bottleneck.map_or_else(String::new, |b| b.to_string()),
            row.published_number
                .map_or_else(String::new, |p| p.value.to_string()),
            error.unwrap_or_default(),
            basis.to_owned(),
        ]);
    }
    print_line(shown)?;
    if rows.iter().any(|row| !row.unknown_resources.is_empty()) {
        print_line(
            "\n≤: something that the profile does not know may bound it further (--mix NAME)",
        )?;
    }
    Ok(())
}
