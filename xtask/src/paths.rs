//! The folders of the repository and of the build.

use std::path::{Path, PathBuf};

/// Returns the folder in which cargo builds.
pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace().join("target"), |dir| workspace().join(dir))
}

/// Returns the folder of the workspace: the parent of this crate's folder.
pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace")
        .to_path_buf()
}
