//! Shared pages and `fork(2)`: a child gets a copy of its parent's memory, as it was when it was forked, and shares
//! nothing with it.
//!
//! Handlers of `pthread_atfork(3)` see to that: the child copies the shared pages into private ones while its parent
//! waits. In a child of a program with several threads only what is safe in a signal handler may be called, so the
//! parent prepares what the child needs.

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

use super::page::PAGE;
use super::sharing::{Sharing, sharing};

/// What the child has to do, and what both sides need to tell each other that it is done.
struct Fork {
    /// Nobody shares pages meanwhile.
    held: MutexGuard<'static, Sharing>,
    /// Shared pages, and whether they are readable and writable.
    ranges: Vec<(Range<usize>, (bool, bool))>,
    done: Option<Done>,
}

/// How the child says that it is done.
enum Done {
    /// It closes it then, or when it dies: ends of a pipe to read from and to write to.
    Pipe(OwnedFd, OwnedFd),
    /// Where there are no descriptors for a pipe: a page that both have, whose first word is not 0 then.
    Page(*mut AtomicU32),
}

/// So long the parent waits for a word in a page: a child that has died writes none.
const PATIENCE: Duration = Duration::from_secs(2);

impl Done {
    fn new() -> Option<Self> {
        if let Ok((read, write)) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC) {
            return Some(Self::Pipe(read, write));
        }
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let page =
            unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE, writable, MapFlags::SHARED) };
        page.ok().map(|page| Self::Page(page.cast()))
    }

    /// In the parent.
    fn wait(self) {
        match self {
            Self::Pipe(read, write) => {
                drop(write);
                // Nothing is ever written: this returns when the child has closed its end.
                let _ = std::fs::File::from(read).read(&mut [0]);
            }
            Self::Page(page) => {
                let begin = Instant::now();
                // SAFETY: a page of zeroes, mapped until the end of this function, of which nobody else in this process
                // knows; the child has a mapping of its own.
                let word = unsafe { &*page };
                while word.load(Ordering::Acquire) == 0 && begin.elapsed() < PATIENCE {
                    cancellation::sleep(Duration::from_micros(50));
                }
                // SAFETY: as above; it is not used any more.
                let _ = unsafe { munmap(page.cast(), PAGE) };
            }
        }
    }

    /// In the child; what it has of it is not used any more.
    fn say(&self) {
        match self {
            Self::Pipe(read, write) => {
                // SAFETY: the child's copies of descriptors, which the caller forgets.
                unsafe {
                    rustix::io::close(read.as_raw_fd());
                    rustix::io::close(write.as_raw_fd());
                }
            }
            Self::Page(page) => {
                // SAFETY: mapped since before the fork, and not used after this.
                unsafe {
                    (**page).store(1, Ordering::Release);
                    let _ = munmap(page.cast(), PAGE);
                }
            }
        }
    }
}

thread_local! {
    static FORK: RefCell<Option<Fork>> = const { RefCell::new(None) };
}

/// Sees to forks of this process and its children from now on. False where that cannot be.
pub(super) fn handle() -> bool {
    static HANDLED: OnceLock<bool> = OnceLock::new();
    *HANDLED.get_or_init(|| {
        // SAFETY: functions that live as long as this library, which is never unloaded once its engine runs.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) == 0 }
    })
}

extern "C" fn prepare() {
    let held = sharing();
    let mut ranges = Vec::new();
    if let Some(inode) = held.inode() {
        for area in held.areas().unwrap_or_default() {
            if area.inode == inode {
                ranges.push((area.start..area.end, (area.readable, area.writable)));
            }
        }
    }
    let done = if ranges.is_empty() { None } else { Done::new() };
    // Where thread-locals are gone already the thread is ending, and the child sees its parent's pages.
    let _ = FORK.try_with(|fork| fork.replace(Some(Fork { held, ranges, done })));
}

extern "C" fn parent() {
    let Ok(Some(fork)) = FORK.try_with(RefCell::take) else {
        return;
    };
    let _hold_off = cancellation::HoldOff::new();
    if let Some(done) = fork.done {
        done.wait();
    }
    drop(fork.held);
}

extern "C" fn child() {
    let Ok(Some(fork)) = FORK.try_with(RefCell::take) else {
        return;
    };
    for (range, protection) in &fork.ranges {
        // SAFETY: a mapping of the parent's that this process has inherited and that nobody else uses.
        unsafe { make_private(range, *protection) };
    }
    if let Some(done) = &fork.done {
        done.say();
    }
    // Not freed: another thread of the parent may have held the allocator's lock. The lock is held for ever by
    // nobody otherwise, so it is let go.
    std::mem::forget(fork.done);
    std::mem::forget(fork.ranges);
    drop(fork.held);
}

/// Puts private pages with the same contents in the place of inherited ones. Where there is no memory for that the
/// child ends, as one does that touches memory which the system has promised and does not have.
///
/// # Safety
/// `range` is mapped as `readable` and `writable` say, and no other thread of this process uses it.
unsafe fn make_private(range: &Range<usize>, (readable, writable): (bool, bool)) {
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
