//! `cargo xtask man`: the man pages of `verbatim`, for packages.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::cargo_command::cargo;
use crate::paths::workspace;

/// Arguments of `cargo xtask man`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where the pages go
    #[arg(long, value_name = "DIR", default_value = "target/man/man1")]
    out: PathBuf,
}

/// Runs `cargo xtask man`; returns false if `verbatim` cannot be built or fails.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let out = workspace().join(&args.out);
    let mut command = cargo();
    command.args(["run", "--quiet", "--package", "verbatim", "--", "man"]);
    command.arg(&out);
    let status = command.status().context("cannot start cargo")?;
    if status.success() {
        println!("try: man {}", out.join("verbatim.1").display());
    }
    Ok(status.success())
}
