//! `cargo xtask bench`: `verbatim bench peers`, built for release, with its peers installed.

use anyhow::{Context, Result};

use crate::cargo_command::cargo;
use crate::packages;

/// Arguments of `cargo xtask bench`, which are passed to `verbatim bench peers`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Passed on to `verbatim bench peers`, see its --help
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    args: Vec<String>,
}

/// Runs the benchmark; returns false if it fails.
pub(crate) fn run(args: &Args) -> Result<bool> {
    packages::install_missing(packages::FOR_BENCH)?;
    let status = cargo()
        .args(["run", "--release", "-p", "verbatim", "--", "bench", "peers"])
        .args(&args.args)
        .status()
        .context("cannot start cargo")?;
    Ok(status.success())
}
