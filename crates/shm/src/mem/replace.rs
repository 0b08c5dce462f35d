//! Putting other pages in the place of pages in use, with the same contents, so that no thread can tell.
//!
//! `userfaultfd(2)` holds whoever writes to the pages meanwhile: that is what makes it safe in a program whose
//! threads go on running.
//!
//! System calls are made directly and not by the C library's functions: programs put their own in the place of those
//! (UCX's takes no fifth argument of `mremap`).

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Result;
use rustix::ioctl::{Updater, ioctl};
use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, UserfaultfdFlags, madvise, mmap, mmap_anonymous,
    mremap_fixed, munmap, userfaultfd,
};

/// `struct uffdio_api`, `_range`, `_register` and `_writeprotect` of linux/userfaultfd.h, and the numbers of their
/// `ioctl`s.
mod uffd {
    #[repr(C)]
    pub(super) struct Api {
        pub(super) api: u64,
        pub(super) features: u64,
        pub(super) ioctls: u64,
    }

    #[repr(C)]
    pub(super) struct Register {
        pub(super) start: u64,
        pub(super) len: u64,
        pub(super) mode: u64,
        pub(super) ioctls: u64,
    }

    #[repr(C)]
    pub(super) struct WriteProtect {
        pub(super) start: u64,
        pub(super) len: u64,
        pub(super) mode: u64,
    }

    pub(super) const API: u64 = 0xaa;
    pub(super) const USER_MODE_ONLY: u32 = 1;
    pub(super) const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
    pub(super) const FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
    pub(super) const REGISTER_MODE_WP: u64 = 1 << 1;
    pub(super) const WRITEPROTECT_MODE_WP: u64 = 1 << 0;
    pub(super) const UFFDIO_API: u32 = 0xc018_aa3f;
    pub(super) const UFFDIO_REGISTER: u32 = 0xc020_aa00;
    pub(super) const UFFDIO_WRITEPROTECT: u32 = 0xc018_aa06;
}

/// Where new pages come from.
#[derive(Clone, Copy)]
pub(super) enum Pages<'a> {
    /// Those of a file, whose offset is the address at which they are to lie.
    Shared(BorrowedFd<'a>),
    /// Private ones of this process.
    Private,
}

/// A mapping that is not yet in its place; unmapped when dropped.
struct Unplaced(*mut c_void, usize);

impl Drop for Unplaced {
    fn drop(&mut self) {
        // SAFETY: a mapping of ours that nobody else knows.
        let _ = unsafe { munmap(self.0, self.1) };
    }
}

/// Maps pages for `range` at another address, all of them present: a shortage is an error here and no SIGBUS
/// later.
fn map(range: &Range<usize>, pages: Pages<'_>) -> Result<Unplaced> {
    let (null, len) = (std::ptr::null_mut(), range.len());
    let writable = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new mappings at an address of the kernel's choice.
    let at = unsafe {
        match pages {
            Pages::Shared(file) => {
                let flags = MapFlags::SHARED | MapFlags::NORESERVE;
                mmap(null, len, writable, flags, file, range.start as u64)?
            }
            Pages::Private => mmap_anonymous(null, len, writable, MapFlags::PRIVATE)?,
        }
    };
    let unplaced = Unplaced(at, len);
    populate(at, len)?;
    Ok(unplaced)
}

/// Sees to it that pages are there.
fn populate(at: *mut c_void, len: usize) -> Result<()> {
    // SAFETY: fetching pages changes nothing that a program can see; a range that is not mapped is an error.
    unsafe { madvise(at, len, Advice::LinuxPopulateWrite) }
}

/// Holds the threads that write to a range, from `protect` until it is dropped.
struct WriteGuard(OwnedFd);

