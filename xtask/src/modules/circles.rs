//! Finds files that import from each other, directly or through other files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::imports::Imports;

/// A cycle of imports: files that all reach each other by imports, and the imports between them.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct ImportCycle {
    pub(super) files: BTreeSet<PathBuf>,
    pub(super) imports: Vec<Import>,
}

/// An import of one file from another.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Import {
    pub(super) from: PathBuf,
    pub(super) to: PathBuf,
    pub(super) names: BTreeSet<String>,
}

/// Returns the import cycles of `imports`, ordered by their first files.
pub(super) fn find_import_cycles(imports: &Imports) -> Vec<ImportCycle> {
    let mut next: BTreeMap<&Path, Vec<&Path>> = BTreeMap::new();
    for (from, to) in imports.keys() {
        next.entry(from).or_default().push(to);
    }
    let reached: BTreeMap<&Path, BTreeSet<&Path>> = next
        .keys()
        .map(|&file| (file, reached_from(file, &next)))
        .collect();
    let reaches =
        |from: &Path, to: &Path| reached.get(from).is_some_and(|files| files.contains(to));
    let mut circles: Vec<ImportCycle> = Vec::new();
    for &file in next.keys() {
        let known = circles.iter().any(|circle| circle.files.contains(file));
        if known || !reaches(file, file) {
            continue;
        }
        let others = reached[file].iter().filter(|other| reaches(other, file));
        let files: BTreeSet<PathBuf> = others.map(|other| other.to_path_buf()).collect();
        let within = imports
            .iter()
            .filter(|((from, to), _)| files.contains(from) && files.contains(to));
        let within = within.map(|((from, to), names)| Import {
            from: from.clone(),
            to: to.clone(),
            names: names.clone(),
        });
        circles.push(ImportCycle {
            imports: within.collect(),
            files,
        });
    }
    circles
}

/// Returns the files that `file` imports from, directly or through other files.
fn reached_from<'a>(
    file: &'a Path,
    next: &BTreeMap<&'a Path, Vec<&'a Path>>,
) -> BTreeSet<&'a Path> {
    let mut reached = BTreeSet::new();
    let mut left = vec![file];
    while let Some(file) = left.pop() {
        let files = next.get(file).into_iter().flatten();
        left.extend(files.filter(|file| reached.insert(**file)));
    }
    reached
}
