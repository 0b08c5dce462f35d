//! `cargo xtask publish`: builds each package for other projects from what a registry would have.
//!
//! Cargo packs the crates into a temporary registry below the build folder, and unpacks packages of
//! this registry below `CARGO_HOME`. Cargo takes a package of a registry for unchangeable: a later
//! run would use the sources and the compiled libraries of the first one. Therefore both are removed
//! first.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::cargo_command::cargo;
use crate::paths::target_dir;

/// Arguments of `cargo xtask publish`.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// The part of the output of `cargo metadata` that is needed here.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// A package of the workspace.
#[derive(Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    version: String,
    /// The features, and what each enables.
    #[serde(default)]
    pub(crate) features: BTreeMap<String, Vec<String>>,
    /// The registries that the package may go to; `None` for all.
    publish: Option<Vec<String>>,
}

/// Runs `cargo xtask publish`; returns false if a package cannot be built.
pub(crate) fn run(_: &Args) -> Result<bool> {
    let packages = packages()?;
    let target = target_dir().join("publish");
    let removed = remove_sources(&cargo_home()?.join("registry/src"), &packages)?
        + remove_fingerprints(&target.join("debug/.fingerprint"), &packages)?;
    if removed > 0 {
        println!("removed {removed} folders of packages that an earlier run left");
    }
    let status = cargo()
        .args(["publish", "--workspace", "--dry-run", "--allow-dirty"])
        .env("CARGO_TARGET_DIR", target)
        .status()
        .context("cannot start cargo")?;
    Ok(status.success())
}

/// Returns the packages of the workspace that may be published.
pub(crate) fn packages() -> Result<Vec<Package>> {
    let out = cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .context("cannot start cargo")?;
    if !out.status.success() {
        bail!(
            "cargo metadata failed: {}",
            String::from_utf8_lossy(&out.stderr).trim()
        );
    }
    let metadata: Metadata =
        serde_json::from_slice(&out.stdout).context("cargo metadata printed other JSON")?;
    let may_go = |package: &Package| package.publish.as_ref().is_none_or(|to| !to.is_empty());
    Ok(metadata.packages.into_iter().filter(may_go).collect())
}

fn cargo_home() -> Result<PathBuf> {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo"));
    let given = std::env::var_os("CARGO_HOME").filter(|folder| !folder.is_empty());
    given
        .map(PathBuf::from)
        .or_else(home)
        .context("neither CARGO_HOME nor HOME is set; set CARGO_HOME to cargo's folder")
}

/// Removes these packages from the local registries in cargo's folder `registry/src`. Returns how
/// many there were. The folder of a local registry has a name without a host: `-HASH`.
fn remove_sources(registries: &Path, packages: &[Package]) -> Result<usize> {
    let mut removed = 0;
    for registry in entries(registries)? {
        if !name(&registry).starts_with('-') {
            continue;
        }
        for Package { name, version, .. } in packages {
            let sources = registry.join(format!("{name}-{version}"));
            if sources.exists() {
                remove(&sources)?;
                removed += 1;
            }
        }
    }
    Ok(removed)
}

/// Removes the fingerprints of these packages, so that cargo compiles them again. Returns how many
/// there were. Their folders are `NAME-HASH`.
fn remove_fingerprints(folder: &Path, packages: &[Package]) -> Result<usize> {
    let mut removed = 0;
    for fingerprint in entries(folder)? {
        let entry = name(&fingerprint);
        let package = entry.rsplit_once('-').map(|(package, _hash)| package);
        if packages.iter().any(|p| Some(p.name.as_str()) == package) {
            remove(&fingerprint)?;
            removed += 1;
        }
    }
    Ok(removed)
}

fn remove(folder: &Path) -> Result<()> {
    std::fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))
}

fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Returns the entries of a folder; none if it does not exist.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries,
    };
    let paths = entries.and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    paths.with_context(|| format!("cannot read {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str) -> Package {
        Package {
            name: name.to_owned(),
            version: "0.1.0".to_owned(),
            features: BTreeMap::new(),
            publish: None,
        }
    }

    /// Makes folders, calls `remove` on their parent, and returns the folders that are left.
    fn left_of<'f>(
        folders: &[&'f str],
        remove: impl Fn(&Path, &[Package]) -> Result<usize>,
    ) -> Vec<&'f str> {
        let parent = tempfile::tempdir().expect("a folder");
        for folder in folders {
            std::fs::create_dir_all(parent.path().join(folder)).expect("made");
        }
        let packages = ["verbatim-shm", "verbatim-verbs"].map(package);
        let removed = remove(parent.path(), &packages).expect("runs");
        let is_left = |folder: &&&str| parent.path().join(folder).exists();
        let left: Vec<_> = folders.iter().filter(is_left).copied().collect();
        assert_eq!(removed, folders.len() - left.len());
        assert_eq!(remove(parent.path(), &packages).expect("runs"), 0);
        left
    }

    #[test]
    fn only_our_packages_of_local_registries_are_removed() {
        let kept = [
            "-0123/serde-1.0.0",
            "-0123/verbatim-shm-0.0.9",
            "index.crates.io-89ab/verbatim-shm-0.1.0",
        ];
        let ours = ["-0123/verbatim-shm-0.1.0", "-4567/verbatim-verbs-0.1.0"];
        assert_eq!(
            left_of(&[kept.as_slice(), &ours].concat(), remove_sources),
            kept
        );
    }

    #[test]
    fn only_our_packages_are_compiled_again() {
        let kept = ["verbatim-verbs-abi-0123", "serde-4567"];
        let ours = [
            "verbatim-verbs-0123",
            "verbatim-verbs-89ab",
            "verbatim-shm-cdef",
        ];
        let all = [kept.as_slice(), &ours].concat();
        assert_eq!(left_of(&all, remove_fingerprints), kept);
    }

    #[test]
    fn nothing_is_left_before_the_first_run() {
        let missing = Path::new("/no/such/folder");
        let packages = [package("verbatim-shm")];
        assert_eq!(remove_sources(missing, &packages).expect("runs"), 0);
        assert_eq!(remove_fingerprints(missing, &packages).expect("runs"), 0);
    }

    #[test]
    fn the_packages_for_other_projects_are_found() {
        let packages = packages().expect("cargo runs");
        let named = |name: &str| packages.iter().any(|package| package.name == name);
        assert!(named("verbatim-softnic"));
        assert!(!named("xtask"));
    }
}
