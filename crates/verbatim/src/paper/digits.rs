//! Formats of numbers in the table.

use crate::output::figure;

/// Formats a published number as it was printed.
pub(super) fn published(value: f64) -> String {
    if value != 0.0 && value.abs() < 1e-3 {
        format!("{value:.3e}")
    } else {
        value.to_string()
    }
}

/// Formats a number with its significant digits.
pub(super) fn plain(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e9 {
        value.to_string()
    } else if value.abs() >= 1e4 {
        format!("{value:.1}")
    } else if value.abs() < 1e-3 {
        format!("{value:.3e}")
    } else {
        figure(value)
    }
}
