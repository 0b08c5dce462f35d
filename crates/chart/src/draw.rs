//! A chart as SVG.

use std::fmt::{Arguments, Write};

use crate::data::{Chart, Series};
use crate::legend::{self, level_dash_attribute, whisker_path};
use crate::scale::AxisMapping;
use crate::style::{
    self, BOUND_LINE_ATTRIBUTES, FAINT_TEXT_COLOR, GRID_COLOR, PAGE_COLOR, TEXT_COLOR,
    area_attributes, dash_attribute, line_attributes, marker_path,
};
use crate::{coincidence_notes, text};

/// Width of the picture, edges of the plot, and height of the plot, in units of the picture.
const WIDTH: f64 = 760.0;
const PLOT_LEFT_X: f64 = 72.0;
const PLOT_RIGHT_X: f64 = 736.0;
const PLOT_HEIGHT: f64 = 330.0;
const MARGIN: f64 = 16.0;
/// Height of a line of text, and maximum number of its letters.
const TITLE_LINE_HEIGHT_AND_MAX_LETTERS: (f64, usize) = (21.0, 82);
const SMALL_LINE_HEIGHT_AND_MAX_LETTERS: (f64, usize) = (16.0, 116);

/// A picture under construction, which grows downwards.
struct SvgPicture {
    body: String,
    next_y: f64,
}

impl SvgPicture {
    fn append_svg(&mut self, text: Arguments<'_>) {
        self.body.write_fmt(text).expect("a String takes all");
    }

