//! The files of the [`view`](super::view) as ordinary files, for users who cannot create a namespace. A preloaded
//! library (`crates/view-preload`) redirects a program's accesses to the device's files.
//!
//! The folder belongs to the user, and its name is a hash of the files. Later programs therefore find the same
//! folder, and no program needs to remove it.

use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::process::geteuid;
use softnic::{SysfsFile, uverbs_names};

use super::view::write_file;

/// Environment variable that names the folder in which the preloaded library finds the files.
pub(super) const VIEW_FOLDER_VARIABLE: &str = "VERBATIM_VIEW";

/// Returns the folder with the files; creates it if it does not exist.
pub(super) fn find_or_create_folder(files: &[SysfsFile]) -> Result<PathBuf> {
    let user = geteuid().as_raw();
    let mut hash = DefaultHasher::new();
    for file in files {
        file.hash(&mut hash);
    }
    let name = format!("verbatim-{user}.view-{:016x}", hash.finish());
    create_folder_in(Path::new("/dev/shm"), &name, files)
}

fn create_folder_in(parent: &Path, name: &str, files: &[SysfsFile]) -> Result<PathBuf> {
    let folder = parent.join(name);
    let cannot = || format!("cannot make {}", folder.display());
    if !private_folder_exists(&folder)? {
        // Rename the folder after it is filled: a process that starts at the same time finds a complete folder, or
        // fills its own.
        let new = parent.join(format!("{name}.{}", std::process::id()));
        let made = write_view_files_into(&new, files).and_then(|()| fs::rename(&new, &folder));
        if let Err(err) = made {
            let _ = fs::remove_dir_all(&new);
            if !private_folder_exists(&folder)? {
                return Err(err).with_context(cannot);
            }
        }
    }
    Ok(folder)
}

/// Returns true if the folder exists. Returns an error if another user may have put files into it.
fn private_folder_exists(folder: &Path) -> Result<bool> {
    let found = match fs::symlink_metadata(folder) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => found.with_context(|| format!("cannot look at {}", folder.display()))?,
    };
    let user = geteuid().as_raw();
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        bail!("{} is not user {user}'s alone; remove it", folder.display());
    }
    Ok(true)
}

fn write_view_files_into(folder: &Path, files: &[SysfsFile]) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(folder)?;
    for file in files {
        let path = folder.join("sys").join(&file.path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        write_file(&path, &file.content)?;
    }
    let devices = folder.join("dev/infiniband");
    fs::create_dir_all(&devices)?;
    // Programs check for a character device that they may open.
    uverbs_names(files).try_for_each(|name| symlink("/dev/null", devices.join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use softnic::SysfsContent;
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};

    #[test]
    fn the_files_are_made_once_and_by_nobody_else() {
        let parent = tempfile::tempdir().expect("a folder");
        let file = |path: &str, text: &str| SysfsFile {
            path: path.to_owned(),
            content: SysfsContent::Text(text.to_owned()),
        };
        let files = [
            file("class/infiniband/softnic0/node_type", "1: CA\n"),
            file("class/infiniband_verbs/uverbs0/ibdev", "softnic0\n"),
        ];
        for _ in 0..2 {
            let folder = create_folder_in(parent.path(), "view", &files).expect("made");
            let text = fs::read_to_string(folder.join("sys/class/infiniband/softnic0/node_type"));
            assert_eq!(text.expect("there"), "1: CA\n");
            let device = fs::metadata(folder.join("dev/infiniband/uverbs0")).expect("there");
            assert!(device.file_type().is_char_device());
        }
        let left: Vec<_> = fs::read_dir(parent.path()).expect("a folder").collect();
        assert_eq!(left.len(), 1, "{left:?}");
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(parent.path().join("view"), open).expect("ours");
        let err = create_folder_in(parent.path(), "view", &files).expect_err("anybody's");
        assert!(err.to_string().contains("remove it"), "{err}");
    }
}