impl WriteGuard {
    fn new() -> Result<Self> {
        let flags = UserfaultfdFlags::CLOEXEC
            | UserfaultfdFlags::NONBLOCK
            | UserfaultfdFlags::from_bits_retain(uffd::USER_MODE_ONLY);
        // SAFETY: faults are held only in ranges that are registered, and until this is dropped.
        let guard = Self(unsafe { userfaultfd(flags) }?);
        let mut api = uffd::Api {
            api: uffd::API,
            features: uffd::FEATURE_PAGEFAULT_FLAG_WP | uffd::FEATURE_WP_HUGETLBFS_SHMEM,
            ioctls: 0,
        };
        // SAFETY: the structure of this call.
        unsafe { ioctl(&guard.0, Updater::<{ uffd::UFFDIO_API }, _>::new(&mut api)) }?;
        Ok(guard)
    }

    fn protect(&self, range: &Range<usize>) -> Result<()> {
        let (start, len) = (range.start as u64, range.len() as u64);
        let mut register = uffd::Register {
            start,
            len,
            mode: uffd::REGISTER_MODE_WP,
            ioctls: 0,
        };
        let mut protect = uffd::WriteProtect {
            start,
            len,
            mode: uffd::WRITEPROTECT_MODE_WP,
        };
        // SAFETY: the structures of these calls. Threads that write to the range wait from here on.
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

/// Can this process hold threads that write?
pub(super) fn is_possible() -> std::io::Result<()> {
    WriteGuard::new()?;
    Ok(())
}

/// Keeps signal handlers from this thread: one that wrote to a protected page would wait for ever.
struct NoSignals(libc::sigset_t);

impl NoSignals {
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

impl Drop for NoSignals {
    fn drop(&mut self) {
        // SAFETY: the set came from `pthread_sigmask`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        };
    }
}

/// Puts `pages` in the place of those in `range`, with their contents.
///
/// # Errors
/// Where `userfaultfd` is not there for this process (Linux before 5.19, a seccomp filter), or memory is short.
/// Nothing has changed then.
///
/// # Safety
/// `range` starts and ends at a page, is mapped readable and writable, and holds neither the stack nor
/// thread-locals of this thread, nor anything else that this function writes to; nobody maps or unmaps pages in it
/// meanwhile.
pub(super) unsafe fn replace(range: &Range<usize>, pages: Pages<'_>) -> Result<()> {
    let guard = WriteGuard::new()?;
    let old: *mut c_void = std::ptr::with_exposed_provenance_mut(range.start);
    let len = range.len();
    // Only pages that are there are protected.
    populate(old, len)?;
    let new = map(range, pages)?;
    let signals = NoSignals::new();
    let placed = guard.protect(range).and_then(|()| {
        // SAFETY: both ranges are mapped, and apart. From here until the old pages are gone nobody writes to them,
        // this thread least of all: neither of these calls allocates, and `new` and `guard` lie on its stack.
        unsafe {
            std::ptr::copy_nonoverlapping(old.cast::<u8>(), new.0.cast::<u8>(), len);
            mremap_fixed(new.0, len, len, MremapFlags::MAYMOVE, old)?;
        }
        // It has moved: there is nothing left to unmap.
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

    /// A writer that never stops loses nothing, in both directions.
    #[test]
    fn no_write_is_lost() {
        if WriteGuard::new().is_err() {
            // Where the kernel has no such thing pages stay as they are.
            return;
        }
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 1 << 47).unwrap();
        let memory = map(&(0..LEN), Pages::Private).unwrap();
        let start = memory.0.expose_provenance();
        let range = start..start + LEN;
        let stop = AtomicBool::new(false);
        let written = std::thread::scope(|scope| {
            let writers: Vec<_> = [64, 2 * 4096 + 8]
                .into_iter()
                .map(|offset| {
                    let stop = &stop;
                    scope.spawn(move || {
                        // SAFETY: mapped as long as the test runs, aligned, and only this thread's.
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
                // SAFETY: memory of this test, and not a stack.
                unsafe {
                    replace(&range, Pages::Shared(file.as_fd())).unwrap();
                    replace(&range, Pages::Private).unwrap();
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
