//! Copies to and from the memory of simulated programs.
//!
//! Programs name memory by address and key. The owner of the memory has registered the region, and until it is
//! deregistered the NIC may read and write it (`ibv_reg_mr(3)`). All copies are made by the thread that runs the
//! simulation, between two calls of the program.

#![allow(unsafe_code)]

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
        for (i, &byte) in bytes.iter().enumerate() {
            // SAFETY: in bounds; the region's memory is live (`new`).
            unsafe { AtomicU8::from_ptr(to.add(i)) }.store(byte, Ordering::Relaxed);
        }
        true
    }

    /// Reads bytes to `into`; returns false if they are outside the region.
    pub(crate) fn read(&self, addr: u64, into: &mut [u8]) -> bool {
        let Some(from) = self.checked_pointer(addr, into.len()) else {
            return false;
        };
        for (i, byte) in into.iter_mut().enumerate() {
            // SAFETY: in bounds; the region's memory is live (`new`).
            *byte = unsafe { AtomicU8::from_ptr(from.add(i)) }.load(Ordering::Relaxed);
        }
        true
    }

    /// Returns the aligned word at `addr`; `None` if it is unaligned or outside the region.
    pub(crate) fn word(&self, addr: u64) -> Option<&AtomicU64> {
        let word = self
            .checked_pointer(addr, 8)
            .filter(|_| addr.is_multiple_of(8))?;
        // SAFETY: in bounds and aligned; the region's memory is live (`new`).
        Some(unsafe { AtomicU64::from_ptr(word.cast()) })
    }
}

/// The payload of a message. Most are small, and all are moved often.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    Small {
        len: u8,
        bytes: [u8; MAX_SMALL_BYTES],
    },
    Medium {
        len: u8,
        bytes: Box<[u8; MAX_MEDIUM_BYTES]>,
    },
    /// Boxed twice: a thin pointer keeps the enum, and thus a message, small.
    #[expect(clippy::box_collection, reason = "a thin pointer")]
    Large(Box<Vec<u8>>),
}

const MAX_SMALL_BYTES: usize = 14;
const MAX_MEDIUM_BYTES: usize = 128;

impl Payload {
    pub(crate) const EMPTY: Self = Self::Small {
        len: 0,
        bytes: [0; MAX_SMALL_BYTES],
    };

    /// Makes a payload of 8 bytes, the most frequent small size.
    #[inline(always)]
    pub(crate) fn from_word(word: [u8; 8]) -> Self {
        let mut bytes = [0; MAX_SMALL_BYTES];
        bytes[..8].copy_from_slice(&word);
        Self::Small { len: 8, bytes }
    }

    /// Makes a payload of `len` bytes, which `fill` writes; `None` if `fill` returns false.
    #[inline]
    pub(crate) fn filled_by(len: usize, fill: impl FnOnce(&mut [u8]) -> bool) -> Option<Self> {
        match u8::try_from(len) {
            Ok(short) if len <= MAX_SMALL_BYTES => {
                let mut bytes = [0; MAX_SMALL_BYTES];
                fill(&mut bytes[..len]).then_some(Self::Small { len: short, bytes })
            }
            Ok(short) if len <= MAX_MEDIUM_BYTES => {
                let mut bytes = Box::new([0; MAX_MEDIUM_BYTES]);
                fill(&mut bytes[..len]).then_some(Self::Medium { len: short, bytes })
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
            Self::Medium { len, bytes } => &bytes[..usize::from(*len)],
            Self::Large(bytes) => bytes,
        }
    }
}
