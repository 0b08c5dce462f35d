//! Shared memory of two processes of a benchmark, and memory that one process writes for the other.
//!
//! Unsafe code: mapping memory, and accessing the mappings.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, Mode, OFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use serde::{Deserialize, Serialize};

/// Creates shared memory of `size` zeroed bytes.
///
/// # Errors
/// When the system has no memory.
pub(super) fn create_shared_memory(size: usize) -> Result<OwnedFd> {
    let fd = memfd_create("verbatim-bench", MemfdFlags::CLOEXEC)
        .context("cannot create shared memory")?;
    ftruncate(&fd, size as u64).context("cannot size shared memory")?;
    Ok(fd)
}

/// Opens the shared memory that process `pid` has as descriptor `fd`.
///
/// # Errors
/// When that process is gone, or the kernel refuses access.
pub(super) fn open_shared_memory(pid: i32, fd: i32) -> Result<OwnedFd> {
    let path = format!("/proc/{pid}/fd/{fd}");
    rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .context("cannot open the worker's memory")
}

/// Words that two processes share. They are all zero at first and accessed only by atomic
/// operations.
pub(super) struct SharedWords {
    mapping: PeerWritableMapping,
    fd: OwnedFd,
}

/// Location of [`SharedWords`] for another process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct SharedWordsLocation {
    #[serde(rename = "pid")]
    owner_pid: i32,
    #[serde(rename = "fd")]
    owner_fd: i32,
    #[serde(rename = "count")]
    word_count: usize,
}

impl SharedWords {
    /// Creates `count` words.
    ///
    /// # Errors
    /// When the system has no memory.
    pub(super) fn create(count: usize) -> Result<SharedWords> {
        SharedWords::map(create_shared_memory(count * size_of::<AtomicU64>())?, count)
    }

    /// Maps the words of another process.
    ///
    /// # Errors
    /// When that process is gone, or the kernel refuses access.
    pub(super) fn open(at: &SharedWordsLocation) -> Result<SharedWords> {
        SharedWords::map(
            open_shared_memory(at.owner_pid, at.owner_fd)?,
            at.word_count,
        )
    }

    fn map(fd: OwnedFd, count: usize) -> Result<SharedWords> {
        let mapping = PeerWritableMapping::new(&fd, count * size_of::<AtomicU64>())?;
        Ok(SharedWords { mapping, fd })
    }

    /// Returns the process, descriptor and size with which another process [opens](SharedWords::open) these words. The
    /// location is valid as long as the words exist.
    ///
    /// # Errors
    /// When the process id exceeds `i32`; Linux assigns no such id.
    pub(super) fn location(&self) -> Result<SharedWordsLocation> {
        Ok(SharedWordsLocation {
            owner_pid: i32::try_from(std::process::id())?,
            owner_fd: self.fd.as_raw_fd(),
            word_count: self.words().len(),
        })
    }

    /// Returns the words.
    pub(super) fn words(&self) -> &[AtomicU64] {
        let count = self.mapping.size / size_of::<AtomicU64>();
        // SAFETY: the mapping is `size` readable and writable bytes until `drop`. It starts at a
        // page, which is aligned for `AtomicU64`, and any bit pattern is a valid value. `SharedWords`
        // alone owns the mapping and never calls `PeerWritableMapping::write` or `PeerWritableMapping::read`. The other
        // process maps the same memory as `SharedWords`, so all accesses are atomic.
        unsafe { std::slice::from_raw_parts(self.mapping.start.as_ptr().cast(), count) }
    }
}

/// A mapping that another process may write; it is accessed only by copies.
pub(super) struct PeerWritableMapping {
    start: NonNull<u8>,
    size: usize,
}

impl PeerWritableMapping {
    pub(super) fn new(fd: &OwnedFd, size: usize) -> Result<PeerWritableMapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address (a null hint without FIXED), so no memory that
        // is in use is replaced.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                size,
                protection,
                MapFlags::SHARED,
                fd,
                0,
            )
        }
        .context("cannot map shared memory")?;
        PeerWritableMapping::from_raw(start, size)
    }

    pub(super) fn map_private(size: usize) -> Result<PeerWritableMapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as in `new`.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), size, protection, MapFlags::PRIVATE)
        }
        .context("cannot map private memory")?;
        PeerWritableMapping::from_raw(start, size)
    }

    fn from_raw(start: *mut std::ffi::c_void, size: usize) -> Result<PeerWritableMapping> {
        let start = NonNull::new(start.cast()).context("mapped at address 0")?;
        Ok(PeerWritableMapping { start, size })
    }

    pub(super) fn addr(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// Copies `source` to the start of the mapping.
    pub(super) fn write(&self, source: &[u8]) {
        assert!(source.len() <= self.size);
        // SAFETY: the mapping is `size` writable bytes until `drop` (made by mmap in `new` and
        // `map_private`), and the check above ensures that they are enough. `source` is other memory,
        // because a mapping is never lent out as a slice. No other thread or process accesses the
        // bytes now: driver and worker take turns by messages over the link.
        // JUSTIFICATION: this copy is what the peer measures.
        unsafe {
            std::ptr::copy_nonoverlapping(source.as_ptr(), self.start.as_ptr(), source.len());
        }
    }

    /// Returns a copy of the mapping.
    pub(super) fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size];
        // SAFETY: as in `write`, in the other direction; `bytes` has `size` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start.as_ptr(), bytes.as_mut_ptr(), self.size);
        }
        bytes
    }
}

impl Drop for PeerWritableMapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that mmap returned, unmapped once; no reference into it exists
        // because `write` and `read` copy.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.size) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn words_are_shared_by_who_opens_them() {
        let words = SharedWords::create(100).unwrap();
        let opened = SharedWords::open(&words.location().unwrap()).unwrap();
        assert_eq!(opened.words().len(), 100);
        assert!(
            opened
                .words()
                .iter()
                .all(|w| w.load(Ordering::Relaxed) == 0)
        );
        words.words()[99].store(7, Ordering::Relaxed);
        assert_eq!(opened.words()[99].load(Ordering::Relaxed), 7);
        let nobody = SharedWordsLocation {
            owner_pid: i32::MAX,
            owner_fd: 3,
            word_count: 1,
        };
        assert!(SharedWords::open(&nobody).is_err());
    }
}
