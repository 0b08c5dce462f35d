//! Rings that peers WRITE into, in SysV segments to which other processes of this user can attach.
//!
//! A slot begins with a page, whose first word is the number of bytes that the peer has written. Between hosts, further
//! words are the peer's mailbox ([`crate::remote_peer`]). The ring follows.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::iovec;
use verbs::MemoryRegion;

use crate::iovec_cursor::IovecCursor;

/// Bytes of a ring.
pub(crate) const RING_BYTES: usize = 256 * 1024;
/// Bytes of a slot before the ring.
pub(crate) const RING_OFFSET_IN_SLOT: usize = 4096;
const WORDS_BEFORE_RING: usize = RING_OFFSET_IN_SLOT / 8;
/// Bytes of a slot.
pub(crate) const SLOT_BYTES: usize = RING_OFFSET_IN_SLOT + RING_BYTES;
/// Number of slots in an arena.
pub(crate) const SLOTS_PER_ARENA: usize = 16;

/// The memory of rings.
#[derive(Clone)]
pub(crate) enum Arena {
    /// Memory of this process.
    Own(Arc<MemoryRegion>),
    /// Memory of another process.
    Attached(Arc<AttachedSegment>),
}

/// A SysV segment of another process.
pub(crate) struct AttachedSegment(*mut u8);

// SAFETY: the address stays attached, and is only accessed through raw pointers and atomics.
unsafe impl Send for AttachedSegment {}
// SAFETY: as for Send.
unsafe impl Sync for AttachedSegment {}

impl Drop for AttachedSegment {
    fn drop(&mut self) {
        // SAFETY: attached by `Arena::attach`; no ring uses it any more.
        unsafe { libc::shmdt(self.0.cast()) };
    }
}

impl Arena {
    /// Attaches to an arena of another process.
    pub(crate) fn attach(id: i32) -> io::Result<Self> {
        // SAFETY: any bytes are a valid value; the kernel writes it.
        let mut about: libc::shmid_ds = unsafe { std::mem::zeroed() };
        // SAFETY: `about` has room for the result.
        let found = unsafe { libc::shmctl(id, libc::IPC_STAT, &raw mut about) };
        if found < 0 || about.shm_segsz != SLOT_BYTES * SLOTS_PER_ARENA {
            return Err(io::ErrorKind::NotFound.into());
        }
        // SAFETY: with a null address, the kernel chooses where to attach.
        let start = unsafe { libc::shmat(id, std::ptr::null(), 0) };
        if start.addr() == usize::MAX {
            return Err(io::Error::last_os_error());
        }
        Ok(Self::Attached(Arc::new(AttachedSegment(start.cast()))))
    }

    fn base_ptr(&self) -> *mut u8 {
        match self {
            Self::Own(region) => region.as_mut_ptr(),
            Self::Attached(segment) => segment.0,
        }
    }
}

/// One slot of an arena.
#[derive(Clone)]
pub(crate) struct Ring {
    arena: Arena,
    offset: usize,
}

impl Ring {
    /// Returns the slot at `offset`, or `None` if the offset is invalid.
    pub(crate) fn at(arena: Arena, offset: usize) -> Option<Self> {
        let fits = offset.is_multiple_of(SLOT_BYTES)
            && offset.checked_add(SLOT_BYTES)? <= SLOT_BYTES * SLOTS_PER_ARENA;
        fits.then_some(Self { arena, offset })
    }

    /// Returns the offset in the arena.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the number of bytes that the peer has written since the start of the connection.
    #[inline]
    pub(crate) fn tail(&self) -> u64 {
        self.tail_word().load(Ordering::Acquire)
    }

    /// Resets the words before the ring to 0 for a new connection.
    pub(crate) fn reset(&self) {
        for number in 0..WORDS_BEFORE_RING {
            self.word_before_ring(number).store(0, Ordering::Release);
        }
    }

    #[inline]
    fn tail_word(&self) -> &AtomicU64 {
        self.word_before_ring(0)
    }

    /// Returns a word of the page before the ring; numbers start again after the last one.
    #[inline]
    pub(crate) fn word_before_ring(&self, number: usize) -> &AtomicU64 {
        let at = self.offset + number % WORDS_BEFORE_RING * 8;
        // SAFETY: within the mapping (`at`), aligned to eight bytes, and only accessed as an atomic.
        unsafe { &*self.arena.base_ptr().add(at).cast::<AtomicU64>() }
    }

    /// Copies `len` bytes, at most a ring's, from cursor `from` on into a program's buffers, from `skip` on.
    pub(crate) fn copy_out(&self, from: u64, to: IovecCursor<'_>, skip: usize, len: usize) {
        let mut at = usize::try_from(from % RING_BYTES as u64).unwrap_or(0);
        for (mut to, mut n) in to.pieces(skip, len.min(RING_BYTES)) {
            while n > 0 {
                let part = n.min(RING_BYTES - at);
                // SAFETY: within the ring; the peer has written these bytes and writes no more there until they are
                // consumed. A peer that breaks this changes bytes that it could have sent.
                unsafe {
                    let ring = self.arena.base_ptr().add(self.offset + RING_OFFSET_IN_SLOT);
                    std::ptr::copy_nonoverlapping(ring.add(at), to, part);
                    to = to.add(part);
                }
                n -= part;
                at = (at + part) % RING_BYTES;
            }
        }
    }

    /// Returns the one or two parts of the ring with `len` bytes, at most a ring's, from cursor `from` on.
    pub(crate) fn iovecs(&self, from: u64, len: usize) -> Vec<iovec> {
        let len = len.min(RING_BYTES);
        let at = usize::try_from(from % RING_BYTES as u64).unwrap_or(0);
        let first = len.min(RING_BYTES - at);
        // SAFETY: the ring's first byte is within the mapping (`at`).
        let ring = unsafe { self.arena.base_ptr().add(self.offset + RING_OFFSET_IN_SLOT) };
        [(at, first), (0, len - first)]
            .into_iter()
            .filter(|(_, part_len)| *part_len > 0)
            .map(|(start, iov_len)| iovec {
                // SAFETY: `start` is within the ring.
                iov_base: unsafe { ring.add(start) }.cast(),
                iov_len,
            })
            .collect()
    }
}
