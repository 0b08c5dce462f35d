//! `verbatim model --over`: an operation's rates over one of its settings, on one NIC or several.

use anyhow::{Result, bail};
use chart::{Axis, Chart, Point, Series};
use nicmodel::Profile;
use nicmodel::bounds::Resource;
use serde::Serialize;

use super::format_bounds::format_rate_or_limit;
use super::knob::SweptKnob;
use super::operation::OperationArgs;
use crate::args;
use crate::output::{print_line, print_typed_json, table};
use crate::picture::{PictureArgs, axis_coordinate};

/// What is turned, and what is left beside the table.
#[derive(clap::Args)]
#[command(next_help_heading = "Sweep")]
pub(super) struct SweepArgs {
    /// The setting of the operation that is turned [default with --svg and --csv: payload]
    #[arg(long, value_enum, value_name = "KNOB", conflicts_with_all = ["mix", "mix_file", "profiles", "template"])]
    over: Option<SweptKnob>,
    /// Its values, with commas between them; also with K (KiB) or M (MiB) behind [default: powers of two]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = args::count_parser_up_to(1 << 30), requires = "over")]
    values: Vec<usize>,
    #[command(flatten)]
    picture: PictureArgs,
}

/// A line of the table: one value of the setting on one NIC.
#[derive(Serialize)]
struct Row {
    nic: String,
    #[serde(rename = "over")]
    swept_setting: SweptKnob,
    #[serde(rename = "value")]
    swept_value: usize,
    /// Rates that requester and responder can reach, in 10^6 a second.
    requester_mops: Option<f64>,
    responder_mops: Option<f64>,
    /// Bottleneck of the slower side.
    bottleneck: Option<String>,
    /// Resources of each side for which the profile has no number: the rate is then a limit.
    #[serde(rename = "requester_unknown")]
    requester_unknown_resources: Vec<Resource>,
    #[serde(rename = "responder_unknown")]
    responder_unknown_resources: Vec<Resource>,
}

impl Row {
    /// Returns the names of the unknown resources of both sides.
    fn unknown_resource_names(&self) -> String {
        let both = self.requester_unknown_resources.iter();
        let mut names: Vec<_> = both.chain(&self.responder_unknown_resources).collect();
        names.sort();
        names.dedup();
        let names: Vec<_> = names.into_iter().map(ToString::to_string).collect();
        names.join(", ")
    }
}

impl SweepArgs {
    /// Returns true if a sweep or a drawing was requested.
    pub(super) fn is_asked_for(&self) -> bool {
        self.over.is_some() || self.picture.svg.is_some() || self.picture.csv.is_some()
    }

    /// Prints the rates for all values of the setting, and draws them.
    pub(super) fn print_and_draw(
        &self,
        profiles: &[Profile],
        wanted: &OperationArgs,
        json: bool,
    ) -> Result<()> {
        self.picture.check_files_writable()?;
        let over = self.over.unwrap_or(SweptKnob::Payload);
        let mut values = self.values.clone();
        if values.is_empty() {
            values = over
                .default_value_exponents()
                .map(|power| 1 << power)
                .collect();
        }
        values.sort_unstable();
        values.dedup();
        let mut rows = Vec::new();
        for profile in profiles {
            let (mut left_out, mut reason, mut some) = (Vec::new(), None, false);
            for &value in &values {
                let row = match row(profile, wanted, over, value) {
                    Err(error) if self.values.is_empty() => {
                        left_out.push(value.to_string());
                        reason.get_or_insert(error);
                        continue;
                    }
                    row => row?,
                };
                some = true;
                if json {
                    print_typed_json("point", &row)?;
                }
                rows.push(row);
            }
            match reason {
                Some(error) if !some => return Err(error),
                Some(error) => eprintln!(
                    "note: {}: without {}: {error}",
                    profile.name,
                    left_out.join(", ")
                ),
                None => {}
            }
        }
        let titles: Vec<_> = profiles.iter().map(|p| p.title.as_str()).collect();
        if !json {
            print_line(format_args!("{}\n", titles.join("; ")))?;
            print_rate_table(over, &rows)?;
        }
        self.picture.write_requested_files(&Chart {
            title: format!("What resources allow, over {}", over.axis().label),
            caption: caption(profiles, &rows),
            x: over.axis(),
            y: Axis::auto("10⁶ operations a second"),
            series: series(profiles, &rows),
            constant_levels: Vec::new(),
        })
    }
}

