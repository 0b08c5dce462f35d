//! Allocation and registration of memory: [`mr`](crate::mr) has the argument why it is sound.

#![allow(unsafe_code)]

use std::alloc::Layout;

use crate::error::{RegisterError, last_error};
use crate::memory::{SharedMemory, alloc_shared};
use crate::mr::{MemoryOwner, MemoryRegion};
use crate::pd::ProtectionDomain;
use crate::types::{Access, PageSize};

/// Alignment of private memory.
const PAGE_BYTES: usize = 4096;

/// From so many bytes on, `calloc` usually gets private memory from the system.
const MIN_CALLOC_BYTES: usize = 64 << 10;

impl ProtectionDomain {
    /// Allocates and registers `len` zeroed bytes: page-aligned, and in huge pages where possible. The fast default,
    /// with every provider. With the feature `softnic`, processes on the same host reach the bytes by a mapping.
    ///
    /// # Errors
    /// - [`RegisterError::Length`]: `len` is 0, or beyond the address space.
    /// - [`RegisterError::NoMemory`] (`ENOMEM`): the system has no memory.
    /// - [`RegisterError::Access`] (`EINVAL`): remote WRITEs or atomics without local writes.
    /// - [`RegisterError::LockedMemory`] (`ENOMEM`, `EAGAIN`): the limit of locked memory, or of the device's regions.
    /// - [`RegisterError::Refused`] (any other errno).
    pub fn alloc(&self, len: usize, access: Access) -> Result<MemoryRegion, RegisterError> {
        if self.inner.context.provider.is_simulated() {
            return self.alloc_private(len, access);
        }
        let memory = alloc_shared(len, None)
            .map_err(|e| RegisterError::of_allocation("alloc_shared", e, len, false))?;
        self.register_shared(memory, len, access)
    }

    /// The same in pages of one kind. On a simulated NIC, which translates no addresses, they make no difference.
    ///
    /// # Errors
    /// - [`RegisterError::NoHugePages`] (`ENOMEM`): too few huge pages are free.
    /// - As [`alloc`](Self::alloc).
    pub fn alloc_in_pages(
        &self,
        len: usize,
        access: Access,
        pages: PageSize,
    ) -> Result<MemoryRegion, RegisterError> {
        if self.inner.context.provider.is_simulated() {
            return self.alloc_private(len, access);
        }
        let huge = pages == PageSize::Huge;
        let memory = alloc_shared(len, Some(pages))
            .map_err(|e| RegisterError::of_allocation("alloc_shared", e, len, huge))?;
        self.register_shared(memory, len, access)
    }

    /// Registers memory that was just allocated.
    fn register_shared(
        &self,
        memory: SharedMemory,
        len: usize,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        let addr = memory.as_ptr();
        // SAFETY: the memory is writable and is moved into the region, which deregisters before it frees.
        unsafe {
            MemoryRegion::register(&self.inner, addr, len, access, MemoryOwner::Shared(memory))
        }
    }

    /// The same in memory of this process alone: many small regions take little.
    fn alloc_private(&self, len: usize, access: Access) -> Result<MemoryRegion, RegisterError> {
        // The allocator clears aligned memory itself, even if the system has just cleared it. So the start of a large
        // region is aligned here.
        let layout = if len < MIN_CALLOC_BYTES {
            Layout::from_size_align(len.max(1), PAGE_BYTES)
        } else {
            Layout::from_size_align(len.saturating_add(PAGE_BYTES - 1), 16)
        };
        let no_memory = || {
            let source = std::io::Error::from_raw_os_error(libc::ENOMEM);
            RegisterError::of_allocation("alloc", source, len, false)
        };
        let layout = layout.map_err(|_| no_memory())?;
        // SAFETY: the size is not zero.
        let block = unsafe { std::alloc::alloc_zeroed(layout) };
        if block.is_null() {
            return Err(no_memory());
        }
        let memory = MemoryOwner::PrivatePages(block, layout);
        let skipped = block.addr().next_multiple_of(PAGE_BYTES) - block.addr();
        // SAFETY: 0 in an aligned block, otherwise less than the page by which the block is larger than the region.
        let addr = unsafe { block.add(skipped) };
        // SAFETY: the memory is writable and is moved into the region, which deregisters before it frees.
        unsafe { MemoryRegion::register(&self.inner, addr, len, access, memory) }
    }

