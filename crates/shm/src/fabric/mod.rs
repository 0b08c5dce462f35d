//! The fabric: the processes of one user on one host, and the shared memory through which they reach each
//! other.
//!
//! A fabric is a folder that only its user can enter, in shared memory (`/dev/shm/verbatim-UID`). In it:
//!
//! - `directory`: who is in the fabric ([`layout::Directory`]); each process holds a shared `flock` on it.
//! - `lock`: taken exclusively to join, to leave and to clean up after the dead.
//! - `INCARNATION.segment`: a process's segment ([`segment::Segment`]): its queue pairs, completion queues
//!   and memory regions as peers need to see them, its mailbox, and the rings into which it sends.
//! - `INCARNATION.wake`: a FIFO; a byte in it wakes the process's engine.
//!
//! A process that was killed leaves its entry and files behind; the next process that joins finds that no
//! process with that pid and start time runs and removes them. Peers hear of a death at once, because
//! their engines watch a pidfd of each peer they are connected to.

pub mod layout;
pub mod mailbox;
pub mod name;
pub mod process;
pub mod ring;
pub mod segment;

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{FlockOperation, Mode, flock};
use rustix::process::{PidfdFlags, pidfd_open};

use layout::*;
pub use name::Name;
pub use process::random_nonzero;
use segment::{Arena, DirectoryMap, Segment};

use crate::shortage::shortage;

/// How long after a process has ended its peers' reliable queue pairs give up.
const GIVE_UP_NS: u64 = 50_000_000;

/// Why this process has no fabric.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// A system call on the fabric's folder or files failed.
    #[error("cannot use the fabric's folder {path}: {what}: {source}")]
    Io {
        /// The folder.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The folder belongs to somebody else or can be entered by others.
    #[error(
        "the fabric's folder {path} {why}; remove it, or choose another place with VERBATIM_FABRIC_DIR"
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Processes of another version are using the folder.
    #[error(
        "the fabric in {path} is in use by a different version of Verbatim (layout {found:#x}, this one has \
         layout {LAYOUT_VERSION}); stop its processes, or choose another place with VERBATIM_FABRIC_DIR"
    )]
    Version {
        /// The folder.
        path: PathBuf,
        /// The version in its directory.
        found: u64,
    },
    /// All slots are taken.
    #[error("the fabric in {path} has its {} processes already", MAX_PROCS - 1)]
    Full {
        /// The folder.
        path: PathBuf,
    },
    /// The name of the fabric's folder cannot be used.
    #[error("VERBATIM_FABRIC_DIR is {0:?}, which is not an absolute path")]
    BadName(PathBuf),
    /// The name of the fabric cannot be part of a folder's.
    #[error("VERBATIM_FABRIC is {0:?}, which is not 1 to 64 letters, digits or '_'")]
    BadFabric(std::ffi::OsString),
}

/// A process of the fabric as its peers see it.
pub struct Peer {
    /// Its slot in the directory: the upper ten bits of its QP numbers.
    pub slot: usize,
    /// Random name of this run of the process, never 0.
    pub incarnation: u64,
    /// Its process id.
    pub pid: u64,
    start_time: u64,
    /// Its segment, mapped here.
    pub segment: Segment,
    /// It is this process.
    pub is_self: bool,
    dead: AtomicBool,
    /// When this process noticed that; 0 before.
    died_ns: AtomicU64,
    wake: File,
    /// Becomes readable when the process ends; not there where the system has no such descriptors (Linux before 5.3,
    /// programs under valgrind).
    pub pidfd: Option<OwnedFd>,
}

impl Peer {
    /// What tells it from every other process of the fabric, before and after.
    pub fn name(&self) -> Name {
        Name {
            slot: self.slot,
            incarnation: self.incarnation,
        }
    }

