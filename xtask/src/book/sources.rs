//! Checks the prose rules in the doc comments of the listed crates.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::files::files;
use super::finding::Finding;
use super::page::Page;
use super::prose;

/// Folders whose doc comments are checked. A folder is added when its comments have been rewritten.
const FOLDERS: &[&str] = &[
    "crates/bench",
    "crates/btree",
    "crates/c-edge",
    "crates/cancellation",
    "crates/capture",
    "crates/chart",
    "crates/collective",
    "crates/corpus",
    "crates/dropin",
    "crates/dropin-exports",
    "crates/dropin-rdmacm",
    "crates/dropin-umad",
    "crates/faults",
    "crates/grpc-interop",
    "crates/kv",
    "crates/kv-resp",
    "crates/libibverbs",
    "crates/lincheck",
    "crates/link",
    "crates/liveness",
    "crates/misuse",
    "crates/nccl-net",
    "crates/nic-core",
    "crates/nicmodel",
    "crates/rdma-netlink",
    "crates/rdmacm",
    "crates/resp-rdma",
    "crates/roce",
    "crates/rpc",
    "crates/rsocket",
    "crates/sequencer",
    "crates/service",
    "crates/shm",
    "crates/simnic",
    "crates/sockets",
    "crates/sockets-preload",
    "crates/softnic",
    "crates/stream",
    "crates/subnet",
    "crates/tap",
    "crates/tap-preload",
    "crates/tensor",
    "crates/verbs",
    "crates/verbs-abi",
    "crates/verbs-conformance",
    "crates/view-preload",
    "python",
    "xtask",
];

/// Returns all violations of the rules in doc comments.
///
/// # Errors
/// Returns an error if a file cannot be read.
pub(super) fn check(root: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for folder in FOLDERS {
        for path in files(root, Path::new(folder), "rs")? {
            let text = std::fs::read_to_string(root.join(&path))
                .with_context(|| format!("cannot read {}", path.display()))?;
            check_file(&path, &text, &mut findings);
        }
    }
    Ok(findings)
}

fn check_file(path: &Path, text: &str, findings: &mut Vec<Finding>) {
    for (lines_above, comment) in comments(text) {
        let page = Page::parse(PathBuf::new(), &comment);
        for passage in &page.passages {
            prose::check_passage(path, lines_above, passage, findings);
        }
    }
}

/// Returns the doc comments of a Rust file, each with the number of lines above it in the file.
fn comments(text: &str) -> Vec<(usize, String)> {
    let mut comments: Vec<(usize, String)> = Vec::new();
    let mut is_open = false;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let Some(said) = line.strip_prefix("///").or(line.strip_prefix("//!")) else {
            is_open = false;
            continue;
        };
        if !is_open {
            comments.push((at, String::new()));
            is_open = true;
        }
        if let Some((_, comment)) = comments.last_mut() {
            *comment += said.strip_prefix(' ').unwrap_or(said);
            comment.push('\n');
        }
    }
    comments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doc_comments_are_checked_and_code_is_not() {
        let text = "/// Fine.\nfn a() {}\n// Who finds nothing for long rests, which nobody checks here.\n    /// What is its own\n    /// is the dress.\n";
        let mut findings = Vec::new();
        check_file(Path::new("a.rs"), text, &mut findings);
        assert!(!findings.is_empty());
        assert!(findings.iter().all(|finding| finding.line == 4));
    }
}
