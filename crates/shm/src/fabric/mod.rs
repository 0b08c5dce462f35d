//! The fabric: the processes of one user on one host, and the shared memory through which they communicate.
//!
//! A fabric is a folder in shared memory that only its user can enter (`/dev/shm/verbatim-UID`). It contains:
//!
//! - `directory`: the table of processes ([`layout::Directory`]); each process holds a shared `flock` on it.
//! - `lock`: locked exclusively to join, to leave and to clean up after dead processes.
//! - `INCARNATION.segment`: a process's segment ([`segment::Segment`]). It has the queue pairs, completion
//!   queues and memory regions as peers see them, the mailbox, and the rings into which the process sends.
//! - `INCARNATION.wake`: a FIFO; a byte in it wakes the process's engine.
//! - `INCARNATION.NUMBER.channel`: a FIFO; a token in it announces an event of a completion channel
//!   ([`completion_channel`]).
//!
//! A killed process leaves its directory entry and files behind. The next process that joins removes them if
//! no process with that pid and start time runs. Each engine watches a pidfd of each connected peer and so
//! detects a death at once.

pub mod armed;
mod census;
pub mod completion_channel;
mod directory;
mod error;
mod folder;
pub mod layout;
pub mod mailbox;
mod other_fabrics;
pub mod own_pid_and_random;
mod peer;
pub mod process_id;
mod refused_request;
pub mod ring;
pub mod segment;

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rustix::fs::{FileType, Mode};

use completion_channel::{OwnCompletionChannel, PeerCompletionChannels, open_fifo};
use directory::{
    DIRECTORY_FILE_NAME, find_free_slot, open_or_create_directory, remove_ended_processes,
};
use error::io_error;
use folder::{
    SOCKETS_FOLDER_NAME, UnlistedFilesCleanup, make_and_lock_folder, make_folder,
    remove_channel_fifos, remove_process_files, segment_path, wake_fifo_path,
};
use layout::*;
use peer::open_pidfd;
use segment::{DirectoryMap, Segment, SegmentArena};

use crate::errno::exhaustion_errno;
use crate::lock::lock;
use crate::process_memory::{ProcessMemory, allow_peer_access};

pub use census::{
    FabricProcess, KnownCompletionQueue, KnownContext, KnownMulticastAttachment,
    KnownProtectionDomain, KnownQueuePair, KnownRegion, KnownSharedReceiveQueue,
    list_fabric_processes,
};
pub use error::FabricError;
pub use folder::pid_namespace;
pub use other_fabrics::{OtherFabric, list_other_fabrics};
pub use own_pid_and_random::random_nonzero;
pub use peer::Peer;
pub use process_id::FabricProcessId;

/// This process's membership in a fabric.
pub struct Fabric {
    dir: PathBuf,
    directory: DirectoryMap,
    /// Keeps the shared lock on the directory for the life of the process.
    _directory_file: File,
    segment_file: File,
    /// This process, as a peer of itself.
    pub this_process: Arc<Peer>,
    arena: Mutex<SegmentArena>,
    /// Number of completion channels that this process has made.
    made_channel_count: AtomicU32,
    opened_peers_by_slot: Mutex<HashMap<usize, Arc<Peer>>>,
}

impl Fabric {
    /// Returns the folder of the fabric that this process would join: `VERBATIM_FABRIC_DIR`, or
    /// `/dev/shm/verbatim-UID`.
    ///
    /// The default name ends with the inode of the PID namespace, except in the initial PID
    /// namespace. Pids of different namespaces cannot be compared.
    pub fn default_dir() -> Result<PathBuf, FabricError> {
        folder::default_dir()
    }

    /// Returns the folder of the fabric.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes the folder of a fabric if it does not exist.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be made, or if other users own or can enter it.
    pub fn make_dir(dir: &Path) -> Result<(), FabricError> {
        while !make_folder(dir)? {}
        Ok(())
    }

    /// Returns the folder for sockets between processes of the fabric, and makes it if necessary. The last
    /// process to leave removes it.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be made.
    pub fn make_sockets_dir(&self) -> io::Result<PathBuf> {
        let dir = self.dir.join(SOCKETS_FOLDER_NAME);
        match fs::create_dir(&dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
            _ => Ok(dir),
        }
    }

