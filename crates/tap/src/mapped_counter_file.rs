//! The recording of one process: its file of counters, and the assignment of cells.

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
use crate::message_balance::MessageBalance;

/// Environment variable that names the folder in which each process makes its file of counters. Without the
/// variable nothing is counted.
pub const TAP_DIR_ENV_VAR: &str = "VERBATIM_TAP_DIR";
/// Extension of the name of a file of counters.
pub(crate) const COUNTER_FILE_EXTENSION: &str = "tap";

pub(crate) type QpCounters = QpThreadCell<AtomicU64>;
pub(crate) type CqCounters = CqThreadCell<AtomicU64>;
pub(crate) type SrqCounters = SrqThreadCell<AtomicU64>;

/// Adds `number` to a word that only this thread writes.
#[inline(always)]
pub(crate) fn add_as_only_writer(word: &AtomicU64, number: u64) {
    word.store(word.load(Relaxed).wrapping_add(number), Relaxed);
}

/// Raises a word that only this thread writes to `number`, if the word is smaller.
#[inline(always)]
pub(crate) fn raise_to_at_least(word: &AtomicU64, number: u64) {
    if word.load(Relaxed) < number {
        word.store(number, Relaxed);
    }
}

/// Stores a number in a word that only this thread writes, if the word differs.
#[inline(always)]
pub(crate) fn store_if_changed(word: &AtomicU64, number: u64) {
    if word.load(Relaxed) != number {
        word.store(number, Relaxed);
    }
}

/// The file of counters of a process, mapped. The mapping is never removed, because its cells are used until the
/// process ends.
pub(crate) struct MappedCounterFile {
    pid: u32,
    mapping_base: NonNull<u8>,
    file: File,
    /// Lock that a thread holds while it takes a cell.
    assignment_lock: Mutex<()>,
}

// SAFETY: the mapping contains only atomics, and is never unmapped.
unsafe impl Send for MappedCounterFile {}
// SAFETY: as above.
unsafe impl Sync for MappedCounterFile {}

/// A thread of this process.
pub(crate) struct TappedThread {
    pub(crate) id: u64,
    /// Number of the thread's polls that found completions.
    pub(crate) successful_polls: AtomicU64,
    /// The thread's messages on all its queue pairs.
    pub(crate) messages: MessageBalance,
}

/// Returns the folder for files of counters; `None` if counting is off.
fn counter_folder() -> Option<&'static PathBuf> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let set: Option<OsString> = std::env::var_os(TAP_DIR_ENV_VAR);
        set.filter(|folder| !folder.is_empty()).map(PathBuf::from)
    });
    folder.as_ref()
}

/// Returns true if the verbs of this process are to be counted.
pub(crate) fn is_counting_enabled() -> bool {
    counter_folder().is_some()
}

