//! The legend below a chart: the names of its series, each behind a sample of its line.

use std::fmt::Write;

use crate::data::Chart;
use crate::style::{
    self, BOUND_LINE_ATTRIBUTES, area_attributes, dash_attribute, line_attributes, marker_path,
};
use crate::text;

/// Height of a row of the legend, and width of a sample with its gap.
const ROW_HEIGHT: f64 = 19.0;
const SAMPLE_WIDTH: f64 = 44.0;
/// Maximum number of letters of a name that shares its row with another.
const MAX_SHORT_NAME_LETTERS: usize = 44;

/// An entry of the legend: its text, and the kind of its sample.
struct LegendEntry {
    name: String,
    sample: LegendSample,
}

enum LegendSample {
    Line { series: usize, markers: bool },
    Level(usize),
    Published,
    Bound,
    Whisker,
}

fn entries(chart: &Chart) -> Vec<LegendEntry> {
    let mut all: Vec<LegendEntry> = Vec::new();
    for (series, of) in chart.series.iter().enumerate() {
        let sample = LegendSample::Line {
            series,
            markers: !of.is_drawn_without_markers,
        };
        let name = of.name.clone();
        all.push(LegendEntry { name, sample });
    }
    for (at, (name, _)) in chart.constant_levels.iter().enumerate() {
        let (name, sample) = (name.clone(), LegendSample::Level(at));
        all.push(LegendEntry { name, sample });
    }
    if chart
        .series
        .iter()
        .any(|of| !of.published_points.is_empty())
    {
        let name = "published, in its series’ colour".to_owned();
        let sample = LegendSample::Published;
        all.push(LegendEntry { name, sample });
    }
    if chart.series.iter().any(|of| !of.bound_points.is_empty()) {
        let name = "upper bound, in its series’ colour".to_owned();
        let sample = LegendSample::Bound;
        all.push(LegendEntry { name, sample });
    }
    let ranged =
        |of: &crate::data::Series| of.points.iter().any(|point| point.min_and_max.is_some());
    if chart.series.iter().any(ranged) {
        let name = "least to most of the rounds; the marker is the median".to_owned();
        let sample = LegendSample::Whisker;
        all.push(LegendEntry { name, sample });
    }
    all
}

/// Draws the legend from `top` on, and returns its height.
pub(crate) fn draw_and_get_height(
    svg: &mut String,
    chart: &Chart,
    left: f64,
    top: f64,
    width: f64,
) -> f64 {
    let (mut column, mut y) = (0, top);
    let mut bottom = top;
    for entry in entries(chart) {
        let is_long = entry.name.chars().count() > MAX_SHORT_NAME_LETTERS;
        if is_long && column == 1 {
            (column, y) = (0, y + ROW_HEIGHT);
        }
        let x = left + if column == 1 { width / 2.0 } else { 0.0 };
        draw_sample(svg, &entry.sample, x, y + ROW_HEIGHT / 2.0);
        write!(
            svg,
            r#"<text class="ink" fill="{}" x="{:.1}" y="{:.1}">{}</text>"#,
            style::TEXT_COLOR,
            x + SAMPLE_WIDTH,
            y + ROW_HEIGHT / 2.0 + 4.0,
            text::escape(&entry.name)
        )
        .expect("a String takes all");
        bottom = y + ROW_HEIGHT;
        (column, y) = match (is_long, column) {
            (false, 0) => (1, y),
            _ => (0, y + ROW_HEIGHT),
        };
    }
    bottom - top
}

fn draw_sample(svg: &mut String, sample: &LegendSample, x: f64, y: f64) {
    let right = x + SAMPLE_WIDTH - 8.0;
    let middle = (x + right) / 2.0;
    let drawn = match sample {
        LegendSample::Line { series, markers } => {
            let line = format!(
                r#"<path {}{} fill="none" stroke-width="2" d="M{x:.1} {y:.1}H{right:.1}"/>"#,
                line_attributes(*series),
                dash_attribute(*series)
            );
            let mark = format!(
                r#"<path {} d="{}"/>"#,
                area_attributes(*series),
                marker_path(*series, middle, y)
            );
            if *markers { line + &mark } else { line }
        }
        LegendSample::Level(at) => format!(
            r#"<path class="axis" stroke="{}" stroke-width="1.5"{} fill="none" d="M{x:.1} {y:.1}H{right:.1}"/>"#,
            style::FAINT_TEXT_COLOR,
            level_dash_attribute(*at)
        ),
        LegendSample::Published => format!(
            r#"<circle class="axis" stroke="{}" stroke-width="2" fill="none" cx="{middle:.1}" cy="{y:.1}" r="6"/>"#,
            style::FAINT_TEXT_COLOR
        ),
        LegendSample::Bound => format!(
            r#"<path class="axis" stroke="{}"{BOUND_LINE_ATTRIBUTES} fill="none" d="M{x:.1} {y:.1}H{right:.1}"/>"#,
            style::FAINT_TEXT_COLOR
        ),
        LegendSample::Whisker => format!(
            r#"<path class="axis" stroke="{}" fill="none" d="{}"/>"#,
            style::FAINT_TEXT_COLOR,
            whisker_path(middle, y - 7.0, y + 7.0)
        ),
    };
    svg.push_str(&drawn);
}

/// Returns the dash pattern of a level's line.
pub(crate) fn level_dash_attribute(at: usize) -> String {
    let dashes = ["6 4", "2 4", "12 4", "6 2 2 2"][at % 4];
    format!(r#" stroke-dasharray="{dashes}""#)
}

/// Returns the path of a whisker: a vertical line with a short horizontal line at both ends.
pub(crate) fn whisker_path(x: f64, top: f64, bottom: f64) -> String {
    let (left, right) = (x - 4.0, x + 4.0);
    format!(
        "M{x:.1} {top:.1}V{bottom:.1}M{left:.1} {top:.1}H{right:.1}M{left:.1} {bottom:.1}H{right:.1}"
    )
}
