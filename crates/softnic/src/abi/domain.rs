//! Protection domains, thread domains and parent domains: `ibv_alloc_pd(3)`, `ibv_alloc_td(3)`,
//! `ibv_alloc_parent_domain(3)`.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use verbs_abi::*;

use super::context::context_of;
use super::edge::In;
use super::require_unused::require_unused;
use crate::imports::{ExportedObject, ImportableKind, SharedObject};
use crate::live_handles;
use crate::pd::{Pd, Td};

pub(super) fn alloc_pd(context: *mut ibv_context) -> Result<*mut ibv_pd, c_int> {
    let context = context_of(context)?;
    let nic = context.nic;
    let own = ExportedObject::new(nic, ImportableKind::Pd, |index| {
        if let Some(pd) = nic.this_process().segment.pd(index) {
            let device = context.device.number.into();
            pd.device.store(device, Ordering::Relaxed);
        }
    })?;
    let own = SharedObject::Own(own);
    Ok(live_handles::make_handle(Pd::from_shared_domain(
        context, own,
    )))
}

/// `ibv_import_pd(3)`.
pub(super) fn import_pd(context: *mut ibv_context, pd_handle: u32) -> Result<*mut ibv_pd, c_int> {
    let context = context_of(context)?;
    let through = (context.nic, context.device.number);
    let imported = SharedObject::import(
        through,
        context.home_process(),
        ImportableKind::Pd,
        pd_handle,
    )?;
    Ok(live_handles::make_handle(Pd::from_shared_domain(
        context, imported,
    )))
}

/// Takes the handle back and leaves the domain as it is.
pub(super) fn unimport_pd(handle: *mut ibv_pd) {
    if let Some(pd) = live_handles::find_object::<Pd>(handle) {
        pd.unimport();
    }
}

/// Destroys the domain, whichever process made it; "once destroy is done no other process can touch the object except
/// for unimport" (`ibv_import_pd(3)`).
pub(super) fn dealloc_pd(handle: *mut ibv_pd) -> Result<(), c_int> {
    let pd = live_handles::find_object::<Pd>(handle).ok_or(libc::EINVAL)?;
    // The handle ends with the last object that was made with it.
    if pd.is_unimported() {
        return Err(libc::EINVAL);
    }
    pd.own_shared_domain()
        .map_or_else(|| require_unused(&pd.object_count), SharedObject::destroy)?;
    live_handles::take_back_handle::<Pd>(handle);
    Ok(())
}

pub(super) fn alloc_td(
    context: *mut ibv_context,
    init: In<'_, ibv_td_init_attr>,
) -> Result<*mut ibv_td, c_int> {
    let _hold_off = cancellation::HoldOff::new();
    context_of(context)?;
    if init.get()?.comp_mask != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    Ok(live_handles::make_handle(Arc::new(Td::new(context))))
}

pub(super) fn dealloc_td(handle: *mut ibv_td) -> Result<(), c_int> {
    let _hold_off = cancellation::HoldOff::new();
    let td = live_handles::find_object::<Td>(handle).ok_or(libc::EINVAL)?;
    require_unused(&td.use_count)?;
    live_handles::take_back_handle::<Td>(handle);
    Ok(())
}

pub(super) fn alloc_parent_domain(
    context: *mut ibv_context,
    init: In<'_, ibv_parent_domain_init_attr>,
) -> Result<*mut ibv_pd, c_int> {
    let _hold_off = cancellation::HoldOff::new();
    const KNOWN_INIT_FLAGS: u32 =
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    let context = context_of(context)?;
    let init = init.get()?;
    if init.comp_mask & !KNOWN_INIT_FLAGS != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    // "pd: a mandatory parameter, an already allocated protection domain".
    let of = Pd::find_usable(init.pd).ok_or(libc::EINVAL)?;
    context.require_same_device(of.context)?;
    let td = if init.td.is_null() {
        None
    } else {
        Some(live_handles::find_object::<Td>(init.td).ok_or(libc::EINVAL)?)
    };
    Ok(live_handles::make_handle(Pd::new_parent_domain(
        context, of, td,
    )))
}
