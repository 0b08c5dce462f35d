//! `--over` and `--values`: sweeps over one setting of a command. Also groups rows into the series
//! of a picture.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use bench::stats::MedianAndSpread;
use chart::{Axis, Chart, Point, Series};
use clap::parser::ValueSource;
use clap::{ArgMatches, ValueEnum};
use nicmodel::Profile;
use serde::Serialize;

use crate::args;
use crate::model::NicProfileChoice;
use crate::output;
use crate::picture::{axis_coordinate, chart_point_of_spread};
use crate::side_by_side::{format_or_empty, format_rate_mops, yes_or_no};

/// A setting that a sweep varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SweepSetting {
    /// Cores of the server: its worker threads
    Cores,
    /// Clients
    Clients,
    /// Threads of each client process
    Threads,
    /// Requests that a client has outstanding
    Window,
    /// Requests that a client posts with one doorbell
    Postlist,
    /// Requests that a worker answers with one doorbell, at most
    Batch,
    /// UD queue pairs of a worker
    Queues,
    /// Bytes of a value
    ValueSize,
    /// Keys
    Keys,
}

impl SweepSetting {
    /// Returns the axis of the knob's values.
    pub(crate) fn axis(self) -> Axis {
        match self {
            SweepSetting::Cores => Axis::linear("cores of the server"),
            SweepSetting::Clients => Axis::log("clients"),
            SweepSetting::Threads => Axis::linear("threads of each client process"),
            SweepSetting::Window => Axis::log("requests outstanding of each client"),
            SweepSetting::Postlist => Axis::log("requests to a doorbell of a client"),
            SweepSetting::Batch => Axis::log("answers to a doorbell, at most"),
            SweepSetting::Queues => Axis::linear("queue pairs of each worker"),
            SweepSetting::ValueSize => Axis::log("bytes of a value").in_bytes(),
            SweepSetting::Keys => Axis::log("keys"),
        }
    }

    /// Returns the knob's name as on the command line.
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The setting that a sweep varies, and its values.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sweep")]
pub(crate) struct SweepArgs {
    /// The setting that is turned; each combination of the others is a series. Not every command has all of them
    #[arg(long, value_enum, value_name = "KNOB", requires = "values")]
    pub(crate) over: Option<SweepSetting>,
    /// Its values, with commas between them; also with K (KiB) or M (MiB) behind
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "over", value_parser = args::count_parser_up_to(1 << 30))]
    pub(crate) values: Vec<usize>,
}

impl SweepArgs {
    /// Returns the settings to run: `args` itself, or a copy for each value, with the value.
    ///
    /// # Errors
    /// Returns an error if `set` returns false, since the command has no such knob, or refuses the
    /// value.
    pub(crate) fn settings_to_run<A: Clone>(
        &self,
        args: &A,
        set: impl Fn(&mut A, SweepSetting, usize) -> Result<bool>,
    ) -> Result<Vec<(Option<usize>, A)>> {
        let Some(knob) = self.over else {
            return Ok(vec![(None, args.clone())]);
        };
        let mut values = self.values.clone();
        values.sort_unstable();
        values.dedup();
        let one = |value: usize| {
            if value == 0 {
                bail!("--values: {} is 1 or more", knob.name());
            }
            let mut args = args.clone();
            if !set(&mut args, knob, value)? {
                let has =
                    |knob: &SweepSetting| !matches!(set(&mut args.clone(), *knob, 1), Ok(false));
                let known = SweepSetting::value_variants().iter().copied().filter(has);
                bail!(
                    "--over {}: this command has no such setting; it has {}",
                    knob.name(),
                    known.map(SweepSetting::name).collect::<Vec<_>>().join(", ")
                );
            }
            Ok((Some(value), args))
        };
        values.into_iter().map(one).collect()
    }

    /// Describes the settings of a measurement, and says which of them is `N`, the swept one.
    pub(crate) fn caption_with_knob(&self, settings: &str) -> String {
        match self.over {
            Some(knob) => format!("{settings}; N: {} as listed", knob.name()),
            None => settings.to_owned(),
        }
    }

    /// Returns the value of a setting for a caption: `N` if the sweep varies the setting.
    pub(crate) fn value_or_n(&self, knob: SweepSetting, value: impl ToString) -> String {
        if self.over == Some(knob) {
            "N".to_owned()
        } else {
            value.to_string()
        }
    }

