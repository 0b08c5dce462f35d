//! The arguments of `cargo xtask conformance`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use regex::Regex;

/// Arguments of `cargo xtask conformance`.
#[derive(Clone, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Target that the programs run on, one of conformance/targets.toml (may be given several times) [default: the
    /// drop-in, on both link layers]
    #[arg(long, value_name = "TARGET")]
    pub(super) on: Vec<String>,
    /// Run this suite only (may be given several times)
    #[arg(long, value_name = "SUITE")]
    pub(super) only: Vec<String>,
    /// Run only the cases whose names match this regular expression; nothing is compared with the record
    #[arg(long, value_name = "REGEX", conflicts_with_all = ["check", "write"])]
    pub(super) cases: Option<Regex>,
    /// Run so many cases at a time [default: the target's, or two for each processor]
    #[arg(long, value_name = "N")]
    pub(super) jobs: Option<NonZeroUsize>,
    /// Print one JSON object per line on standard output
    #[arg(long, conflicts_with = "check")]
    pub(super) json: bool,
    /// Print what cargo test prints: ok as recorded or better, ignored if it is known not to pass
    #[arg(long, conflicts_with = "write")]
    pub(super) check: bool,
    /// Run only the target's sample of suites if the kernel and all packages are those of the record. For targets without
    /// any program of this repository
    #[arg(long, conflicts_with_all = ["only", "write"])]
    pub(super) sample_if_unchanged: bool,
    /// Record the results in conformance/results and conformance/RESULTS.md
    #[arg(long)]
    pub(super) write: bool,
    /// Run programs by this `verbatim`, such as an installed one [default: built here, optimised]
    #[arg(long, value_name = "FILE")]
    pub(super) verbatim: Option<PathBuf>,
    /// Run here, whatever the target says, and print JSON: the inner half of the chore
    #[arg(long, hide = true)]
    pub(super) in_place: bool,
}

const AFTER_HELP: &str = "\
Every case passes, fails, or is skipped with the reason that the program itself gives. The exit
status is 1 if a case shows less than is recorded, unless --write records it.";
