//! A private view of `/sys` and `/dev`, in which the software NIC has the files of a kernel's devices.
//!
//! Programs find `/sys/class/infiniband/softnic0`, `/sys/class/infiniband_verbs/uverbs0` and `/dev/infiniband/uverbs0`.
//! The last is a character device that may be opened and does nothing (a bind mount of `/dev/null`). The PCI function
//! behind the device is in `/sys/devices` and `/sys/bus/pci/devices`. All other files are unchanged. The view consists
//! of mounts in a mount namespace of the program, see [`super::namespace`]. No other program sees the view, and the
//! view ends with the namespace's last process.

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

/// The folders of `/sys` to which the view adds entries. The PCI folders are missing on machines without PCI.
const SYSFS_FOLDERS_WITH_ADDED_ENTRIES: [&str; 4] =
    ["class", "class/pci_bus", "devices", "bus/pci/devices"];

/// Creates the view in the mount namespace of this process, which no other process may share.
pub(super) fn create_mounts(files: &[SysfsFile]) -> Result<()> {
    let sys = Path::new("/sys");
    let mut new = Vec::new();
    let mut added = Vec::new();
    for folder in SYSFS_FOLDERS_WITH_ADDED_ENTRIES {
        let names = entries_added_to_folder(folder, files);
        if !names.is_empty() && sys.join(folder).is_dir() {
            new.extend(mount_writable_folders(&sys.join(folder), &names)?);
            added.push(folder);
        }
    }
    for file in files {
        if !innermost_folder_with_added_entries(&file.path)
            .is_some_and(|folder| added.contains(&folder))
        {
            continue;
        }
        let path = sys.join(&file.path);
        let write = || {
            fs::create_dir_all(path.parent().unwrap_or(sys))?;
            write_file(&path, &file.content)
        };
        write().with_context(|| format!("cannot write {}", path.display()))?;
    }
    remount_read_only(&new)?;

    let dev = Path::new("/dev");
    let new = mount_writable_folders(dev, &["infiniband"])?;
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
    remount_read_only(&new)
}

/// Writes a file of the view, or a symbolic link to a folder.
pub(super) fn write_file(path: &Path, content: &SysfsContent) -> io::Result<()> {
    match content {
        SysfsContent::Text(text) => fs::write(path, text),
        SysfsContent::Bytes(bytes) => fs::write(path, bytes),
        SysfsContent::ExternalFolderLink(folder) => symlink(folder, path),
        SysfsContent::Link(to) => symlink(to, path),
    }
}

/// Returns the innermost of [`SYSFS_FOLDERS_WITH_ADDED_ENTRIES`] that contains the file; the view adds an entry to this
/// folder.
fn innermost_folder_with_added_entries(path: &str) -> Option<&'static str> {
    let is_in = |folder: &&str| {
        path.strip_prefix(*folder)
            .is_some_and(|rest| rest.starts_with('/'))
    };
    SYSFS_FOLDERS_WITH_ADDED_ENTRIES
        .into_iter()
        .filter(is_in)
        .max_by_key(|it| it.len())
}

/// Returns the entries of a folder that are among the files, or that contain some of the files.
fn entries_added_to_folder<'f>(folder: &str, files: &'f [SysfsFile]) -> Vec<&'f str> {
    let mut names = Vec::new();
    for file in files {
        if innermost_folder_with_added_entries(&file.path) == Some(folder)
            && let Some(rest) = file.path.get(folder.len() + 1..)
            && let Some(name) = rest.split('/').next()
            && !names.contains(&name)
        {
            names.push(name);
        }
    }
    names
}

/// Makes the folders `names` writable in `folder`, which is read-only for this process. Returns the mounts to make
/// read-only after they are filled.
///
/// If all folders `names` exist, each becomes its own file system. Otherwise `folder` becomes a file system, into which
/// all its previous entries are bound.
fn mount_writable_folders(folder: &Path, names: &[&str]) -> Result<Vec<PathBuf>> {
    let within: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
    // A symbolic link, which a view within a view finds, does not count as a folder.
    let is_folder = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    if within.iter().all(is_folder) {
        for folder in &within {
            mount_empty_tmpfs(folder)?;
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
    mount_empty_tmpfs(folder)?;
    for entry in entries {
        let name = entry.file_name();
        if !names.iter().any(|new| name == OsStr::new(new)) {
            bind_or_copy_link(&covered.join(&name), &folder.join(&name))
                .with_context(|| format!("cannot keep {}", folder.join(&name).display()))?;
        }
    }
    Ok(vec![folder.to_owned()])
}

/// Makes `to` show `from`: by the same symbolic link, or by a bind mount.
fn bind_or_copy_link(from: &Path, to: &Path) -> io::Result<()> {
    let kind = match fs::symlink_metadata(from) {
        Ok(metadata) => metadata.file_type(),
        // Another process has removed the entry meanwhile.
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

/// Covers `folder` with an empty file system; its source name marks it as a part of this program's view.
fn mount_empty_tmpfs(folder: &Path) -> Result<()> {
    mount(
        MOUNT_SOURCE,
        folder,
        "tmpfs",
        MountFlags::NOSUID,
        c"mode=755",
    )
    .with_context(|| format!("cannot mount a file system at {}", folder.display()))
}

/// Makes the file systems of [`mount_empty_tmpfs`] read-only.
fn remount_read_only(folders: &[PathBuf]) -> Result<()> {
    for folder in folders {
        let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID;
        mount_remount(folder, flags, c"")
            .with_context(|| format!("cannot close {}", folder.display()))?;
    }
    Ok(())
}
