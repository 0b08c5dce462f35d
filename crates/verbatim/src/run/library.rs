//! The search for the drop-in libraries.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::process::geteuid;

/// For each library, the file that cargo builds in this program's folder, and the name by which programs load the
/// library.
const BUILT_AND_LOADED_NAMES: [(&str, &str); 3] = [
    ("libverbatim_dropin.so", "libibverbs.so.1"),
    ("libverbatim_dropin_rdmacm.so", "librdmacm.so.1"),
    ("libverbatim_dropin_umad.so", "libibumad.so.3"),
];
/// The library with the tap for programs on the machine's own libibverbs.
const TAP_LIBRARY: &str = "libverbatim_tap.so";
/// The library by which programs of users without CAP_SYS_ADMIN find the device's files.
const VIEW_LIBRARY: &str = "libverbatim_view.so";
/// The library that carries TCP connections over RDMA.
const SOCKETS_LIBRARY: &str = "libverbatim_sockets.so";
/// Folder beside the libraries with links to this program under other names, see [`super::rdma_tool`].
pub(super) const TOOL_LINKS_FOLDER: &str = "bin";
/// Name of this program in that folder.
const TOOL_LINK_NAME: &str = "rdma";
/// File of this program beside the libraries of a build.
const PROGRAM_FILE_NAME: &str = "verbatim";
/// Folder of the installed libraries, relative to the folder of this program.
const INSTALLED_LIBRARIES_FOLDER: &str = "../lib/verbatim";
/// Folder for links with the libraries' names, relative to this program's folder in a build.
const LIBRARY_LINKS_FOLDER: &str = "dropin/lib";

/// Returns the folder that holds `libibverbs.so.1`, `librdmacm.so.1` and `libibumad.so.3`.
pub(super) fn find_dropin_folder() -> Result<PathBuf> {
    dropin_folder_near(&own_folder()?)
}

/// Returns the library that puts the tap in front of the machine's own libibverbs.
pub(super) fn find_tap_library() -> Result<PathBuf> {
    find_preload_library(&own_folder()?, TAP_LIBRARY)
        .context("the library that counts verbs is not there")
}

/// Returns the library that shows the files of the device.
pub(super) fn find_view_library() -> Result<PathBuf> {
    find_preload_library(&own_folder()?, VIEW_LIBRARY)
        .context("the library that shows files is not there")
}

/// Returns the library that carries TCP connections over RDMA.
pub(crate) fn find_sockets_library() -> Result<PathBuf> {
    find_preload_library(&own_folder()?, SOCKETS_LIBRARY)
        .context("the library that carries connections is not there")
}

/// Returns the folder of this program.
fn own_folder() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let folder = program.parent();
    let folder = folder.with_context(|| format!("{} lies in no folder", program.display()))?;
    Ok(folder.to_owned())
}

/// Finds a library to preload, in a build or an installation.
fn find_preload_library(folder: &Path, name: &str) -> Result<PathBuf> {
    let places = [
        folder.join(name),
        folder.join(INSTALLED_LIBRARIES_FOLDER).join(name),
    ];
    let found = places.iter().find(|place| place.exists());
    found.cloned().with_context(|| {
        let [built, installed] = &places;
        format!(
            "it is neither {} nor {}; build it: cargo build --release, or cargo xtask dropin to build and install",
            built.display(),
            installed.display()
        )
    })
}

fn dropin_folder_near(folder: &Path) -> Result<PathBuf> {
    if BUILT_AND_LOADED_NAMES
        .iter()
        .all(|(built, _)| folder.join(built).exists())
    {
        return create_folder_of_links(folder, candidate_cache_folders);
    }
    let installed = folder.join(INSTALLED_LIBRARIES_FOLDER);
    if BUILT_AND_LOADED_NAMES
        .iter()
        .all(|(_, name)| installed.join(name).exists())
    {
        return Ok(installed);
    }
    let [(first, _), (second, _), (third, _)] = BUILT_AND_LOADED_NAMES;
    bail!(
        "the libraries that programs are to load are neither {}, {second} and {third} nor in {}; build them: \
         cargo build --release, or cargo xtask dropin to build and install",
        folder.join(first).display(),
        installed.display()
    )
}

/// Returns the folders for files that this user can make again, the best folder first.
fn candidate_cache_folders() -> Vec<PathBuf> {
    // "If an implementation encounters a relative path [...] it should consider the path invalid and ignore it" (XDG
    // Base Directory Specification). An empty path is ignored, too.
    let set = |name| {
        let set = std::env::var_os(name).map(PathBuf::from);
        set.filter(|folder| folder.is_absolute())
    };
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    let home = cache.map(|cache| cache.join("verbatim"));
    // A system user, such as nobody, has no home directory: use shared memory, beside the fabrics.
    home.into_iter()
        .chain(find_or_create_private_shm_folder())
        .collect()
}

/// Returns a folder in shared memory that only this user can access; creates it if it does not exist.
fn find_or_create_private_shm_folder() -> Option<PathBuf> {
    let user = geteuid().as_raw();
    let folder = PathBuf::from(format!("/dev/shm/verbatim-{user}.libraries"));
    let made = DirBuilder::new().mode(0o700).create(&folder);
    match made {
        Err(err) if err.kind() != io::ErrorKind::AlreadyExists => return None,
        _ => {}
    }
    // Programs load the files of this folder: another user must not be able to write there.
    let found = std::fs::symlink_metadata(&folder).ok()?;
    (found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0).then_some(folder)
}

