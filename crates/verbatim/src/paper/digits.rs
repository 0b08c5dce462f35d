//! Formats of numbers in the table.

use crate::output::format_three_digits;

/// Formats a published number with the digits that the publication prints.
pub(super) fn format_published(value: f64) -> String {
    if value != 0.0 && value.abs() < 1e-3 {
        format!("{value:.3e}")
    } else {
        value.to_string()
    }
}

/// Formats a number with all its significant digits.
pub(super) fn format_all_significant(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e9 {
        value.to_string()
    } else if value.abs() >= 1e4 {
        format!("{value:.1}")
    } else if value.abs() < 1e-3 {
        format!("{value:.3e}")
    } else {
        format_three_digits(value)
    }
}
