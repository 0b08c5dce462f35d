//! Memory regions: buffers that the NIC and peers may reach.
//!
//! # Why dropping a region is memory-safe while work requests are outstanding
//!
//! A work request names memory by address and key, not by a Rust borrow, so a region may be dropped while the NIC still
//! has requests that name it. The order in `Drop` keeps that safe: first `ibv_dereg_mr`, then the memory. When
//! `ibv_dereg_mr` has returned, the L_Key and R_Key are invalid and no access through them happens any more (IBTA vol.
//! 1, 10.6.7.5). Hardware waits for DMA in flight before it acknowledges the deregistration, and softnic for copies in
//! flight. A request that is executed later fails with a local protection or remote access error and touches nothing.
//! Where a provider refuses to deregister, the memory is leaked instead of freed.
//!
//! For the same reason inline payload never comes from a region. The CPU reads it at post time without a check of a
//! key, so a [`Postlist`](crate::Postlist) copies it into memory of its own.
//!
//! # Why there is no `&[u8]`
//!
//! Behind a `&[u8]` nothing may change, and here the NIC, or a peer that WRITEs, may change everything at
//! any time. Contents are therefore copied in and out, or reached as atomics.

#![allow(unsafe_code)]

use std::alloc::Layout;
use std::fmt;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use verbs_abi as abi;

use crate::copy::{copy_from_shared, copy_to_shared};
use crate::error::{RegisterError, last_error};
use crate::memory::SharedMemory;
use crate::mr_slice::{MrSlice, RemoteMemory};
use crate::pd::{PdInner, ProtectionDomain};
use crate::types::{Access, LKey, RKey};
use crate::wait::{Waiter, poll_until};

/// A registered buffer. It owns its memory; see [`ProtectionDomain::with_registered`] to borrow some.
///
/// ```
/// # let pd = verbs::Provider::softnic().device(None)?.open()?.alloc_pd()?;
/// use verbs::Access;
/// let mr = pd.alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
/// mr.write_at(8, b"hello")?;
/// let mut back = [0; 5];
/// mr.read_at(8, &mut back)?;
/// assert_eq!(&back, b"hello");
/// assert!(mr.read_at(4095, &mut back).is_err()); // would pass the end
/// let remote = mr.remote(); // what a peer needs to know
/// assert_eq!(remote.len, 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MemoryRegion {
    pd: Arc<PdInner>,
    raw: *mut abi::ibv_mr,
    addr: *mut u8,
    len: usize,
    lkey: u32,
    rkey: u32,
    memory_owner: MemoryOwner,
}

/// The owner of a region's bytes.
pub(crate) enum MemoryOwner {
    Shared(SharedMemory),
    Boxed(*mut [u8]),
    /// Of this process alone: the block that contains the region.
    PrivatePages(*mut u8, Layout),
    /// Of an owner that the region keeps.
    KeptOwner(#[expect(dead_code, reason = "keeps the bytes")] Box<dyn Send + Sync>),
    /// Another region's, which lives as long.
    OtherRegion(#[expect(dead_code, reason = "keeps the bytes")] Arc<MemoryRegion>),
    /// A SysV segment, and its number.
    Sysv(*mut u8, i32),
    /// Outlives the region by the caller's closure.
    Borrowed,
}

// SAFETY: `raw` is only used by the thread that drops the region; the bytes are accessed by atomics and
// belong to the region (or, borrowed, outlive it).
unsafe impl Send for MemoryRegion {}
// SAFETY: shared access to the bytes is by atomics only.
unsafe impl Sync for MemoryRegion {}

/// An offset or range that is outside of a region, or not aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{len} bytes at offset {offset} are not an {required} part of a region of {region_len} bytes"
)]
pub struct RangeError {
    offset: usize,
    len: usize,
    region_len: usize,
    required: &'static str,
}

impl From<RangeError> for std::io::Error {
    fn from(e: RangeError) -> Self {
        std::io::Error::new(std::io::ErrorKind::InvalidInput, e)
    }
}

