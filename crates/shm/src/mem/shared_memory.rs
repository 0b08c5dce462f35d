//! Memory that is allocated so that peers can map it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{Advice, madvise};

use super::page::PAGE;
use super::peer_file::open_memfd;
use crate::fabric::Peer;
use crate::fabric::segment::Mapping;
use crate::lock::lock;

const HUGE_PAGE: usize = 2 << 20;

/// A backing that peers can map: a sealed memfd of this process.
#[derive(Clone)]
pub(super) struct Backing {
    len: usize,
    pub(super) fd: Arc<OwnedFd>,
    pub(super) inode: u64,
}

/// The shareable memory of this process, by address.
static SHARED: Mutex<BTreeMap<usize, Backing>> = Mutex::new(BTreeMap::new());

/// Zeroed memory that other processes of the fabric can map once it is registered: one-sided verbs on it are
/// plain copies instead of system calls. In huge pages from 1 MiB on, where the system has them.
///
/// It is given back when dropped; deregister it first.
#[derive(Debug)]
pub struct SharedMemory {
    ptr: NonNull<u8>,
    len: usize,
    mapped: usize,
}

// SAFETY: a range of addresses that this value owns; it hands out raw pointers only.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// First byte; page-aligned.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Bytes asked for; at least 1.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: there is no empty shared memory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        lock(&SHARED).remove(&self.ptr.addr().get());
        // SAFETY: the range came from `Mapping::new` in `alloc_shared` and belongs to this value alone.
        let _ = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast(), self.mapped) };
    }
}

/// The pages that memory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageSize {
    /// The system's usual ones.
    Small,
    /// Huge ones of 2 MiB, which an administrator has reserved (`vm.nr_hugepages`).
    Huge,
}

/// Allocates [`SharedMemory`], in huge pages where it is long and the system gives some unasked.
///
/// # Errors
/// `InvalidInput` for a length of 0 or beyond the address space; what the system says where it has no more
/// memory or file descriptors.
pub fn alloc_shared(len: usize) -> io::Result<SharedMemory> {
    alloc(len, None)
}

/// Allocates [`SharedMemory`] in pages of one kind.
///
/// # Errors
/// As [`alloc_shared`]; also when there are not so many huge pages.
pub fn alloc_shared_in(len: usize, pages: PageSize) -> io::Result<SharedMemory> {
    alloc(len, Some(pages))
}

fn alloc(len: usize, pages: Option<PageSize>) -> io::Result<SharedMemory> {
    if len == 0 || len > 1 << 46 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let huge = match pages {
        None => len >= HUGE_PAGE / 2,
        Some(pages) => pages == PageSize::Huge,
    };
    let mapped = len.next_multiple_of(if huge { HUGE_PAGE } else { PAGE });
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if pages == Some(PageSize::Huge) {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    }
    let fd = memfd_create("verbatim", flags)?;
    ftruncate(&fd, mapped as u64)?;
    // Sealed, so that a peer that mapped it can never be sent a SIGBUS.
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
    let inode = File::from(fd.try_clone()?).metadata()?.ino();
    let mapping = Mapping::new(&fd, mapped)?;
    let ptr = mapping.as_ptr();
    let advice = match pages {
        None if huge => Some(Advice::LinuxHugepage),
        Some(PageSize::Small) => Some(Advice::LinuxNoHugepage),
        _ => None,
    };
    if let Some(advice) = advice {
        // SAFETY: the range was just mapped. Where there are no huge pages, small ones do.
        let _ = unsafe { madvise(ptr.cast(), mapped, advice) };
    }
    // Populate now: a shortage is an error here instead of a SIGBUS later.
    // SAFETY: the range was just mapped.
    match unsafe { madvise(ptr.cast(), mapped, Advice::LinuxPopulateWrite) } {
        // Kernels before 5.14 do not know it.
        Ok(()) | Err(rustix::io::Errno::INVAL) => {}
        Err(_) => return Err(io::ErrorKind::OutOfMemory.into()),
    }
    SharedMemory::enter(mapping, fd, inode, len)
}

impl SharedMemory {
    /// Takes a mapping of the whole file `fd`, so that registration finds it; `len` bytes of it were asked for.
    fn enter(mapping: Mapping, fd: OwnedFd, inode: u64, len: usize) -> io::Result<Self> {
        let ptr = NonNull::new(mapping.as_ptr()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapped = mapping.len();
        std::mem::forget(mapping);
        let backing = Backing {
            len: mapped,
            fd: Arc::new(fd),
            inode,
        };
        lock(&SHARED).insert(ptr.addr().get(), backing);
        Ok(Self { ptr, len, mapped })
    }

    /// What other processes need to [map](Self::of_peer) it: descriptor and inode of its file.
    pub fn file(&self) -> Option<(u32, u64)> {
        let shared = lock(&SHARED);
        let backing = shared.get(&self.ptr.addr().get())?;
        Some((backing.fd.as_raw_fd().cast_unsigned(), backing.inode))
    }

    /// Maps `len` bytes of shared memory that `peer` has; they stay when it gives them up.
    pub fn of_peer(peer: &Peer, (fd, inode): (u32, u64), len: usize) -> io::Result<SharedMemory> {
        let (file, mapped) = open_memfd(peer, fd, inode)?;
        if len == 0 || len > mapped {
            return Err(io::Error::other("the peer's memory is not what it says"));
        }
        let mapping = Mapping::new(&file, mapped)?;
        Self::enter(mapping, file.into(), inode, len)
    }
}

/// The shared memory in which all of `addr..end` lies, and how far from its beginning.
pub(super) fn shared_at(addr: usize, end: usize) -> Option<(Backing, usize)> {
    let shared = lock(&SHARED);
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
