//! Rings that peers WRITE into, in files that other processes of this user can map.
//!
//! A slot is a page, whose first word is the number of bytes that the peer has written, and the ring behind it.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use crate::buffers::Buffers;

/// Bytes of a ring.
pub(crate) const RING: usize = 256 * 1024;
/// Bytes in front of it.
pub(crate) const HEAD: usize = 4096;
/// Bytes of a slot.
pub(crate) const SLOT: usize = HEAD + RING;
/// Slots of an arena.
pub(crate) const SLOTS: usize = 16;

/// Where the `number`th arena of a process is.
pub(crate) fn arena_path(dir: &Path, pid: u64, start: u64, number: u64) -> PathBuf {
    dir.join(format!("a-{pid}-{start}-{number}"))
}

/// Makes an arena.
pub(crate) fn make_arena(path: &Path) -> io::Result<Arc<MmapRaw>> {
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.set_len((SLOT * SLOTS) as u64)?;
    Ok(Arc::new(MmapOptions::new().map_raw(&file)?))
}

/// Maps another process's arena.
pub(crate) fn open_arena(path: &Path) -> io::Result<Arc<MmapRaw>> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    if fs::metadata(path)?.len() != (SLOT * SLOTS) as u64 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Arc::new(MmapOptions::new().map_raw(&file)?))
}

/// One slot.
#[derive(Clone)]
pub(crate) struct Ring {
    arena: Arc<MmapRaw>,
    offset: usize,
}

impl Ring {
    /// The slot at `offset`, if there is one.
    pub(crate) fn at(arena: Arc<MmapRaw>, offset: usize) -> Option<Self> {
        let fits = offset.is_multiple_of(SLOT) && offset.checked_add(SLOT)? <= arena.len();
        fits.then_some(Self { arena, offset })
    }

    /// The offset in its arena.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes that the peer has written since the beginning.
    #[inline]
    pub(crate) fn tail(&self) -> u64 {
        self.tail_word().load(Ordering::Acquire)
    }

    /// Begins anew.
    pub(crate) fn reset(&self) {
        self.tail_word().store(0, Ordering::Release);
    }

    #[inline]
    fn tail_word(&self) -> &AtomicU64 {
        // SAFETY: within the mapping (`at`), aligned to a page, and only accessed as an atomic.
        unsafe { &*self.arena.as_mut_ptr().add(self.offset).cast::<AtomicU64>() }
    }

    /// The address of the word that counts, to look at from time to time while the arena is mapped, which is for ever in
    /// its own process.
    pub(crate) fn tail_address(&self) -> *const AtomicU64 {
        std::ptr::from_ref(self.tail_word())
    }

    /// Copies `len` bytes, at most a ring's, from cursor `from` on into a program's buffers, from `skip` on.
    pub(crate) fn copy_out(&self, from: u64, to: Buffers<'_>, skip: usize, len: usize) {
        let mut at = usize::try_from(from % RING as u64).unwrap_or(0);
        for (mut to, mut n) in to.pieces(skip, len.min(RING)) {
            while n > 0 {
                let part = n.min(RING - at);
                // SAFETY: within the ring; the peer has written these bytes and writes no more there until they are
                // consumed. A peer that breaks this changes bytes that it could have sent.
                unsafe {
                    let ring = self.arena.as_mut_ptr().add(self.offset + HEAD);
                    std::ptr::copy_nonoverlapping(ring.add(at), to, part);
                    to = to.add(part);
                }
                n -= part;
                at = (at + part) % RING;
            }
        }
    }
}
