//! Lists of files of the repository.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Returns the files below `folder` whose names end in `.extension`, sorted; paths are relative to
/// `root`.
pub(super) fn files(root: &Path, folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
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
