//! A memory region that can be read and written, however its bytes are reached.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nic_core::rights::{self, Owner, Permitted};

use super::atomic_lock::HeldAtomicLock;
use super::copy::{LAST, copy};
use super::fault::Fault;
use super::mappings::{Mappings, PeerMapping};
use super::word::{self, AtomicOp};
use crate::fabric::Peer;
use crate::fabric::layout::*;
use crate::process_memory::{Direction, ProcessMemory};

/// How the bytes of a memory region are reached.
#[derive(Clone)]
enum Reach {
    /// At this address of the own address space lies the region's first byte.
    Direct(
        *mut u8,
        #[allow(dead_code, reason = "keeps the mapping")] Option<Arc<PeerMapping>>,
    ),
    /// By system calls that copy between processes.
    BySystemCall(Arc<ProcessMemory>),
    /// There are none: writes are dropped, and reads give zeros.
    Null,
}

/// A memory region that can be read and written: of this process or of a peer.
#[derive(Clone)]
pub struct Region {
    /// The process that has it, where that is not the one that was asked for its key.
    pub owner: Option<Arc<Peer>>,
    /// As in the table when it was read.
    pub entry: u64,
    /// Place in the table of its process.
    pub index: usize,
    /// What the table says of it: where it is, and who may use it for what.
    pub rights: rights::Region,
    /// Peers reach it by system call only.
    pub private: bool,
    /// It is one of this process.
    pub own: bool,
    /// Where its process has its first byte.
    base: u64,
    /// Atomics are CPU atomics; where not, they are made under a lock.
    cpu_atomics: bool,
    reach: Reach,
}

// SAFETY: the raw pointer is an address that the mapping beside it (or the registration) keeps valid in
// every thread.
unsafe impl Send for Region {}

/// Bytes that are copied at once between two places of which neither can be mapped.
pub const BOUNCE: usize = 16 << 10;

/// Pieces of `len` bytes, each at most as long as such a buffer: where each starts, and how long it is.
fn pieces(len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len)
        .step_by(BOUNCE)
        .map(move |at| (at, BOUNCE.min(len - at)))
}

impl Region {
    /// Makes the region `index` of `peer` accessible. The caller has pinned it as `entry`, so it stays
    /// registered.
    pub fn reach(
        maps: &Mappings,
        peer: &Peer,
        (index, entry): (usize, u64),
        mr: &MrShared,
    ) -> Result<Self, Fault> {
        let addr = mr.addr.load(Ordering::Relaxed);
        let len = mr.len.load(Ordering::Relaxed);
        let backing = mr.backing.load(Ordering::Relaxed);
        let base = mr.base.load(Ordering::Relaxed);
        let by_system_call = || {
            let memory = peer.memory.as_ref().ok_or(Fault)?;
            Ok(Reach::BySystemCall(Arc::clone(memory)))
        };
        let reach = if backing == BACKING_NULL {
            Reach::Null
        } else if peer.is_self {
            Reach::Direct(std::ptr::with_exposed_provenance_mut(base as usize), None)
        } else if backing == BACKING_PRIVATE {
            by_system_call()?
        } else {
            match maps.get(peer, mr) {
                Ok(map) => {
                    let offset = mr.offset.load(Ordering::Relaxed);
                    let first = map.at(offset, len).ok_or(Fault)?;
                    Reach::Direct(first, Some(map))
                }
                Err(e) => {
                    // Another user's /proc, or a limit: the bytes can still be copied by system call.
                    tracing::debug!("memory of process {} cannot be mapped: {e}", peer.pid);
                    by_system_call()?
                }
            }
        };
        Ok(Self {
            owner: None,
            entry,
            index,
            rights: rights::Region {
                start: addr,
                len,
                access: mr.access.load(Ordering::Relaxed),
                owner: Owner::from_word(mr.pd.load(Ordering::Relaxed)),
            },
            private: backing == BACKING_PRIVATE,
            own: peer.is_self,
            base,
            // A region may call its bytes by other addresses than the CPU, and be aligned to others.
            cpu_atomics: backing != BACKING_PRIVATE && base.wrapping_sub(addr).is_multiple_of(8),
            reach,
        })
    }

