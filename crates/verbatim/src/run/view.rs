//! A private view of `/sys/class` and `/dev`, in which the software NIC has the files of a kernel's devices.
//!
//! Programs that look there find `/sys/class/infiniband/softnic0`, `/sys/class/infiniband_verbs/uverbs0` and
//! `/dev/infiniband/uverbs0`, which is a character device that may be opened and does nothing (`/dev/null`'s).
//! Everything else is what it was. The view is made of mounts in a mount namespace of the program's own, see
//! [`super::namespace`]; nobody else sees it, and it ends with its last process.

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

/// Makes the view in this process's mount namespace, which must be its own.
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

/// Writes a file of the view, or links to where it is.
pub(super) fn write_file(path: &Path, content: &SysfsContent) -> io::Result<()> {
    match content {
        SysfsContent::Text(text) => fs::write(path, text),
        SysfsContent::Folder(folder) => symlink(folder, path),
    }
}

fn first_folder(file: &SysfsFile) -> Option<&str> {
    file.path.split('/').next()
}

/// Makes room for folders `names` in `folder`, which nobody may write to: returns the mounts that
/// are to be sealed when they are filled.
///
/// Where all of them exist, each becomes a file system of its own. Else `folder` becomes one, into
/// which all that it had is bound.
fn uncover(folder: &Path, names: &[&str]) -> Result<Vec<PathBuf>> {
    let within: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
    if within.iter().all(|folder| folder.is_dir()) {
        for folder in &within {
            empty(folder)?;
        }
        return Ok(within);
    }
    // What is there stays reachable by the descriptor when it is covered.
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

/// Makes `to` what `from` is.
fn keep(from: &Path, to: &Path) -> io::Result<()> {
    let kind = match fs::symlink_metadata(from) {
        Ok(metadata) => metadata.file_type(),
        // It went meanwhile.
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

/// Covers `folder` with an empty file system, which is known for ours.
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

/// Ends writing to file systems that [`empty`] made.
fn seal(folders: &[PathBuf]) -> Result<()> {
    for folder in folders {
        let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID;
        mount_remount(folder, flags, c"")
            .with_context(|| format!("cannot close {}", folder.display()))?;
    }
    Ok(())
}
