//! A memory region that this process can access: its bytes are read and written by a mapping or by
//! system calls.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nic_core::rights::{self, OwningPdOrQp, PermittedRange};

use super::atomic_lock::HeldRemoteAtomicsLock;
use super::copy::{LAST_MOVE_BYTES, copy};
use super::guarded_atomics::{self, AtomicOp};
use super::memory_fault::MemoryFault;
use super::peer_mappings::{PeerMapping, PeerMappings};
use crate::fabric::Peer;
use crate::fabric::layout::*;
use crate::process_memory::{CopyDirection, ProcessMemory};

/// Access path to the bytes of a memory region.
#[derive(Clone)]
enum AccessPath {
    /// Address of the region's first byte in this process.
    Direct(
        *mut u8,
        #[allow(dead_code, reason = "keeps the mapping")] Option<Arc<PeerMapping>>,
    ),
    /// System calls that copy between processes.
    BySystemCall(Arc<ProcessMemory>),
    /// The region has no memory: writes are dropped, and reads return zeros.
    Null,
}

/// An accessible memory region of this process or of a peer.
#[derive(Clone)]
pub struct AccessibleRegion {
    /// The owning process, if it differs from the process in whose table the key was looked up.
    pub owner_if_not_key_table_peer: Option<Arc<Peer>>,
    /// Value of [`MrShared::generation_and_key`] when the region was read.
    pub generation_and_key: u64,
    /// Index in the table of its process.
    pub key_table_index: usize,
    /// Address range and access rights from the table.
    pub rights: rights::RegionRights,
    /// True if peers access the region only by system call.
    pub peers_copy_by_syscall: bool,
    /// True if the region belongs to this process.
    pub is_of_this_process: bool,
    /// Address of the first byte in the owning process.
    owner_address: u64,
    /// True if atomics on the region are CPU atomics; otherwise they are made under a lock.
    uses_cpu_atomics: bool,
    access_path: AccessPath,
}

// SAFETY: the raw pointer is an address that the mapping beside it (or the registration) keeps valid in every
// thread.
unsafe impl Send for AccessibleRegion {}

/// Number of bytes copied at once between two regions of which neither can be mapped.
pub const BOUNCE_BUFFER_BYTES: usize = 16 << 10;

/// Splits `len` bytes into pieces of at most [`BOUNCE_BUFFER_BYTES`] bytes; returns offset and length of each
/// piece.
fn split_into_bounce_pieces(len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len)
        .step_by(BOUNCE_BUFFER_BYTES)
        .map(move |at| (at, BOUNCE_BUFFER_BYTES.min(len - at)))
}

impl AccessibleRegion {
    /// Makes the region `index` of `peer` accessible. The caller has pinned the region with the
    /// table value `entry`, so the region stays registered.
    pub fn open(
        maps: &PeerMappings,
        peer: &Peer,
        (index, entry): (usize, u64),
        mr: &MrShared,
    ) -> Result<Self, MemoryFault> {
        let addr = mr.iova.load(Ordering::Relaxed);
        let len = mr.len.load(Ordering::Relaxed);
        let backing = mr.backing_kind.load(Ordering::Relaxed);
        let base = mr.owner_address.load(Ordering::Relaxed);
        let by_system_call = || {
            let memory = peer.memory.as_ref().ok_or(MemoryFault)?;
            Ok(AccessPath::BySystemCall(Arc::clone(memory)))
        };
        let path = if backing == BACKING_NULL {
            AccessPath::Null
        } else if peer.is_self {
            AccessPath::Direct(std::ptr::with_exposed_provenance_mut(base as usize), None)
        } else if backing == BACKING_PRIVATE {
            by_system_call()?
        } else {
            match maps.get_or_map(peer, mr) {
                Ok(map) => {
                    let offset = mr.backing_offset.load(Ordering::Relaxed);
                    let first = map.address_of(offset, len).ok_or(MemoryFault)?;
                    AccessPath::Direct(first, Some(map))
                }
                Err(e) => {
                    // The peer's /proc entry belongs to another user, or a limit is reached: copy the bytes
                    // by system call.
                    tracing::debug!("memory of process {} cannot be mapped: {e}", peer.pid);
                    by_system_call()?
                }
            }
        };
        Ok(Self {
            owner_if_not_key_table_peer: None,
            generation_and_key: entry,
            key_table_index: index,
            rights: rights::RegionRights {
                start: addr,
                len,
                access: mr.access.load(Ordering::Relaxed),
                owner: OwningPdOrQp::from_word(mr.owner_pd_or_qp.load(Ordering::Relaxed)),
            },
            peers_copy_by_syscall: backing == BACKING_PRIVATE,
            is_of_this_process: peer.is_self,
            owner_address: base,
            // Addresses in work requests may differ from the CPU's addresses, and then may be
            // aligned differently.
            uses_cpu_atomics: backing != BACKING_PRIVATE
                && base.wrapping_sub(addr).is_multiple_of(8),
            access_path: path,
        })
    }

