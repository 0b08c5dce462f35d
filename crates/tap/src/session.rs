//! The recording of one process: its file of counters, and who gets a cell in it.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use rustix::time::{ClockId, clock_gettime};

use crate::layout::*;

/// Names the folder in which each process makes its file. Without it nothing is counted.
pub const VARIABLE: &str = "VERBATIM_TAP_DIR";
/// How the files in it end.
pub(crate) const EXTENSION: &str = "tap";

pub(crate) type QpCounters = QpCell<AtomicU64>;
pub(crate) type CqCounters = CqCell<AtomicU64>;
pub(crate) type SrqCounters = SrqCell<AtomicU64>;

/// Adds to a word that only this thread writes.
#[inline(always)]
pub(crate) fn add(word: &AtomicU64, number: u64) {
    word.store(word.load(Relaxed).wrapping_add(number), Relaxed);
}

/// Raises a word that only this thread writes.
#[inline(always)]
pub(crate) fn raise(word: &AtomicU64, number: u64) {
    if word.load(Relaxed) < number {
        word.store(number, Relaxed);
    }
}

/// Stores a number in a word that only this thread writes, if it has another one.
#[inline(always)]
pub(crate) fn set(word: &AtomicU64, number: u64) {
    if word.load(Relaxed) != number {
        word.store(number, Relaxed);
    }
}

/// A process's file, mapped. It lives for ever: cells in it are used until the process is gone.
pub(crate) struct Session {
    pid: u32,
    base: NonNull<u8>,
    file: File,
    /// One thread at a time takes cells.
    taking: Mutex<()>,
}

// SAFETY: the mapping is atomics, and it is never unmapped.
unsafe impl Send for Session {}
// SAFETY: as above.
unsafe impl Sync for Session {}

/// A thread of this process.
pub(crate) struct Thread {
    pub(crate) id: u64,
    /// Polls of it that found something.
    pub(crate) found: AtomicU64,
}

/// The folder for files of counters; none if nothing is to be counted.
fn folder() -> Option<&'static PathBuf> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let set: Option<OsString> = std::env::var_os(VARIABLE);
        set.filter(|folder| !folder.is_empty()).map(PathBuf::from)
    });
    folder.as_ref()
}

/// Whether this process's counts are wanted.
pub(crate) fn is_wanted() -> bool {
    folder().is_some()
}

/// This process's recording, which begins with the first call; none if it cannot be made.
pub(crate) fn current(provider: &str) -> Option<&'static Session> {
    static CURRENT: Mutex<Option<&'static Session>> = Mutex::new(None);
    let folder = folder().map(PathBuf::as_path);
    let pid = std::process::id();
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    // After a fork the child begins its own.
    if let Some(session) = current.filter(|session| session.pid == pid) {
        return Some(session);
    }
    match Session::begin(folder, pid, provider) {
        Ok(session) => {
            let session: &'static Session = Box::leak(Box::new(session));
            *current = Some(session);
            LATEST.store(
                std::ptr::from_ref(session).expose_provenance() as u64,
                Relaxed,
            );
            at_the_end();
            Some(session)
        }
        Err(error) => {
            let folder = folder.unwrap_or(Path::new("memory"));
            eprintln!(
                "verbatim: what this process does is not recorded: {}: {error}",
                folder.display()
            );
            None
        }
    }
}

/// Address of the session of this process, for the functions that the C library calls.
static LATEST: AtomicU64 = AtomicU64::new(0);

fn latest() -> Option<&'static Session> {
    let at = LATEST.load(Relaxed) as usize;
    // SAFETY: 0, or the address of a session, which lives for ever.
    unsafe { std::ptr::with_exposed_provenance::<Session>(at).as_ref() }
}

/// Has the C library tell when the process ends and when it forks.
fn at_the_end() {
    static ONCE: OnceLock<()> = OnceLock::new();
    extern "C" fn ends() {
        if let Some(session) = latest().filter(|session| session.pid == std::process::id()) {
            session.header().complete.store(1, Relaxed);
        }
    }
    extern "C" fn child() {
        if let Some(session) = latest() {
            session.detach();
        }
    }
    ONCE.get_or_init(|| {
        // SAFETY: both functions live as long as this library, which is never unloaded, and call nothing that a
        // process may not call while it ends or right after a fork.
        unsafe {
            libc::atexit(ends);
            libc::pthread_atfork(None, None, Some(child));
        }
    });
}

/// Now, in ns of `CLOCK_MONOTONIC`.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

impl Session {
    fn begin(folder: Option<&Path>, pid: u32, provider: &str) -> io::Result<Self> {
        let begun = now_ns();
        let file = match folder {
            Some(folder) => {
                let path = folder.join(format!("{begun:020}-{pid}.{EXTENSION}"));
                OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(path)?
            }
            // A process that is only traced counts for nobody.
            None => memfd_create(c"verbatim counters", MemfdFlags::CLOEXEC)?.into(),
        };
        file.set_len(FILE_BYTES as u64)?;
        reserve(&file, 0, CQ_CELLS_AT)?;
        // SAFETY: a new mapping of a file of that size, which nobody shrinks: whoever could is this user.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                FILE_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let session = Self {
            pid,
            base,
            file,
            taking: Mutex::new(()),
        };
        let header = session.header();
        let program = std::env::args_os()
            .map(|arg| arg.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
            .join(" ");
        let len = store_text(&header.program, &program);
        header.program_len.store(len, Relaxed);
        store_text(&header.provider, provider);
        header.pid.store(u64::from(pid), Relaxed);
        header.version.store(VERSION, Relaxed);
        header.magic.store(MAGIC, Relaxed);
        Ok(session)
    }

