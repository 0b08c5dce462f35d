//! How much is printed, and where to.

use std::io::Write;
use std::sync::LazyLock;

/// Says how much is printed about failures: `each`, `summary`, or nothing.
pub const WHY_VAR: &str = "VERBATIM_WHY";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Amount {
    Unreachable,
    Summary,
    Each,
}

pub(super) static AMOUNT: LazyLock<Amount> =
    LazyLock::new(|| match std::env::var(WHY_VAR).as_deref().unwrap_or("") {
        "each" | "1" => Amount::Each,
        "summary" => Amount::Summary,
        _ => Amount::Unreachable,
    });

/// Whether every failure is printed.
pub(super) fn is_each() -> bool {
    *AMOUNT == Amount::Each
}

/// Writes to standard error in one piece, so that lines of several processes do not mix. A failure has nowhere to be told.
pub(super) fn say(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