    /// Has the process ended?
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Has the process ended, or is it being taken down? Asks the system, so that the answer is newer than
    /// the engine's: for when its memory could not be reached.
    #[cold]
    pub fn has_ended(&self) -> bool {
        if self.is_self {
            return false;
        }
        if !self.is_dead() && !liveness::is_alive(self.pid, self.start_time) {
            self.mark_dead();
        }
        self.is_dead()
    }

    /// Is it dead for long enough that who sends to it gives up?
    ///
    /// On a wire that takes the timeout of the sender, at least. Two programs that end together count on it: each may have
    /// sent what the other does not wait for any more (`ibv_srq_pingpong -q 4`), and goes by its own completions.
    #[cold]
    pub fn is_given_up(&self) -> bool {
        let since = self.died_ns.load(Ordering::Relaxed);
        self.is_dead() && crate::clock::now_ns().saturating_sub(since) >= GIVE_UP_NS
    }

    /// Notes that the process has ended (its pidfd became readable).
    pub fn mark_dead(&self) {
        let now = crate::clock::now_ns();
        let _ = self
            .died_ns
            .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        self.dead.store(true, Ordering::Release);
    }

    /// The own FIFO's descriptor, for the engine to wait on.
    pub fn wake_fd(&self) -> &File {
        &self.wake
    }

    /// Empties the own FIFO.
    pub fn drain_calls(&self) {
        let mut calls = [0; 512];
        while rustix::io::read(&self.wake, &mut calls).is_ok_and(|n| n == calls.len()) {}
    }

    /// Wakes its engine.
    #[cold]
    pub fn wake(&self) {
        if self.pidfd.is_none() {
            // The engine may not get to look: valgrind runs one thread at a time, and mostly one that polls.
            self.has_ended();
        }
        // A full FIFO means that the engine has been called already; a closed one, that it is gone.
        let _ = rustix::io::write(&self.wake, &[0]);
    }
}

/// This process's membership.
pub struct Fabric {
    dir: PathBuf,
    directory: DirectoryMap,
    /// Keeps the shared lock on the directory for the life of the process.
    _directory_file: File,
    segment_file: File,
    /// This process, as its own peer.
    pub me: Arc<Peer>,
    arena: Mutex<Arena>,
    peers: Mutex<HashMap<usize, Arc<Peer>>>,
}

