//! The repository's own chores.
//!
//! `cargo xtask test` is everything that a change must pass, for a developer and for CI alike;
//! `cargo xtask bench` measures the software NIC beside its peers.

#![forbid(unsafe_code)]

mod bench;
mod cargo_output;
mod packages;
mod steps;
mod test;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Chores of the Verbatim repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Format, lints, docs and every test; ends with "N passed, N failed, N skipped"
    Test(test::Args),
    /// The software NIC beside its peers (`verbatim bench peers`, built for release)
    Bench(bench::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().chore {
        Chore::Test(args) => test::run(&args),
        Chore::Bench(args) => bench::run(&args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(err) => {
            eprintln!("error: {err:#}");
            ExitCode::from(2)
        }
    }
}

/// The folder of the workspace: the parent of this crate's.
fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace")
        .to_path_buf()
}