    pub(crate) fn header(&self) -> &'static Header<AtomicU64> {
        // SAFETY: the mapping begins with a header of words that are zero or were written as words.
        unsafe { self.base.cast().as_ref() }
    }

    /// In a forked child: the file is the parent's. What is counted goes into memory that nobody looks at.
    fn detach(&self) {
        // SAFETY: replaces the mapping of this session, in a process with one thread, by one of the same size.
        let _ = unsafe {
            mmap_anonymous(
                self.base.as_ptr().cast(),
                FILE_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
            )
        };
    }

    /// Notes that the data path is in use, and says what time it is.
    #[cold]
    pub(crate) fn touch(&self) -> u64 {
        let now = now_ns();
        let header = self.header();
        let _ = header.first_ns.compare_exchange(0, now, Relaxed, Relaxed);
        header.last_ns.fetch_max(now, Relaxed);
        now
    }

    /// The next cell of an array, filled by `fill` before it counts as used; a cell that nobody reads if there is
    /// no room.
    fn take<C>(
        &self,
        used: &AtomicU64,
        at: usize,
        max: usize,
        unread: fn() -> &'static C,
        fill: impl FnOnce(&C),
    ) -> &'static C {
        let _one = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let index = used.load(Relaxed) as usize;
        let offset = at + index * size_of::<C>();
        if index >= max || reserve(&self.file, offset, size_of::<C>()).is_err() {
            add(&self.header().uncounted, 1);
            return unread();
        }
        // SAFETY: within the array of such cells, which are words of zeros; it was reserved, so the file system
        // has memory for it.
        let cell: &'static C = unsafe { self.base.byte_add(offset).cast().as_ref() };
        fill(cell);
        used.store(index as u64 + 1, Relaxed);
        cell
    }

    pub(crate) fn take_qp(&self, fill: impl FnOnce(&QpCounters)) -> &'static QpCounters {
        let used = &self.header().qp_cells;
        self.take(used, QP_CELLS_AT, MAX_QP_CELLS, unread, fill)
    }

    pub(crate) fn take_cq(&self, fill: impl FnOnce(&CqCounters)) -> &'static CqCounters {
        let used = &self.header().cq_cells;
        self.take(used, CQ_CELLS_AT, MAX_CQ_CELLS, unread, fill)
    }

    pub(crate) fn take_srq(&self, fill: impl FnOnce(&SrqCounters)) -> &'static SrqCounters {
        let used = &self.header().srq_cells;
        self.take(used, SRQ_CELLS_AT, MAX_SRQ_CELLS, unread, fill)
    }

    /// The calling thread.
    pub(crate) fn thread(&self) -> &'static Thread {
        thread_local! {
            static THREAD: Cell<Option<(u32, &'static Thread)>> = const { Cell::new(None) };
        }
        // A thread that is ending has no such memory any more; it stands for a thread of its own.
        let known = THREAD.try_with(Cell::get).ok().flatten();
        if let Some((pid, thread)) = known.filter(|(pid, _)| *pid == self.pid) {
            let _ = pid;
            return thread;
        }
        let thread: &'static Thread = Box::leak(Box::new(Thread {
            id: self.header().threads.fetch_add(1, Relaxed),
            found: AtomicU64::new(0),
        }));
        let _ = THREAD.try_with(|known| known.set(Some((self.pid, thread))));
        thread
    }
}

/// Has the file system find memory now: later its lack would be a SIGBUS.
fn reserve(file: &File, offset: usize, len: usize) -> io::Result<()> {
    loop {
        match fallocate(file, FallocateFlags::empty(), offset as u64, len as u64) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// A cell that is counted in and never read.
fn unread<C>() -> &'static C {
    // SAFETY: cells consist of atomic words, for which zeros are a value.
    Box::leak(unsafe { Box::<C>::new_zeroed().assume_init() })
}

/// Stores text eight bytes a word, as much of it as fits; its length.
fn store_text(words: &[AtomicU64], text: &str) -> u64 {
    let bytes = &text.as_bytes()[..text.len().min(words.len() * 8)];
    for (word, bytes) in words.iter().zip(bytes.chunks(8)) {
        let mut eight = [0; 8];
        eight[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_le_bytes(eight), Relaxed);
    }
    bytes.len() as u64
}

/// A word that tells this thread from every other that lives.
#[inline(always)]
pub(crate) fn thread_token() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let token: usize;
        // SAFETY: the first word of a thread's control block is its own address (psABI, "Thread-Local Storage").
        unsafe {
            std::arch::asm!("mov {}, fs:[0]", out(reg) token, options(nostack, preserves_flags, pure, readonly));
        }
        token
    }
    #[cfg(target_arch = "aarch64")]
    {
        let token: usize;
        // SAFETY: the thread pointer can be read by every program.
        unsafe {
            std::arch::asm!("mrs {}, tpidr_el0", out(reg) token, options(nostack, preserves_flags, pure, nomem));
        }
        token
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        thread_local!(static HERE: u8 = const { 0 });
        HERE.try_with(|here| std::ptr::from_ref(here).addr())
            .unwrap_or(0)
    }
}
