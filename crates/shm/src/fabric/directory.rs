//! The directory: the table of the fabric's processes.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use rustix::fs::{FlockOperation, flock};

use super::error::{FabricError, io_error};
use super::folder::{SOCKETS_FOLDER_NAME, remove_left_over_files, remove_process_files};
use super::layout::*;
use super::segment::{self, DirectoryMap};

/// Name of the directory in the fabric's folder.
pub(super) const DIRECTORY_FILE_NAME: &str = "directory";

/// Opens the directory, or makes it. The caller holds the folder's lock.
pub(super) fn open_or_create_directory(dir: &Path) -> Result<(File, DirectoryMap), FabricError> {
    loop {
        let (file, len) = open_directory_file(dir)?;
        let found = match map_if_current_version(dir, &file, len)? {
            Ok(map) => {
                rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockShared))
                    .map_err(|e| io_error(dir, "share its directory's lock")(e.into()))?;
                return Ok((file, map));
            }
            Err(found) => found,
        };
        // The directory has another layout version. If no process uses the directory, replace it by
        // a new one.
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(FabricError::OtherLayoutVersion {
                path: dir.to_owned(),
                found,
            });
        }
        let path = dir.join(DIRECTORY_FILE_NAME);
        tracing::warn!(
            "{} was left by another version or is damaged; starting afresh",
            path.display()
        );
        remove_left_over_files(dir, |_, _| true);
        fs::remove_file(&path).map_err(io_error(dir, "remove a stale directory"))?;
    }
}

/// Opens the directory's file, creating it if necessary, and returns the length of the file when it
/// was opened.
fn open_directory_file(dir: &Path) -> Result<(File, u64), FabricError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(dir.join(DIRECTORY_FILE_NAME))
        .map_err(io_error(dir, "open its directory"))?;
    let meta = file
        .metadata()
        .map_err(io_error(dir, "look at its directory"))?;
    if !meta.is_file() {
        return Err(FabricError::FolderNotPrivate {
            path: dir.to_owned(),
            why: "has a `directory` that is not a file".into(),
        });
    }
    Ok((file, meta.len()))
}

/// Maps the directory, and initializes it if its file is empty. Returns the layout version of the
/// file if it differs from [`LAYOUT_VERSION`].
fn map_if_current_version(
    dir: &Path,
    file: &File,
    len: u64,
) -> Result<Result<DirectoryMap, u64>, FabricError> {
    let fresh = len == 0;
    if fresh {
        segment::allocate_file_blocks(file, 0, DirectoryMap::FILE_BYTES)
            .map_err(io_error(dir, "reserve memory (is /dev/shm full?)"))?;
    } else if len < DirectoryMap::FILE_BYTES as u64 {
        return Ok(Err(0));
    }
    let map = DirectoryMap::new(file).map_err(io_error(dir, "map its directory"))?;
    let directory = map.directory();
    if fresh {
        // Each fabric begins at a random slot, so that a QP number of another fabric is most likely unused
        // here.
        let first = getrandom::u64().unwrap_or(0) % MAX_PROCS as u64;
        directory.procs[0]
            .last_assigned_slot
            .store(first, Ordering::Relaxed);
        directory.version.store(LAYOUT_VERSION, Ordering::Relaxed);
        directory.magic.store(MAGIC, Ordering::Release);
    }
    let found = directory.version.load(Ordering::Relaxed);
    let ours = directory.magic.load(Ordering::Acquire) == MAGIC && found == LAYOUT_VERSION;
    Ok(if ours { Ok(map) } else { Err(found) })
}

/// Returns a free slot. The caller holds the folder's lock.
///
/// Slots are assigned in turn, so that the QP numbers of an ended process are reused as late as possible: a
/// peer may be about to connect to them.
pub(super) fn find_free_slot(directory: &Directory) -> Option<(usize, &ProcEntry)> {
    let (cursor, entries) = directory.procs.split_first()?;
    let last = usize::try_from(cursor.last_assigned_slot.load(Ordering::Relaxed)).unwrap_or(0);
    let (index, entry) = (0..entries.len())
        .map(|i| (last % entries.len() + i) % entries.len())
        .map(|index| (index, &entries[index]))
        .find(|(_, entry)| entry.incarnation.load(Ordering::Acquire) == 0)?;
    cursor
        .last_assigned_slot
        .store(index as u64 + 1, Ordering::Relaxed);
    Some((index + 1, entry))
}

/// Frees the slots and files of processes that have ended. The caller holds the folder's lock.
pub(super) fn remove_ended_processes(dir: &Path, directory: &Directory) {
    let mut live = std::collections::HashSet::new();
    for entry in &directory.procs {
        let incarnation = entry.incarnation.load(Ordering::Acquire);
        if incarnation == 0 {
            continue;
        }
        let pid = entry.pid.load(Ordering::Relaxed);
        if liveness::is_alive(pid, entry.start_time_ticks.load(Ordering::Relaxed)) {
            live.insert(incarnation);
        } else {
            remove_process_files(dir, incarnation);
            entry.incarnation.store(0, Ordering::Release);
        }
    }
    // A process that was killed while it joined has files but no entry.
    remove_left_over_files(dir, |_, incarnation| !live.contains(&incarnation));
    if live.is_empty() {
        let _ = fs::remove_dir_all(dir.join(SOCKETS_FOLDER_NAME));
    }
}
