//! Copies to and from the memory of simulated programs.
//!
//! Programs name memory by address and key. The owner of the memory has registered the region, and until it is
//! deregistered the NIC may read and write it (`ibv_reg_mr(3)`). All copies are made by the thread that runs the
//! simulation, between two calls of the program.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A registered memory region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimulatedRegion {
    addr: u64,
    len: u64,
}

impl SimulatedRegion {
    /// # Safety
    /// The bytes are valid for reads and writes until the region is removed from the simulation.
    pub(crate) unsafe fn new(addr: u64, len: u64) -> Self {
        Self { addr, len }
    }

    fn checked_pointer(&self, addr: u64, len: usize) -> Option<*mut u8> {
        let offset = addr.checked_sub(self.addr)?;
        let end = offset.checked_add(len as u64)?;
        let start = std::ptr::with_exposed_provenance_mut::<u8>(usize::try_from(addr).ok()?);
        (end <= self.len).then_some(start)
    }

    pub(crate) fn contains(&self, addr: u64, len: usize) -> bool {
        self.checked_pointer(addr, len).is_some()
    }

    /// Writes bytes; returns false if they are outside the region.
    pub(crate) fn write(&self, addr: u64, bytes: &[u8]) -> bool {
        let Some(to) = self.checked_pointer(addr, bytes.len()) else {
            return false;
        };
        // An aligned word is written atomically, as a NIC does.
        if let Ok(word) = <[u8; 8]>::try_from(bytes)
            && addr.is_multiple_of(8)
        {
            // SAFETY: in bounds and aligned; the region's memory is live (`new`).
            unsafe { AtomicU64::from_ptr(to.cast()) }
                .store(u64::from_ne_bytes(word), Ordering::Release);
            return true;
        }
        let (head, rest) = bytes.split_at(to.align_offset(8).min(bytes.len()));
        let (words, tail) = rest.as_chunks::<8>();
        let mut at = to;
        for &byte in head {
            // SAFETY: in bounds; the region's memory is live (`new`).
            at = unsafe { store_byte(at, byte) };
        }
        for &word in words {
            // SAFETY: in bounds, aligned after the head; the region's memory is live (`new`).
            at = unsafe {
                AtomicU64::from_ptr(at.cast()).store(u64::from_ne_bytes(word), Ordering::Relaxed);
                at.add(8)
            };
        }
        for &byte in tail {
            // SAFETY: in bounds; the region's memory is live (`new`).
            at = unsafe { store_byte(at, byte) };
        }
        true
    }

    /// Reads bytes to `into`; returns false if they are outside the region.
    pub(crate) fn read(&self, addr: u64, into: &mut [u8]) -> bool {
        let Some(from) = self.checked_pointer(addr, into.len()) else {
            return false;
        };
        let (head, rest) = into.split_at_mut(from.align_offset(8).min(into.len()));
        let (words, tail) = rest.as_chunks_mut::<8>();
        let mut at = from;
        for byte in head {
            // SAFETY: in bounds; the region's memory is live (`new`).
            (*byte, at) = unsafe { load_byte(at) };
        }
        for word in words {
            // SAFETY: in bounds, aligned after the head; the region's memory is live (`new`).
            (*word, at) = unsafe {
                let value = AtomicU64::from_ptr(at.cast()).load(Ordering::Relaxed);
                (value.to_ne_bytes(), at.add(8))
            };
        }
        for byte in tail {
            // SAFETY: in bounds; the region's memory is live (`new`).
            (*byte, at) = unsafe { load_byte(at) };
        }
        true
    }

    /// Returns the aligned word at `addr`; `None` if it is unaligned or outside the region.
    pub(crate) fn atomic_word_at(&self, addr: u64) -> Option<&AtomicU64> {
        let word = self
            .checked_pointer(addr, 8)
            .filter(|_| addr.is_multiple_of(8))?;
        // SAFETY: in bounds and aligned; the region's memory is live (`new`).
        Some(unsafe { AtomicU64::from_ptr(word.cast()) })
    }
}

/// Stores a byte and returns the address behind it.
///
/// # Safety
/// The byte is in a live region.
#[inline(always)]
unsafe fn store_byte(at: *mut u8, byte: u8) -> *mut u8 {
    // SAFETY: contract of this function.
    unsafe {
        AtomicU8::from_ptr(at).store(byte, Ordering::Relaxed);
        at.add(1)
    }
}