fn row(profile: &Profile, wanted: &OperationArgs, over: SweptKnob, value: usize) -> Result<Row> {
    if value == 0 && over != SweptKnob::Payload {
        bail!("--values: this setting is 1 or more");
    }
    let sides = wanted
        .with_setting(over, value)?
        .bounds_of_both_sides(profile)?;
    let [requester, responder] = sides.by_role().map(|(_, bounds)| bounds);
    let rate = |bounds: &nicmodel::Bounds| bounds.predicted_mops.unwrap_or(f64::INFINITY);
    let slower = if rate(responder) < rate(requester) {
        responder
    } else {
        requester
    };
    Ok(Row {
        nic: profile.name.clone(),
        swept_setting: over,
        swept_value: value,
        requester_mops: requester.predicted_mops,
        responder_mops: responder.predicted_mops,
        bottleneck: slower.bottleneck().map(|resource| resource.to_string()),
        requester_unknown_resources: requester.unknown_resources.clone(),
        responder_unknown_resources: responder.unknown_resources.clone(),
    })
}

fn print_rate_table(over: SweptKnob, rows: &[Row]) -> Result<()> {
    let label = over.axis().label;
    let header = [
        "NIC",
        &label,
        "requester, M/s",
        "responder, M/s",
        "what binds",
        "unknown",
    ];
    let mut shown = table(header, &[1, 2, 3]);
    for row in rows {
        shown.add_row([
            row.nic.clone(),
            row.swept_value.to_string(),
            format_rate_or_limit(row.requester_mops, &row.requester_unknown_resources),
            format_rate_or_limit(row.responder_mops, &row.responder_unknown_resources),
            row.bottleneck.clone().unwrap_or_default(),
            row.unknown_resource_names(),
        ]);
    }
    print_line(shown)
}

/// Returns the caption of the picture, with the unknown resources of each NIC.
fn caption(profiles: &[Profile], rows: &[Row]) -> String {
    let each = profiles.iter().map(|profile| {
        let of_nic = rows.iter().filter(|row| row.nic == profile.name);
        let unknown = of_nic.map(Row::unknown_resource_names);
        match unknown.max_by_key(String::len) {
            Some(names) if !names.is_empty() => {
                format!("{} (at most; unknown: {names})", profile.title)
            }
            _ => profile.title.clone(),
        }
    });
    format!(
        "model, not measured: {}",
        each.collect::<Vec<_>>().join("; ")
    )
}

/// A side's rate in a row, and its unknown resources.
type SideOfRowFn = fn(&Row) -> (Option<f64>, &[Resource]);

/// Returns the curves of both sides of each NIC.
fn series(profiles: &[Profile], rows: &[Row]) -> Vec<Series> {
    let side = |profile: &Profile, name: &str, of: SideOfRowFn| {
        let rows = rows.iter().filter(|row| row.nic == profile.name);
        let is_limit = rows.clone().any(|row| !of(row).1.is_empty());
        let limit = if is_limit { ", at most" } else { "" };
        let points = rows
            .filter_map(|row| Some(Point::from((axis_coordinate(row.swept_value), of(row).0?))));
        Series::new(format!("{}, {name}{limit}", profile.name), points)
    };
    let both = |profile| {
        [
            side(profile, "requester", |row| {
                (row.requester_mops, &row.requester_unknown_resources)
            }),
            side(profile, "responder", |row| {
                (row.responder_mops, &row.responder_unknown_resources)
            }),
        ]
    };
    profiles.iter().flat_map(both).collect()
}