/// Name of the folder for sockets in the fabric's.
const SOCKETS: &str = "sockets";

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Fabric {
    /// The folder of the fabric that this process would join: `VERBATIM_FABRIC_DIR`, or
    /// `/dev/shm/verbatim-UID` (with the PID namespace's number where it is not the initial one, because
    /// pids of different namespaces cannot be compared).
    pub fn default_dir() -> Result<PathBuf, FabricError> {
        if let Some(dir) = std::env::var_os("VERBATIM_FABRIC_DIR").filter(|d| !d.is_empty()) {
            let dir = PathBuf::from(dir);
            return if dir.is_absolute() {
                Ok(dir)
            } else {
                Err(FabricError::BadName(dir))
            };
        }
        /// Inode of the initial PID namespace (`PROC_PID_INIT_INO` in the kernel's `proc_ns.h`).
        const INITIAL_PID_NAMESPACE: u64 = 0xefff_fffc;
        let uid = rustix::process::geteuid().as_raw();
        let namespace =
            fs::metadata("/proc/self/ns/pid").map_or(INITIAL_PID_NAMESPACE, |m| m.ino());
        let mut dir = format!("/dev/shm/verbatim-{uid}");
        if namespace != INITIAL_PID_NAMESPACE {
            dir += &format!("-{namespace:x}");
        }
        // A name of its own separates a fabric from the user's others.
        if let Some(name) = std::env::var_os("VERBATIM_FABRIC").filter(|n| !n.is_empty()) {
            let sane = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
            match name.to_str() {
                Some(n) if n.len() <= 64 && n.bytes().all(sane) => dir += &format!("@{n}"),
                _ => return Err(FabricError::BadFabric(name)),
            }
        }
        Ok(PathBuf::from(dir))
    }

    /// The folder of the fabric.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes the folder of a fabric if it is not there.
    ///
    /// # Errors
    /// As [`join`](Self::join): it cannot be made, or is not this user's alone.
    pub fn make_dir(dir: &Path) -> Result<(), FabricError> {
        while !make_folder(dir)? {}
        Ok(())
    }

    /// The folder for sockets by which processes of the fabric reach each other. It goes with the fabric.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn sockets_dir(&self) -> io::Result<PathBuf> {
        let dir = self.dir.join(SOCKETS);
        match fs::create_dir(&dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
            _ => Ok(dir),
        }
    }

    /// Joins the fabric in `dir`, after cleaning up what dead processes left there.
    pub fn join(dir: &Path) -> Result<Self, FabricError> {
        let io = |what| {
            move |source: io::Error| FabricError::Io {
                path: dir.to_owned(),
                what,
                source,
            }
        };
        let held = hold_folder(dir)?;
        let (file, directory) = open_directory(dir)?;
        clean_up(dir, directory.get());

        let incarnation = random_nonzero();
        let pid = process::own_pid();
        // Without it peers would take this process for dead.
        let start = liveness::start_time(pid)
            .map_err(io("look at this process in /proc"))?
            .unwrap_or(0);
        let (slot, entry) = free_slot(directory.get()).ok_or_else(|| FabricError::Full {
            path: dir.to_owned(),
        })?;
        let files = Unentered { dir, incarnation };
        let segment_file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(segment_path(dir, incarnation))
            .map_err(io("create the segment"))?;
        let segment = Segment::create(&segment_file)
            .map_err(io("reserve memory for the segment (is /dev/shm full?)"))?;
        let header = segment.header();
        header.incarnation.store(incarnation, Ordering::Relaxed);
        header.version.store(LAYOUT_VERSION, Ordering::Relaxed);
        header.key_secret.store(random_nonzero(), Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        let wake_path = wake_path(dir, incarnation);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &wake_path,
            rustix::fs::FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .map_err(|e| io("create the wake FIFO")(e.into()))?;
        let me = Arc::new(Peer {
            slot,
            incarnation,
            pid,
            start_time: start,
            segment,
            is_self: true,
            dead: AtomicBool::new(false),
            died_ns: AtomicU64::new(0),
            wake: open_wake(&wake_path).map_err(io("open the wake FIFO"))?,
            pidfd: open_pidfd(pid).map_err(io("open a pidfd"))?,
        });
        entry.pid.store(pid, Ordering::Relaxed);
        entry.start_time.store(start, Ordering::Relaxed);
        entry.incarnation.store(incarnation, Ordering::Release);
        std::mem::forget(files);
        drop(held);
        Ok(Self {
            dir: dir.to_owned(),
            directory,
            _directory_file: file,
            segment_file,
            peers: Mutex::new(HashMap::from([(slot, Arc::clone(&me))])),
            me,
            arena: Mutex::new(Arena::new()),
        })
    }

    /// Leaves: removes this process's files, and the folder if nobody else is in it.
    ///
    /// Does nothing in a child that was forked from the member.
    pub fn leave(&self) {
        if process::own_pid() != self.me.pid {
            return;
        }
        let Ok(_held) = hold_folder(&self.dir) else {
            return;
        };
        let procs = &self.directory.get().procs;
        remove_files(&self.dir, self.me.incarnation);
        procs[self.me.slot].incarnation.store(0, Ordering::Release);
        if procs
            .iter()
            .all(|e| e.incarnation.load(Ordering::Acquire) == 0)
        {
            let _ = fs::remove_file(self.dir.join("directory"));
            let _ = fs::remove_dir_all(self.dir.join(SOCKETS));
            let _ = fs::remove_file(self.dir.join("lock"));
            let _ = fs::remove_dir(&self.dir);
        }
    }

    /// The process in `slot`, if there is one and its segment can be used.
    pub fn peer(&self, slot: usize) -> Option<Arc<Peer>> {
        self.try_peer(slot).ok().flatten()
    }

    /// The same, where it matters why there is none.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: this process has not what it takes to reach another one.
    pub fn try_peer(&self, slot: usize) -> Result<Option<Arc<Peer>>, i32> {
        let Some(entry) = self.directory.get().procs.get(slot) else {
            return Ok(None);
        };
        let incarnation = entry.incarnation.load(Ordering::Acquire);
        let mut peers = lock(&self.peers);
        if let Some(peer) = peers.get(&slot) {
            if peer.incarnation == incarnation && !peer.is_dead() {
                return Ok(Some(Arc::clone(peer)));
            }
            // Another process has cleaned up after it before this one's engine saw it end. Nobody would look
            // at its pidfd any more, so say it here.
            peer.mark_dead();
            peers.remove(&slot);
            self.me.wake();
        }
        if incarnation == 0 {
            return Ok(None);
        }
        let pid = entry.pid.load(Ordering::Relaxed);
        let start = entry.start_time.load(Ordering::Relaxed);
        match self.open_peer(slot, incarnation, pid, start) {
            Ok(peer) => {
                let peer = Arc::new(peer);
                peers.insert(slot, Arc::clone(&peer));
                // The engine has one process more to watch.
                self.me.wake();
                Ok(Some(peer))
            }
            Err(e) => {
                tracing::debug!("process {pid} in slot {slot} cannot be reached: {e}");
                shortage(&e).map_or(Ok(None), Err)
            }
        }
    }

    /// The process of that name, if it is still there.
    ///
    /// # Errors
    /// As [`try_peer`](Self::try_peer).
    pub fn named(&self, name: Name) -> Result<Option<Arc<Peer>>, i32> {
        let peer = self.try_peer(name.slot)?;
        Ok(peer.filter(|peer| peer.incarnation == name.incarnation && !peer.has_ended()))
    }

    fn open_peer(&self, slot: usize, incarnation: u64, pid: u64, start: u64) -> io::Result<Peer> {
        // A first post to a peer comes here.
        let _hold_off = cancellation::HoldOff::new();
        let pidfd = open_pidfd(pid)?;
        // After the pidfd is open the pid cannot be reused unnoticed.
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
            start_time: start,
            segment,
            is_self: false,
            dead: AtomicBool::new(false),
            died_ns: AtomicU64::new(0),
            wake: open_wake(&wake_path(&self.dir, incarnation))?,
            pidfd,
        })
    }

    /// All peers that this process has opened so far, without itself.
    pub fn opened_peers(&self) -> Vec<Arc<Peer>> {
        lock(&self.peers)
            .values()
            .filter(|p| !p.is_self)
            .cloned()
            .collect()
    }

    /// All live processes of the fabric, this one included.
    pub fn all_peers(&self) -> Vec<Arc<Peer>> {
        (1..MAX_PROCS).filter_map(|slot| self.peer(slot)).collect()
    }

    /// Counts the changes of the flows of all processes.
    pub fn flow_changes(&self) -> &AtomicU64 {
        &self.directory.get().flow_changes
    }

    /// Forgets a peer that has ended.
    pub fn forget(&self, peer: &Peer) {
        let mut peers = lock(&self.peers);
        if peers
            .get(&peer.slot)
            .is_some_and(|p| p.incarnation == peer.incarnation)
        {
            peers.remove(&peer.slot);
        }
    }

    /// Takes `bytes` zeroed bytes of shared memory from this process's arena.
    pub fn alloc(&self, bytes: usize) -> io::Result<usize> {
        lock(&self.arena).alloc(&self.me.segment, &self.segment_file, bytes)
    }

    /// Gives a range back to the arena.
    pub fn free(&self, offset: usize, bytes: usize) {
        lock(&self.arena).free(offset, bytes);
    }

    /// Makes sure that `len` bytes at `offset` of the own segment, before its arena, are backed by memory, and has others
    /// know that.
    pub fn reserve(&self, offset: usize, len: usize) -> io::Result<()> {
        let segment = &self.me.segment;
        if !segment.is_backed(offset, len) {
            segment::reserve(&self.segment_file, offset, len)?;
            segment.set_backed(offset, len);
        }
        Ok(())
    }
}