impl MemoryRegion {
    /// Registers memory, which the region owns from here on.
    ///
    /// # Safety
    /// `addr` is valid for reads and writes of `len` bytes until the region is dropped.
    pub(crate) unsafe fn register(
        pd: &Arc<PdInner>,
        addr: *mut u8,
        len: usize,
        access: Access,
        memory: MemoryOwner,
    ) -> Result<Self, RegisterError> {
        let symbols = pd.context.symbols;
        // SAFETY: live PD; the caller vouches for the memory.
        let raw = unsafe { (symbols.ibv_reg_mr)(pd.raw, addr.cast(), len, access.bits()) };
        if raw.is_null() {
            let error = RegisterError::of_registration("ibv_reg_mr", last_error(), len, access);
            memory.free();
            return Err(error);
        }
        // SAFETY: ibv_reg_mr returned a live MR.
        let (lkey, rkey) = unsafe { ((*raw).lkey, (*raw).rkey) };
        Ok(Self {
            pd: Arc::clone(pd),
            raw,
            addr,
            len,
            lkey,
            rkey,
            memory_owner: memory,
        })
    }

    /// Registers memory that stays the caller's, for [`crate::raw`].
    ///
    /// # Safety
    /// As for [`register`](Self::register).
    pub(crate) unsafe fn register_borrowed(
        pd: &ProtectionDomain,
        addr: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Self, RegisterError> {
        // SAFETY: contract of this function.
        unsafe { Self::register(&pd.inner, addr, len, access, MemoryOwner::Borrowed) }
    }

    /// Registers the same memory once more, with keys of its own. Dropping the result revokes the access by those keys,
    /// and returns when no such access is in flight any more.
    ///
    /// ```
    /// # let pd = verbs::Provider::softnic().device(None)?.open()?.alloc_pd()?;
    /// use std::sync::Arc;
    /// let mr = Arc::new(pd.alloc(4096, verbs::Access::LOCAL_WRITE)?);
    /// let for_a_guest = mr.register_again(verbs::Access::LOCAL_WRITE | verbs::Access::REMOTE_WRITE)?;
    /// assert_eq!(for_a_guest.addr(), mr.addr());
    /// assert_ne!(for_a_guest.rkey(), mr.rkey());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`register_vec`](ProtectionDomain::register_vec).
    pub fn register_again(self: &Arc<Self>, access: Access) -> Result<Self, RegisterError> {
        let memory = MemoryOwner::OtherRegion(Arc::clone(self));
        // SAFETY: the memory is this region's, which the new one keeps alive.
        unsafe { Self::register(&self.pd, self.addr, self.len, access, memory) }
    }

    /// Registers a part of the memory once more, with keys of its own. By these keys a peer reaches only that part.
    /// Otherwise as [`register_again`](Self::register_again).
    ///
    /// ```
    /// # let pd = verbs::Provider::softnic().device(None)?.open()?.alloc_pd()?;
    /// use std::sync::Arc;
    /// let slab = Arc::new(pd.alloc(8192, verbs::Access::LOCAL_WRITE)?);
    /// let half = slab.register_part(4096..8192, verbs::Access::LOCAL_WRITE | verbs::Access::REMOTE_WRITE)?;
    /// assert_eq!((half.addr(), half.len()), (slab.addr() + 4096, 4096));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// - [`RegisterError::Length`] (`EINVAL`): the range is empty, or not inside of the region.
    /// - As [`register_vec`](ProtectionDomain::register_vec).
    pub fn register_part(
        self: &Arc<Self>,
        range: Range<usize>,
        access: Access,
    ) -> Result<Self, RegisterError> {
        let len = range.end.saturating_sub(range.start);
        if len == 0 || range.end > self.len {
            let source = std::io::Error::from_raw_os_error(libc::EINVAL);
            return Err(RegisterError::Length {
                len,
                verb: "ibv_reg_mr",
                source,
            });
        }
        let memory = MemoryOwner::OtherRegion(Arc::clone(self));
        // SAFETY: the part is inside of this region's memory, which the new one keeps alive.
        unsafe {
            let addr = self.addr.add(range.start);
            Self::register(&self.pd, addr, len, access, memory)
        }
    }

    /// The number of bytes.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a region is never empty: providers refuse to register nothing"
    )]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address of the first byte, as peers use it.
    pub fn addr(&self) -> u64 {
        self.addr.addr() as u64
    }

    /// The first byte. Reads and writes through it must be atomic as those of this type, unless neither NIC nor peers
    /// may write here (a region with [`Access::REMOTE_READ`] alone).
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.addr
    }

    /// The number of the SysV segment that it is, from [`alloc_sysv`](ProtectionDomain::alloc_sysv).
    pub fn sysv_id(&self) -> Option<i32> {
        match self.memory_owner {
            MemoryOwner::Sysv(_, id) => Some(id),
            _ => None,
        }
    }

    /// The L_Key, for this process's own WRs.
    pub fn lkey(&self) -> LKey {
        LKey(self.lkey)
    }

    /// The R_Key, for peers.
    pub fn rkey(&self) -> RKey {
        RKey(self.rkey)
    }

    /// Address and R_Key, which a peer needs to reach this region.
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory {
            addr: self.addr(),
            len: self.len as u64,
            rkey: self.rkey(),
        }
    }

    /// A part of the region, for a WR.
    ///
    /// # Errors
    /// The range must be inside of the region and shorter than 4 GiB.
    #[inline]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<MrSlice, RangeError> {
        let start = match range.start_bound() {
            Bound::Included(&s) => s,
            Bound::Excluded(&s) => s.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&e) => e.saturating_add(1),
            Bound::Excluded(&e) => e,
            Bound::Unbounded => self.len,
        };
        let len = end
            .checked_sub(start)
            .ok_or_else(|| self.range_error(start, 0, "inside"))?;
        self.check_range(start, len)?;
        let len = u32::try_from(len)
            .map_err(|_| self.range_error(start, len, "inside and below 4 GiB"))?;
        Ok(MrSlice {
            addr: self.addr() + start as u64,
            len,
            lkey: self.lkey,
        })
    }

    /// Copies bytes out. Bytes that a peer is writing at the same time may be old or new, each for itself;
    /// aligned 8-byte words are never torn.
    ///
    /// # Errors
    /// [`RangeError`] where the bytes are not all of the region.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), RangeError> {
        self.check_range(offset, into.len())?;
        // SAFETY: in bounds just now, and the region's memory is live.
        unsafe { copy_from_shared(self.addr.add(offset), into) };
        Ok(())
    }

    /// Copies bytes in. Aligned 8-byte words are never torn.
    ///
    /// # Errors
    /// [`RangeError`] where the bytes are not all of the region.
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<(), RangeError> {
        self.check_range(offset, from.len())?;
        // SAFETY: in bounds just now, and the region's memory is live.
        unsafe { copy_to_shared(self.addr.add(offset), from) };
        Ok(())
    }

    /// The aligned 8-byte word at `offset`, in host order, acquiring what was written before it.
    ///
    /// # Errors
    /// [`RangeError`] where the word is not of the region, or not aligned.
    #[inline]
    pub fn read_u64(&self, offset: usize) -> Result<u64, RangeError> {
        Ok(self.atomic_u64(offset)?.load(Ordering::Acquire))
    }

    /// Stores the aligned 8-byte word at `offset`, in host order, after everything that was written before.
    ///
    /// # Errors
    /// [`RangeError`] where the word is not of the region, or not aligned.
    #[inline]
    pub fn write_u64(&self, offset: usize, value: u64) -> Result<(), RangeError> {
        self.atomic_u64(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    /// The aligned 8-byte word at `offset` as an atomic.
    ///
    /// # Errors
    /// [`RangeError`] where the word is not of the region, or not aligned.
    #[inline]
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64, RangeError> {
        self.check_range(offset, 8)?;
        // SAFETY: in bounds just now, memory live as long as the region is borrowed.
        let word = unsafe { self.addr.add(offset) };
        if !word.addr().is_multiple_of(8) {
            return Err(self.range_error(offset, 8, "aligned"));
        }
        // SAFETY: aligned, in bounds, live; all access in this process is atomic, other accesses are the
        // NIC's and peers', outside of the abstract machine.
        Ok(unsafe { AtomicU64::from_ptr(word.cast()) })
    }

    /// `count` aligned 8-byte words from `offset` on, as atomics: for polling many of them.
    ///
    /// # Errors
    /// [`RangeError`] where the words are not all of the region, or not aligned.
    pub fn atomics_u64(&self, offset: usize, count: usize) -> Result<&[AtomicU64], RangeError> {
        let bytes = count
            .checked_mul(8)
            .ok_or_else(|| self.range_error(offset, usize::MAX, "inside"))?;
        self.check_range(offset, bytes)?;
        // SAFETY: in bounds just now.
        let first = unsafe { self.addr.add(offset) };
        if !first.addr().is_multiple_of(8) {
            return Err(self.range_error(offset, bytes, "aligned"));
        }
        // SAFETY: as in `atomic_u64`, for `count` words.
        Ok(unsafe { std::slice::from_raw_parts(first.cast::<AtomicU64>(), count) })
    }

    /// Waits until the aligned word at `offset` satisfies `ready`, or `timeout` has passed. The way to wait
    /// for a WRITE of a peer.
    ///
    /// ```
    /// # let pd = verbs::Provider::softnic().device(None)?.open()?.alloc_pd()?;
    /// use std::time::Duration;
    /// let mr = pd.alloc(64, verbs::Access::ALL)?;
    /// mr.write_u64(16, 5)?;
    /// assert_eq!(mr.wait_u64(16, Duration::from_secs(1), |v| v > 4)?, Some(5));
    /// assert_eq!(mr.wait_u64(16, Duration::from_millis(1), |v| v > 5)?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`RangeError`] where the word is not of the region, or not aligned.
    pub fn wait_u64(
        &self,
        offset: usize,
        timeout: Duration,
        mut ready: impl FnMut(u64) -> bool,
    ) -> Result<Option<u64>, RangeError> {
        let word = self.atomic_u64(offset)?;
        Ok(poll_until(timeout, || {
            Some(word.load(Ordering::Acquire)).filter(|&v| ready(v))
        }))
    }

    /// Deregisters a buffer that came from [`register_vec`](ProtectionDomain::register_vec) and gives it
    /// back; `None` if the memory was allocated here.
    pub fn into_boxed(mut self) -> Option<Box<[u8]>> {
        let MemoryOwner::Boxed(buffer) = self.memory_owner else {
            return None;
        };
        self.memory_owner = MemoryOwner::Borrowed;
        drop(self); // deregisters, or aborts
        // SAFETY: from Box::into_raw in `register_vec`, owned by nobody else now, and the NIC is done with it.
        Some(unsafe { Box::from_raw(buffer) })
    }

    /// The provider's MR, for [`crate::raw`].
    pub(crate) fn raw(&self) -> *mut abi::ibv_mr {
        self.raw
    }

    #[inline]
    fn check_range(&self, offset: usize, len: usize) -> Result<(), RangeError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(self.range_error(offset, len, "inside")),
        }
    }

    #[cold]
    fn range_error(&self, offset: usize, len: usize, what: &'static str) -> RangeError {
        RangeError {
            offset,
            len,
            region_len: self.len,
            required: what,
        }
    }
}