    /// Joins the fabric in `dir`, after removing the entries and files of dead processes.
    pub fn join_fabric(dir: &Path) -> Result<Self, FabricError> {
        let held = make_and_lock_folder(dir)?;
        let (file, directory) = open_or_create_directory(dir)?;
        remove_ended_processes(dir, directory.directory());

        let incarnation = random_nonzero();
        let pid = own_pid_and_random::own_pid();
        // Without the start time peers would consider this process dead.
        let start_time = liveness::start_time_ticks(pid)
            .map_err(io_error(dir, "look at this process in /proc"))?
            .unwrap_or(0);
        let (slot, entry) = find_free_slot(directory.directory()).ok_or_else(|| {
            FabricError::NoFreeProcessSlot {
                path: dir.to_owned(),
            }
        })?;
        let files = UnlistedFilesCleanup { dir, incarnation };
        let (segment_file, segment) = create_own_segment(dir, incarnation)?;
        let me = Arc::new(Peer {
            slot,
            incarnation,
            pid,
            start_time_ticks: start_time,
            segment,
            memory: ProcessMemory::new(pid).map(Arc::new),
            is_self: true,
            is_known_dead: AtomicBool::new(false),
            death_noticed_ns: AtomicU64::new(0),
            wake_fifo: create_wake_fifo(dir, incarnation)?,
            completion_channels: PeerCompletionChannels::new(dir),
            pidfd: open_pidfd(pid).map_err(io_error(dir, "open a pidfd"))?,
        });
        entry.pid.store(pid, Ordering::Relaxed);
        entry.start_time_ticks.store(start_time, Ordering::Relaxed);
        entry.incarnation.store(incarnation, Ordering::Release);
        std::mem::forget(files);
        drop(held);
        allow_peer_access();
        Ok(Self {
            dir: dir.to_owned(),
            directory,
            _directory_file: file,
            segment_file,
            opened_peers_by_slot: Mutex::new(HashMap::from([(slot, Arc::clone(&me))])),
            this_process: me,
            arena: Mutex::new(SegmentArena::new()),
            made_channel_count: AtomicU32::new(0),
        })
    }

    /// Leaves the fabric: removes this process's files, and the folder if no other process is in the fabric.
    ///
    /// Does nothing in a forked child of the member.
    pub fn leave(&self) {
        if own_pid_and_random::own_pid() != self.this_process.pid {
            return;
        }
        let Ok(_held) = make_and_lock_folder(&self.dir) else {
            return;
        };
        let procs = &self.directory.directory().procs;
        remove_process_files(&self.dir, self.this_process.incarnation);
        if self.made_channel_count.load(Ordering::Relaxed) != 0 {
            remove_channel_fifos(&self.dir, self.this_process.incarnation);
        }
        procs[self.this_process.slot]
            .incarnation
            .store(0, Ordering::Release);
        if procs
            .iter()
            .all(|e| e.incarnation.load(Ordering::Acquire) == 0)
        {
            let _ = fs::remove_file(self.dir.join(DIRECTORY_FILE_NAME));
            let _ = fs::remove_dir_all(self.dir.join(SOCKETS_FOLDER_NAME));
            let _ = fs::remove_file(self.dir.join("lock"));
            let _ = fs::remove_dir(&self.dir);
        }
    }

    /// Returns the process in directory slot `slot`; `None` if the slot is free or the process's
    /// segment cannot be used.
    pub fn peer(&self, slot: usize) -> Option<Arc<Peer>> {
        self.peer_or_exhaustion_errno(slot).ok().flatten()
    }

    /// Returns the process in `slot` as [`peer`](Self::peer) does, but reports exhausted resources.
    ///
    /// # Errors
    /// Returns `EMFILE`, `ENFILE` or `ENOMEM` if this process lacks descriptors or memory to open the peer.
    pub fn peer_or_exhaustion_errno(&self, slot: usize) -> Result<Option<Arc<Peer>>, i32> {
        let Some(entry) = self.directory.directory().procs.get(slot) else {
            return Ok(None);
        };
        let incarnation = entry.incarnation.load(Ordering::Acquire);
        let mut peers = lock(&self.opened_peers_by_slot);
        if let Some(peer) = peers.get(&slot) {
            if peer.incarnation == incarnation && !peer.is_dead() {
                return Ok(Some(Arc::clone(peer)));
            }
            // Another process has removed the dead peer's entry before this process's engine saw the peer
            // end. After the removal below the engine no longer watches the peer's pidfd, so mark the peer
            // dead here.
            peer.mark_dead();
            peers.remove(&slot);
            self.this_process.wake_engine();
        }
        if incarnation == 0 {
            return Ok(None);
        }
        let pid = entry.pid.load(Ordering::Relaxed);
        let start = entry.start_time_ticks.load(Ordering::Relaxed);
        match self.open_peer(slot, incarnation, pid, start) {
            Ok(peer) => {
                let peer = Arc::new(peer);
                peers.insert(slot, Arc::clone(&peer));
                // The engine must also watch the new peer.
                self.this_process.wake_engine();
                Ok(Some(peer))
            }
            Err(e) => {
                tracing::debug!("process {pid} in slot {slot} cannot be reached: {e}");
                exhaustion_errno(&e).map_or(Ok(None), Err)
            }
        }
    }

    /// Returns the process with the given [`FabricProcessId`], if that process is still alive.
    ///
    /// # Errors
    /// Returns the errors of [`peer_or_exhaustion_errno`](Self::peer_or_exhaustion_errno).
    pub fn live_peer_by_id(&self, name: FabricProcessId) -> Result<Option<Arc<Peer>>, i32> {
        let peer = self.peer_or_exhaustion_errno(name.slot)?;
        Ok(peer.filter(|peer| peer.incarnation == name.incarnation && !peer.kernel_says_ended()))
    }