fn segment_path(dir: &Path, incarnation: u64) -> PathBuf {
    dir.join(format!("{incarnation:016x}.segment"))
}

fn wake_path(dir: &Path, incarnation: u64) -> PathBuf {
    dir.join(format!("{incarnation:016x}.wake"))
}

/// The files of a process that is not in the directory yet: removed when dropped.
struct Unentered<'a> {
    dir: &'a Path,
    incarnation: u64,
}

impl Drop for Unentered<'_> {
    fn drop(&mut self) {
        remove_files(self.dir, self.incarnation);
    }
}

fn remove_files(dir: &Path, incarnation: u64) {
    let _ = fs::remove_file(segment_path(dir, incarnation));
    let _ = fs::remove_file(wake_path(dir, incarnation));
}

fn open_wake(path: &Path) -> io::Result<File> {
    // Read and write: opening does not wait for the other side, and a reader's end never sees end of file.
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
        .open(path)
}

fn open_pidfd(pid: u64) -> io::Result<Option<OwnedFd>> {
    let pid = liveness::to_pid(pid).ok_or(io::ErrorKind::NotFound)?;
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => Ok(Some(pidfd)),
        Err(rustix::io::Errno::NOSYS) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Makes the folder if it is not there, and checks that it is ours alone. False: it has gone meanwhile.
fn make_folder(dir: &Path) -> Result<bool, FabricError> {
    let io = |what| {
        move |source: io::Error| FabricError::Io {
            path: dir.to_owned(),
            what,
            source,
        }
    };
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(io("create it")(e)),
    }
    let meta = match fs::symlink_metadata(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other.map_err(io("look at it"))?,
    };
    let foreign = |why: String| FabricError::Foreign {
        path: dir.to_owned(),
        why,
    };
    let uid = rustix::process::geteuid().as_raw();
    if !meta.is_dir() {
        return Err(foreign("is not a folder".into()));
    }
    if meta.uid() != uid {
        return Err(foreign(format!(
            "belongs to user {}, not to user {uid}",
            meta.uid()
        )));
    }
    if meta.mode() & 0o077 != 0 {
        return Err(foreign(format!(
            "has mode {:o}; others could enter it",
            meta.mode() & 0o7777
        )));
    }
    Ok(true)
}

