//! A check and its result.

use serde::Serialize;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RequirementState {
    Ok,
    /// The environment works, but slower or with a restriction.
    Limited,
    Fails,
}

/// One requirement of the software NIC on its environment.
#[derive(Debug, Serialize)]
pub(super) struct Requirement {
    /// The purpose of the requirement, such as `copy private memory of a peer`.
    pub(super) what: &'static str,
    pub(super) state: RequirementState,
    /// The result in words: the call that works, or its error.
    pub(super) found: String,
    /// The consequence for programs; null if nothing is wrong.
    pub(super) effect: Option<&'static str>,
    /// The remedy; null if nothing is wrong.
    #[serde(rename = "change")]
    pub(super) remedy: Option<&'static str>,
}

impl Requirement {
    pub(super) fn ok(what: &'static str, found: impl Into<String>) -> Self {
        Self {
            what,
            state: RequirementState::Ok,
            found: found.into(),
            effect: None,
            remedy: None,
        }
    }

    pub(super) fn not_ok(
        what: &'static str,
        state: RequirementState,
        found: impl Into<String>,
        (effect, change): (&'static str, &'static str),
    ) -> Self {
        Self {
            what,
            state,
            found: found.into(),
            effect: Some(effect),
            remedy: Some(change),
        }
    }
}
