//! This program in another role: the other end of a test, or a process that is killed.

use std::process::{Command, Stdio};

use anyhow::Context as _;

use crate::env::Settings;

/// Names the role.
pub(crate) const ROLE: &str = "VERBATIM_CONFORMANCE_ROLE";
/// Names what the role is told.
pub(crate) const ARG: &str = "VERBATIM_CONFORMANCE_ARG";
/// Names the settings of the run, as JSON.
pub(crate) const SETTINGS: &str = "VERBATIM_CONFORMANCE_SETTINGS";

/// This program again, in another role.
///
/// # Errors
/// The program's own path is unknown.
pub fn role_command(role: &str, arg: &str, settings: &Settings) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("where is this program?")?);
    command
        .env(ROLE, role)
        .env(ARG, arg)
        .env(SETTINGS, serde_json::to_string(settings)?)
        .stdin(Stdio::null());
    Ok(command)
}
