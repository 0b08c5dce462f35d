//! Device memory: `ibv_alloc_dm(3)`.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use verbs_abi::*;

use super::context::{context_of, nic_of, nic_of_this_process};
use super::edge::{In, c_functions};
use super::mr::{RegisteredRange, register_mr};
use crate::capabilities::OptionalFeature;
use crate::device;
use crate::dm::Dm;
use crate::imports::{self, ExportedObject, ImportableKind, SharedObject};
use crate::live_handles;
use crate::pd::Pd;
use shm::errno::errno_of;
use shm::mem::{MemoryFault, SharedMemory, alloc_shared, copy};

c_functions! {
    memcpy_to_dm => copy_to_dm, (dm: *mut ibv_dm, offset: u64, from: *const c_void, length: usize) -> Result<(), c_int>;
    memcpy_from_dm => copy_from_dm, (to: *mut c_void, dm: *mut ibv_dm, offset: u64, length: usize) -> Result<(), c_int>;
}

/// Returns the structure of device memory that a program sees.
fn new_ibv_dm(context: *mut ibv_context) -> ibv_dm {
    let mut abi = ibv_dm::zeroed();
    abi.context = context;
    abi.memcpy_to_dm = Some(memcpy_to_dm);
    abi.memcpy_from_dm = Some(memcpy_from_dm);
    abi
}

pub(super) fn alloc_dm(
    context: *mut ibv_context,
    attr: In<'_, ibv_alloc_dm_attr>,
) -> Result<*mut ibv_dm, c_int> {
    let _hold_off = cancellation::HoldOff::new();
    // The memory belongs to this process, whichever process has opened the device.
    let can = &nic_of(context)?.capabilities;
    can.require_feature(OptionalFeature::DeviceMemory)?;
    let attr = attr.get()?;
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
    let nic = nic_of_this_process()?;
    let (fd, inode) = memory.fd_and_inode().ok_or(libc::ENOMEM)?;
    let own = ExportedObject::new(nic, ImportableKind::Dm, |index| {
        if let Some(dm) = nic.this_process().segment.dm(index) {
            dm.owner_fd.store(fd, Ordering::Relaxed);
            dm.inode.store(inode, Ordering::Relaxed);
            dm.len.store(memory.len() as u64, Ordering::Relaxed);
        }
    })?;
    let dm = Dm::new(new_ibv_dm(context), SharedObject::Own(own), memory);
    Ok(live_handles::make_handle(Arc::new(dm)))
}

/// `ibv_import_dm(3)`.
pub(super) fn import_dm(context: *mut ibv_context, dm_handle: u32) -> Result<*mut ibv_dm, c_int> {
    let c = context_of(context)?;
    let of = SharedObject::import(
        (c.nic, c.device.number),
        c.home_process(),
        ImportableKind::Dm,
        dm_handle,
    )?;
    let index = dm_handle as usize % shm::fabric::layout::MAX_DMS;
    let there = of.home().segment.dm(index).ok_or(libc::ENOENT)?;
    let file = (
        there.owner_fd.load(Ordering::Relaxed),
        there.inode.load(Ordering::Relaxed),
    );
    let len = usize::try_from(there.len.load(Ordering::Relaxed)).map_err(|_| libc::ENOMEM)?;
    let memory = SharedMemory::map_from_peer(of.home(), file, len).map_err(|e| errno_of(&e))?;
    Ok(live_handles::make_handle(Arc::new(Dm::new(
        new_ibv_dm(context),
        of,
        memory,
    ))))
}

/// Takes the handle back. The memory stays as it is, also for the regions that were made with the handle.
pub(super) fn unimport_dm(dm: *mut ibv_dm) {
    if let Some(dm) = live_handles::take_back_handle::<Dm>(dm) {
        imports::release_without_destroying(dm);
    }
}

/// Frees the memory, whichever process made it.
pub(super) fn free_dm(handle: *mut ibv_dm) -> Result<(), c_int> {
    let _hold_off = cancellation::HoldOff::new();
    let dm = live_handles::find_object::<Dm>(handle).ok_or(libc::EINVAL)?;
    dm.shared_object.destroy()?;
    live_handles::take_back_handle::<Dm>(handle);
    Ok(())
}

fn copy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> Result<(), c_int> {
    let dm = live_handles::find_object::<Dm>(dm).ok_or(libc::EINVAL)?;
    copy_bytes(dm.checked_address(offset, length, true)?, from, length)
}

fn copy_from_dm(to: *mut c_void, dm: *mut ibv_dm, offset: u64, length: usize) -> Result<(), c_int> {
    let dm = live_handles::find_object::<Dm>(dm).ok_or(libc::EINVAL)?;
    copy_bytes(to, dm.checked_address(offset, length, true)?, length)
}

/// Copies between the program's bytes and those of a [`Dm::checked_address`].
#[allow(unsafe_code)]
fn copy_bytes(to: *mut c_void, from: *const c_void, length: usize) -> Result<(), c_int> {
    // SAFETY: `Dm::range` has checked one side, which the caller's `Arc<Dm>` keeps mapped; the other is `length` bytes of
    // the program's (`ibv_memcpy_to_dm(3)`).
    unsafe { copy(to.cast(), from.cast(), length) }.map_err(|_: MemoryFault| libc::EFAULT)
}

pub(super) fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> Result<*mut ibv_mr, c_int> {
    let _hold_off = cancellation::HoldOff::new();
    let pd = Pd::find_usable(pd).ok_or(libc::EINVAL)?;
    let dm = live_handles::find_object::<Dm>(dm).filter(|dm| dm.shared_object.exists());
    let dm = dm.ok_or(libc::EINVAL)?;
    let access = access.cast_signed();
    // The program does not know the address of the memory.
    if access & IBV_ACCESS_ZERO_BASED == 0 {
        return Err(libc::EINVAL);
    }
    let range = RegisteredRange {
        addr: dm.checked_address(offset, length, false)?,
        length,
        iova: 0,
    };
    dm.add_region_use();
    register_mr(pd, &range, access, Some(Arc::clone(&dm))).inspect_err(|_| dm.remove_region_use())
}
