//! `rdma(8)` of iproute2 on the software NIC. The tool queries the kernel by netlink, and a preloaded library
//! answers in place of the kernel.
//!
//! The library is preloaded only into `rdma`, because some programs, such as those with the address sanitizer,
//! refuse to start with a preloaded library. A folder in front of `PATH` contains a link `rdma` to this program.
//! Programs and scripts that run `rdma` by its name find this link. Under this name, this program runs the system's
//! `rdma` with the library.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::library;
use super::preload::{PRELOAD_VARIABLE, ld_preload_value};

/// The program's name in iproute2.
const RDMA_TOOL_NAME: &str = "rdma";

/// Returns true if a program is `rdma`, at any path.
pub(super) fn is_rdma_tool(program: &OsStr) -> bool {
    Path::new(program).file_name() == Some(OsStr::new(RDMA_TOOL_NAME))
}

/// Returns `PATH` with a folder in `libraries` in front, in which `rdma` is this program. Returns `None` if this
/// folder does not exist, or if `PATH` has no other `rdma`.
pub(super) fn path_with_own_rdma_first(libraries: &Path) -> Option<OsString> {
    let folder = libraries.join(library::TOOL_LINKS_FOLDER);
    let before = std::env::var_os("PATH")?;
    if !folder.join(RDMA_TOOL_NAME).exists() || first_foreign_rdma(&before).is_none() {
        return None;
    }
    let folders = std::env::split_paths(&before).filter(|other| *other != folder);
    std::env::join_paths(std::iter::once(folder.clone()).chain(folders)).ok()
}

/// Returns the first `rdma` in `path` that is not this program.
fn first_foreign_rdma(path: &OsStr) -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?.canonicalize().ok()?;
    std::env::split_paths(path)
        .map(|folder| folder.join(RDMA_TOOL_NAME))
        .find(|file| file.is_file() && file.canonicalize().is_ok_and(|file| file != own))
}

/// If this program was called `rdma`, replaces it by the system's `rdma` with the library. The function then returns
/// only with an error.
pub(crate) fn exec_system_rdma_if_called_rdma() -> Result<()> {
    let mut words = std::env::args_os();
    if !words.next().is_some_and(|name| is_rdma_tool(&name)) {
        return Ok(());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let file = first_foreign_rdma(&path).context(
        "there is no rdma in PATH but this one, which `verbatim run` made; install iproute2",
    )?;
    let mut command = Command::new(&file);
    command.arg0(RDMA_TOOL_NAME).args(words);
    command.env(
        PRELOAD_VARIABLE,
        ld_preload_value(&library::find_view_library()?)?,
    );
    let err: io::Error = command.exec();
    Err(err).with_context(|| format!("cannot run {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rdma_is_known_by_its_name() {
        for (program, expected) in [
            ("rdma", true),
            ("/usr/bin/rdma", true),
            ("rdma_server", false),
            ("", false),
        ] {
            assert_eq!(is_rdma_tool(OsStr::new(program)), expected, "{program}");
        }
    }

    #[test]
    fn this_program_is_not_taken_for_the_systems() {
        let (own, system) = (tempfile::tempdir(), tempfile::tempdir());
        let (own, system) = (own.expect("a folder"), system.expect("a folder"));
        let exe = std::env::current_exe().expect("a file");
        std::os::unix::fs::symlink(exe, own.path().join(RDMA_TOOL_NAME)).expect("a link");
        let path = |folders: &[&Path]| std::env::join_paths(folders).expect("a path");
        assert_eq!(first_foreign_rdma(&path(&[own.path()])), None);
        let file = system.path().join(RDMA_TOOL_NAME);
        std::fs::write(&file, "").expect("written");
        assert_eq!(
            first_foreign_rdma(&path(&[own.path(), system.path()])),
            Some(file)
        );
    }
}
