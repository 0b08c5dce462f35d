//! Formats bounds and shares as lines of text.

use nicmodel::Bounds;
use nicmodel::bounds::{Bound, Resource};
use nicmodel::uncertainty::{self, LikelyRange};

use crate::output::{format_three_digits, table};

/// Formats the bounds: the rate, the table, and the unknown resources.
pub(crate) fn bounds_lines(bounds: &Bounds) -> Vec<String> {
    let mut lines = Vec::new();
    if let (Some(rate), Some(bottleneck)) = (bounds.predicted_mops, bounds.bottleneck()) {
        let at_most = if bounds.unknown_resources.is_empty() {
            ""
        } else {
            "at most "
        };
        let range = uncertainty::likely_range_of_mix(bounds);
        let range = range.map_or_else(String::new, |range| {
            format!("; {}", format_likely_rate(&range))
        });
        lines.push(format!(
            "{at_most}{} M/s; bottleneck: {bottleneck}{range}",
            format_three_digits(rate)
        ));
    }
    let mut rows = table(["resource", "busy, ns a request", "allows, M/s"], &[1, 2]);
    for Bound {
        resource,
        busy_ns_per_request: busy_ns,
        rate_mops,
    } in &bounds.bounds
    {
        rows.add_row([
            resource.to_string(),
            format_three_digits(*busy_ns),
            format_three_digits(*rate_mops),
        ]);
    }
    lines.push(rows.to_string());
    lines.extend(unknown_resources_line(bounds));
    lines
}

/// Formats a rate; with "≤" if resources for which the profile has no number may bound it further.
pub(crate) fn format_rate_or_limit(rate_mops: Option<f64>, unknown: &[Resource]) -> String {
    let Some(rate) = rate_mops else {
        return "-".to_owned();
    };
    let limit = if unknown.is_empty() { "" } else { "≤ " };
    format!("{limit}{}", format_three_digits(rate))
}

/// Formats the range in which a rate probably lies.
pub(crate) fn format_likely_rate(range: &LikelyRange) -> String {
    format!("likely {} M/s", format_range(range))
}

/// Formats the ends of a range, without the unit.
pub(crate) fn format_range(range: &LikelyRange) -> String {
    let (low, high) = (
        format_three_digits(range.low_mops),
        format_three_digits(range.high_mops),
    );
    format!("{low} to {high}")
}

/// Formats the resources for which the profile has no number; returns `None` if the profile has all
/// numbers.
pub(crate) fn unknown_resources_line(bounds: &Bounds) -> Option<String> {
    let names: Vec<_> = bounds
        .unknown_resources
        .iter()
        .map(ToString::to_string)
        .collect();
    (!names.is_empty()).then(|| format!("unknown for this NIC: {}", names.join(", ")))
}

/// Formats a share in percent with its sign; a value that rounds to 0 has no sign.
pub(crate) fn format_signed_percent(share: f64, decimals: usize) -> String {
    let text = format!("{:+.decimals$}", 100.0 * share);
    let is_zero = text
        .bytes()
        .all(|byte| !byte.is_ascii_digit() || byte == b'0');
    let shown = if is_zero { &text[1..] } else { &text[..] };
    format!("{shown} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_a_sign_unless_they_are_nothing() {
        let shown = [0.123, -0.017, 1e-6, -1e-6, 2.5].map(|share| format_signed_percent(share, 1));
        assert_eq!(shown, ["+12.3 %", "-1.7 %", "0.0 %", "0.0 %", "+250.0 %"]);
        assert_eq!(format_signed_percent(-0.001, 0), "0 %");
    }
}