    /// Returns the x axis of the sweep's picture.
    pub(crate) fn axis(&self) -> Axis {
        self.over.unwrap_or(SweepSetting::Cores).axis()
    }
}

/// Refuses a command line that sweeps a setting by `--over` and sets it by its own flag, too.
pub(crate) fn refuse_flag_of_swept_setting(matches: &ArgMatches) -> Result<()> {
    if let Some((_, inner)) = matches.subcommand() {
        return refuse_flag_of_swept_setting(inner);
    }
    let is_given = |id: &str| {
        matches!(matches.try_contains_id(id), Ok(true))
            && matches.value_source(id) == Some(ValueSource::CommandLine)
    };
    if !is_given("over") {
        return Ok(());
    }
    let swept = matches.try_get_raw("over").ok().flatten();
    let Some(swept) = swept.and_then(|mut values| values.next()?.to_str()) else {
        return Ok(());
    };
    // The cores of a server are its workers, or the cores of a simulated one.
    let flags = match swept {
        "cores" => vec!["cores", "workers"],
        flag => vec![flag],
    };
    for flag in flags {
        if is_given(&flag.replace('-', "_")) {
            bail!(
                "--{flag} is what is swept; give its values by --values only, or sweep another setting by --over"
            );
        }
    }
    Ok(())
}

/// Returns the profiles of `--nic`, which may be given several times, or of `--nic-file`.
pub(crate) fn profiles(
    nics: &[String],
    nic_file: Option<&std::path::PathBuf>,
) -> Result<Vec<Profile>> {
    let one = |nic: Option<&String>| {
        let (nic, nic_file) = (nic.cloned(), nic_file.cloned());
        NicProfileChoice { nic, nic_file }.chosen_or_default_profile()
    };
    match nics {
        [] => Ok(vec![one(None)?]),
        some => some.iter().map(|nic| one(Some(nic))).collect(),
    }
}

/// Returns a value of `--values`; returns an error if the value exceeds the limit of its knob.
pub(crate) fn value_within_knob_limit(value: usize, most: usize) -> Result<usize> {
    if value > most {
        bail!("--values: {value} is more than {most}");
    }
    Ok(value)
}

/// Formats the distinct values of a setting in all rows.
pub(crate) fn join_distinct(values: impl Iterator<Item = usize>) -> String {
    let values: BTreeSet<_> = values.collect();
    let words: Vec<_> = values.iter().map(usize::to_string).collect();
    words.join(", ")
}

/// A function that returns a part of a series' name; `None` if the part does not apply to the row.
type SeriesNamePart<'a, R> = &'a dyn Fn(&R) -> Option<String>;

/// Groups rows into series, in the order of the rows. The first part always appears in a series'
/// name. Other parts appear only if rows differ in them.
pub(crate) fn series<R>(
    rows: &[R],
    parts: &[SeriesNamePart<'_, R>],
    point: impl Fn(&R) -> Point,
    published: impl Fn(&R) -> Option<f64>,
) -> Vec<Series> {
    let differs =
        |part: &SeriesNamePart<'_, R>| rows.windows(2).any(|pair| part(&pair[0]) != part(&pair[1]));
    let names = |row: &R| {
        let used = parts.iter().enumerate();
        let used = used.filter(|(at, part)| *at == 0 || differs(part));
        let all: Vec<String> = used.filter_map(|(_, part)| part(row)).collect();
        all.join(", ")
    };
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let mut all: Vec<Series> = Vec::new();
    for row in rows {
        let name = names(row);
        let at = *places.entry(name.clone()).or_insert(all.len());
        if at == all.len() {
            all.push(Series::new(name, [] as [Point; 0]));
        }
        let point = point(row);
        if let Some(value) = published(row) {
            all[at].published_points.push((point.x, value));
        }
        all[at].points.push(point);
    }
    for series in &mut all {
        series.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    all
}

/// A result with one setting; if the command sweeps, the JSON also has the setting's value.
#[derive(Serialize)]
pub(crate) struct SweptResult<R> {
    #[serde(skip)]
    #[serde(rename = "index")]
    setting_index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "setting")]
    swept_value: Option<usize>,
    #[serde(flatten)]
    #[serde(rename = "of")]
    result: R,
}