    /// Returns the address of the bytes `at` in this process, if the region is mapped.
    #[inline]
    pub fn mapped_address(&self, at: PermittedRange) -> Option<*mut u8> {
        match self.access_path {
            AccessPath::Direct(first, _) => Some(first.wrapping_add(at.offset() as usize)),
            AccessPath::BySystemCall(_) | AccessPath::Null => None,
        }
    }

    /// Returns true if the region has no memory (`ibv_alloc_null_mr(3)`). Relevant only if the region is not
    /// [direct](Self::mapped_address).
    #[cold]
    pub fn is_null(&self) -> bool {
        matches!(self.access_path, AccessPath::Null)
    }

    /// Copies `at.len()` bytes from `src` to the permitted bytes of this region.
    ///
    /// # Safety
    /// No mutable reference to the `at.len()` bytes at `src` exists. `at` belongs to this region, which is
    /// pinned.
    #[inline]
    pub unsafe fn write(&self, at: PermittedRange, src: *const u8) -> Result<(), MemoryFault> {
        match self.mapped_address(at) {
            // SAFETY: contract of this function; the pin keeps peers' memory mapped, and `copy` handles
            // memory that the program has unmapped.
            Some(dst) => unsafe { copy(dst, src, at.len() as usize)? },
            None if self.is_null() => {}
            None => self.copy_by_system_call(at, src.cast_mut(), CopyDirection::Write)?,
        }
        Ok(())
    }

    /// Copies the permitted bytes of this region to `dst`.
    ///
    /// # Safety
    /// No reference to the `at.len()` bytes at `dst` exists. `at` belongs to this region, which is pinned.
    #[inline]
    pub unsafe fn read(&self, at: PermittedRange, dst: *mut u8) -> Result<(), MemoryFault> {
        match self.mapped_address(at) {
            // SAFETY: as in `write`.
            Some(src) => unsafe { copy(dst, src, at.len() as usize)? },
            None if self.is_null() => {
                static ZEROS: [u8; BOUNCE_BUFFER_BYTES] = [0; BOUNCE_BUFFER_BYTES];
                for (done, n) in split_into_bounce_pieces(at.len() as usize) {
                    // SAFETY: contract of this function; `ZEROS` has at least `n` bytes.
                    unsafe { copy(dst.wrapping_add(done), ZEROS.as_ptr(), n)? };
                }
            }
            None => self.copy_by_system_call(at, dst, CopyDirection::Read)?,
        }
        Ok(())
    }

    #[cold]
    fn copy_by_system_call(
        &self,
        at: PermittedRange,
        local: *mut u8,
        direction: CopyDirection,
    ) -> Result<(), MemoryFault> {
        let AccessPath::BySystemCall(memory) = &self.access_path else {
            return Err(MemoryFault);
        };
        let remote = self.owner_address.wrapping_add(at.offset()) as usize;
        // SAFETY: `local` is valid for `at.len()` bytes (contract of the callers).
        unsafe {
            memory.transfer(
                direction,
                local,
                remote,
                (at.len() as usize, LAST_MOVE_BYTES),
            )
        }
        .map_err(|_| MemoryFault)
    }

    /// Applies `op` to the 8 bytes `at` and returns their old value. The operation is atomic with
    /// respect to all atomics of all NICs in this fabric.
    ///
    /// The bytes `at` belong to this region, which is pinned, and their address is a multiple of 8.
    #[inline]
    pub fn apply_atomic(
        &self,
        peer: &Peer,
        at: PermittedRange,
        op: AtomicOp,
    ) -> Result<u64, MemoryFault> {
        if at.len() != 8 {
            return Err(MemoryFault);
        }
        if self.uses_cpu_atomics
            && let Some(ptr) = self.mapped_address(at)
        {
            // SAFETY: the word is within the pinned region and aligned (the caller checked both). Other
            // accesses to the same bytes race only with whole words.
            return unsafe { guarded_atomics::apply_atomic(ptr.cast(), op) };
        }
        self.apply_atomic_under_lock(peer, at, op)
    }

    /// Executes an atomic on memory without a shared mapping: reads, modifies and writes under a lock of the
    /// owner's segment. The address selects the lock.
    #[cold]
    fn apply_atomic_under_lock(
        &self,
        peer: &Peer,
        at: PermittedRange,
        op: AtomicOp,
    ) -> Result<u64, MemoryFault> {
        let index = (self.owner_address.wrapping_add(at.offset()) / 8) as usize % ATOMIC_LOCKS;
        let owner = self.owner_if_not_key_table_peer.as_deref().unwrap_or(peer);
        let lock = owner.segment.atomic_lock(index).ok_or(MemoryFault)?;
        let _held = HeldRemoteAtomicsLock::take(&lock.holder)?;
        let mut old = 0u64;
        // SAFETY: `old` and `new` have 8 bytes, and so does `at` (checked in `atomic`); the caller has pinned
        // the region.
        unsafe {
            self.read(at, (&raw mut old).cast())?;
            let new = match op {
                AtomicOp::FetchAdd(n) => old.wrapping_add(n),
                AtomicOp::Store(new) => new,
                AtomicOp::CompareSwap { expect, swap } if old == expect => swap,
                AtomicOp::CompareSwap { .. } => return Ok(old),
            };
            self.write(at, (&raw const new).cast())?;
        }
        Ok(old)
    }
}