/// Returns a folder of links to the libraries in `build`. The folder lies in `build`, or in one of `caches` if this
/// user may not write to `build`.
fn create_folder_of_links(build: &Path, caches: impl FnOnce() -> Vec<PathBuf>) -> Result<PathBuf> {
    let links = build.join(LIBRARY_LINKS_FOLDER);
    let made = create_links_in(&links, Path::new("../.."));
    if made.is_ok() {
        return Ok(links);
    }
    let place = build.strip_prefix("/").unwrap_or(build);
    for cache in caches() {
        let own = cache.join("dropin").join(place);
        if create_links_in(&own, build).is_ok() {
            return Ok(own);
        }
    }
    made.map(|()| links.clone())
        .with_context(|| format!("cannot make links to the libraries in {}", links.display()))
}

/// Creates links in `folder` to the `libraries`, under the names by which programs load them, and to this program.
fn create_links_in(folder: &Path, libraries: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for (built, name) in BUILT_AND_LOADED_NAMES {
        link_to(&libraries.join(built), &folder.join(name))?;
    }
    let tools = folder.join(TOOL_LINKS_FOLDER);
    std::fs::create_dir_all(&tools)?;
    // A relative path is relative to the folder of the libraries.
    link_to(
        &Path::new("..").join(libraries).join(PROGRAM_FILE_NAME),
        &tools.join(TOOL_LINK_NAME),
    )
}

/// Makes `link` a symbolic link to `target`.
fn link_to(target: &Path, link: &Path) -> io::Result<()> {
    if std::fs::read_link(link).is_ok_and(|to| to == target) {
        return Ok(());
    }
    // Several processes may start at once: each creates its own link and renames it into place.
    let own = link.with_extension(format!("{}.new", std::process::id()));
    symlink(target, &own)?;
    std::fs::rename(&own, link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_gets_its_links_once() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(
            dropin_folder_near(folder.path()).is_err(),
            "there is nothing yet"
        );
        for (built, _) in BUILT_AND_LOADED_NAMES {
            std::fs::write(folder.path().join(built), built).expect("written");
        }
        for _ in 0..2 {
            let found = dropin_folder_near(folder.path()).expect("the libraries are there");
            for (built, name) in BUILT_AND_LOADED_NAMES {
                let text = std::fs::read_to_string(found.join(name)).expect("a link to it");
                assert_eq!(text, built);
            }
        }
    }

    #[test]
    fn a_build_of_somebody_else_gets_its_links_elsewhere() {
        let (build, cache) = (tempfile::tempdir(), tempfile::tempdir());
        let (build, cache) = (build.expect("a folder"), cache.expect("a folder"));
        for (built, _) in BUILT_AND_LOADED_NAMES {
            std::fs::write(build.path().join(built), built).expect("written");
        }
        // A file in place of the folder prevents that the folder is created, even by root.
        std::fs::write(build.path().join("dropin"), "in the way").expect("written");
        assert!(create_folder_of_links(build.path(), Vec::new).is_err());
        let caches = || vec![PathBuf::from("/dev/null"), cache.path().to_owned()];
        for _ in 0..2 {
            let found = create_folder_of_links(build.path(), caches).expect("links");
            assert!(found.starts_with(cache.path()), "{}", found.display());
            for (built, name) in BUILT_AND_LOADED_NAMES {
                let text = std::fs::read_to_string(found.join(name)).expect("a link to it");
                assert_eq!(text, built);
            }
        }
    }

    #[test]
    fn an_installation_is_found_from_its_program() {
        let root = tempfile::tempdir().expect("a folder");
        let (bin, lib) = (root.path().join("bin"), root.path().join("lib/verbatim"));
        std::fs::create_dir_all(&bin).expect("made");
        std::fs::create_dir_all(&lib).expect("made");
        for (_, name) in BUILT_AND_LOADED_NAMES {
            assert!(dropin_folder_near(&bin).is_err(), "not all of it is there");
            std::fs::write(lib.join(name), "library").expect("written");
        }
        assert!(
            dropin_folder_near(&bin)
                .expect("found")
                .join(BUILT_AND_LOADED_NAMES[0].1)
                .exists()
        );
    }

    #[test]
    fn the_tap_is_found_in_a_build_and_in_an_installation() {
        let root = tempfile::tempdir().expect("a folder");
        let (bin, lib) = (root.path().join("bin"), root.path().join("lib/verbatim"));
        for folder in [&bin, &lib] {
            std::fs::create_dir_all(folder).expect("made");
        }
        let missing = find_preload_library(&bin, TAP_LIBRARY).expect_err("nothing there");
        assert!(missing.to_string().contains("cargo build"), "{missing}");
        for folder in [&lib, &bin] {
            std::fs::write(folder.join(TAP_LIBRARY), "library").expect("written");
            let found = find_preload_library(&bin, TAP_LIBRARY)
                .expect("found")
                .canonicalize();
            let there = folder.join(TAP_LIBRARY).canonicalize();
            assert_eq!(found.expect("there"), there.expect("there"));
        }
    }

    #[test]
    fn a_missing_library_names_the_command() {
        let folder = tempfile::tempdir().expect("a folder");
        let message = format!(
            "{:#}",
            dropin_folder_near(folder.path()).expect_err("nothing there")
        );
        assert!(message.contains("cargo build --release"), "{message}");
    }
}