/// Makes the folder if it is not there, checks that it is ours alone, and takes its lock.
fn hold_folder(dir: &Path) -> Result<File, FabricError> {
    let io = |what| {
        move |source: io::Error| FabricError::Io {
            path: dir.to_owned(),
            what,
            source,
        }
    };
    loop {
        if !make_folder(dir)? {
            continue;
        }
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
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            other => other.map_err(io("open its lock"))?,
        };
        rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))
            .map_err(|e| io("lock it")(e.into()))?;
        // The last process to leave removes the lock; then what we hold is a lock on nothing.
        let held = file.metadata().map_err(io("look at its lock"))?;
        match fs::symlink_metadata(&path) {
            Ok(now) if now.ino() == held.ino() && now.dev() == held.dev() => return Ok(file),
            _ => {}
        }
    }
}

/// Opens the directory, or makes it; the folder's lock is held.
fn open_directory(dir: &Path) -> Result<(File, DirectoryMap), FabricError> {
    let path = dir.join("directory");
    let io = |what| {
        move |source: io::Error| FabricError::Io {
            path: dir.to_owned(),
            what,
            source,
        }
    };
    loop {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&path)
            .map_err(io("open its directory"))?;
        let meta = file.metadata().map_err(io("look at its directory"))?;
        if !meta.is_file() {
            return Err(FabricError::Foreign {
                path: dir.to_owned(),
                why: "has a `directory` that is not a file".into(),
            });
        }
        let fresh = meta.len() == 0;
        if fresh {
            segment::reserve(&file, 0, DirectoryMap::BYTES)
                .map_err(io("reserve memory (is /dev/shm full?)"))?;
        }
        let mut found = 0;
        if fresh || meta.len() >= DirectoryMap::BYTES as u64 {
            let map = DirectoryMap::new(&file).map_err(io("map its directory"))?;
            if fresh {
                // Fabrics begin at slots of their own: QP numbers of another one are most likely nobody's here.
                let first = getrandom::u64().unwrap_or(0) % MAX_PROCS as u64;
                map.get().procs[0].last_slot.store(first, Ordering::Relaxed);
                map.get().version.store(LAYOUT_VERSION, Ordering::Relaxed);
                map.get().magic.store(MAGIC, Ordering::Release);
            }
            found = map.get().version.load(Ordering::Relaxed);
            if map.get().magic.load(Ordering::Acquire) == MAGIC && found == LAYOUT_VERSION {
                rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockShared))
                    .map_err(|e| io("share its directory's lock")(e.into()))?;
                return Ok((file, map));
            }
        }
        // Not ours to read. If nobody uses it, start afresh.
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                tracing::warn!(
                    "{} was left by another version or is damaged; starting afresh",
                    path.display()
                );
                remove_left_over(dir, |_| true);
                fs::remove_file(&path).map_err(io("remove a stale directory"))?;
            }
            Err(_) => {
                return Err(FabricError::Version {
                    path: dir.to_owned(),
                    found,
                });
            }
        }
    }
}

