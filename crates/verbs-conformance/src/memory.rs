//! Memory that a NIC reads and writes concurrently; tests copy bytes in and out, and never borrow the
//! memory.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Instant;

use rustix::mm::{
    MapFlags, MprotectFlags, MremapFlags, ProtFlags, mmap_anonymous, mprotect, mremap_fixed, munmap,
};
use serde::{Deserialize, Serialize};

use crate::provider::ProviderKind;
use crate::rng::pattern;
use crate::test_env::TestEnv;

/// Kind of a test buffer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemKind {
    /// The heap, whose pages a provider may share (unless `VERBATIM_KEEP_PRIVATE` is set).
    Private,
    /// Memory that the provider offers for fast access by other processes; heap memory if the provider
    /// offers none.
    Shared,
}

impl MemKind {
    /// All kinds of memory.
    pub const ALL: [Self; 2] = [Self::Private, Self::Shared];

    /// Returns the kinds that are different memory on the provider under test.
    pub fn distinct_on_provider(env: &TestEnv) -> impl Iterator<Item = Self> + use<> {
        let count = match env.settings.provider {
            ProviderKind::Softnic => 2,
            ProviderKind::System => 1,
        };
        Self::ALL.into_iter().take(count)
    }
}

/// Number of bytes in a page.
pub const PAGE: usize = 4096;

enum BackingAllocation {
    Heap(Layout),
    Shared { _memory: softnic::SharedMemory },
    Pages(usize),
}

/// A zeroed range of memory.
pub struct ZeroedMemory {
    ptr: NonNull<u8>,
    len: usize,
    backing_allocation: BackingAllocation,
}

// SAFETY: the range belongs to this value, and is accessed by volatile and atomic operations only.
unsafe impl Send for ZeroedMemory {}
// SAFETY: as for Send; the tests race accesses on purpose, and every byte value is valid.
unsafe impl Sync for ZeroedMemory {}

impl ZeroedMemory {
    /// Allocates `len` zeroed bytes, aligned to 64.
    ///
    /// # Panics
    /// Panics if no memory is available.
    #[must_use]
    pub fn new(env: &TestEnv, kind: MemKind, len: usize) -> Self {
        if kind == MemKind::Shared && env.settings.provider == ProviderKind::Softnic {
            let memory = softnic::alloc_shared(len.max(1)).expect("alloc_shared");
            let ptr = NonNull::new(memory.as_ptr()).expect("alloc_shared gave NULL");
            return Self {
                ptr,
                len,
                backing_allocation: BackingAllocation::Shared { _memory: memory },
            };
        }
        Self::alloc_heap(len)
    }