    /// Registers a `Vec<u8>` or a boxed slice, which the region owns until it is dropped or [given
    /// back](MemoryRegion::into_boxed).
    ///
    /// # Errors
    /// - [`RegisterError::Length`] (`EINVAL`): the buffer is empty.
    /// - [`RegisterError::Access`], [`RegisterError::LockedMemory`], [`RegisterError::Refused`]: as [`alloc`](Self::alloc).
    pub fn register_vec(
        &self,
        buffer: impl Into<Box<[u8]>>,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        let buffer = Box::into_raw(buffer.into());
        // SAFETY: the box is owned by the region from here on, which deregisters before it frees.
        unsafe {
            MemoryRegion::register(
                &self.inner,
                buffer.cast(),
                buffer.len(),
                access,
                MemoryOwner::Boxed(buffer),
            )
        }
    }

    /// Registers memory of somebody else's, such as another language's array. The region keeps `owner`, and drops it
    /// after deregistration. If the provider refuses to deregister, the owner is leaked.
    ///
    /// # Safety
    /// `addr` is valid for reads of `len` bytes until `owner` is dropped, and for writes where `access` lets the NIC or
    /// peers write. Nothing in this process relies on the bytes staying as they are meanwhile (no `&[u8]` to them
    /// exists while the NIC or a peer may write).
    ///
    /// # Errors
    /// `owner` is dropped then.
    /// - [`RegisterError::BadAddress`] (`EFAULT`): the process cannot access the memory in this way.
    /// - As [`register_vec`](Self::register_vec).
    pub unsafe fn register_owned(
        &self,
        addr: *mut u8,
        len: usize,
        access: Access,
        owner: impl Send + Sync + 'static,
    ) -> Result<MemoryRegion, RegisterError> {
        let memory = MemoryOwner::KeptOwner(Box::new(owner));
        // SAFETY: the caller vouches for the memory as long as the region has the owner.
        unsafe { MemoryRegion::register(&self.inner, addr, len, access, memory) }
    }

    /// Allocates and registers `len` zeroed bytes of a SysV segment, to which other processes can attach by its
    /// [number](MemoryRegion::sysv_id), and which forked children share. It goes when nobody is attached any more.
    ///
    /// ```
    /// # let pd = verbs::Provider::softnic().device(None)?.open()?.alloc_pd()?;
    /// let mr = pd.alloc_sysv(4096, verbs::Access::ALL)?;
    /// assert!(mr.sysv_id().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc); [`RegisterError::Length`] (`EINVAL`) and [`RegisterError::Refused`] (`ENOSPC`) by the
    /// limits of the kernel for segments (`shmget(2)`).
    pub fn alloc_sysv(&self, len: usize, access: Access) -> Result<MemoryRegion, RegisterError> {
        let failed = |call| RegisterError::of_allocation(call, last_error(), len, false);
        // SAFETY: a new segment, attached where the kernel likes. It is marked for destruction at once: attaching to it
        // stays possible until it is gone (`shmctl(2)`, IPC_RMID, on Linux).
        let (id, addr) = unsafe {
            let id = libc::shmget(libc::IPC_PRIVATE, len, libc::IPC_CREAT | 0o600);
            if id < 0 {
                return Err(failed("shmget"));
            }
            let addr = libc::shmat(id, std::ptr::null(), 0);
            let unattached = (addr.addr() == usize::MAX).then(|| failed("shmat"));
            libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
            if let Some(error) = unattached {
                return Err(error);
            }
            (id, addr.cast::<u8>())
        };
        // SAFETY: the segment is writable and is moved into the region, which deregisters before it detaches.
        unsafe {
            MemoryRegion::register(&self.inner, addr, len, access, MemoryOwner::Sysv(addr, id))
        }
    }

    /// Registers a borrowed buffer for as long as `work` runs.
    ///
    /// A closure, not a guard: a guard can be leaked (`mem::forget`), which would leave the buffer
    /// registered after its borrow has ended.
    ///
    /// ```
    /// # let pd = verbs::Provider::softnic().device(None)?.open()?.alloc_pd()?;
    /// use verbs::Access;
    /// let mut bytes = vec![7u8; 100];
    /// pd.with_registered(&mut bytes, Access::LOCAL_WRITE, |mr| mr.write_at(99, &[8]))??;
    /// assert_eq!(bytes[98..], [7, 8]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`register_vec`](Self::register_vec). `work` has not run then.
    pub fn with_registered<R>(
        &self,
        buffer: &mut [u8],
        access: Access,
        work: impl FnOnce(&MemoryRegion) -> R,
    ) -> Result<R, RegisterError> {
        // SAFETY: `mr` is dropped, and so deregistered, before this function returns or unwinds, within
        // the borrow of `buffer`; `work` only gets a reference and cannot keep the region alive. A
        // provider that refuses to deregister aborts the process (`Drop`).
        let mr = unsafe {
            MemoryRegion::register(
                &self.inner,
                buffer.as_mut_ptr(),
                buffer.len(),
                access,
                MemoryOwner::Borrowed,
            )?
        };
        Ok(work(&mr))
    }
}
