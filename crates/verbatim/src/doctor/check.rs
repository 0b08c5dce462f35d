//! A check, and what came of it.

use serde::Serialize;

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Ok,
    /// It works, another way.
    Slow,
    Fails,
}

/// One thing that the software NIC asks of its environment.
#[derive(Debug, Serialize)]
pub(super) struct Check {
    /// What it wants to do.
    pub(super) what: &'static str,
    pub(super) state: State,
    /// What was found.
    pub(super) found: String,
    /// What that means for programs; null where all is well.
    pub(super) effect: Option<&'static str>,
    /// What to change; null where all is well.
    pub(super) change: Option<&'static str>,
}

impl Check {
    pub(super) fn ok(what: &'static str, found: impl Into<String>) -> Self {
        Self {
            what,
            state: State::Ok,
            found: found.into(),
            effect: None,
            change: None,
        }
    }

    pub(super) fn not_ok(
        what: &'static str,
        state: State,
        found: impl Into<String>,
        (effect, change): (&'static str, &'static str),
    ) -> Self {
        Self {
            what,
            state,
            found: found.into(),
            effect: Some(effect),
            change: Some(change),
        }
    }
}
