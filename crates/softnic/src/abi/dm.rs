//! Device memory: `ibv_alloc_dm(3)`. This device's memory is the host's: shared memory that peers can map.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use verbs_abi::*;

use super::device::nic_of;
use super::import::DMS;
use super::mr::{MrRange, register_mr};
use super::objects::{Pd, busy};
use super::*;
use crate::device;
use crate::mem::{SharedMemory, alloc_shared};

/// Device memory; the program's handle points to its first field.
#[repr(C)]
pub(super) struct Dm {
    abi: ibv_dm,
    memory: Arc<SharedMemory>,
    /// It was imported, and stands for another.
    imported: bool,
    /// Memory regions made of it.
    pub(super) uses: AtomicUsize,
}

// SAFETY: `abi` is written before the handle is given out and then only read.
unsafe impl Send for Dm {}
// SAFETY: as above.
unsafe impl Sync for Dm {}

impl Dm {
    fn new(
        context: *mut ibv_context,
        handle: u32,
        memory: Arc<SharedMemory>,
        imported: bool,
    ) -> Self {
        let mut abi = ibv_dm::zeroed();
        abi.context = context;
        abi.memcpy_to_dm = Some(memcpy_to_dm);
        abi.memcpy_from_dm = Some(memcpy_from_dm);
        abi.comp_mask = IBV_DM_MASK_HANDLE;
        abi.handle = handle;
        Self {
            abi,
            memory,
            imported,
            uses: AtomicUsize::new(0),
        }
    }

    /// The same memory for another context.
    pub(super) fn again(&self, context: *mut ibv_context) -> Self {
        Self::new(context, self.abi.handle, Arc::clone(&self.memory), true)
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
        static NEXT_HANDLE: AtomicU32 = AtomicU32::new(1);
        let memory = alloc_shared(attr.length).map_err(|e| errno_of(&e))?;
        let handle = NEXT_HANDLE.fetch_add(1, Ordering::Relaxed);
        let dm = Arc::new(Dm::new(context, handle, Arc::new(memory), false));
        DMS.enter(handle, &dm);
        Ok(dm)
    });
    or_null(made.map(live::hand_out))
}

pub(super) unsafe extern "C" fn free_dm(handle: *mut ibv_dm) -> c_int {
    // SAFETY: a handle of ours, given back once, when no memory region uses it.
    unsafe {
        let Some(dm) = borrow::<Dm, _>(handle) else {
            return libc::EINVAL;
        };
        or_errno(busy(&dm.uses).map(|()| {
            if !dm.imported {
                DMS.remove(dm.abi.handle);
            }
            drop(live::take_back::<Dm, _>(handle));
        }))
    }
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
            .map(|to| crate::mem::copy(to.cast(), from.cast(), length))
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
            .map(|from| crate::mem::copy(to.cast(), from.cast(), length))
    })
}

pub(super) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: handles of ours.
    let (pd, dm) = unsafe { (share::<Pd, _>(pd), share::<Dm, _>(dm)) };
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
        dm.uses.fetch_add(1, Ordering::Relaxed);
        register_mr(pd, &range, access, Some(Arc::clone(&dm))).inspect_err(|_| {
            dm.uses.fetch_sub(1, Ordering::Relaxed);
        })
    });
    or_null(made)
}
