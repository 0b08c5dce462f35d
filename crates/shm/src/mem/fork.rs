//! Shared pages and `fork(2)`: a child gets a copy of its parent's memory as of the fork, and shares no pages
//! with the parent.
//!
//! Handlers of `pthread_atfork(3)` implement this: the child copies the shared pages into private ones while
//! its parent waits. The child of a multithreaded program may call only async-signal-safe functions. The
//! parent therefore prepares all that the child needs.

use std::cell::RefCell;
use std::ffi::c_void;
use std::io::Read;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::MutexGuard;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::mm::{
    MapFlags, MprotectFlags, MremapFlags, ProtFlags, mmap_anonymous, mprotect, mremap_fixed, munmap,
};

use super::page::PAGE_BYTES;
use super::shared_pages::{SharedPages, lock_shared_pages};

/// State of a fork in progress: the child's task, and the means by which the child reports completion.
struct ForkInProgress {
    /// Lock of [`SharedPages`], held so that no thread shares pages during the fork.
    pages_lock: MutexGuard<'static, SharedPages>,
    /// Ranges of shared pages; the two flags of each range are readable and writable.
    shared_ranges: Vec<(Range<usize>, (bool, bool))>,
    copy_completion: Option<CopyCompletion>,
}

/// Means by which the child reports that it has copied the pages.
enum CopyCompletion {
    /// The read and write ends of a pipe. The child closes both when it is done, or when it dies.
    Pipe(OwnedFd, OwnedFd),
    /// A page that both processes share, used if no descriptors are left for a pipe. The child sets
    /// its first word to a nonzero value.
    SharedPage(*mut AtomicU32),
}

/// Time for which the parent waits for the word in the shared page; a child that has died never
/// sets the word.
const CHILD_COPY_TIMEOUT: Duration = Duration::from_secs(2);

impl CopyCompletion {
    fn new() -> Option<Self> {
        if let Ok((read, write)) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC) {
            return Some(Self::Pipe(read, write));
        }
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let page =
            unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE_BYTES, writable, MapFlags::SHARED) };
        page.ok().map(|page| Self::SharedPage(page.cast()))
    }

    /// Waits for the child, in the parent.
    fn wait(self) {
        match self {
            Self::Pipe(read, write) => {
                drop(write);
                // The pipe carries no data: the read returns once all copies of the pipe's write
                // end are closed.
                let _ = std::fs::File::from(read).read(&mut [0]);
            }
            Self::SharedPage(page) => {
                let begin = Instant::now();
                // SAFETY: a page of zeroes, mapped until the end of this function, whose address no other
                // code in this process knows. The child has its own mapping of the page.
                let word = unsafe { &*page };
                while word.load(Ordering::Acquire) == 0 && begin.elapsed() < CHILD_COPY_TIMEOUT {
                    cancellation::sleep(Duration::from_micros(50));
                }
                // SAFETY: as above; the page is not used any more.
                let _ = unsafe { munmap(page.cast(), PAGE_BYTES) };
            }
        }
    }

    /// Reports completion, in the child. The caller must not use the value afterwards.
    fn report_done(&self) {
        match self {
            Self::Pipe(read, write) => {
                // SAFETY: these are the child's copies of the descriptors, and the caller forgets their
                // owners.
                unsafe {
                    rustix::io::close(read.as_raw_fd());
                    rustix::io::close(write.as_raw_fd());
                }
            }
            Self::SharedPage(page) => {
                // SAFETY: the page was mapped before the fork, and is not used after this.
                unsafe {
                    (**page).store(1, Ordering::Release);
                    let _ = munmap(page.cast(), PAGE_BYTES);
                }
            }
        }
    }
}

thread_local! {
    static FORK: RefCell<Option<ForkInProgress>> = const { RefCell::new(None) };
}

/// Installs the fork handlers for this process and its children. Returns false if that fails.
pub(super) fn install_fork_handlers() -> bool {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    *INSTALLED.get_or_init(|| {
        // SAFETY: the functions live as long as this library, which is never unloaded once its engine runs.
        unsafe {
            libc::pthread_atfork(
                Some(before_fork),
                Some(after_fork_in_parent),
                Some(after_fork_in_child),
            ) == 0
        }
    })
}

extern "C" fn before_fork() {
    let held = lock_shared_pages();
    let mut ranges = Vec::new();
    if let Some(inode) = held.shared_file_inode() {
        for area in held.mappings_of_process().unwrap_or_default() {
            if area.inode == inode {
                ranges.push((area.start..area.end, (area.is_readable, area.is_writable)));
            }
        }
    }
    let done = if ranges.is_empty() {
        None
    } else {
        CopyCompletion::new()
    };
    // If the thread-locals are already destroyed, the thread is ending. The child then keeps the
    // shared pages of its parent.
    let _ = FORK.try_with(|fork| {
        fork.replace(Some(ForkInProgress {
            pages_lock: held,
            shared_ranges: ranges,
            copy_completion: done,
        }))
    });
}

extern "C" fn after_fork_in_parent() {
    let Ok(Some(fork)) = FORK.try_with(RefCell::take) else {
        return;
    };
    let _hold_off = cancellation::HoldOff::new();
    if let Some(done) = fork.copy_completion {
        done.wait();
    }
    drop(fork.pages_lock);
}

extern "C" fn after_fork_in_child() {
    let Ok(Some(fork)) = FORK.try_with(RefCell::take) else {
        return;
    };
    for (range, protection) in &fork.shared_ranges {
        // SAFETY: this process inherited the mapping from its parent, and no other thread uses it.
        unsafe { replace_by_private_copies(range, *protection) };
    }
    if let Some(done) = &fork.copy_completion {
        done.report_done();
    }
    // `copy_completion` and `ranges` are leaked, because another thread of the parent may have held the allocator's
    // lock. `pages_lock` is dropped, because otherwise its mutex would stay locked for ever.
    std::mem::forget(fork.copy_completion);
    std::mem::forget(fork.shared_ranges);
    drop(fork.pages_lock);
}

/// Replaces inherited pages by private pages with the same contents.
/// If memory is exhausted, the child exits. A process also ends when it touches overcommitted
/// memory that the system cannot provide.
/// system cannot provide.
///
/// # Safety
/// `range` is mapped as `readable` and `writable` say, and no other thread of this process uses it.
unsafe fn replace_by_private_copies(range: &Range<usize>, (readable, writable): (bool, bool)) {
    let old: *mut c_void = std::ptr::with_exposed_provenance_mut(range.start);
    let (null, len) = (std::ptr::null_mut(), range.len());
    let mut protection = MprotectFlags::empty();
    protection.set(MprotectFlags::READ, readable);
    protection.set(MprotectFlags::WRITE, writable);
    // SAFETY: system calls on whole mappings, and a copy between two of them; nothing here allocates.
    let moved = unsafe {
        if !readable {
            let _ = mprotect(old, len, MprotectFlags::READ);
        }
        mmap_anonymous(
            null,
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
        .and_then(|new| {
            std::ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast::<u8>(), len);
            if !readable || !writable {
                mprotect(new, len, protection)?;
            }
            mremap_fixed(new, len, len, MremapFlags::MAYMOVE, old)
        })
    };
    if moved.is_err() {
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(128 + libc::SIGBUS) };
    }
}
