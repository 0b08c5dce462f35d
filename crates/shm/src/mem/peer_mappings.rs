//! Mappings of peers' memory in this process.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use super::page::PAGE_BYTES;
use super::peer_memfd::open_memfd;
use crate::fabric::Peer;
use crate::fabric::layout::*;
use crate::fabric::segment::FileMapping;
use crate::lock::lock;

/// A peer's backing, mapped in this process.
pub enum PeerMapping {
    /// A mapping of a memfd.
    Memfd(FileMapping),
    /// Mapped pages of a file, and the offset of the first one.
    AddressSpaceMemfdPages(FileMapping, u64),
    /// An attached SysV segment.
    Sysv(SysvAttachment),
}

/// An attached SysV segment, detached when dropped.
pub struct SysvAttachment(NonNull<u8>, usize);

// SAFETY: a range of addresses; access goes through raw copies.
unsafe impl Send for SysvAttachment {}
// SAFETY: as above.
unsafe impl Sync for SysvAttachment {}

impl Drop for SysvAttachment {
    fn drop(&mut self) {
        // SAFETY: the address came from `shmat`; every holder of a pointer into the segment holds this value.
        unsafe { libc::shmdt(self.0.as_ptr().cast()) };
    }
}

impl PeerMapping {
    /// Returns the address of `len` bytes at `offset` of the backing in this process.
    pub(super) fn address_of(&self, offset: u64, len: u64) -> Option<*mut u8> {
        let (start, mapped, first) = match self {
            Self::Memfd(m) => (m.as_ptr(), m.len(), 0),
            Self::AddressSpaceMemfdPages(m, first) => (m.as_ptr(), m.len(), *first),
            Self::Sysv(s) => (s.0.as_ptr(), s.1, 0),
        };
        let offset = offset.checked_sub(first)?;
        if offset.checked_add(len)? > mapped as u64 {
            return None;
        }
        // SAFETY: `offset + len` lies within the mapping (just checked).
        Some(unsafe { start.add(offset as usize) })
    }
}

/// Key of a mapping: identifies the part of a peer's memory that is mapped.
#[derive(Clone, PartialEq, Eq, Hash)]
struct MappingKey {
    incarnation: u64,
    backing_kind: u32,
    inode: u64,
    /// Byte range of the peer's file that a [`PeerMapping::AddressSpaceMemfdPages`] maps; empty for other mappings.
    file_range: Range<u64>,
}

/// Maximum number of mappings of peers' memory. Linux permits a process 65,530 mappings in all
/// (`vm.max_map_count`), and the process needs mappings for its own memory.
const MAX_PEER_MAPPINGS: usize = 8192;

/// Mappings of peers' memory.
#[derive(Default)]
pub struct PeerMappings {
    mappings: Mutex<HashMap<MappingKey, Arc<PeerMapping>>>,
    /// `backing_release_count` of each peer when unused mappings were last dropped.
    release_counts_at_drop: Mutex<HashMap<u64, u64>>,
}

impl PeerMappings {
    /// Returns the mapping of the backing that `mr` of `peer` describes, and makes it if necessary.
    pub(super) fn get_or_map(&self, peer: &Peer, mr: &MrShared) -> io::Result<Arc<PeerMapping>> {
        let kind = mr.backing_kind.load(Ordering::Relaxed);
        let inode = mr.backing_inode.load(Ordering::Relaxed);
        let handle = mr.backing_fd_or_sysv_id.load(Ordering::Relaxed);
        let epoch = peer
            .segment
            .header()
            .backing_release_count
            .load(Ordering::Relaxed);
        if lock(&self.release_counts_at_drop).insert(peer.incarnation, epoch) != Some(epoch) {
            self.drop_unused(|incarnation| incarnation == peer.incarnation);
        }
        let pages = if kind == BACKING_ADDRESS_SPACE_MEMFD {
            file_range_of(mr)?
        } else {
            0..0
        };
        let key = MappingKey {
            incarnation: peer.incarnation,
            backing_kind: kind,
            inode,
            file_range: pages.clone(),
        };
        if let Some(map) = lock(&self.mappings).get(&key) {
            return Ok(Arc::clone(map));
        }
        if lock(&self.mappings).len() >= MAX_PEER_MAPPINGS {
            self.drop_unused(|_| true);
            if lock(&self.mappings).len() >= MAX_PEER_MAPPINGS {
                return Err(io::Error::other(
                    "too much of peers' memory is mapped already",
                ));
            }
        }
        let map = Arc::new(match kind {
            BACKING_MEMFD | BACKING_ADDRESS_SPACE_MEMFD => {
                let (file, len) = open_memfd(peer, handle, inode)?;
                if kind == BACKING_MEMFD {
                    PeerMapping::Memfd(FileMapping::new(&file, len)?)
                } else if pages.end <= len as u64 {
                    let (first, len) = (pages.start, (pages.end - pages.start) as usize);
                    PeerMapping::AddressSpaceMemfdPages(
                        FileMapping::map_range(&file, first, len)?,
                        first,
                    )
                } else {
                    return Err(io::Error::other("the peer's memory ends before its region"));
                }
            }
            BACKING_SYSV => PeerMapping::Sysv(attach_sysv_segment(handle)?),
            _ => return Err(io::ErrorKind::Unsupported.into()),
        });
        lock(&self.mappings).insert(key, Arc::clone(&map));
        Ok(map)
    }

    /// Drops the unused mappings of the incarnations for which `of` returns true; a later use maps
    /// them again.
    pub fn drop_unused(&self, of: impl Fn(u64) -> bool) {
        lock(&self.mappings).retain(|key, map| !of(key.incarnation) || Arc::strong_count(map) > 1);
    }
}

/// Returns the page-aligned range of the file in which a region lies.
fn file_range_of(mr: &MrShared) -> io::Result<Range<u64>> {
    let page = PAGE_BYTES as u64;
    let first = mr.backing_offset.load(Ordering::Relaxed);
    let end = first
        .checked_add(mr.len.load(Ordering::Relaxed))
        .and_then(|end| end.checked_next_multiple_of(page))
        .ok_or(io::ErrorKind::InvalidData)?;
    Ok(first & !(page - 1)..end)
}

fn attach_sysv_segment(id: u32) -> io::Result<SysvAttachment> {
    let id = id.cast_signed();
    // SAFETY: `shmid_ds` is plain data that the kernel fills; the kernel chooses the address of the
    // attachment.
    unsafe {
        let mut ds: libc::shmid_ds = std::mem::zeroed();
        if libc::shmctl(id, libc::IPC_STAT, &raw mut ds) != 0 {
            return Err(io::Error::last_os_error());
        }
        let ptr = libc::shmat(id, std::ptr::null(), 0);
        if ptr.addr() == usize::MAX {
            return Err(io::Error::last_os_error());
        }
        let ptr = NonNull::new(ptr.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SysvAttachment(ptr, ds.shm_segsz))
    }
}
