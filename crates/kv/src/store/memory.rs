//! Memory of a partition: zeroed, taken from the system as it is touched, in huge pages where there are any; or
//! registered, so that clients READ it.

#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use memmap2::{Advice, MmapMut};
use verbs::{Access, MemoryRegion, ProtectionDomain, RemoteMemory};

/// The system has not so much memory.
#[derive(Debug, thiserror::Error)]
#[error("{bytes} bytes of memory for a partition are not to be had: {source}")]
pub struct NoMemory {
    bytes: usize,
    source: std::io::Error,
}

/// Bytes from the start of a page on, of this store alone; peers may READ them where they are registered.
#[derive(Debug)]
pub(super) struct Memory {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

#[derive(Debug)]
enum Owner {
    System(#[expect(dead_code, reason = "owns the bytes")] MmapMut),
    Region(MemoryRegion),
}

// SAFETY: the bytes belong to this value, and are reached by its borrows alone.
unsafe impl Send for Memory {}
// SAFETY: as for Send; shared borrows only read.
unsafe impl Sync for Memory {}

impl Memory {
    /// So many zeroed bytes, registered if there is a protection domain.
    pub(super) fn zeroed(bytes: usize, pd: Option<&ProtectionDomain>) -> Result<Self, NoMemory> {
        let len = bytes.max(1);
        let none = |source: std::io::Error| NoMemory { bytes, source };
        let (start, owner) = match pd {
            None => {
                let mut map = MmapMut::map_anon(len).map_err(none)?;
                // Advice: where there are no huge pages, small ones serve.
                let _ = map.advise(Advice::HugePage);
                (map.as_mut_ptr(), Owner::System(map))
            }
            Some(pd) => {
                let region = pd.alloc(len, Access::REMOTE_READ);
                let region = region.map_err(|e| none(std::io::Error::other(e)))?;
                (region.as_mut_ptr(), Owner::Region(region))
            }
        };
        let start =
            NonNull::new(start).ok_or_else(|| none(std::io::ErrorKind::OutOfMemory.into()))?;
        Ok(Self { start, len, owner })
    }

    /// What a peer needs to READ it, if it is registered.
    pub(super) fn remote(&self) -> Option<RemoteMemory> {
        match &self.owner {
            Owner::System(_) => None,
            Owner::Region(region) => Some(region.remote()),
        }
    }
}

impl Deref for Memory {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` readable bytes as long as the owner lives. Nobody writes them while they are borrowed: the
        // owner is reached through this value alone, and a region has REMOTE_READ alone, so neither NIC nor peers may.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Memory {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and writable. Peers that READ meanwhile are outside of the abstract machine: they may see any
        // mixture of old and new bytes, which is what checksums are for.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}
