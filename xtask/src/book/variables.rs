//! Checks that the reference of environment variables lists exactly the variables in the code.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use regex::Regex;

use super::files::files;
use super::finding::Finding;

const REFERENCE: &str = "docs/reference/environment.md";

/// The folders with code that names environment variables, and the extensions of its files.
const CODE_FOLDERS_AND_EXTENSIONS: &[(&str, &str)] = &[
    ("crates", "rs"),
    ("crates", "c"),
    ("python/package", "py"),
    ("xtask/src", "rs"),
];

/// Variables that only one test program reads; comments there describe them.
const VARIABLES_OF_ONE_TEST: &[&str] = &[
    "VERBATIM_KILLS",
    "VERBATIM_SEED",
    "VERBATIM_TEST_ANSWER_MS",
    "VERBATIM_TEST_SENDER",
];

/// Returns the variables that the reference lacks, and the variables that the code lacks.
///
/// # Errors
/// Returns an error if a file cannot be read.
pub(super) fn check(root: &Path) -> Result<Vec<Finding>> {
    let mut used: BTreeMap<String, (PathBuf, usize)> = BTreeMap::new();
    for (folder, extension) in CODE_FOLDERS_AND_EXTENSIONS {
        for path in files(root, Path::new(folder), extension)? {
            for (line, name) in find_variable_names(&read(root, &path)?)? {
                used.entry(name).or_insert_with(|| (path.clone(), line));
            }
        }
    }
    used.retain(|name, _| !VARIABLES_OF_ONE_TEST.contains(&name.as_str()));
    let reference = PathBuf::from(REFERENCE);
    let described = find_variable_names(&read(root, &reference)?)?;
    Ok(undocumented_and_unused_variables(
        &used, &reference, &described,
    ))
}

fn undocumented_and_unused_variables(
    used: &BTreeMap<String, (PathBuf, usize)>,
    reference: &Path,
    described: &[(usize, String)],
) -> Vec<Finding> {
    let is_missing = |name: &String| !described.iter().any(|(_, had)| had == name);
    let missing = used.iter().filter(|(name, _)| is_missing(name));
    let missing = missing.map(|(name, (path, line))| Finding {
        path: path.clone(),
        line: *line,
        what: format!("{} does not describe {name}", reference.display()),
    });
    let stale = described
        .iter()
        .filter(|(_, name)| !used.contains_key(name));
    let stale = stale.map(|(line, name)| Finding {
        path: reference.to_path_buf(),
        line: *line,
        what: format!("no code uses {name}"),
    });
    missing.chain(stale).collect()
}

fn read(root: &Path, path: &Path) -> Result<String> {
    let name = path.display();
    std::fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {name}"))
}

/// Returns the names of the environment variables in a text, with their line numbers.
fn find_variable_names(text: &str) -> Result<Vec<(usize, String)>> {
    let name = Regex::new(r"\bVERBATIM_[A-Z][A-Z_]*[A-Z]\b")?;
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let names = name.find_iter(line);
        found.extend(names.map(|name| (at + 1, name.as_str().to_owned())));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_found() {
        let code = find_variable_names("let a = \"VERBATIM_PATH\"; // VERBATIM_WHY\n").unwrap();
        let code = code
            .into_iter()
            .map(|(line, name)| (name, ("a.rs".into(), line)));
        let used: BTreeMap<String, (PathBuf, usize)> = code.collect();
        let described =
            find_variable_names("| `VERBATIM_WHY` |\n| `VERBATIM_LOG`, VERBATIM_x |\n").unwrap();
        let found = undocumented_and_unused_variables(&used, Path::new("r.md"), &described);
        let found: Vec<_> = found.iter().map(ToString::to_string).collect();
        let expected = [
            "a.rs:1: r.md does not describe VERBATIM_PATH",
            "r.md:2: no code uses VERBATIM_LOG",
        ];
        assert_eq!(found, expected);
    }
}
