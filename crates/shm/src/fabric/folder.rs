//! The fabric's folder: its path, the check of its owner and mode, and the files of processes in it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::error::{FabricError, io_error};

/// Parent folder of all fabrics' folders.
pub(super) const PARENT_OF_FABRIC_FOLDERS: &str = "/dev/shm";
/// Prefix of the names of fabrics' folders.
pub(super) const FABRIC_FOLDER_PREFIX: &str = "verbatim-";
/// Inode of the initial PID namespace (`PROC_PID_INIT_INO` in the kernel's `proc_ns.h`).
pub(super) const INITIAL_PID_NAMESPACE: u64 = 0xefff_fffc;

/// Returns the inode of this process's PID namespace.
pub fn pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(INITIAL_PID_NAMESPACE, |m| m.ino())
}

/// Implements [`Fabric::default_dir`](super::Fabric::default_dir).
pub(super) fn default_dir() -> Result<PathBuf, FabricError> {
    if let Some(dir) = std::env::var_os("VERBATIM_FABRIC_DIR").filter(|d| !d.is_empty()) {
        let dir = PathBuf::from(dir);
        return if dir.is_absolute() {
            Ok(dir)
        } else {
            Err(FabricError::FabricDirNotAbsolute(dir))
        };
    }
    let uid = rustix::process::geteuid().as_raw();
    let namespace = pid_namespace();
    let mut dir = format!("{PARENT_OF_FABRIC_FOLDERS}/{FABRIC_FOLDER_PREFIX}{uid}");
    if namespace != INITIAL_PID_NAMESPACE {
        dir += &format!("-{namespace:x}");
    }
    // VERBATIM_FABRIC separates this fabric from the user's other fabrics.
    if let Some(name) = std::env::var_os("VERBATIM_FABRIC").filter(|n| !n.is_empty()) {
        let sane = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
        match name.to_str() {
            Some(n) if n.len() <= 64 && n.bytes().all(sane) => dir += &format!("@{n}"),
            _ => return Err(FabricError::InvalidFabricName(name)),
        }
    }
    Ok(PathBuf::from(dir))
}

/// Name of the folder for sockets in the fabric's folder.
pub(super) const SOCKETS_FOLDER_NAME: &str = "sockets";

pub(super) fn segment_path(dir: &Path, incarnation: u64) -> PathBuf {
    dir.join(format!("{incarnation:016x}.segment"))
}

pub(super) fn wake_fifo_path(dir: &Path, incarnation: u64) -> PathBuf {
    dir.join(format!("{incarnation:016x}.wake"))
}

/// Returns the path of a completion channel's FIFO.
pub(super) fn channel_fifo_path(dir: &Path, incarnation: u64, number: u32) -> PathBuf {
    dir.join(format!("{incarnation:016x}.{number}{CHANNEL_SUFFIX}"))
}

const CHANNEL_SUFFIX: &str = ".channel";

/// Removes the FIFOs of all completion channels of a process.
pub(super) fn remove_channel_fifos(dir: &Path, incarnation: u64) {
    remove_left_over_files(dir, |what, of| {
        of == incarnation && what.ends_with(CHANNEL_SUFFIX)
    });
}

/// The files of a process that has no entry in the directory yet; dropping this removes them.
pub(super) struct UnlistedFilesCleanup<'a> {
    pub(super) dir: &'a Path,
    pub(super) incarnation: u64,
}

impl Drop for UnlistedFilesCleanup<'_> {
    fn drop(&mut self) {
        remove_process_files(self.dir, self.incarnation);
    }
}

pub(super) fn remove_process_files(dir: &Path, incarnation: u64) {
    let _ = fs::remove_file(segment_path(dir, incarnation));
    let _ = fs::remove_file(wake_fifo_path(dir, incarnation));
}

/// Makes the folder if it does not exist, checks that only this user owns and can enter it, and takes its
/// lock.
pub(super) fn make_and_lock_folder(dir: &Path) -> Result<File, FabricError> {
    loop {
        // The last process that leaves a fabric removes the folder and its lock. If this happens
        // meanwhile, begin again.
        if make_folder(dir)?
            && let Some(held) = take_lock_unless_file_replaced(dir)?
        {
            return Ok(held);
        }
    }
}

/// Makes the folder if it does not exist, and checks its owner and mode. Returns false if the folder was
/// removed meanwhile.
pub(super) fn make_folder(dir: &Path) -> Result<bool, FabricError> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(io_error(dir, "create it")(e)),
        _ => check_owner_and_mode_if_exists(dir),
    }
}

/// Refuses a folder that another user owns or can enter. Returns false if the folder does not exist any more.
pub(super) fn check_owner_and_mode_if_exists(dir: &Path) -> Result<bool, FabricError> {
    let meta = match fs::symlink_metadata(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other.map_err(io_error(dir, "look at it"))?,
    };
    let foreign = |why: String| FabricError::FolderNotPrivate {
        path: dir.to_owned(),
        why,
    };
    let (uid, owner) = (rustix::process::geteuid().as_raw(), meta.uid());
    if !meta.is_dir() {
        return Err(foreign("is not a folder".into()));
    }
    if owner != uid {
        return Err(foreign(format!(
            "belongs to user {owner}, not to user {uid}"
        )));
    }
    if meta.mode() & 0o077 != 0 {
        let mode = meta.mode() & 0o7777;
        return Err(foreign(format!("has mode {mode:o}; others could enter it")));
    }
    Ok(true)
}

/// Takes the folder's lock; returns `None` if the locked file is no longer the folder's `lock`.
fn take_lock_unless_file_replaced(dir: &Path) -> Result<Option<File>, FabricError> {
    let path = dir.join("lock");
    let file = match OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&path)
    {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(io_error(dir, "open its lock"))?,
    };
    rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))
        .map_err(|e| io_error(dir, "lock it")(e.into()))?;
    // The last process to leave removes the lock file; a lock on a removed file protects nothing.
    let held = file.metadata().map_err(io_error(dir, "look at its lock"))?;
    let is_there = fs::symlink_metadata(&path)
        .is_ok_and(|now| now.ino() == held.ino() && now.dev() == held.dev());
    Ok(is_there.then_some(file))
}

/// Removes the files for which `is_left_over` returns true; its arguments are the file name's last part and
/// the incarnation. Foreign files stay.
pub(super) fn remove_left_over_files(dir: &Path, is_left_over: impl Fn(&str, u64) -> bool) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some((stem, what)) = name.to_str().and_then(|n| n.split_once('.')) else {
            continue;
        };
        let is_ours = matches!(what, "segment" | "wake") || what.ends_with(CHANNEL_SUFFIX);
        let incarnation = u64::from_str_radix(stem, 16);
        if is_ours && stem.len() == 16 && incarnation.is_ok_and(|of| is_left_over(what, of)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}
