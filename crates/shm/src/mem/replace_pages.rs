//! Replaces pages that running threads use by other pages with the same contents; the threads
//! notice nothing.
//!
//! `userfaultfd(2)` blocks the threads that write to the pages during the replacement. Replacement
//! is therefore safe in a program whose threads keep running.
//!
//! The module makes system calls directly and not through the C library's functions, because
//! programs override these functions (UCX's `mremap` ignores the fifth argument).

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Result;
use rustix::ioctl::{Updater, ioctl};
use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, UserfaultfdFlags, madvise, mmap, mmap_anonymous,
    mremap_fixed, munmap, userfaultfd,
};

/// `struct uffdio_api`, `_range`, `_register` and `_writeprotect` of linux/userfaultfd.h, and the numbers of
/// their `ioctl`s.
mod uffd {
    #[repr(C)]
    pub(super) struct UffdioApi {
        pub(super) api: u64,
        pub(super) features: u64,
        pub(super) ioctls: u64,
    }

    #[repr(C)]
    pub(super) struct UffdioRegister {
        pub(super) start: u64,
        pub(super) len: u64,
        pub(super) mode: u64,
        pub(super) ioctls: u64,
    }

    #[repr(C)]
    pub(super) struct UffdioWriteprotect {
        pub(super) start: u64,
        pub(super) len: u64,
        pub(super) mode: u64,
    }

    pub(super) const UFFD_API_VERSION: u64 = 0xaa;
    pub(super) const USER_MODE_ONLY: u32 = 1;
    pub(super) const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
    pub(super) const FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
    pub(super) const REGISTER_MODE_WP: u64 = 1 << 1;
    pub(super) const WRITEPROTECT_MODE_WP: u64 = 1 << 0;
    pub(super) const UFFDIO_API: u32 = 0xc018_aa3f;
    pub(super) const UFFDIO_REGISTER: u32 = 0xc020_aa00;
    pub(super) const UFFDIO_WRITEPROTECT: u32 = 0xc018_aa06;
}

/// Source of the new pages.
#[derive(Clone, Copy)]
pub(super) enum PageSource<'a> {
    /// Pages of a file, whose offsets equal their target addresses.
    Shared(BorrowedFd<'a>),
    /// Private pages of this process.
    Private,
}

/// A mapping that has not been moved to its target address; unmapped when dropped.
struct UnplacedMapping(*mut c_void, usize);

impl Drop for UnplacedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this module, and no other code knows its address.
        let _ = unsafe { munmap(self.0, self.1) };
    }
}

/// Maps pages for `range` at another address, and prefaults all of them. If memory is exhausted,
/// the caller gets an error now and no SIGBUS later.
fn map_unplaced(range: &Range<usize>, pages: PageSource<'_>) -> Result<UnplacedMapping> {
    let (null, len) = (std::ptr::null_mut(), range.len());
    let writable = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new mappings at an address that the kernel chooses.
    let at = unsafe {
        match pages {
            PageSource::Shared(file) => {
                let flags = MapFlags::SHARED | MapFlags::NORESERVE;
                mmap(null, len, writable, flags, file, range.start as u64)?
            }
            PageSource::Private => mmap_anonymous(null, len, writable, MapFlags::PRIVATE)?,
        }
    };
    let unplaced = UnplacedMapping(at, len);
    prefault(at, len)?;
    Ok(unplaced)
}

/// Prefaults pages.
fn prefault(at: *mut c_void, len: usize) -> Result<()> {
    // SAFETY: prefaulting changes nothing that a program can see; for an unmapped range the call returns an
    // error.
    unsafe { madvise(at, len, Advice::LinuxPopulateWrite) }
}

/// Blocks the threads that write to a range, from `protect` until the guard is dropped.
struct WriterBlocker(OwnedFd);

impl WriterBlocker {
    fn new() -> Result<Self> {
        let flags = UserfaultfdFlags::CLOEXEC
            | UserfaultfdFlags::NONBLOCK
            | UserfaultfdFlags::from_bits_retain(uffd::USER_MODE_ONLY);
        // SAFETY: faults are blocked only in registered ranges, and until this value is dropped.
        let guard = Self(unsafe { userfaultfd(flags) }?);
        let mut api = uffd::UffdioApi {
            api: uffd::UFFD_API_VERSION,
            features: uffd::FEATURE_PAGEFAULT_FLAG_WP | uffd::FEATURE_WP_HUGETLBFS_SHMEM,
            ioctls: 0,
        };
        // SAFETY: `UffdioApi` is the structure of this call.
        unsafe { ioctl(&guard.0, Updater::<{ uffd::UFFDIO_API }, _>::new(&mut api)) }?;
        Ok(guard)
    }

