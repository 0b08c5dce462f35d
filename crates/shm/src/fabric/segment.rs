//! Segments: the mapping of a process's shared memory, and typed access to its tables.

use std::fs::File;
use std::mem::size_of;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::retry_on_intr;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mprotect, munmap};

use super::layout::*;
use super::mailbox::{MAILBOX_SLOTS, Mailbox};
use super::ring::{RingMemory, SLOT_BYTES};
use crate::set_file_len::set_file_len;

/// A shared mapping of a file, unmapped when dropped.
pub struct FileMapping {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is a range of addresses that is valid in every thread; all access to shared contents goes
// through atomics or raw copies.
unsafe impl Send for FileMapping {}
// SAFETY: as above.
unsafe impl Sync for FileMapping {}

impl FileMapping {
    /// Maps the first `len` bytes of `file`, readable and writable.
    pub fn new(file: impl AsFd, len: usize) -> std::io::Result<Self> {
        Self::map_range(file, 0, len)
    }

    /// Maps `len` bytes of `file` from the page-aligned `offset` on, readable and writable.
    pub fn map_range(file: impl AsFd, offset: u64, len: usize) -> std::io::Result<Self> {
        Self::map_with_protection(file, offset, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn map_with_protection(
        file: impl AsFd,
        offset: u64,
        len: usize,
        prot: ProtFlags,
    ) -> std::io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of this process.
        let ptr = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                prot,
                MapFlags::SHARED | MapFlags::NORESERVE,
                file,
                offset,
            )?
        };
        let ptr = NonNull::new(ptr.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Self { ptr, len })
    }

    /// Returns the address of the first mapped byte.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Returns the number of mapped bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // no mapping is empty
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: the range came from `mmap`, and every holder of pointers into it also holds the mapping.
        let _ = unsafe { munmap(self.ptr.as_ptr().cast(), self.len) };
    }
}

/// The shared directory of a fabric.
pub struct DirectoryMap(FileMapping);

impl DirectoryMap {
    /// Bytes of the directory's file.
    pub const FILE_BYTES: usize = size_of::<Directory>();

    /// Maps the directory's file, which has at least `BYTES` bytes.
    pub fn new(file: &File) -> std::io::Result<Self> {
        Ok(Self(FileMapping::new(file, Self::FILE_BYTES)?))
    }

    /// Returns the directory itself.
    pub fn directory(&self) -> &Directory {
        // SAFETY: the mapping has `BYTES` bytes and is page-aligned; `Directory` is made of atomics, so any
        // content is valid and other processes may write at any time.
        unsafe { &*self.0.as_ptr().cast::<Directory>() }
    }
}

/// A page of a file as words, which other processes may write at any time.
pub struct AtomicPage(FileMapping);

impl AtomicPage {
    /// Bytes of the page.
    pub const BYTES: usize = PAGE_BYTES;

    /// Maps the first page of a file, which has memory: accessing a hole is a SIGBUS if the file system is full.
    pub fn new(file: &File) -> std::io::Result<Self> {
        Ok(Self(FileMapping::new(file, PAGE_BYTES)?))
    }

    /// Returns word `index` of the page, modulo their number.
    pub fn atomic_word(&self, index: usize) -> &AtomicU64 {
        let index = index % (PAGE_BYTES / size_of::<AtomicU64>());
        // SAFETY: the mapping has a page and is page-aligned; any content is a valid word, and the reference does not
        // outlive the mapping.
        unsafe { &*self.0.as_ptr().cast::<AtomicU64>().add(index) }
    }
}

/// A process's segment: this process's own, or a peer's.
///
/// Most of a segment is never used, and its unused part is inaccessible. Valgrind's leak check reads all
/// readable memory, and reading 4 GiB of a shared-memory file would allocate all of it.
pub struct Segment {
    mapping: FileMapping,
    /// Number of accessible bytes from the start of the segment; at least the tables are
    /// accessible.
    usable_bytes: AtomicUsize,
}

