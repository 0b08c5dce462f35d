//! `cargo xtask book` builds the book of `docs/`, and checks the links and the prose of all documents.
//!
//! The book is the folder `docs/` itself: a page has the same path in the repository and in the book, so links work in
//! both.

mod files;
mod finding;
mod links;
mod page;
mod prose;
mod sources;
mod variables;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use mdbook_driver::MDBook;

use crate::paths::{target_dir, workspace};
use files::files;
use finding::Finding;
use links::BOOK;
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

/// Runs `cargo xtask book`; returns false if a document breaks a rule.
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

/// Returns all violations of the rules, in documents and doc comments.
fn findings(root: &Path) -> Result<Vec<Finding>> {
    let pages = pages(root)?;
    let mut findings = links::check(root, &pages);
    findings.extend(links::orphans(&pages));
    findings.extend(prose::check_documents(&pages));
    findings.extend(sources::check(root)?);
    findings.extend(variables::check(root)?);
    Ok(findings)
}

/// Returns all documents to check, sorted by path.
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

/// Builds the book; returns the folder of the built book.
fn build(root: &Path) -> Result<PathBuf> {
    let mut book = MDBook::load(root.join(BOOK)).context("cannot read docs/book.toml")?;
    let out = target_dir().join("book");
    book.config.build.build_dir.clone_from(&out);
    book.build().context("cannot build the book")?;
    Ok(out)
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
