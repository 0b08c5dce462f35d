//! Errors of joining a fabric.

use std::io;
use std::path::{Path, PathBuf};

use super::layout::{LAYOUT_VERSION, MAX_PROCS};

/// The reason why this process cannot join a fabric.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// A system call on the fabric's folder or files failed.
    #[error("cannot use the fabric's folder {path}: {what}: {source}")]
    Io {
        /// The folder.
        path: PathBuf,
        /// The operation that failed.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The folder belongs to another user, or other users can enter it.
    #[error(
        "the fabric's folder {path} {why}; remove it, or choose another place with VERBATIM_FABRIC_DIR"
    )]
    FolderNotPrivate {
        /// The folder.
        path: PathBuf,
        /// The reason why the folder is refused.
        why: String,
    },
    /// Processes of another version are using the folder.
    #[error(
        "the fabric in {path} is in use by a different version of Verbatim (layout {found}, this one has \
         layout {LAYOUT_VERSION}); stop its processes, or choose another place with VERBATIM_FABRIC_DIR"
    )]
    OtherLayoutVersion {
        /// The folder.
        path: PathBuf,
        /// The layout version in the folder's directory.
        found: u64,
    },
    /// All process slots are taken.
    #[error("the fabric in {path} has its {} processes already", MAX_PROCS - 1)]
    NoFreeProcessSlot {
        /// The folder.
        path: PathBuf,
    },
    /// `VERBATIM_FABRIC_DIR` is not an absolute path.
    #[error("VERBATIM_FABRIC_DIR is {0:?}, which is not an absolute path")]
    FabricDirNotAbsolute(PathBuf),
    /// `VERBATIM_FABRIC` contains characters that a folder's name must not have, or is too long.
    #[error("VERBATIM_FABRIC is {0:?}, which is not 1 to 64 letters, digits or '_'")]
    InvalidFabricName(std::ffi::OsString),
}

/// Returns the error of a system call on the fabric's folder `dir`, or on a file in it.
pub(super) fn io_error(dir: &Path, what: &'static str) -> impl FnOnce(io::Error) -> FabricError {
    move |source| FabricError::Io {
        path: dir.to_owned(),
        what,
        source,
    }
}