impl Waiter {
    /// The same as [`idle`](Self::idle) for a loop that looks at this memory, into which peers WRITE.
    #[inline]
    pub fn idle_polling_memory(&mut self, memory: &MemoryRegion) {
        self.idle_polling_rkey(memory.rkey);
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: made by ibv_reg_mr of this table, deregistered once.
        let ret = unsafe { (self.pd.context.symbols.ibv_dereg_mr)(self.raw) };
        let memory = std::mem::replace(&mut self.memory_owner, MemoryOwner::Borrowed);
        match (ret, memory) {
            (0, memory) => memory.free(),
            // The NIC may still write to memory that its owner is about to use for something else.
            (_, MemoryOwner::Borrowed) => std::process::abort(),
            (_, memory) => std::mem::forget(memory),
        }
    }
}

impl MemoryOwner {
    /// Frees the bytes; the NIC must be done with them.
    fn free(self) {
        match self {
            Self::Shared(memory) => drop(memory),
            // SAFETY: allocated with this layout by `alloc_private`; the region was the only owner.
            Self::PrivatePages(block, layout) => unsafe { std::alloc::dealloc(block, layout) },
            // SAFETY: from Box::into_raw in `register_vec`; the region was the only owner.
            Self::Boxed(buffer) => drop(unsafe { Box::from_raw(buffer) }),
            // SAFETY: attached by `alloc_sysv`; the region was the only owner.
            Self::Sysv(addr, _) => drop(unsafe { libc::shmdt(addr.cast()) }),
            Self::OtherRegion(_) | Self::KeptOwner(_) | Self::Borrowed => {}
        }
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("len", &self.len)
            .field("lkey", &format_args!("{}", self.lkey()))
            .finish_non_exhaustive()
    }
}
