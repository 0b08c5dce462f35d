//! A private view of `/sys/class` and `/dev`, in which the software NIC has the files of a kernel's devices.
//!
//! Programs find `/sys/class/infiniband/softnic0`, `/sys/class/infiniband_verbs/uverbs0` and
//! `/dev/infiniband/uverbs0`. The last is a character device that may be opened and does nothing (a bind mount of
//! `/dev/null`). Everything else is unchanged. The view consists of mounts in a mount namespace of the program, see
//! [`super::namespace`]. No other program sees the view, and it ends with the namespace's last process.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountFlags, mount, mount_bind, mount_bind_recursive, mount_remount};
use softnic::{SysfsContent, SysfsFile, uverbs_names};

use super::namespace::MOUNT_SOURCE;

/// Creates the view in this process's mount namespace, which must be its own.
pub(super) fn make(files: &[SysfsFile]) -> Result<()> {
    let class = Path::new("/sys/class");
    let mut added: Vec<&str> = files.iter().filter_map(first_folder).collect();
    added.dedup();
    let new = uncover(class, &added)?;
    for file in files {
        let path = class.join(&file.path);
        let write = || {
            fs::create_dir_all(path.parent().unwrap_or(class))?;
            write_file(&path, &file.content)
        };
        write().with_context(|| format!("cannot write {}", path.display()))?;
    }
    seal(&new)?;

    let dev = Path::new("/dev");
    let new = uncover(dev, &["infiniband"])?;
    let folder = dev.join("infiniband");
    for name in uverbs_names(files) {
        let device = folder.join(name);
        let bind = || {
            fs::create_dir_all(&folder)?;
            fs::write(&device, "")?;
            Ok::<_, io::Error>(mount_bind("/dev/null", &device)?)
        };
        bind().with_context(|| format!("cannot make {}", device.display()))?;
    }
    seal(&new)
}

/// Writes a file of the view, or a symbolic link to a folder.
pub(super) fn write_file(path: &Path, content: &SysfsContent) -> io::Result<()> {
    match content {
        SysfsContent::Text(text) => fs::write(path, text),
        SysfsContent::Folder(folder) => symlink(folder, path),
    }
}

fn first_folder(file: &SysfsFile) -> Option<&str> {
    file.path.split('/').next()
}

/// Makes the folders `names` writable in `folder`, which is read-only for this process. Returns the mounts to make
/// read-only after they are filled.
///
/// If all of these folders exist, each becomes a file system of its own. Otherwise `folder` becomes a file system,
/// into which all its previous entries are bound.
fn uncover(folder: &Path, names: &[&str]) -> Result<Vec<PathBuf>> {
    let within: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
    if within.iter().all(|folder| folder.is_dir()) {
        for folder in &within {
            empty(folder)?;
        }
        return Ok(within);
    }
    // The descriptor keeps the covered entries reachable.
    let old = open(
        folder,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .with_context(|| format!("cannot open {}", folder.display()))?;
    let covered = PathBuf::from(format!("/proc/self/fd/{}", old.as_raw_fd()));
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.with_context(|| format!("cannot read {}", folder.display()))?;
    empty(folder)?;
    for entry in entries {
        let name = entry.file_name();
        if !names.iter().any(|new| name == OsStr::new(new)) {
            keep(&covered.join(&name), &folder.join(&name))
                .with_context(|| format!("cannot keep {}", folder.join(&name).display()))?;
        }
    }
    Ok(vec![folder.to_owned()])
}

/// Makes `to` show `from`: by the same symbolic link, or by a bind mount.
fn keep(from: &Path, to: &Path) -> io::Result<()> {
    let kind = match fs::symlink_metadata(from) {
        Ok(metadata) => metadata.file_type(),
        // The entry was removed meanwhile.
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(err) => return Err(err),
    };
    if kind.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    if kind.is_dir() {
        fs::create_dir(to)?;
        mount_bind_recursive(from, to)?;
    } else {
        fs::write(to, "")?;
        mount_bind(from, to)?;
    }
    Ok(())
}

/// Covers `folder` with an empty file system whose source name marks it as this program's.
fn empty(folder: &Path) -> Result<()> {
    mount(
        MOUNT_SOURCE,
        folder,
        "tmpfs",
        MountFlags::NOSUID,
        c"mode=755",
    )
    .with_context(|| format!("cannot mount a file system at {}", folder.display()))
}

/// Makes the file systems of [`empty`] read-only.
fn seal(folders: &[PathBuf]) -> Result<()> {
    for folder in folders {
        let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID;
        mount_remount(folder, flags, c"")
            .with_context(|| format!("cannot close {}", folder.display()))?;
    }
    Ok(())
}