/// Returns a byte and the address behind it.
///
/// # Safety
/// The byte is in a live region.
#[inline(always)]
unsafe fn load_byte(at: *mut u8) -> (u8, *mut u8) {
    // SAFETY: contract of this function.
    unsafe { (AtomicU8::from_ptr(at).load(Ordering::Relaxed), at.add(1)) }
}

/// The payload of a message. Most are small, and all are moved often.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    Small {
        len: u8,
        bytes: [u8; MAX_SMALL_PAYLOAD_BYTES],
    },
    Medium {
        len: u8,
        bytes: PooledBuffer,
    },
    /// Boxed twice: a thin pointer keeps the enum, and thus a message, small.
    #[expect(clippy::box_collection, reason = "a thin pointer")]
    Large(Box<Vec<u8>>),
}

const MAX_SMALL_PAYLOAD_BYTES: usize = 14;
const MAX_MEDIUM_PAYLOAD_BYTES: usize = 128;

thread_local! {
    /// Buffers that no payload uses, the one that was used last at the end: its cache lines are likely in the caches.
    #[expect(clippy::vec_box, reason = "buffers move without a copy")]
    static UNUSED_BUFFERS: RefCell<Vec<Box<[u8; MAX_MEDIUM_PAYLOAD_BYTES]>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of a medium payload, which goes back to a pool. To allocate and free these buffers took one instruction in
/// twenty of a key-value store's simulation.
#[derive(Debug)]
pub(crate) struct PooledBuffer(Option<Box<[u8; MAX_MEDIUM_PAYLOAD_BYTES]>>);

impl PooledBuffer {
    /// Takes a buffer with any contents. The function is not inlined, because most payloads are small, and the code that
    /// posts messages has no registers left.
    #[inline(never)]
    fn new() -> Self {
        let unused = UNUSED_BUFFERS.try_with(|unused| unused.borrow_mut().pop());
        let buffer = unused.ok().flatten();
        Self(Some(
            buffer.unwrap_or_else(|| Box::new([0; MAX_MEDIUM_PAYLOAD_BYTES])),
        ))
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        self.0.as_deref().map_or(&[], |bytes| bytes)
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_deref_mut().map_or(&mut [], |bytes| bytes)
    }
}

impl Clone for PooledBuffer {
    fn clone(&self) -> Self {
        let mut copy = Self::new();
        copy.bytes_mut().copy_from_slice(self.bytes());
        copy
    }
}

impl Drop for PooledBuffer {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(buffer) = self.0.take() {
            return_to_pool(buffer);
        }
    }
}

#[inline(never)]
fn return_to_pool(buffer: Box<[u8; MAX_MEDIUM_PAYLOAD_BYTES]>) {
    // Without the pool, because the thread ends, the buffer is freed.
    let _ = UNUSED_BUFFERS.try_with(|unused| unused.borrow_mut().push(buffer));
}

impl Payload {
    pub(crate) const EMPTY: Self = Self::Small {
        len: 0,
        bytes: [0; MAX_SMALL_PAYLOAD_BYTES],
    };

    /// Makes a payload of 8 bytes, the most frequent small size.
    #[inline(always)]
    pub(crate) fn from_word(word: [u8; 8]) -> Self {
        let mut bytes = [0; MAX_SMALL_PAYLOAD_BYTES];
        bytes[..8].copy_from_slice(&word);
        Self::Small { len: 8, bytes }
    }

    /// Makes a payload of `len` bytes, which `fill` writes; `None` if `fill` returns false.
    #[inline]
    pub(crate) fn filled_by(len: usize, fill: impl FnOnce(&mut [u8]) -> bool) -> Option<Self> {
        match u8::try_from(len) {
            Ok(short) if len <= MAX_SMALL_PAYLOAD_BYTES => {
                let mut bytes = [0; MAX_SMALL_PAYLOAD_BYTES];
                fill(&mut bytes[..len]).then_some(Self::Small { len: short, bytes })
            }
            Ok(short) if len <= MAX_MEDIUM_PAYLOAD_BYTES => {
                let mut bytes = PooledBuffer::new();
                fill(&mut bytes.bytes_mut()[..len]).then_some(Self::Medium { len: short, bytes })
            }
            _ => {
                let mut bytes = vec![0; len];
                fill(&mut bytes).then(|| Self::Large(Box::new(bytes)))
            }
        }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Small { len, bytes } => &bytes[..usize::from(*len)],
            Self::Medium { len, bytes } => &bytes.bytes()[..usize::from(*len)],
            Self::Large(bytes) => bytes,
        }
    }
}