    fn open_peer(&self, slot: usize, incarnation: u64, pid: u64, start: u64) -> io::Result<Peer> {
        // The first post to a peer calls this function.
        let _hold_off = cancellation::HoldOff::new();
        let pidfd = open_pidfd(pid)?;
        // While the pidfd is open, reuse of the pid cannot go unnoticed.
        if !liveness::is_alive(pid, start) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(segment_path(&self.dir, incarnation))?;
        let segment = Segment::open(&file)?;
        let header = segment.header();
        if header.magic.load(Ordering::Acquire) != MAGIC
            || header.version.load(Ordering::Relaxed) != LAYOUT_VERSION
            || header.incarnation.load(Ordering::Relaxed) != incarnation
        {
            return Err(io::Error::other("its segment is not what it should be"));
        }
        Ok(Peer {
            slot,
            incarnation,
            pid,
            start_time_ticks: start,
            segment,
            memory: ProcessMemory::new(pid).map(Arc::new),
            is_self: false,
            is_known_dead: AtomicBool::new(false),
            death_noticed_ns: AtomicU64::new(0),
            wake_fifo: open_fifo(&wake_fifo_path(&self.dir, incarnation))?,
            completion_channels: PeerCompletionChannels::new(&self.dir),
            pidfd,
        })
    }

    /// Returns all peers that this process has opened so far, except itself.
    pub fn opened_peers(&self) -> Vec<Arc<Peer>> {
        lock(&self.opened_peers_by_slot)
            .values()
            .filter(|p| !p.is_self)
            .cloned()
            .collect()
    }

    /// Returns all live processes of the fabric, including this one.
    pub fn live_processes(&self) -> Vec<Arc<Peer>> {
        (1..MAX_PROCS).filter_map(|slot| self.peer(slot)).collect()
    }

    /// Makes a completion channel.
    ///
    /// # Errors
    /// Returns an error if the fabric's folder has no space or no descriptors are left.
    pub fn make_channel(&self) -> io::Result<OwnCompletionChannel> {
        let number = self.made_channel_count.fetch_add(1, Ordering::Relaxed) + 1;
        OwnCompletionChannel::create(
            &self.dir,
            self.this_process.incarnation,
            number,
            self.this_process.pid,
        )
    }

    /// Returns the counter of changes of the flows of all processes.
    pub fn flow_change_count(&self) -> &AtomicU64 {
        &self.directory.directory().flow_change_count
    }

    /// Drops a peer that has ended from the table of opened peers.
    pub fn forget_ended_peer(&self, peer: &Peer) {
        let mut peers = lock(&self.opened_peers_by_slot);
        if peers
            .get(&peer.slot)
            .is_some_and(|p| p.incarnation == peer.incarnation)
        {
            peers.remove(&peer.slot);
        }
    }

    /// Allocates `bytes` zeroed bytes of shared memory from this process's arena, and returns their offset.
    pub fn alloc_in_segment(&self, bytes: usize) -> io::Result<usize> {
        lock(&self.arena).alloc(&self.this_process.segment, &self.segment_file, bytes)
    }

    /// Returns a range to the arena.
    pub fn free_in_segment(&self, offset: usize, bytes: usize) {
        lock(&self.arena).free(offset, bytes);
    }

    /// Ensures that memory backs `len` bytes at `offset` of this process's segment, which lie
    /// before the arena. Peers can then read in the segment's header that memory backs these bytes.
    pub fn back_with_memory(&self, offset: usize, len: usize) -> io::Result<()> {
        let segment = &self.this_process.segment;
        if !segment.is_backed(offset, len) {
            segment::allocate_file_blocks(&self.segment_file, offset, len)?;
            segment.set_backed(offset, len);
        }
        Ok(())
    }
}

/// Creates the segment file of this process, which peers open.
fn create_own_segment(dir: &Path, incarnation: u64) -> Result<(File, Segment), FabricError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(segment_path(dir, incarnation))
        .map_err(io_error(dir, "create the segment"))?;
    let segment = Segment::create(&file).map_err(io_error(
        dir,
        "reserve memory for the segment (is /dev/shm full?)",
    ))?;
    let header = segment.header();
    header.incarnation.store(incarnation, Ordering::Relaxed);
    header.version.store(LAYOUT_VERSION, Ordering::Relaxed);
    header
        .key_hash_secret
        .store(random_nonzero(), Ordering::Relaxed);
    header.magic.store(MAGIC, Ordering::Release);
    Ok((file, segment))
}

/// Creates and opens the wake FIFO of this process.
fn create_wake_fifo(dir: &Path, incarnation: u64) -> Result<File, FabricError> {
    let path = wake_fifo_path(dir, incarnation);
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, mode, 0)
        .map_err(|e| io_error(dir, "create the wake FIFO")(e.into()))?;
    open_fifo(&path).map_err(io_error(dir, "open the wake FIFO"))
}

#[cfg(all(test, not(loom)))]
mod tests;
