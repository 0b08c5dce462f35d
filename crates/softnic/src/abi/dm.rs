//! Device memory: `ibv_alloc_dm(3)`. This device's memory is the host's: shared memory that peers can map.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use verbs_abi::*;

use super::device::{context_of, errno_of_nic, nic_of};
use super::domain::share_pd;
use super::mr::{MrRange, register_mr};
use super::*;
use crate::device;
use crate::imports::{self, Exported, Kind, Shared, Sharing};
use crate::nic;
use shm::mem::{Fault, SharedMemory, alloc_shared, copy};

/// Device memory; the program's handle points to its first field.
#[repr(C)]
pub(super) struct Dm {
    abi: ibv_dm,
    memory: SharedMemory,
    of: Shared,
}

// SAFETY: `abi` is written before the handle is given out and then only read.
unsafe impl Send for Dm {}
// SAFETY: as above.
unsafe impl Sync for Dm {}

impl Sharing for Dm {
    fn shared(&self) -> Option<&Shared> {
        Some(&self.of)
    }
}

impl Dm {
    fn new(context: *mut ibv_context, of: Shared, memory: SharedMemory) -> Self {
        let mut abi = ibv_dm::zeroed();
        abi.context = context;
        abi.memcpy_to_dm = Some(memcpy_to_dm);
        abi.memcpy_from_dm = Some(memcpy_from_dm);
        abi.comp_mask = IBV_DM_MASK_HANDLE;
        abi.handle = of.handle();
        Self { abi, memory, of }
    }

    /// A memory region is made of it, which [leaves](Self::leave) it at its end.
    fn enter(&self) {
        if let Some(uses) = self.of.uses() {
            uses.fetch_add(1, Ordering::Release);
        }
    }

    pub(super) fn leave(&self) {
        if let Some(uses) = self.of.uses() {
            uses.fetch_sub(1, Ordering::Release);
        }
    }

    /// The address of `length` bytes at `offset`; copies are of whole, aligned words of four bytes where `words`
    /// says so.
    fn range(&self, offset: u64, length: usize, words: bool) -> Result<*mut c_void, c_int> {
        let offset = usize::try_from(offset).map_err(|_| libc::EINVAL)?;
        let end = offset.checked_add(length).ok_or(libc::EINVAL)?;
        let whole = offset.is_multiple_of(4) && length.is_multiple_of(4);
        if end > self.memory.len() || (words && !whole) {
            return Err(libc::EINVAL);
        }
        Ok(self.memory.as_ptr().wrapping_add(offset).cast())
    }
}

pub(super) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    let _hold_off = cancellation::HoldOff::new();
    // SAFETY: NULL or the program's attributes.
    let attr = unsafe { attr.as_ref() }.ok_or(libc::EINVAL);
    // The memory is this process's, whoever has opened the device.
    let made = nic_of(context).and(attr).and_then(|attr| {
        if attr.comp_mask != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        // Shared memory starts at a page.
        if attr.length == 0 || attr.log_align_req > 12 {
            return Err(libc::EINVAL);
        }
        if attr.length as u64 > device::MAX_DM_SIZE {
            return Err(libc::ENOMEM);
        }
        let memory = alloc_shared(attr.length).map_err(|e| errno_of(&e))?;
        let nic = nic::get().map_err(|e| errno_of_nic(&e))?;
        let (fd, inode) = memory.file().ok_or(libc::ENOMEM)?;
        let own = Exported::new(nic, Kind::Dm, |index| {
            if let Some(dm) = nic.me().segment.dm(index) {
                dm.fd.store(fd, Ordering::Relaxed);
                dm.inode.store(inode, Ordering::Relaxed);
                dm.len.store(memory.len() as u64, Ordering::Relaxed);
            }
        })?;
        Ok(Arc::new(Dm::new(context, Shared::Own(own), memory)))
    });
    or_null(made.map(live::hand_out))
}

/// `ibv_import_dm(3)`.
pub(super) unsafe extern "C" fn ibv_import_dm(
    context: *mut ibv_context,
    dm_handle: u32,
) -> *mut ibv_dm {
    // SAFETY: a handle of ours.
    let c = unsafe { context_of(context) }.ok_or(libc::EINVAL);
    let made = c.and_then(|c| {
        let of = Shared::import(c.nic, c.home(), Kind::Dm, dm_handle)?;
        let index = dm_handle as usize % shm::fabric::layout::MAX_DMS;
        let there = of.home().segment.dm(index).ok_or(libc::ENOENT)?;
        let file = (
            there.fd.load(Ordering::Relaxed),
            there.inode.load(Ordering::Relaxed),
        );
        let len = usize::try_from(there.len.load(Ordering::Relaxed)).map_err(|_| libc::ENOMEM)?;
        let memory = SharedMemory::of_peer(of.home(), file, len).map_err(|e| errno_of(&e))?;
        Ok(Arc::new(Dm::new(context, of, memory)))
    });
    or_null(made.map(live::hand_out))
}

/// Gives the handle back and leaves the memory as it is, also to the regions that were made with the handle.
pub(super) unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    if let Some(dm) = live::take_back::<Dm, _>(dm) {
        imports::let_go(dm);
    }
}

/// Frees the memory, whichever process it is of.
pub(super) unsafe extern "C" fn free_dm(handle: *mut ibv_dm) -> c_int {
    let _hold_off = cancellation::HoldOff::new();
    // SAFETY: a handle of ours, given back once, when no memory region uses it.
    let Some(dm) = (unsafe { borrow::<Dm, _>(handle) }) else {
        return libc::EINVAL;
    };
    or_errno(
        dm.of
            .destroy()
            .map(|()| drop(live::take_back::<Dm, _>(handle))),
    )
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: a handle of ours; `length` bytes of the program's, and of the memory (checked).
    or_errno(unsafe {
        borrow::<Dm, _>(dm)
            .ok_or(libc::EINVAL)
            .and_then(|dm| dm.range(offset, length, true))
            .and_then(|to| copy(to.cast(), from.cast(), length).map_err(|_: Fault| libc::EFAULT))
    })
}

unsafe extern "C" fn memcpy_from_dm(
    to: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: as above.
    or_errno(unsafe {
        borrow::<Dm, _>(dm)
            .ok_or(libc::EINVAL)
            .and_then(|dm| dm.range(offset, length, true))
            .and_then(|from| copy(to.cast(), from.cast(), length).map_err(|_: Fault| libc::EFAULT))
    })
}

pub(super) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    let _hold_off = cancellation::HoldOff::new();
    // SAFETY: handles of ours.
    let (pd, dm) = unsafe { (share_pd(pd), share::<Dm, _>(dm)) };
    let dm = dm.filter(|dm| dm.of.exists());
    let made = pd.zip(dm).ok_or(libc::EINVAL).and_then(|(pd, dm)| {
        let access = access.cast_signed();
        // The program does not know where the memory lies.
        if access & IBV_ACCESS_ZERO_BASED == 0 {
            return Err(libc::EINVAL);
        }
        let range = MrRange {
            addr: dm.range(offset, length, false)?,
            length,
            iova: 0,
        };
        dm.enter();
        register_mr(pd, &range, access, Some(Arc::clone(&dm))).inspect_err(|_| {
            dm.leave();
        })
    });
    or_null(made)
}
