//! The memory of a partition. Either it is anonymous and zeroed, allocated on first use, in huge pages where available.
//! Or it is registered, so that clients can READ it.

#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use memmap2::{Advice, MmapMut};
use verbs::{Access, MemoryRegion, ProtectionDomain, RemoteMemory};

/// The error if the system has too little memory.
#[derive(Debug, thiserror::Error)]
#[error("{bytes} bytes of memory for a partition are not to be had: {source}")]
pub struct NoMemory {
    bytes: usize,
    source: std::io::Error,
}

/// Page-aligned bytes that one store owns; peers may READ them if they are registered.
#[derive(Debug)]
pub(super) struct StoreMemory {
    start: NonNull<u8>,
    len: usize,
    backing: StoreBacking,
}

#[derive(Debug)]
enum StoreBacking {
    Anonymous(#[expect(dead_code, reason = "owns the bytes")] MmapMut),
    Registered(MemoryRegion),
}

// SAFETY: the bytes belong to this value, and are reached by its borrows alone.
unsafe impl Send for StoreMemory {}
// SAFETY: as for Send; shared borrows only read.
unsafe impl Sync for StoreMemory {}

impl StoreMemory {
    /// Allocates `bytes` zeroed bytes, and registers them if a protection domain is given.
    pub(super) fn zeroed(bytes: usize, pd: Option<&ProtectionDomain>) -> Result<Self, NoMemory> {
        let len = bytes.max(1);
        let none = |source: std::io::Error| NoMemory { bytes, source };
        let (start, backing) = match pd {
            None => {
                let mut map = MmapMut::map_anon(len).map_err(none)?;
                // Only advice: without huge pages, normal pages are used.
                let _ = map.advise(Advice::HugePage);
                (map.as_mut_ptr(), StoreBacking::Anonymous(map))
            }
            Some(pd) => {
                let region = pd.alloc(len, Access::REMOTE_READ);
                let region = region.map_err(|e| none(std::io::Error::other(e)))?;
                (region.as_mut_ptr(), StoreBacking::Registered(region))
            }
        };
        let start =
            NonNull::new(start).ok_or_else(|| none(std::io::ErrorKind::OutOfMemory.into()))?;
        Ok(Self {
            start,
            len,
            backing,
        })
    }

    /// Returns the address and key by which a peer READs the memory, if it is registered.
    pub(super) fn remote_memory_if_registered(&self) -> Option<RemoteMemory> {
        match &self.backing {
            StoreBacking::Anonymous(_) => None,
            StoreBacking::Registered(region) => Some(region.remote()),
        }
    }
}

impl Deref for StoreMemory {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to `len` readable bytes while the owner lives. The bytes are not written while they
        // are borrowed: the owner is reached through this value alone, and a region has only REMOTE_READ, so neither
        // NIC nor peers may write.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for StoreMemory {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the bytes are writable. Concurrent READs of peers are outside of the abstract machine:
        // they may see any mixture of old and new bytes, which the checksums detect.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}
