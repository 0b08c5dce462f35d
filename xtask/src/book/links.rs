//! Checks the links between documents, in the repository and in the book.

use std::path::{Component, Path, PathBuf};

use super::finding::Finding;
use super::page::{Link, Page};

/// The folder of the book, from the root of the repository.
pub(super) const BOOK: &str = "docs";

/// The book's table of contents: its links decide which pages are in the book.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Returns the links of `pages` that have no target or no text, or that lead out of the book.
pub(super) fn check(root: &Path, pages: &[Page]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for page in pages {
        for link in &page.links {
            if let Err(what) = check_link(root, pages, page, link) {
                findings.push(Finding {
                    path: page.path.clone(),
                    line: link.line,
                    what,
                });
            }
        }
    }
    findings
}

/// Returns the pages of the book that are missing from its table of contents.
pub(super) fn orphans(pages: &[Page]) -> Vec<Finding> {
    let summary = pages.iter().find(|page| page.path == Path::new(SUMMARY));
    let named: Vec<PathBuf> = summary.map_or_else(Vec::new, |summary| {
        let links = summary.links.iter();
        links
            .filter_map(|link| resolve(&summary.path, &link.target))
            .collect()
    });
    let orphans = pages.iter().filter(|page| {
        page.path.starts_with(BOOK)
            && page.path != Path::new(SUMMARY)
            && !named.contains(&page.path)
    });
    let finding = |page: &Page| Finding {
        path: page.path.clone(),
        line: 1,
        what: format!("{SUMMARY} does not name this page"),
    };
    orphans.map(finding).collect()
}

fn check_link(root: &Path, pages: &[Page], page: &Page, link: &Link) -> Result<(), String> {
    let target = &link.target;
    if link.text.trim().is_empty() {
        return Err(format!("the link to {target} has no text"));
    }
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(());
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() {
        page.path.clone()
    } else {
        resolve(&page.path, file).ok_or_else(|| format!("{target} leads out of the repository"))?
    };
    if page.path.starts_with(BOOK) && !path.starts_with(BOOK) {
        return Err(format!(
            "{target} is not in the book: write the path as code, without a link"
        ));
    }
    if !root.join(&path).exists() {
        return Err(format!("{target}: there is no {}", path.display()));
    }
    if anchor.is_empty() {
        return Ok(());
    }
    match pages.iter().find(|page| page.path == path) {
        Some(page) if !page.anchors.contains(anchor) => {
            Err(format!("{} has no heading #{anchor}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Returns the path in the repository of a link's `target` in the document `from`; `None` for a
/// path outside.
fn resolve(from: &Path, target: &str) -> Option<PathBuf> {
    let mut path = from.parent()?.to_path_buf();
    for component in Path::new(target).components() {
        match component {
            Component::ParentDir => {
                if !path.pop() {
                    return None;
                }
            }
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(pages: &[Page]) -> Vec<String> {
        let root = crate::paths::workspace();
        let findings = check(&root, pages);
        findings.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn links_that_lead_somewhere_are_fine() {
        let text =
            "# Top\n\n[a](#top) [b](../docs/why.md) [c](https://example.org/#x) [d](figures)";
        let pages = [Page::parse("docs/kv.md".into(), text)];
        assert_eq!(whats(&pages), [""; 0]);
        let pages = [Page::parse("README.md".into(), "[a](Cargo.toml)")];
        assert_eq!(whats(&pages), [""; 0]);
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        for (target, what) in [
            ("[a](no.md)", "there is no docs/no.md"),
            ("[a](#b)", "docs/kv.md has no heading #b"),
            ("[a](../README.md)", "is not in the book"),
            ("[a](../../x)", "leads out of the repository"),
            ("[](why.md)", "has no text"),
        ] {
            let pages = [Page::parse("docs/kv.md".into(), target)];
            let found = whats(&pages);
            assert_eq!(found.len(), 1, "{target}");
            assert!(found[0].contains(what), "{target}: {found:?}");
        }
    }

    #[test]
    fn pages_that_nothing_names_are_found() {
        let summary = Page::parse(SUMMARY.into(), "[a](a.md)");
        let pages = ["docs/a.md", "docs/b.md", "README.md"].map(|p| Page::parse(p.into(), ""));
        let pages: Vec<_> = pages.into_iter().chain([summary]).collect();
        let found: Vec<_> = orphans(&pages).into_iter().map(|f| f.path).collect();
        assert_eq!(found, [PathBuf::from("docs/b.md")]);
    }
}