/// Returns this process's session, and begins it at the first call; `None` if that fails.
pub(crate) fn counter_file_of_process_or_begin(
    provider: &str,
) -> Option<&'static MappedCounterFile> {
    static CURRENT: Mutex<Option<&'static MappedCounterFile>> = Mutex::new(None);
    let folder = counter_folder().map(PathBuf::as_path);
    let pid = std::process::id();
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    // A forked child begins its own session.
    if let Some(session) = current.filter(|session| session.pid == pid) {
        return Some(session);
    }
    match MappedCounterFile::create_and_map(folder, pid, provider) {
        Ok(session) => {
            let session: &'static MappedCounterFile = Box::leak(Box::new(session));
            *current = Some(session);
            LATEST_COUNTER_FILE_ADDR.store(
                std::ptr::from_ref(session).expose_provenance() as u64,
                Relaxed,
            );
            register_exit_handlers();
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

/// Address of this process's session, for the functions that the C library calls.
static LATEST_COUNTER_FILE_ADDR: AtomicU64 = AtomicU64::new(0);

fn latest_counter_file() -> Option<&'static MappedCounterFile> {
    let at = LATEST_COUNTER_FILE_ADDR.load(Relaxed) as usize;
    // SAFETY: the address is 0 or that of a session, which lives for ever.
    unsafe { std::ptr::with_exposed_provenance::<MappedCounterFile>(at).as_ref() }
}

/// Registers the functions that the C library calls at exit and after a fork.
fn register_exit_handlers() {
    static ONCE: OnceLock<()> = OnceLock::new();
    extern "C" fn ends() {
        if let Some(session) =
            latest_counter_file().filter(|session| session.pid == std::process::id())
        {
            session.header().exited_normally.store(1, Relaxed);
        }
    }
    extern "C" fn child() {
        if let Some(session) = latest_counter_file() {
            session.detach_forked_child();
        }
    }
    ONCE.get_or_init(|| {
        // SAFETY: both functions live as long as this library, which is never unloaded. They make only calls
        // that are permitted during exit and directly after a fork.
        unsafe {
            libc::atexit(ends);
            libc::pthread_atfork(None, None, Some(child));
        }
    });
}

/// Returns the time of `CLOCK_MONOTONIC` in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

impl MappedCounterFile {
    fn create_and_map(folder: Option<&Path>, pid: u32, provider: &str) -> io::Result<Self> {
        let begun = now_ns();
        let file = match folder {
            Some(folder) => {
                let path = folder.join(format!("{begun:020}-{pid}.{COUNTER_FILE_EXTENSION}"));
                OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(path)?
            }
            // A process that is only traced needs no file for its counters.
            None => memfd_create(c"verbatim counters", MemfdFlags::CLOEXEC)?.into(),
        };
        file.set_len(FILE_BYTES as u64)?;
        allocate_file_range(&file, 0, CQ_CELLS_AT)?;
        // SAFETY: a new mapping of a file of that size; only this user could shrink the file, and no process
        // does.
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
            mapping_base: base,
            file,
            assignment_lock: Mutex::new(()),
        };
        let header = session.header();
        let program = std::env::args_os()
            .map(|arg| arg.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
            .join(" ");
        let len = store_text_in_words(&header.command_line, &program);
        header.command_line_bytes.store(len, Relaxed);
        store_text_in_words(&header.provider_name, provider);
        header.pid.store(u64::from(pid), Relaxed);
        header.version.store(COUNTER_FILE_LAYOUT_VERSION, Relaxed);
        header.magic.store(COUNTER_FILE_MAGIC, Relaxed);
        Ok(session)
    }

    pub(crate) fn header(&self) -> &'static CounterFileHeader<AtomicU64> {
        // SAFETY: the mapping begins with a header, whose words are zero or were written as words.
        unsafe { self.mapping_base.cast().as_ref() }
    }

    /// Detaches a forked child from its parent's file of counters. Further counts of the child go into private
    /// memory that is never read.
    fn detach_forked_child(&self) {
        // SAFETY: replaces this session's mapping by one of the same size, in a process with a single thread.
        let _ = unsafe {
            mmap_anonymous(
                self.mapping_base.as_ptr().cast(),
                FILE_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
            )
        };
    }

    /// Records that the data path is in use, and returns the time.
    #[cold]
    pub(crate) fn record_data_path_use_and_time(&self) -> u64 {
        let now = now_ns();
        let header = self.header();
        let _ = header
            .first_data_path_use_ns
            .compare_exchange(0, now, Relaxed, Relaxed);
        header.last_data_path_use_ns.fetch_max(now, Relaxed);
        now
    }

    /// Takes the next free cell of an array. `fill` initializes the cell before it counts as used. If no cell is
    /// free, the function returns a cell that is never read.
    fn take_free_cell<C>(
        &self,
        used: &AtomicU64,
        at: usize,
        max: usize,
        discarded_cell: fn() -> &'static C,
        fill: impl FnOnce(&C),
    ) -> &'static C {
        let _one = self
            .assignment_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let index = used.load(Relaxed) as usize;
        let offset = at + index * size_of::<C>();
        if index >= max || allocate_file_range(&self.file, offset, size_of::<C>()).is_err() {
            add_as_only_writer(&self.header().uncounted_objects, 1);
            return discarded_cell();
        }
        // SAFETY: the cell is within the array of such cells, which consist of zeroed words; it was reserved,
        // so the file system has memory for it.
        let cell: &'static C = unsafe { self.mapping_base.byte_add(offset).cast().as_ref() };
        fill(cell);
        used.store(index as u64 + 1, Relaxed);
        cell
    }

    pub(crate) fn take_qp_cell(&self, fill: impl FnOnce(&QpCounters)) -> &'static QpCounters {
        let used = &self.header().used_qp_cells;
        self.take_free_cell(used, QP_CELLS_AT, MAX_QP_THREAD_CELLS, discarded_cell, fill)
    }

    pub(crate) fn take_cq_cell(&self, fill: impl FnOnce(&CqCounters)) -> &'static CqCounters {
        let used = &self.header().used_cq_cells;
        self.take_free_cell(used, CQ_CELLS_AT, MAX_CQ_THREAD_CELLS, discarded_cell, fill)
    }

    pub(crate) fn take_srq_cell(&self, fill: impl FnOnce(&SrqCounters)) -> &'static SrqCounters {
        let used = &self.header().used_srq_cells;
        self.take_free_cell(
            used,
            SRQ_CELLS_AT,
            MAX_SRQ_THREAD_CELLS,
            discarded_cell,
            fill,
        )
    }

    /// Returns the calling thread's record.
    pub(crate) fn current_thread(&self) -> &'static TappedThread {
        thread_local! {
            static THREAD: Cell<Option<(u32, &'static TappedThread)>> = const { Cell::new(None) };
        }
        // The thread-local of an ending thread is destroyed already; each later call then counts as a new
        // thread.
        let known = THREAD.try_with(Cell::get).ok().flatten();
        if let Some((pid, thread)) = known.filter(|(pid, _)| *pid == self.pid) {
            let _ = pid;
            return thread;
        }
        let thread: &'static TappedThread = Box::leak(Box::new(TappedThread {
            id: self.header().thread_count.fetch_add(1, Relaxed),
            successful_polls: AtomicU64::new(0),
            messages: MessageBalance::new(),
        }));
        let _ = THREAD.try_with(|known| known.set(Some((self.pid, thread))));
        thread
    }
}

/// Makes the file system allocate memory now. Otherwise a later access would raise SIGBUS if the file system is
/// full.
fn allocate_file_range(file: &File, offset: usize, len: usize) -> io::Result<()> {
    loop {
        match fallocate(file, FallocateFlags::empty(), offset as u64, len as u64) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// Returns a cell that is written but never read.
fn discarded_cell<C>() -> &'static C {
    // SAFETY: cells consist of atomic words, for which zero is a valid value.
    Box::leak(unsafe { Box::<C>::new_zeroed().assume_init() })
}

/// Stores as much of a text as fits, eight bytes per word, and returns the stored length.
fn store_text_in_words(words: &[AtomicU64], text: &str) -> u64 {
    let bytes = &text.as_bytes()[..text.len().min(words.len() * 8)];
    for (word, bytes) in words.iter().zip(bytes.chunks(8)) {
        let mut eight = [0; 8];
        eight[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_le_bytes(eight), Relaxed);
    }
    bytes.len() as u64
}

/// Returns a number that identifies the calling thread among all live threads.
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
        // SAFETY: every program can read the thread pointer.
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
