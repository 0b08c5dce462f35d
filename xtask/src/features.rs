//! `cargo xtask features`: lints and documents the packages for other projects with each feature alone.
//!
//! The workspace builds a package once, with all features that any crate of the workspace enables. A program of another
//! project enables fewer. A combination of features is clean if its clippy and its documentation have no warning.

use anyhow::{Context, Result};

use crate::cargo_command::cargo;
use crate::paths::target_dir;
use crate::publish::{Package, packages};

/// Arguments of `cargo xtask features`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the package with this name
    #[arg(long)]
    package: Option<String>,
}

/// Runs `cargo xtask features`; returns false if a combination is not clean.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let mut checked = 0;
    for package in packages()? {
        if args.package.as_ref().is_some_and(|p| *p != package.name) {
            continue;
        }
        for combination in combinations(&package) {
            println!("{}: {}", package.name, describe(&combination));
            if !is_clean(&package.name, &combination)? {
                println!(
                    "not clean: {} with {}",
                    package.name,
                    describe(&combination)
                );
                return Ok(false);
            }
            checked += 1;
        }
    }
    println!("{checked} combinations of features");
    Ok(checked > 0)
}

/// Returns the combinations of a package: no feature, each feature alone, the default ones, all. Returns none for a
/// package without features.
fn combinations(package: &Package) -> Vec<Vec<&str>> {
    if package.features.is_empty() {
        return Vec::new();
    }
    let own = package.features.keys().map(String::as_str);
    let all: Vec<_> = own.clone().filter(|name| *name != "default").collect();
    let mut combinations = vec![Vec::new()];
    combinations.extend(own.map(|name| vec![name]));
    if all.len() > 1 {
        combinations.push(all);
    }
    combinations
}

fn describe(combination: &[&str]) -> String {
    match combination {
        [] => "no feature".to_owned(),
        some => format!("the features {}", some.join(", ")),
    }
}

/// Lints and documents a package with these features; returns false if there is a warning.
fn is_clean(package: &str, features: &[&str]) -> Result<bool> {
    let features = features.join(",");
    let chosen = ["-p", package, "--no-default-features", "--features"];
    let succeeds = |first: &[&str], last: &[&str]| {
        let status = cargo()
            .args(first)
            .args(chosen)
            .arg(&features)
            .args(last)
            // The programs of `cargo xtask test` have other features, and would be built again.
            .env("CARGO_TARGET_DIR", target_dir().join("features"))
            .env("RUSTDOCFLAGS", "-D warnings")
            .status();
        anyhow::Ok(status.context("cannot start cargo")?.success())
    };
    let lints = ["--", "-D", "warnings"];
    Ok(succeeds(&["clippy", "--quiet", "--all-targets"], &lints)?
        && succeeds(&["doc", "--quiet", "--no-deps", "--lib"], &[])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_is_checked_alone() {
        let packages = packages().expect("cargo runs");
        let named = |name: &str| packages.iter().find(|package| package.name == name);
        let verbs = named("verbatim-verbs").expect("the package");
        let combinations = combinations(verbs);
        for expected in [
            vec![],
            vec!["default"],
            vec!["simnic"],
            vec!["system"],
            vec!["simnic", "softnic", "system", "tap"],
        ] {
            assert!(combinations.contains(&expected), "{expected:?}");
        }
        let nicmodel = named("verbatim-nicmodel").expect("the package");
        assert_eq!(super::combinations(nicmodel), Vec::<Vec<&str>>::new());
    }
}
