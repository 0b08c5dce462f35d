//! Starts this program in another role: as the peer of a test, or as a process that the test kills.

use std::process::{Command, Stdio};

use anyhow::Context as _;

use crate::test_env::Settings;

/// Environment variable with the name of the role.
pub(crate) const ROLE_ENV_VAR: &str = "VERBATIM_CONFORMANCE_ROLE";
/// Environment variable with the argument of the role.
pub(crate) const ROLE_ARG_ENV_VAR: &str = "VERBATIM_CONFORMANCE_ARG";
/// Environment variable with the settings of the run, as JSON.
pub(crate) const SETTINGS_ENV_VAR: &str = "VERBATIM_CONFORMANCE_SETTINGS";

/// Returns a command that starts this program again in a role.
///
/// # Errors
/// Returns an error if the path of this program is unknown.
pub fn role_command(role: &str, arg: &str, settings: &Settings) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("where is this program?")?);
    command
        .env(ROLE_ENV_VAR, role)
        .env(ROLE_ARG_ENV_VAR, arg)
        .env(SETTINGS_ENV_VAR, serde_json::to_string(settings)?)
        .stdin(Stdio::null());
    Ok(command)
}