    /// Adds a left-aligned paragraph.
    fn append_paragraph(&mut self, words: &str, (height, letters): (f64, usize), is_title: bool) {
        let (class, color, style) = if is_title {
            ("ink", TEXT_COLOR, r#" font-size="15" font-weight="600""#)
        } else {
            ("dim", FAINT_TEXT_COLOR, "")
        };
        for line in text::wrap(words, letters) {
            self.next_y += height;
            self.append_svg(format_args!(
                r#"<text class="{class}" fill="{color}"{style} x="{MARGIN}" y="{:.1}">{}</text>"#,
                self.next_y - 4.0,
                text::escape(&line)
            ));
        }
    }
}

/// Draws a chart.
pub(crate) fn svg(chart: &Chart) -> String {
    let chart = &without_infinite_values(chart);
    let mut picture = SvgPicture {
        body: String::new(),
        next_y: 10.0,
    };
    picture.append_paragraph(&chart.title, TITLE_LINE_HEIGHT_AND_MAX_LETTERS, true);
    picture.append_paragraph(&chart.caption, SMALL_LINE_HEIGHT_AND_MAX_LETTERS, false);
    let (top, bottom) = (picture.next_y + 14.0, picture.next_y + 14.0 + PLOT_HEIGHT);
    let points = || chart.series.iter().flat_map(|series| &series.points);
    let published = || {
        chart
            .series
            .iter()
            .flat_map(|series| &series.published_points)
    };
    let bounds = || chart.series.iter().flat_map(|series| &series.bound_points);
    let sampled: Vec<f64> = points().map(|p| p.x).collect();
    let xs: Vec<f64> = sampled
        .iter()
        .copied()
        .chain(published().chain(bounds()).map(|p| p.0))
        .collect();
    let ranges = points()
        .filter_map(|p| p.min_and_max)
        .flat_map(|(min, max)| [min, max]);
    let ys = points()
        .map(|p| p.y)
        .chain(published().chain(bounds()).map(|p| p.1))
        .chain(ranges);
    let ys: Vec<f64> = ys
        .chain(chart.constant_levels.iter().map(|(_, y)| *y))
        .collect();
    let x = AxisMapping::for_x_axis(&chart.x, &xs, PLOT_LEFT_X + 10.0, PLOT_RIGHT_X - 6.0);
    let y = AxisMapping::for_y_axis(&chart.y, &ys, bottom, top);
    draw_axes(&mut picture, chart, (&x, &y), &sampled, (top, bottom));
    for (at, (_, level)) in chart.constant_levels.iter().enumerate() {
        picture.append_svg(format_args!(
            r#"<path class="axis" stroke="{FAINT_TEXT_COLOR}" stroke-width="1.5"{} fill="none" d="M{PLOT_LEFT_X} {:.1}H{PLOT_RIGHT_X}"/>"#,
            level_dash_attribute(at),
            y.position_of(*level)
        ));
    }
    for (at, series) in chart.series.iter().enumerate() {
        draw_series(&mut picture, at, series, (&x, &y));
    }
    let legend_top = bottom + 52.0;
    let height = legend::draw_and_get_height(
        &mut picture.body,
        chart,
        MARGIN,
        legend_top,
        WIDTH - 2.0 * MARGIN,
    );
    picture.next_y = legend_top + height + 4.0;
    for words in coincidence_notes::coincidence_sentences(&chart.series, &chart.x, &y) {
        picture.append_paragraph(&words, SMALL_LINE_HEIGHT_AND_MAX_LETTERS, false);
    }
    if y.is_log() {
        picture.append_paragraph(
            "The y axis is logarithmic.",
            SMALL_LINE_HEIGHT_AND_MAX_LETTERS,
            false,
        );
    }
    to_svg(chart, &picture)
}

/// Wraps the picture into its SVG element, with title and description.
fn to_svg(chart: &Chart, picture: &SvgPicture) -> String {
    let height = picture.next_y + 10.0;
    format!(
        "<svg class=\"chart\" xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" font-family=\"system-ui, sans-serif\" font-size=\"12\">\n\
         <title>{}</title>\n<desc>{}</desc>\n<style>{}</style>\n\
         <rect class=\"page\" fill=\"{PAGE_COLOR}\" width=\"100%\" height=\"100%\"/>\n{}</svg>\n",
        text::escape(&chart.title),
        text::escape(&description(chart)),
        style::sheet(),
        picture
            .body
            .replace("/><", "/>\n<")
            .replace("</text><", "</text>\n<"),
    )
}

/// Returns the description of a chart in words.
fn description(chart: &Chart) -> String {
    let mut words = format!(
        "{} {} over {}.",
        chart.caption, chart.y.label, chart.x.label
    );
    for series in &chart.series {
        let (Some(first), Some(last)) = (series.points.first(), series.points.last()) else {
            continue;
        };
        let place = |point: &crate::data::Point| {
            let x = text::format_axis_number(point.x, chart.x.number_format);
            format!(
                "{} at {x}",
                text::format_axis_number(point.y, chart.y.number_format)
            )
        };
        let _ = write!(
            words,
            " {}: {} to {}.",
            series.name,
            place(first),
            place(last)
        );
    }
    for (name, level) in &chart.constant_levels {
        let _ = write!(
            words,
            " {name}: {}.",
            text::format_axis_number(*level, chart.y.number_format)
        );
    }
    words.trim_start().to_owned()
}

/// Returns the chart without values that are not finite.
fn without_infinite_values(chart: &Chart) -> Chart {
    let mut chart = chart.clone();
    for series in &mut chart.series {
        series.points.retain(|p| p.x.is_finite() && p.y.is_finite());
        for point in &mut series.points {
            point.min_and_max = point
                .min_and_max
                .filter(|(a, b)| a.is_finite() && b.is_finite());
        }
        for others in [&mut series.published_points, &mut series.bound_points] {
            others.retain(|(x, y)| x.is_finite() && y.is_finite());
        }
    }
    chart.constant_levels.retain(|(_, y)| y.is_finite());
    chart
}

/// Draws the grid, the ticks and the labels of both axes.
fn draw_axes(
    picture: &mut SvgPicture,
    chart: &Chart,
    (x, y): (&AxisMapping, &AxisMapping),
    sampled: &[f64],
    (top, bottom): (f64, f64),
) {
    for tick in y.ticks_at_round_numbers() {
        let at = tick.position;
        picture.append_svg(format_args!(
            r#"<path class="grid" stroke="{GRID_COLOR}" d="M{PLOT_LEFT_X} {at:.1}H{PLOT_RIGHT_X}"/>"#
        ));
        picture.append_svg(format_args!(
            r#"<text class="dim" fill="{FAINT_TEXT_COLOR}" x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
            PLOT_LEFT_X - 8.0,
            at + 4.0,
            tick.label.unwrap_or_default()
        ));
    }
    picture.append_svg(format_args!(
        r#"<path class="axis" stroke="{FAINT_TEXT_COLOR}" fill="none" d="M{PLOT_LEFT_X} {bottom:.1}H{PLOT_RIGHT_X}"/>"#
    ));
    for tick in x.ticks_at_values(sampled) {
        let at = tick.position;
        picture.append_svg(format_args!(
            r#"<path class="axis" stroke="{FAINT_TEXT_COLOR}" d="M{at:.1} {bottom:.1}v5"/>"#
        ));
        if let Some(label) = tick.label {
            picture.append_svg(format_args!(
                r#"<text class="dim" fill="{FAINT_TEXT_COLOR}" x="{at:.1}" y="{:.1}" text-anchor="middle">{label}</text>"#,
                bottom + 19.0
            ));
        }
    }
    picture.append_svg(format_args!(
        r#"<text class="ink" fill="{TEXT_COLOR}" x="{:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
        f64::midpoint(PLOT_LEFT_X, PLOT_RIGHT_X),
        bottom + 39.0,
        text::escape(&chart.x.label)
    ));
    let (middle, side) = (f64::midpoint(top, bottom), MARGIN + 4.0);
    picture.append_svg(format_args!(
        r#"<text class="ink" fill="{TEXT_COLOR}" x="{side}" y="{middle:.1}" text-anchor="middle" transform="rotate(-90 {side} {middle:.1})">{}</text>"#,
        text::escape(&chart.y.label)
    ));
}

/// Returns the outline of a line that joins points.
fn line_path(
    points: impl Iterator<Item = (f64, f64)>,
    (x, y): (&AxisMapping, &AxisMapping),
) -> String {
    let mut line = String::new();
    for (index, (px, py)) in points.enumerate() {
        let move_or_line = if index == 0 { 'M' } else { 'L' };
        let (at_x, at_y) = (x.position_of(px), y.position_of(py));
        let _ = write!(line, "{move_or_line}{at_x:.1} {at_y:.1}");
    }
    line
}

/// Draws a series: bounds, line, whiskers, markers, published points.
fn draw_series(
    picture: &mut SvgPicture,
    at: usize,
    series: &Series,
    (x, y): (&AxisMapping, &AxisMapping),
) {
    if series.bound_points.len() > 1 {
        picture.append_svg(format_args!(
            r#"<path {}{BOUND_LINE_ATTRIBUTES} fill="none" d="{}"/>"#,
            line_attributes(at),
            line_path(series.bound_points.iter().copied(), (x, y))
        ));
    }
    if series.points.len() > 1 {
        picture.append_svg(format_args!(
            r#"<path {}{} fill="none" stroke-width="2" stroke-linejoin="round" d="{}"/>"#,
            line_attributes(at),
            dash_attribute(at),
            line_path(series.points.iter().map(|p| (p.x, p.y)), (x, y))
        ));
    }
    for point in &series.points {
        if let Some((min, max)) = point.min_and_max {
            picture.append_svg(format_args!(
                r#"<path {} fill="none" d="{}"/>"#,
                line_attributes(at),
                whisker_path(
                    x.position_of(point.x),
                    y.position_of(max),
                    y.position_of(min)
                )
            ));
        }
    }
    if !series.is_drawn_without_markers {
        let marks = series
            .points
            .iter()
            .map(|p| marker_path(at, x.position_of(p.x), y.position_of(p.y)));
        let marks: String = marks.collect();
        if !marks.is_empty() {
            picture.append_svg(format_args!(
                r#"<path {} d="{marks}"/>"#,
                area_attributes(at)
            ));
        }
    }
    for &(px, py) in &series.published_points {
        let (cx, cy) = (x.position_of(px), y.position_of(py));
        if let Some(ours) = value_at(series, px, x) {
            picture.append_svg(format_args!(
                r#"<path {} fill="none" stroke-dasharray="1 2" d="M{cx:.1} {cy:.1}V{:.1}"/>"#,
                line_attributes(at),
                y.position_of(ours)
            ));
        }
        picture.append_svg(format_args!(
            r#"<circle {} fill="none" stroke-width="2" cx="{cx:.1}" cy="{cy:.1}" r="6.5"/>"#,
            line_attributes(at)
        ));
    }
}

/// Returns the y value of a series' line at the x value `at`, interpolated between points.
fn value_at(series: &Series, at: f64, x: &AxisMapping) -> Option<f64> {
    let place = x.position_of(at);
    series.points.windows(2).find_map(|pair| {
        let (left, right) = (x.position_of(pair[0].x), x.position_of(pair[1].x));
        let inside = (left.min(right)..=left.max(right)).contains(&place);
        let share = if left == right {
            0.0
        } else {
            (place - left) / (right - left)
        };
        inside.then(|| pair[0].y + share * (pair[1].y - pair[0].y))
    })
}
