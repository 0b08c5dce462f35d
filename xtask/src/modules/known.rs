//! The list of accepted import cycles, which may only shrink.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::circles::ImportCycle;

/// The path of the list, relative to the workspace.
pub(super) const FILE: &str = "xtask/known-circles.toml";

const HEAD: &str = "\
# Circles of imports that `cargo xtask modules` still accepts. The list may only shrink: the check fails on an entry
# whose files are in no circle any more, and `cargo xtask modules --prune` removes those.
";

/// The accepted cycles, each given by its files.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AcceptedCycles {
    #[serde(default, rename = "circle")]
    circles: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    files: BTreeSet<PathBuf>,
}

impl AcceptedCycles {
    /// Reads the list of accepted cycles of `workspace`; a missing file is an empty list.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or parsed.
    pub(super) fn load(workspace: &Path) -> Result<AcceptedCycles> {
        let path = workspace.join(FILE);
        if !path.exists() {
            return Ok(AcceptedCycles::default());
        }
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {FILE}"))?;
        toml::from_str(&text).with_context(|| format!("{FILE} is not valid"))
    }

    /// Writes the list of accepted cycles of `workspace`; an empty list removes the file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub(super) fn store(&self, workspace: &Path) -> Result<()> {
        let path = workspace.join(FILE);
        let written = if self.circles.is_empty() {
            if !path.exists() {
                return Ok(());
            }
            std::fs::remove_file(&path)
        } else {
            std::fs::write(&path, format!("{HEAD}\n{}", toml::to_string_pretty(self)?))
        };
        written.with_context(|| format!("cannot write {FILE}"))
    }

    /// Returns true if all files of `circle` are in one accepted cycle.
    pub(super) fn has(&self, circle: &ImportCycle) -> bool {
        let mut circles = self.circles.iter();
        circles.any(|known| circle.files.is_subset(&known.files))
    }

    /// Returns the files of accepted cycles that are in no found cycle.
    pub(super) fn stale(&self, found: &[ImportCycle]) -> Vec<PathBuf> {
        let listed = self.circles.iter().flat_map(|known| &known.files);
        let gone = |file: &&PathBuf| !found.iter().any(|circle| circle.files.contains(*file));
        listed.filter(gone).cloned().collect()
    }

    /// Returns the list of accepted cycles, reduced to the found cycles: each entry keeps the files
    /// that are still in a cycle.
    pub(super) fn pruned(&self, found: &[ImportCycle]) -> AcceptedCycles {
        let mut circles = Vec::new();
        for known in &self.circles {
            let left = found
                .iter()
                .filter(|circle| !circle.files.is_disjoint(&known.files));
            for circle in left {
                // A file that joined a cycle is not added, so the cycle is reported as new.
                let files = circle.files.intersection(&known.files).cloned().collect();
                circles.push(Entry { files });
            }
        }
        AcceptedCycles { circles }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &str) -> BTreeSet<PathBuf> {
        names.split(' ').map(PathBuf::from).collect()
    }

    fn circle(names: &str) -> ImportCycle {
        ImportCycle {
            files: files(names),
            imports: Vec::new(),
        }
    }

    fn known(circles: &[&str]) -> AcceptedCycles {
        let entry = |names: &&str| Entry {
            files: files(names),
        };
        AcceptedCycles {
            circles: circles.iter().map(entry).collect(),
        }
    }

    #[test]
    fn a_known_circle_may_lose_files_and_gain_none() {
        let known = known(&["a b c", "d e"]);
        assert!(known.has(&circle("a b c")));
        assert!(known.has(&circle("a c")));
        assert!(!known.has(&circle("a d")), "two circles became one");
        assert!(!known.has(&circle("a b x")));
        assert!(!known.has(&circle("x y")));
    }

    #[test]
    fn what_is_gone_is_stale_until_it_is_pruned() {
        let before = known(&["a b c", "d e"]);
        let found = [circle("a b"), circle("x y")];
        assert_eq!(before.stale(&found), ["c", "d", "e"].map(PathBuf::from));
        let pruned = before.pruned(&found);
        assert_eq!(pruned, known(&["a b"]), "a new circle is not added");
        assert!(pruned.stale(&found).is_empty());
        let grown = [circle("a b c x"), circle("d e")];
        assert_eq!(before.pruned(&grown), before, "what it was is still listed");
    }

    #[test]
    fn the_list_survives_its_file() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("xtask")).unwrap();
        assert_eq!(
            AcceptedCycles::load(folder.path()).unwrap(),
            AcceptedCycles::default()
        );
        let list = known(&["a b", "c d"]);
        list.store(folder.path()).unwrap();
        assert_eq!(AcceptedCycles::load(folder.path()).unwrap(), list);
        AcceptedCycles::default().store(folder.path()).unwrap();
        assert!(!folder.path().join(FILE).exists());
    }
}
