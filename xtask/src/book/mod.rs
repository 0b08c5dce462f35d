//! `cargo xtask book` builds the book of `docs/`, and checks the links and the prose of all documents.
//!
//! The book is `docs/` itself: every page has the same path in the repository and in the book, so that links work in both.

mod links;
mod page;
mod prose;
mod sources;
mod variables;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use mdbook_driver::MDBook;

use crate::paths::{target_dir, workspace};
use page::Page;

/// Arguments of `cargo xtask book`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Check links and prose, and build nothing
    #[arg(long)]
    check: bool,
}

/// Documents outside `docs/` whose links are checked.
const OTHER_DOCUMENTS: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "conformance/README.md",
];

/// The folder of the book, from the root of the repository.
const BOOK: &str = "docs";

/// The table of contents: its links decide which pages are in the book.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Runs `cargo xtask book`; false when a document breaks a rule.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let root = workspace();
    let findings = findings(&root)?;
    for finding in &findings {
        eprintln!("{finding}");
    }
    if !findings.is_empty() {
        eprintln!("{} findings; docs/writing.md has the rules", findings.len());
        return Ok(false);
    }
    if !args.check {
        let out = build(&root)?;
        println!("open {}", out.join("index.html").display());
    }
    Ok(true)
}

/// Every place that breaks a rule.
fn findings(root: &Path) -> Result<Vec<Finding>> {
    let pages = pages(root)?;
    let mut findings = links::check(root, &pages);
    findings.extend(links::orphans(&pages));
    findings.extend(prose::check_documents(&pages));
    findings.extend(sources::check(root)?);
    findings.extend(variables::check(root)?);
    Ok(findings)
}

/// All documents that are checked, by path.
fn pages(root: &Path) -> Result<Vec<Page>> {
    let mut paths: Vec<PathBuf> = OTHER_DOCUMENTS.iter().map(PathBuf::from).collect();
    paths.extend(files(root, Path::new(BOOK), "md")?);
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(root.join(&path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Page::parse(path, &text))
    };
    paths.into_iter().map(read).collect()
}

/// The files below `folder` whose names end in `.extension`, in order; paths are relative to `root`.
fn files(root: &Path, folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(root.join(&folder))
            .with_context(|| format!("cannot read {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|had| had == extension) {
                found.push(path);
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Builds the book; the folder that it is in.
fn build(root: &Path) -> Result<PathBuf> {
    let mut book = MDBook::load(root.join(BOOK)).context("cannot read docs/book.toml")?;
    let out = target_dir().join("book");
    book.config.build.build_dir.clone_from(&out);
    book.build().context("cannot build the book")?;
    Ok(out)
}

/// A rule that a document breaks.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: PathBuf,
    /// From 1.
    line: usize,
    what: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_keep_the_rules() {
        let root = workspace();
        let findings = findings(&root).unwrap();
        let findings: Vec<_> = findings.iter().map(ToString::to_string).collect();
        assert_eq!(findings, [""; 0], "docs/writing.md has the rules");
    }
}