/// A free slot; the folder's lock is held.
///
/// Slots are given out in turn, so that the QP numbers of a process that has ended come back as late as
/// possible: somebody may be about to connect to them.
fn free_slot(directory: &Directory) -> Option<(usize, &ProcEntry)> {
    let (cursor, entries) = directory.procs.split_first()?;
    let last = usize::try_from(cursor.last_slot.load(Ordering::Relaxed)).unwrap_or(0);
    let (index, entry) = (0..entries.len())
        .map(|i| (last % entries.len() + i) % entries.len())
        .map(|index| (index, &entries[index]))
        .find(|(_, entry)| entry.incarnation.load(Ordering::Acquire) == 0)?;
    cursor.last_slot.store(index as u64 + 1, Ordering::Relaxed);
    Some((index + 1, entry))
}

/// Frees the slots and files of processes that have ended; the folder's lock is held.
fn clean_up(dir: &Path, directory: &Directory) {
    let mut live = std::collections::HashSet::new();
    for entry in &directory.procs {
        let incarnation = entry.incarnation.load(Ordering::Acquire);
        if incarnation == 0 {
            continue;
        }
        let pid = entry.pid.load(Ordering::Relaxed);
        if liveness::is_alive(pid, entry.start_time.load(Ordering::Relaxed)) {
            live.insert(incarnation);
        } else {
            remove_files(dir, incarnation);
            entry.incarnation.store(0, Ordering::Release);
        }
    }
    // A process killed while it joined has files but no entry yet.
    remove_left_over(dir, |incarnation| !live.contains(&incarnation));
    if live.is_empty() {
        let _ = fs::remove_dir_all(dir.join(SOCKETS));
    }
}

/// Removes the files of the incarnations that `is_dead` names; foreign files stay.
fn remove_left_over(dir: &Path, is_dead: impl Fn(u64) -> bool) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some((stem, "segment" | "wake")) = name.to_str().and_then(|n| n.split_once('.')) else {
            continue;
        };
        if stem.len() == 16 && u64::from_str_radix(stem, 16).is_ok_and(&is_dead) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