macro_rules! table {
    ($(#[$doc:meta])* $name:ident, $find:ident, $ty:ty, $at:expr, $count:expr) => {
        $(#[$doc])*
        ///
        /// The entry must be in use: access to an entry that was never in use raises SIGBUS if
        /// `/dev/shm` is full.
        #[inline]
        pub fn $name(&self, index: usize) -> Option<&$ty> {
            if index >= $count {
                return None;
            }
            // SAFETY: the table lies before the arena (asserted in `layout`), where all bytes are accessible.
            // The table is aligned because tables start on pages, and its elements are atomics.
            Some(unsafe { &*self.mapping.as_ptr().add($at + index * size_of::<$ty>()).cast::<$ty>() })
        }

        /// Returns the same entry for an untrusted index; `None` if the entry was never in use.
        #[allow(dead_code, reason = "not every table is looked into by others")]
        pub fn $find(&self, index: usize) -> Option<&$ty> {
            let at = $at + index.min($count) * size_of::<$ty>();
            self.is_backed(at, size_of::<$ty>()).then(|| self.$name(index)).flatten()
        }
    };
}

/// Makes the file system allocate memory for `len` bytes at `offset` of `file`. Without this, an
/// access would raise SIGBUS if `/dev/shm` is full.
///
/// A signal interrupts `fallocate(2)` even with SA_RESTART, and the kernel then frees what it had
/// allocated. The function therefore allocates small steps and repeats interrupted steps. A program
/// with a fast timer thus gets its memory, too.
pub(super) fn allocate_file_blocks(file: &File, offset: usize, len: usize) -> std::io::Result<()> {
    const ALLOCATION_STEP_BYTES: usize = 64 << 10;
    for at in (offset..offset + len).step_by(ALLOCATION_STEP_BYTES) {
        let step = ALLOCATION_STEP_BYTES.min(offset + len - at) as u64;
        retry_on_intr(|| fallocate(file, FallocateFlags::empty(), at as u64, step))?;
    }
    Ok(())
}

impl Segment {
    /// Makes the segment of this process in `file`.
    pub fn create(file: &File) -> std::io::Result<Self> {
        set_file_len(file, SEGMENT_BYTES as u64)?;
        // Reserve the parts that are written without a further check, so that a full /dev/shm
        // causes an error and not a SIGBUS.
        let first = [
            (0, QPS_AT),
            (LOCKS_AT, ATOMIC_LOCKS * size_of::<RemoteAtomicsLock>()),
        ];
        for (at, len) in first {
            allocate_file_blocks(file, at, len)?;
        }
        let segment = Self::map(file)?;
        for (at, len) in first {
            segment.set_backed(at, len);
        }
        Ok(segment)
    }

    /// Returns the words and bits of `backed` for the pages of the `len` bytes at offset `at`.
    fn backing_bits(&self, at: usize, len: usize) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let backed = &self.header().backed_pages;
        (at / PAGE_BYTES..(at + len).div_ceil(PAGE_BYTES))
            .filter_map(move |page| Some((backed.get(page / 64)?, 1 << (page % 64))))
    }

    /// Returns true if memory backs the `len` bytes at offset `at`, which lie before the arena.
    /// These bytes can then be accessed even if `/dev/shm` is full.
    pub(super) fn is_backed(&self, at: usize, len: usize) -> bool {
        self.backing_bits(at, len)
            .all(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// Records that memory backs the `len` bytes at offset `at`.
    pub(super) fn set_backed(&self, at: usize, len: usize) {
        for (word, bit) in self.backing_bits(at, len) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    fn map(file: &File) -> std::io::Result<Self> {
        let segment = Self {
            mapping: FileMapping::map_with_protection(file, 0, SEGMENT_BYTES, ProtFlags::empty())?,
            usable_bytes: AtomicUsize::new(0),
        };
        segment.make_usable_until(ARENA_AT)?;
        Ok(segment)
    }

    /// Makes all bytes of the segment before offset `end` accessible; `end` lies in the mapping.
    #[inline]
    fn make_usable_until(&self, end: usize) -> std::io::Result<()> {
        // Relaxed: once `mprotect` has returned, the bytes are accessible for all threads.
        if end <= self.usable_bytes.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.extend_usable(end)
    }

    #[cold]
    fn extend_usable(&self, end: usize) -> std::io::Result<()> {
        /// Number of bytes that one `mprotect` call makes accessible, large enough to keep calls
        /// rare.
        const MPROTECT_STEP_BYTES: usize = 4 << 20;
        let end = end
            .next_multiple_of(MPROTECT_STEP_BYTES)
            .min(self.mapping.len());
        let prot = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the call only makes more of this process's own mapping accessible.
        unsafe { mprotect(self.mapping.as_ptr().cast(), end, prot)? };
        self.usable_bytes.fetch_max(end, Ordering::Relaxed);
        Ok(())
    }

    /// Maps a peer's segment.
    pub fn open(file: &File) -> std::io::Result<Self> {
        if file.metadata()?.len() < SEGMENT_BYTES as u64 {
            return Err(std::io::Error::other("the peer's segment is too short"));
        }
        Self::map(file)
    }

    /// Returns the segment's header.
    #[inline]
    pub fn header(&self) -> &SegmentHeader {
        // SAFETY: the segment starts with its header, which is made of atomics.
        unsafe { &*self.mapping.as_ptr().cast::<SegmentHeader>() }
    }

    table!(
        /// Returns queue pair `index`.
        qp, find_qp, QpShared, QPS_AT, MAX_QPS
    );
    table!(
        /// Returns completion queue `index`.
        cq, find_cq, CqShared, CQS_AT, MAX_CQS
    );
    table!(
        /// Returns memory region `index`.
        mr, find_mr, MrShared, MRS_AT, MR_SLOTS
    );
    table!(
        /// Returns shared receive queue `index`.
        srq, find_srq, SrqShared, SRQS_AT, MAX_XRC_SRQS
    );
    table!(
        /// Returns multicast attachment `index`.
        mcast, find_mcast, McastAttachmentShared, MCASTS_AT, MAX_MCAST_ATTACHMENTS
    );
    table!(
        /// Returns protection domain `index`.
        pd, find_pd, PdShared, PDS_AT, MAX_PDS
    );
    table!(
        /// Returns device memory `index`.
        dm, find_dm, DmShared, DMS_AT, MAX_DMS
    );
    table!(
        /// Returns import `index`.
        import, find_import, ImportShared, IMPORTS_AT, MAX_IMPORTS
    );
    table!(
        /// Returns flow `index`.
        flow, find_flow, FlowShared, FLOWS_AT, MAX_FLOWS
    );
    table!(
        /// Returns RSS configuration `index`.
        rss, find_rss, RssShared, RSS_AT, MAX_RSS_CONFIGS
    );
    table!(
        /// Returns object `index` of those on lists.
        listed, find_listed, ListedObjectShared, LISTED_AT, MAX_LISTED_OBJECTS
    );
    table!(
        /// Returns hazard slot `index`.
        hazard, find_hazard, HazardSlot, HAZARDS_AT, HAZARD_SLOTS
    );
    table!(
        /// Returns atomic lock `index`.
        atomic_lock, find_atomic_lock, RemoteAtomicsLock, LOCKS_AT, ATOMIC_LOCKS
    );

    /// Returns the entry of queue pair `index`, and backs it with memory whether or not the owner has such a
    /// queue pair. The caller polls the entry from now on.
    ///
    /// # Errors
    /// Returns `ENOMEM` if the system has no memory for the entry.
    pub fn back_qp_entry(&self, index: usize) -> Result<&QpShared, i32> {
        let (at, len) = (
            QPS_AT + index.min(MAX_QPS) * size_of::<QpShared>(),
            size_of::<QpShared>(),
        );
        if !self.is_backed(at, len) {
            let page = self.mapping.as_ptr().wrapping_add(at & !(PAGE_BYTES - 1));
            // SAFETY: faults in a page of the mapping, and changes nothing in it.
            match unsafe { madvise(page.cast(), PAGE_BYTES, Advice::LinuxPopulateWrite) } {
                Ok(()) => self.set_backed(at, len),
                // Linux before 5.14 does not know `MADV_POPULATE_WRITE`.
                Err(rustix::io::Errno::INVAL) => {}
                Err(_) => return Err(libc::ENOMEM),
            }
        }
        self.qp(index).ok_or(libc::ENOMEM)
    }

    /// Returns the completion queue index in `stored`, which the owner has written, or `usize::MAX`
    /// if no completion queue with that index was ever in use.
    pub fn cq_index_or_max_if_never_used(&self, stored: &AtomicU32) -> usize {
        let index = stored.load(Ordering::Relaxed) as usize;
        if self.find_cq(index).is_some() {
            index
        } else {
            usize::MAX
        }
    }

    /// Returns the mailbox of the segment's owner.
    #[cfg(not(loom))]
    #[inline]
    pub fn mailbox(&self) -> Mailbox<'_> {
        let header = self.header();
        // SAFETY: the slots lie in the mapping between `MAILBOX_AT` and `QPS_AT`, aligned, and are atomics.
        let slots = unsafe {
            std::slice::from_raw_parts(
                self.mapping.as_ptr().add(MAILBOX_AT).cast::<AtomicU64>(),
                MAILBOX_SLOTS,
            )
        };
        Mailbox {
            slots,
            tail_hint: &header.mailbox_tail,
            acknowledged_head: &header.mailbox_head,
        }
    }

    /// Returns the header of the ring at `offset`; `None` if no ring header can lie there.
    pub fn ring_header(&self, offset: usize) -> Option<&RingHeader> {
        if offset < ARENA_AT
            || !offset.is_multiple_of(64)
            || offset > SEGMENT_BYTES - size_of::<RingHeader>()
        {
            return None;
        }
        self.make_usable_until(offset + size_of::<RingHeader>())
            .ok()?;
        // SAFETY: the header lies in the accessible part of the mapping, is aligned to 64 bytes, and is made
        // of atomics.
        Some(unsafe { &*self.mapping.as_ptr().add(offset).cast::<RingHeader>() })
    }

    /// Returns the ring at `offset` with `slots` slots; `None` if no such ring can lie there.
    ///
    /// # Safety
    /// The result is used only while this segment is mapped.
    #[cfg(not(loom))]
    pub unsafe fn ring(&self, offset: usize, slots: u32) -> Option<RingMemory> {
        let header = self.ring_header(offset)?;
        let first = offset + size_of::<RingHeader>();
        let end = first + slots as usize * SLOT_BYTES;
        if !slots.is_power_of_two() || !(16..=32768).contains(&slots) || end > SEGMENT_BYTES {
            return None;
        }
        self.make_usable_until(end).ok()?;
        // SAFETY: the slots lie in the accessible part of the mapping (just checked), and the caller keeps
        // the segment mapped.
        Some(unsafe {
            RingMemory::new(
                self.mapping.as_ptr().add(first).cast::<AtomicU64>(),
                &raw const header.consumer_head,
                u64::from(slots),
            )
        })
    }

    /// Fills `len` bytes at `offset` with zeros; the range lies in the arena.
    pub fn fill_with_zeros(&self, offset: usize, len: usize) -> std::io::Result<()> {
        assert!(offset >= ARENA_AT && offset + len <= SEGMENT_BYTES);
        self.make_usable_until(offset + len)?;
        // SAFETY: the range is mapped and accessible. The owner has just taken it from its free list, so no
        // correct peer uses it. An incorrect peer races on bytes that have no invalid value.
        unsafe { self.mapping.as_ptr().add(offset).write_bytes(0, len) };
        Ok(())
    }
}

/// Allocator of the arena in this process's segment.
pub struct SegmentArena {
    next_offset: usize,
    reserved_end: usize,
    free_offsets_by_size: std::collections::BTreeMap<usize, Vec<usize>>,
}

impl SegmentArena {
    /// Returns an arena that is completely free.
    #[allow(clippy::new_without_default)] // an arena belongs to one segment; a default value would have no meaning
    pub fn new() -> Self {
        Self {
            next_offset: ARENA_AT,
            reserved_end: ARENA_AT,
            free_offsets_by_size: std::collections::BTreeMap::new(),
        }
    }

    fn round_to_alignment(bytes: usize) -> usize {
        bytes.next_multiple_of(256)
    }

    /// Allocates a zeroed range of `bytes` bytes, aligned to 64; fails if shared memory is exhausted.
    pub fn alloc(
        &mut self,
        segment: &Segment,
        file: &File,
        bytes: usize,
    ) -> std::io::Result<usize> {
        const RESERVE_STEP_BYTES: usize = 1 << 20;
        let bytes = Self::round_to_alignment(bytes);
        if let Some(offset) = self.free_offsets_by_size.get_mut(&bytes).and_then(Vec::pop) {
            segment.fill_with_zeros(offset, bytes)?;
            return Ok(offset);
        }
        let end = self.next_offset + bytes;
        if end > SEGMENT_BYTES {
            return Err(std::io::ErrorKind::OutOfMemory.into());
        }
        if end > self.reserved_end {
            let until = end.next_multiple_of(RESERVE_STEP_BYTES).min(SEGMENT_BYTES);
            allocate_file_blocks(file, self.reserved_end, until - self.reserved_end)?;
            self.reserved_end = until;
        }
        let offset = self.next_offset;
        self.next_offset = end;
        Ok(offset)
    }

    /// Frees a range.
    pub fn free(&mut self, offset: usize, bytes: usize) {
        self.free_offsets_by_size
            .entry(Self::round_to_alignment(bytes))
            .or_default()
            .push(offset);
    }
}
