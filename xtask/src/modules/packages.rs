//! The packages of the workspace, as `cargo metadata` lists them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::cargo_command::cargo;

/// The packages of the workspace, and the layers that the workspace declares.
#[derive(Debug, Deserialize)]
pub(super) struct Workspace {
    pub(super) packages: Vec<Package>,
    metadata: Option<Metadata>,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    layers: Option<Vec<Vec<String>>>,
}

/// A package of the workspace.
#[derive(Debug, Deserialize)]
pub(super) struct Package {
    name: String,
    targets: Vec<Target>,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    /// Kind of the dependency: `None` for a normal dependency, otherwise `dev` or `build`.
    kind: Option<String>,
    /// Folder of a dependency that is not from a registry.
    path: Option<PathBuf>,
}

impl Workspace {
    /// Returns the packages of the workspace in `folder`, as cargo lists them.
    ///
    /// # Errors
    /// Returns an error if cargo fails.
    pub(super) fn load(folder: &Path) -> Result<Workspace> {
        let out = cargo()
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .current_dir(folder)
            .output()
            .context("cannot start cargo")?;
        let said = String::from_utf8_lossy(&out.stderr);
        ensure!(out.status.success(), "cargo metadata failed: {said}");
        serde_json::from_slice(&out.stdout).context("cargo metadata printed something else")
    }

    /// Returns `workspace.metadata.layers` of the workspace's `Cargo.toml`; the last layer is the
    /// lowest.
    pub(super) fn layers(&self) -> &[Vec<String>] {
        let layers = self.metadata.as_ref().and_then(|data| data.layers.as_ref());
        layers.map_or(&[], Vec::as_slice)
    }
}

/// Returns a package's name in the layers, without the prefix of its name in a registry.
fn short(name: &str) -> &str {
    name.strip_prefix("verbatim-").unwrap_or(name)
}

impl Package {
    /// Returns the package's name in the layers.
    pub(super) fn name(&self) -> &str {
        short(&self.name)
    }

    /// Returns the root files of the package's libraries and programs, without tests.
    pub(super) fn roots(&self) -> impl Iterator<Item = &Path> {
        let others = ["test", "bench", "example", "custom-build"];
        let product = move |target: &&Target| !target.kind.iter().any(|k| others.contains(&&**k));
        let targets = self.targets.iter().filter(product);
        targets.map(|target| target.src_path.as_path())
    }

    /// Returns the names of the packages in the workspace on which the package's library and
    /// programs depend.
    pub(super) fn workspace_dependencies(&self) -> impl Iterator<Item = &str> {
        let ours = |d: &&Dependency| d.path.is_some() && d.kind.as_deref() != Some("dev");
        let needed = self.dependencies.iter().filter(ours);
        needed.map(|dependency| short(&dependency.name))
    }
}
