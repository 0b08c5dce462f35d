//! Allocation of memory that peers can map.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{Advice, madvise};

use super::page::PAGE_BYTES;
use super::peer_memfd::open_memfd;
use crate::fabric::Peer;
use crate::fabric::segment::FileMapping;
use crate::lock::lock;

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A backing that peers can map: a sealed memfd of this process.
#[derive(Clone)]
pub(super) struct MemfdBacking {
    len: usize,
    pub(super) fd: Arc<OwnedFd>,
    pub(super) inode: u64,
}

/// The shareable memory of this process, by address.
static SHAREABLE_MEMORY: Mutex<BTreeMap<usize, MemfdBacking>> = Mutex::new(BTreeMap::new());

/// Zeroed memory that other processes of the fabric can map once it is registered.
///
/// One-sided verbs on this memory are plain copies instead of system calls. Allocations of 1 MiB or
/// more use huge pages if the system has them. Dropping the value frees the memory; deregister the
/// memory before.
#[derive(Debug)]
pub struct SharedMemory {
    ptr: NonNull<u8>,
    len: usize,
    mapped_bytes: usize,
}

// SAFETY: this value owns the range of addresses, and returns only raw pointers to it.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Returns the address of the first byte; page-aligned.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Returns the length in bytes that the caller asked for; at least 1.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns false: shared memory is never empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        lock(&SHAREABLE_MEMORY).remove(&self.ptr.addr().get());
        // SAFETY: the range came from `FileMapping::new` in `alloc_shared` and belongs to this value alone.
        let _ = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast(), self.mapped_bytes) };
    }
}

/// The page size of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageSize {
    /// Pages of the system's usual size.
    Small,
    /// Huge pages of 2 MiB, which an administrator has reserved (`vm.nr_hugepages`).
    Huge,
}

/// Allocates [`SharedMemory`]; long allocations use transparent huge pages if the system provides them.
///
/// # Errors
/// Returns `InvalidInput` for a length of 0 or beyond the address space. Returns the system's error if memory
/// or file descriptors are exhausted.
pub fn alloc_shared(len: usize) -> io::Result<SharedMemory> {
    alloc_with_page_size_or_default(len, None)
}

/// Allocates [`SharedMemory`] in pages of the given size.
///
/// # Errors
/// Returns the errors of [`alloc_shared`], and an error if too few huge pages are free.
pub fn alloc_shared_with_page_size(len: usize, pages: PageSize) -> io::Result<SharedMemory> {
    alloc_with_page_size_or_default(len, Some(pages))
}

fn alloc_with_page_size_or_default(
    len: usize,
    pages: Option<PageSize>,
) -> io::Result<SharedMemory> {
    if len == 0 || len > 1 << 46 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let huge = match pages {
        None => len >= HUGE_PAGE_BYTES / 2,
        Some(pages) => pages == PageSize::Huge,
    };
    let mapped = len.next_multiple_of(if huge { HUGE_PAGE_BYTES } else { PAGE_BYTES });
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if pages == Some(PageSize::Huge) {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    }
    let fd = memfd_create("verbatim", flags)?;
    ftruncate(&fd, mapped as u64)?;
    // Sealed against shrinking, so that a peer that has mapped the file never gets a SIGBUS.
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
    let inode = File::from(fd.try_clone()?).metadata()?.ino();
    let mapping = FileMapping::new(&fd, mapped)?;
    let ptr = mapping.as_ptr();
    let advice = match pages {
        None if huge => Some(Advice::LinuxHugepage),
        Some(PageSize::Small) => Some(Advice::LinuxNoHugepage),
        _ => None,
    };
    if let Some(advice) = advice {
        // SAFETY: the range was just mapped. Without huge pages, the mapping keeps small pages.
        let _ = unsafe { madvise(ptr.cast(), mapped, advice) };
    }
    // Prefault now: if memory is exhausted, the caller gets an error instead of a SIGBUS later.
    // SAFETY: the range was just mapped.
    match unsafe { madvise(ptr.cast(), mapped, Advice::LinuxPopulateWrite) } {
        // Linux before 5.14 does not know `MADV_POPULATE_WRITE`.
        Ok(()) | Err(rustix::io::Errno::INVAL) => {}
        Err(_) => return Err(io::ErrorKind::OutOfMemory.into()),
    }
    SharedMemory::record_mapping(mapping, fd, inode, len)
}

impl SharedMemory {
    /// Records a mapping of the whole file `fd`, so that registration finds it; `len` is the length asked
    /// for.
    fn record_mapping(
        mapping: FileMapping,
        fd: OwnedFd,
        inode: u64,
        len: usize,
    ) -> io::Result<Self> {
        let ptr = NonNull::new(mapping.as_ptr()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapped = mapping.len();
        std::mem::forget(mapping);
        let backing = MemfdBacking {
            len: mapped,
            fd: Arc::new(fd),
            inode,
        };
        lock(&SHAREABLE_MEMORY).insert(ptr.addr().get(), backing);
        Ok(Self {
            ptr,
            len,
            mapped_bytes: mapped,
        })
    }

    /// Returns descriptor and inode of the file, by which other processes [map](Self::map_from_peer) the memory.
    pub fn fd_and_inode(&self) -> Option<(u32, u64)> {
        let shared = lock(&SHAREABLE_MEMORY);
        let backing = shared.get(&self.ptr.addr().get())?;
        Some((backing.fd.as_raw_fd().cast_unsigned(), backing.inode))
    }

    /// Maps `len` bytes of the peer's shared memory; the bytes stay valid after the peer frees them.
    pub fn map_from_peer(
        peer: &Peer,
        (fd, inode): (u32, u64),
        len: usize,
    ) -> io::Result<SharedMemory> {
        let (file, mapped) = open_memfd(peer, fd, inode)?;
        if len == 0 || len > mapped {
            return Err(io::Error::other("the peer's memory is not what it says"));
        }
        let mapping = FileMapping::new(&file, mapped)?;
        Self::record_mapping(mapping, file.into(), inode, len)
    }
}

/// Returns the shared memory that contains all of `addr..end`, and the offset of `addr` in it.
pub(super) fn find_memfd_of_range(addr: usize, end: usize) -> Option<(MemfdBacking, usize)> {
    let shared = lock(&SHAREABLE_MEMORY);
    let (&start, backing) = shared.range(..=addr).next_back()?;
    (end <= start + backing.len).then(|| (backing.clone(), addr - start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_or_absurd_allocation_is_refused() {
        assert!(alloc_shared(0).is_err());
        assert!(alloc_shared(usize::MAX).is_err());
    }
}
