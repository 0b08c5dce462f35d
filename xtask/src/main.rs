//! The repository's development commands.
//!
//! `cargo xtask test` runs everything that a change must pass, for developers and CI.
//! `cargo xtask modules` checks the direction of imports. `cargo xtask book` builds the book of
//! `docs/`, `cargo xtask man` the man pages. `cargo xtask bench` measures the software NIC beside
//! its peers. `cargo xtask rxe` runs a command in a virtual machine with the kernel's Soft-RoCE.
//! `cargo xtask conformance` runs programs and suites of other projects. `cargo xtask
//! publish` builds the packages for other projects as a registry would have them, and `cargo xtask
//! features` checks them with each feature alone. `cargo xtask wheel` builds the Python wheel, and
//! `cargo xtask python` tests it.

#![forbid(unsafe_code)]

mod bench;
mod book;
mod cargo_command;
mod cargo_output;
mod conformance;
mod dropin;
mod features;
mod man;
mod modules;
mod packages;
mod paths;
mod publish;
mod rxe;
mod step_run;
mod steps;
mod summary;
mod test;
mod wheel;

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
    /// The checks to run while working: format, lints, unit tests, and the verbs suite on one link layer
    Check(test::CheckArgs),
    /// Circles of imports within each crate, and upward imports between the crates
    Modules(modules::Args),
    /// The software NIC beside its peers (`verbatim bench peers`, built for release)
    Bench(bench::Args),
    /// The book of docs/, and checks of its links and its prose
    Book(book::Args),
    /// The man pages of `verbatim`
    Man(man::Args),
    /// A command in a virtual machine that has the kernel's Soft-RoCE (device rxe0)
    Rxe(rxe::Args),
    /// Builds `verbatim` and the libraries that it gives to programs, and installs them if asked
    Dropin(dropin::Args),
    /// RDMA programs and suites of other projects, counted as passed, failed, skipped
    Conformance(conformance::Args),
    /// Packs the crates for other projects, and builds each from what a registry would have
    Publish(publish::Args),
    /// Lints and documents the crates for other projects with each of their features alone
    Features(features::Args),
    /// Builds the Python wheel: the command, its libraries and the module
    Wheel(wheel::Args),
    /// Builds the Python wheel, installs it in a fresh virtual environment and runs its tests
    Python(wheel::TestArgs),
}

fn main() -> ExitCode {
    let done = match Cli::parse().chore {
        Chore::Test(args) => test::run(&args).map(exit_code),
        Chore::Check(args) => test::check(&args).map(exit_code),
        Chore::Modules(args) => modules::run(&args).map(exit_code),
        Chore::Bench(args) => bench::run(&args).map(exit_code),
        Chore::Book(args) => book::run(&args).map(exit_code),
        Chore::Man(args) => man::run(&args).map(exit_code),
        Chore::Rxe(args) => rxe::run(args),
        Chore::Dropin(args) => dropin::run(&args).map(exit_code),
        Chore::Conformance(args) => conformance::run(&args).map(exit_code),
        Chore::Publish(args) => publish::run(&args).map(exit_code),
        Chore::Features(args) => features::run(&args).map(exit_code),
        Chore::Wheel(args) => wheel::run(&args).map(exit_code),
        Chore::Python(args) => wheel::test(&args).map(exit_code),
    };
    match done {
        Ok(code) => code,
        Err(err) => {
            eprintln!("error: {err:#}");
            ExitCode::from(2)
        }
    }
}

fn exit_code(good: bool) -> ExitCode {
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    }
}