    /// The own address of the bytes `at`, where the region is mapped.
    #[inline]
    pub fn direct(&self, at: Permitted) -> Option<*mut u8> {
        match self.reach {
            Reach::Direct(first, _) => Some(first.wrapping_add(at.offset() as usize)),
            Reach::BySystemCall(_) | Reach::Null => None,
        }
    }

    /// Is it a region without memory (`ibv_alloc_null_mr(3)`)? Asked where it is not [direct](Self::direct).
    #[cold]
    pub fn is_null(&self) -> bool {
        matches!(self.reach, Reach::Null)
    }

    /// Copies bytes from `src` to those of this region that are permitted.
    ///
    /// # Safety
    /// Nobody has a mutable reference to the as many bytes at `src`; `at` is of this region, which is pinned.
    #[inline]
    pub unsafe fn write(&self, at: Permitted, src: *const u8) -> Result<(), Fault> {
        match self.direct(at) {
            // SAFETY: contract of this function; the pin keeps peers' memory mapped, and programs may unmap their own.
            Some(dst) => unsafe { copy(dst, src, at.len() as usize)? },
            None if self.is_null() => {}
            None => self.by_system_call(at, src.cast_mut(), Direction::Write)?,
        }
        Ok(())
    }

    /// Copies the bytes of this region that are permitted to `dst`.
    ///
    /// # Safety
    /// Nobody has a reference to the as many bytes at `dst`; `at` is of this region, which is pinned.
    #[inline]
    pub unsafe fn read(&self, at: Permitted, dst: *mut u8) -> Result<(), Fault> {
        match self.direct(at) {
            // SAFETY: as in `write`.
            Some(src) => unsafe { copy(dst, src, at.len() as usize)? },
            None if self.is_null() => {
                static ZEROS: [u8; BOUNCE] = [0; BOUNCE];
                for (done, n) in pieces(at.len() as usize) {
                    // SAFETY: contract of this function; there are as many zeros.
                    unsafe { copy(dst.wrapping_add(done), ZEROS.as_ptr(), n)? };
                }
            }
            None => self.by_system_call(at, dst, Direction::Read)?,
        }
        Ok(())
    }

    #[cold]
    fn by_system_call(
        &self,
        at: Permitted,
        local: *mut u8,
        direction: Direction,
    ) -> Result<(), Fault> {
        let Reach::BySystemCall(memory) = &self.reach else {
            return Err(Fault);
        };
        let remote = self.base.wrapping_add(at.offset()) as usize;
        // SAFETY: `local` is valid for `at.len()` bytes (contract of the callers).
        unsafe { memory.transfer(direction, local, remote, (at.len() as usize, LAST)) }
            .map_err(|_| Fault)
    }

    /// Reads the 8 bytes `at`, stores what `change` makes of them, and returns what was there, in one
    /// step that no other atomic of any NIC of this fabric divides.
    ///
    /// `at` is 8 bytes of this region, which is pinned, and their address is a multiple of 8.
    #[inline]
    pub fn atomic(&self, peer: &Peer, at: Permitted, op: AtomicOp) -> Result<u64, Fault> {
        if at.len() != 8 {
            return Err(Fault);
        }
        if self.cpu_atomics
            && let Some(ptr) = self.direct(at)
        {
            // SAFETY: within the pinned region and aligned (the caller checked both). Other accesses of the
            // same bytes race only with whole words.
            return unsafe { word::change(ptr.cast(), op) };
        }
        self.atomic_locked(peer, at, op)
    }

    /// Atomics on memory without a shared mapping: read, modify and write under a lock of the owner's
    /// segment that the address chooses.
    #[cold]
    fn atomic_locked(&self, peer: &Peer, at: Permitted, op: AtomicOp) -> Result<u64, Fault> {
        let index = (self.base.wrapping_add(at.offset()) / 8) as usize % ATOMIC_LOCKS;
        let owner = self.owner.as_deref().unwrap_or(peer);
        let lock = owner.segment.atomic_lock(index).ok_or(Fault)?;
        let _held = HeldAtomicLock::take(&lock.holder)?;
        let mut old = 0u64;
        // SAFETY: `old` and `new` are 8 bytes, and so is `at` (checked in `atomic`); the caller has pinned the region.
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
