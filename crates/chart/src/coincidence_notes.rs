//! Notes on series that coincide with others, so that one hides the other.

use crate::data::{Axis, Series};
use crate::scale::AxisMapping;
use crate::text;

/// Distance in pixels within which two points look the same.
const COINCIDENCE_PX: f64 = 2.0;

/// Returns a sentence for each pair of series of which two or more consecutive points coincide.
pub(crate) fn coincidence_sentences(series: &[Series], x: &Axis, y: &AxisMapping) -> Vec<String> {
    let mut notes = Vec::new();
    for (at, upper) in series.iter().enumerate() {
        for lower in &series[..at] {
            let stretches = equal_value_ranges(lower, upper, y)
                .into_iter()
                .map(|(from, to)| {
                    let [from, to] =
                        [from, to].map(|value| text::format_axis_number(value, x.number_format));
                    format!("from {from} to {to}")
                });
            let stretches: Vec<_> = stretches.collect();
            if !stretches.is_empty() {
                notes.push(format!(
                    "“{}” and “{}” coincide {}.",
                    lower.name,
                    upper.name,
                    stretches.join(", ")
                ));
            }
        }
    }
    notes
}

/// Returns the ranges of x over which both series have the same values.
fn equal_value_ranges(lower: &Series, upper: &Series, y: &AxisMapping) -> Vec<(f64, f64)> {
    let mut runs = Vec::new();
    let mut run: Option<(f64, f64, usize)> = None;
    for point in &lower.points {
        // A function and a sampled series share only some x values.
        #[allow(clippy::float_cmp)] // both are values of the same setting
        let Some(other) = upper.points.iter().find(|other| other.x == point.x) else {
            continue;
        };
        let same = (y.position_of(point.y) - y.position_of(other.y)).abs() < COINCIDENCE_PX;
        run = match (same, run) {
            (true, Some((from, _, count))) => Some((from, point.x, count + 1)),
            (true, None) => Some((point.x, point.x, 1)),
            (false, ended) => {
                runs.extend(ended);
                None
            }
        };
    }
    runs.extend(run);
    let long = runs.into_iter().filter(|(_, _, count)| *count > 1);
    long.map(|(from, to, _)| (from, to)).collect()
}
