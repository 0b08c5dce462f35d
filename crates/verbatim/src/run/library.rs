//! Where the drop-in library is.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// What cargo calls the library, beside this program in the build's folder.
const BUILT: &str = "libverbatim_dropin.so";
/// What programs ask the loader for.
const NAMES: &[&str] = &["libibverbs.so.1"];
/// Where an installation has them, from the folder of this program.
const INSTALLED: &str = "../lib/verbatim";
/// Where a build gets links with these names, in the folder of this program.
const LINKS: &str = "dropin/lib";

/// The folder that holds `libibverbs.so.1`.
pub(super) fn find() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let folder = program
        .parent()
        .with_context(|| format!("{} lies in no folder", program.display()))?;
    find_from(folder)
}

fn find_from(folder: &Path) -> Result<PathBuf> {
    if folder.join(BUILT).exists() {
        let links = folder.join(LINKS);
        return link(&links)
            .map(|()| links.clone())
            .with_context(|| format!("cannot make links to {BUILT} in {}", links.display()));
    }
    let installed = folder.join(INSTALLED);
    if NAMES.iter().all(|name| installed.join(name).exists()) {
        return Ok(installed);
    }
    bail!(
        "the library that programs are to load is neither {} nor in {}; build it: \
         cargo build --release, or cargo xtask dropin to build and install",
        folder.join(BUILT).display(),
        installed.display()
    )
}

/// Makes `folder` hold links to the library, under the names that programs ask for.
fn link(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let target = Path::new("../..").join(BUILT);
    for name in NAMES {
        let link = folder.join(name);
        if std::fs::read_link(&link).is_ok_and(|to| to == target) {
            continue;
        }
        // Several may be started at once: each makes a link of its own and puts it in place.
        let own = folder.join(format!(".{name}.{}", std::process::id()));
        symlink(&target, &own)?;
        std::fs::rename(&own, &link)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_gets_its_links_once() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(find_from(folder.path()).is_err(), "there is nothing yet");
        let library = folder.path().join(BUILT);
        std::fs::write(&library, "library").expect("written");
        for _ in 0..2 {
            let found = find_from(folder.path()).expect("the library is there");
            for name in NAMES {
                let text = std::fs::read_to_string(found.join(name)).expect("a link to it");
                assert_eq!(text, "library");
            }
        }
    }

    #[test]
    fn an_installation_is_found_from_its_program() {
        let root = tempfile::tempdir().expect("a folder");
        let (bin, lib) = (root.path().join("bin"), root.path().join("lib/verbatim"));
        std::fs::create_dir_all(&bin).expect("made");
        std::fs::create_dir_all(&lib).expect("made");
        for name in NAMES {
            std::fs::write(lib.join(name), "library").expect("written");
        }
        assert!(find_from(&bin).expect("found").join(NAMES[0]).exists());
    }

    #[test]
    fn a_missing_library_names_the_command() {
        let folder = tempfile::tempdir().expect("a folder");
        let message = format!("{:#}", find_from(folder.path()).expect_err("nothing there"));
        assert!(message.contains("cargo build --release"), "{message}");
    }
}