impl<R> SweptResult<R> {
    /// Makes the result of the setting at `index` among [`SweepArgs::settings_to_run`].
    pub(crate) fn new(index: usize, setting: Option<usize>, of: R) -> Self {
        SweptResult {
            setting_index: index,
            swept_value: setting,
            result: of,
        }
    }

    /// Groups the results by setting; `settings` is the number of settings.
    pub(crate) fn grouped_by_setting(all: Vec<Self>, settings: usize) -> Vec<Vec<R>> {
        let mut sorted: Vec<Vec<R>> = (0..settings).map(|_| Vec::new()).collect();
        for turned in all {
            sorted[turned.setting_index].push(turned.result);
        }
        sorted
    }
}

/// The result of a design at one setting.
pub(crate) struct DesignResult {
    pub(crate) name: String,
    /// The value of the swept knob.
    pub(crate) swept_value: usize,
    pub(crate) rate_per_s: MedianAndSpread,
    pub(crate) latency_ns_p50: Option<f64>,
    pub(crate) latency_ns_p99: Option<f64>,
    pub(crate) all_verified: bool,
}

/// Prints a row for each result.
pub(crate) fn print_rows(sweep: &SweepArgs, rows: &[DesignResult]) -> Result<()> {
    let knob = sweep.over.unwrap_or(SweepSetting::Cores).name();
    let header = [&knob, "design", "requests/s", "median", "p99", "verified"];
    let mut table = output::table(header, &[0, 2, 3, 4]);
    for row in rows {
        table.add_row([
            row.swept_value.to_string(),
            row.name.clone(),
            format_rate_mops(row.rate_per_s),
            format_or_empty(row.latency_ns_p50, output::format_time_ns),
            format_or_empty(row.latency_ns_p99, output::format_time_ns),
            yes_or_no(row.all_verified).to_owned(),
        ]);
    }
    output::print_line(table)
}

/// Draws the rates over the swept knob.
pub(crate) fn chart(
    title: &str,
    caption: String,
    sweep: &SweepArgs,
    rows: &[DesignResult],
) -> Chart {
    let series = series(
        rows,
        &[&|row| Some(row.name.clone())],
        |row| chart_point_of_spread(axis_coordinate(row.swept_value), row.rate_per_s, 1e6),
        |_| None,
    );
    Chart {
        title: format!("{title} over {}", sweep.axis().label),
        caption,
        x: sweep.axis(),
        y: Axis::auto("10⁶ requests a second"),
        series,
        constant_levels: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_is_not_there_is_refused_and_values_are_sorted() {
        let sweep = SweepArgs {
            over: Some(SweepSetting::Window),
            values: vec![8, 1, 8],
        };
        let set = |args: &mut usize, knob, value| {
            *args = value;
            Ok(knob == SweepSetting::Window)
        };
        let all = sweep.settings_to_run(&0, set).expect("a window");
        assert_eq!(all, [(Some(1), 1), (Some(8), 8)]);
        let other = SweepArgs {
            over: Some(SweepSetting::ValueSize),
            ..sweep.clone()
        };
        let error = other.settings_to_run(&0, set).expect_err("no such knob");
        assert!(error.to_string().contains("--over value-size"), "{error}");
        let zero = SweepArgs {
            values: vec![0],
            ..sweep
        };
        assert!(zero.settings_to_run(&0, set).is_err());
    }

    #[test]
    fn series_are_named_by_what_differs() {
        let rows = [
            ("rpc", "cib", 2.0),
            ("rpc", "cx3", 1.0),
            ("rpc", "cib", 1.0),
        ];
        let named = series(
            &rows,
            &[
                &|row| Some(row.0.to_owned()),
                &|row| Some(row.1.to_owned()),
                &|_| Some("same".to_owned()),
            ],
            |row| Point::from((row.2, 1.0)),
            |_| None,
        );
        let names: Vec<_> = named.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["rpc, cib", "rpc, cx3"]);
        let xs: Vec<f64> = named[0].points.iter().map(|p| p.x).collect();
        assert_eq!(xs, [1.0, 2.0]);
    }
}
