//! The commands that run cargo.

use crate::paths::workspace;
use std::process::Command;

/// Returns a command of the cargo that runs this program, in the workspace.
///
/// The command does not inherit the variables that `cargo run` sets for this program's package. Build scripts
/// that read them (ring's) would run again after each build by hand, and everything above them would be
/// built again.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace());
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_set_for_package) {
            command.env_remove(name);
        }
    }
    command
}

/// Tells whether `cargo run` sets this variable for the package that it runs.
fn is_set_for_package(name: &str) -> bool {
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_scripts_see_no_variable_of_this_package() {
        // Cargo sets the variable for tests as it does for programs.
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
        let command = cargo();
        let removed: Vec<_> = command
            .get_envs()
            .filter(|(_, value)| value.is_none())
            .collect();
        for name in [
            "CARGO_MANIFEST_DIR",
            "CARGO_PKG_NAME",
            "CARGO_PKG_VERSION_MAJOR",
        ] {
            assert!(
                removed.iter().any(|(removed, _)| *removed == name),
                "{name}"
            );
        }
        assert!(removed.iter().all(|(name, _)| *name != "CARGO_HOME"));
    }
}