    /// Allocates `len` zeroed bytes of the heap, aligned to 64.
    #[must_use]
    pub fn alloc_heap(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), 64).expect("a sane length");
        // SAFETY: the layout's size is not 0.
        let ptr = unsafe { alloc_zeroed(layout) };
        let ptr = NonNull::new(ptr).unwrap_or_else(|| handle_alloc_error(layout));
        Self {
            ptr,
            len,
            backing_allocation: BackingAllocation::Heap(layout),
        }
    }

    /// Maps `pages` zeroed pages, whose protection can be changed.
    #[must_use]
    pub fn map_pages(pages: usize) -> Self {
        // SAFETY: a new mapping at an address that the kernel chooses.
        unsafe { Self::map_pages_at(std::ptr::null_mut(), pages * PAGE, MapFlags::empty()) }
    }

    /// Maps `len` bytes of zeroed pages.
    ///
    /// # Safety
    /// With [`MapFlags::FIXED`], nothing uses the memory at `at`.
    unsafe fn map_pages_at(at: *mut c_void, len: usize, flags: MapFlags) -> Self {
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as the caller guarantees; otherwise a new mapping at an address that the kernel chooses.
        let ptr = unsafe { mmap_anonymous(at, len, writable, MapFlags::PRIVATE | flags) };
        let ptr = NonNull::new(ptr.expect("mmap").cast()).expect("mmap gave NULL");
        Self {
            ptr,
            len,
            backing_allocation: BackingAllocation::Pages(len),
        }
    }

    /// Moves [`pages`](Self::map_pages) to another address by `mremap(2)`. Returns new pages at the old address; `None` if
    /// the kernel refuses to move them.
    #[must_use]
    pub fn move_pages(&mut self) -> Option<Self> {
        assert!(matches!(
            self.backing_allocation,
            BackingAllocation::Pages(_)
        ));
        let (old, target) = (self.as_ptr(), Self::map_pages(self.len / PAGE));
        // SAFETY: both ranges are mapped and disjoint, and `target`, which is overwritten, is used nowhere else.
        unsafe {
            mremap_fixed(
                old,
                self.len,
                self.len,
                MremapFlags::MAYMOVE,
                target.as_ptr(),
            )
            .ok()?;
            self.ptr = target.ptr;
            std::mem::forget(target);
            Some(Self::map_pages_at(old, self.len, MapFlags::FIXED))
        }
    }

    /// Makes page `page` of [`pages`](Self::map_pages) inaccessible or read-only.
    pub fn protect_page(&self, page: usize, readable: bool) {
        assert!(
            matches!(self.backing_allocation, BackingAllocation::Pages(_))
                && (page + 1) * PAGE <= self.len
        );
        let flags = if readable {
            MprotectFlags::READ
        } else {
            MprotectFlags::empty()
        };
        // SAFETY: the page belongs to this value (just asserted), and no reference into it exists.
        unsafe { mprotect(self.ptr.as_ptr().add(page * PAGE).cast(), PAGE, flags) }
            .expect("mprotect");
    }

    /// Returns the address of the first byte as a pointer for the C interface.
    #[must_use]
    pub fn as_ptr(&self) -> *mut c_void {
        self.ptr.as_ptr().cast()
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.ptr.as_ptr().addr() as u64
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `bytes` to `offset`.
    #[track_caller]
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len);
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: in the range, just asserted.
            unsafe { self.ptr.as_ptr().add(offset + i).write_volatile(*byte) };
        }
        fence(Ordering::SeqCst);
    }

    /// Copies `len` bytes from `offset`.
    #[must_use]
    #[track_caller]
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len);
        fence(Ordering::SeqCst);
        // SAFETY: in the range, just asserted.
        (0..len)
            .map(|i| unsafe { self.ptr.as_ptr().add(offset + i).read_volatile() })
            .collect()
    }

    /// Writes the pattern of `seed` to `len` bytes at `offset`.
    #[track_caller]
    pub fn fill_pattern_at(&self, offset: usize, len: usize, seed: u64) {
        self.write(offset, &pattern(seed, len));
    }

    /// Writes the pattern of `seed` to the whole range.
    #[track_caller]
    pub fn fill_with_pattern(&self, seed: u64) {
        self.fill_pattern_at(0, self.len, seed);
    }

    /// Panics unless `len` bytes at `offset` hold the pattern of `seed`.
    #[track_caller]
    pub fn assert_pattern_at(&self, offset: usize, len: usize, seed: u64) {
        assert_same_bytes(&self.read(offset, len), &pattern(seed, len), offset);
    }

    /// Waits until `len` bytes at `offset` hold the pattern of `seed`. On a wire, an unreliable WRITE
    /// completes at its requester before its data arrives.
    #[track_caller]
    pub fn await_pattern_at(&self, offset: usize, len: usize, seed: u64) {
        let end = Instant::now() + crate::harness::wait_limit();
        while self.read(offset, len) != pattern(seed, len) && Instant::now() < end {
            std::thread::yield_now();
        }
        self.assert_pattern_at(offset, len, seed);
    }

    /// Panics unless the whole range holds the pattern of `seed`.
    #[track_caller]
    pub fn assert_whole_pattern(&self, seed: u64) {
        self.assert_pattern_at(0, self.len, seed);
    }

    /// Panics unless `len` bytes at `offset` are all `byte`.
    #[track_caller]
    pub fn assert_filled_with(&self, offset: usize, len: usize, byte: u8) {
        assert_same_bytes(&self.read(offset, len), &vec![byte; len], offset);
    }

    /// Returns the aligned 8 bytes at `offset` as an atomic.
    #[track_caller]
    fn atomic_word_at(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= self.len && offset.is_multiple_of(8));
        // SAFETY: the word is in the range (just asserted) and aligned, because the range is aligned. The
        // range lives as long as `self`.
        unsafe { AtomicU64::from_ptr(self.ptr.as_ptr().add(offset).cast()) }
    }

    /// Loads 8 bytes atomically.
    #[must_use]
    #[track_caller]
    pub fn load(&self, offset: usize) -> u64 {
        self.atomic_word_at(offset).load(Ordering::SeqCst)
    }

    /// Stores 8 bytes atomically.
    #[track_caller]
    pub fn store(&self, offset: usize, value: u64) {
        self.atomic_word_at(offset).store(value, Ordering::SeqCst);
    }
}

/// Panics at the first byte that differs, and prints a few bytes around it instead of all bytes.
#[track_caller]
pub fn assert_same_bytes(found: &[u8], expected: &[u8], offset: usize) {
    assert_eq!(found.len(), expected.len(), "length");
    if let Some(at) = found.iter().zip(expected).position(|(f, e)| f != e) {
        let until = found.len().min(at + 16);
        let wrong = found.iter().zip(expected).filter(|(f, e)| f != e).count();
        panic!(
            "{wrong} of {} bytes are wrong, the first at offset {}: found {:02x?}, expected {:02x?}",
            found.len(),
            offset + at,
            &found[at..until],
            &expected[at..until],
        );
    }
}

impl Drop for ZeroedMemory {
    fn drop(&mut self) {
        match self.backing_allocation {
            // SAFETY: the range came from `alloc_zeroed` with this layout.
            BackingAllocation::Heap(layout) => unsafe { dealloc(self.ptr.as_ptr(), layout) },
            BackingAllocation::Shared { .. } => {}
            // SAFETY: the range came from `mmap` with this length.
            BackingAllocation::Pages(len) => unsafe { munmap(self.as_ptr(), len) }.expect("munmap"),
        }
    }
}