    fn write_protect(&self, range: &Range<usize>) -> Result<()> {
        let (start, len) = (range.start as u64, range.len() as u64);
        let mut register = uffd::UffdioRegister {
            start,
            len,
            mode: uffd::REGISTER_MODE_WP,
            ioctls: 0,
        };
        let mut protect = uffd::UffdioWriteprotect {
            start,
            len,
            mode: uffd::WRITEPROTECT_MODE_WP,
        };
        // SAFETY: the structures match these calls. Threads that write to the range block from here on.
        unsafe {
            ioctl(
                &self.0,
                Updater::<{ uffd::UFFDIO_REGISTER }, _>::new(&mut register),
            )?;
            ioctl(
                &self.0,
                Updater::<{ uffd::UFFDIO_WRITEPROTECT }, _>::new(&mut protect),
            )
        }
    }
}

/// Returns an error if this process cannot block threads that write to a page.
pub(super) fn check_writers_can_be_blocked() -> std::io::Result<()> {
    WriterBlocker::new()?;
    Ok(())
}

/// Blocks signals in this thread: a signal handler that wrote to a protected page would wait for ever.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn new() -> Self {
        // SAFETY: signal sets are plain data that the calls fill.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set came from `pthread_sigmask`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        };
    }
}

/// Replaces the pages in `range` by `pages` with the same contents.
///
/// # Errors
/// Returns an error, and changes nothing, if `userfaultfd` is unavailable (Linux before 5.19, a seccomp
/// filter) or memory is exhausted.
///
/// # Safety
/// `range` starts and ends at a page boundary and is mapped readable and writable. It holds neither the stack
/// nor thread-locals of this thread, nor other memory that this function writes to. No thread maps or unmaps
/// pages in it meanwhile.
pub(super) unsafe fn replace_pages(range: &Range<usize>, pages: PageSource<'_>) -> Result<()> {
    let guard = WriterBlocker::new()?;
    let old: *mut c_void = std::ptr::with_exposed_provenance_mut(range.start);
    let len = range.len();
    // Write protection applies only to present pages.
    prefault(old, len)?;
    let new = map_unplaced(range, pages)?;
    let signals = BlockedSignals::new();
    let placed = guard.write_protect(range).and_then(|()| {
        // SAFETY: both ranges are mapped and disjoint. From here until the old pages are gone no thread
        // writes to them. This thread does not either: neither call allocates, and `new` and `guard` lie on
        // its stack, outside the range.
        unsafe {
            std::ptr::copy_nonoverlapping(old.cast::<u8>(), new.0.cast::<u8>(), len);
            mremap_fixed(new.0, len, len, MremapFlags::MAYMOVE, old)?;
        }
        // The mapping has moved, so there is nothing to unmap.
        std::mem::forget(new);
        Ok(())
    });
    drop(guard);
    drop(signals);
    placed
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    const LEN: usize = 3 * 4096;

    /// Threads that write continuously lose no write, in both directions.
    #[test]
    fn no_write_is_lost() {
        if WriterBlocker::new().is_err() {
            // Without userfaultfd, pages are never replaced.
            return;
        }
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 1 << 47).unwrap();
        let memory = map_unplaced(&(0..LEN), PageSource::Private).unwrap();
        let start = memory.0.expose_provenance();
        let range = start..start + LEN;
        let stop = AtomicBool::new(false);
        let written = std::thread::scope(|scope| {
            let writers: Vec<_> = [64, 2 * 4096 + 8]
                .into_iter()
                .map(|offset| {
                    let stop = &stop;
                    scope.spawn(move || {
                        // SAFETY: the word is mapped as long as the test runs, is aligned, and is used by
                        // this thread only.
                        let word = unsafe {
                            &*std::ptr::with_exposed_provenance::<AtomicU64>(start + offset)
                        };
                        let mut n = 0;
                        while !stop.load(Ordering::Relaxed) {
                            n += 1;
                            word.store(n, Ordering::Relaxed);
                            assert_eq!(word.load(Ordering::Relaxed), n);
                        }
                        (offset, n)
                    })
                })
                .collect();
            for _ in 0..200 {
                // SAFETY: the memory belongs to this test, and is not a stack.
                unsafe {
                    replace_pages(&range, PageSource::Shared(file.as_fd())).unwrap();
                    replace_pages(&range, PageSource::Private).unwrap();
                }
            }
            stop.store(true, Ordering::Relaxed);
            writers
                .into_iter()
                .map(|w| w.join().unwrap())
                .collect::<Vec<_>>()
        });
        for (offset, n) in written {
            // SAFETY: as above.
            let word = unsafe { &*std::ptr::with_exposed_provenance::<AtomicU64>(start + offset) };
            assert_eq!(word.load(Ordering::Relaxed), n);
        }
    }
}
