//! The C ABI: libibverbs' entry points over the simulation of the calling thread.
//!
//! A handle is the structure that C sees, followed by which object of which simulation it is. Calls
//! from a thread without that simulation are refused with `EINVAL`; destroying frees the handle in
//! any case. Nothing here unwinds.

#![allow(unsafe_code)]

mod data_path;
mod device;
mod objects;

use std::ffi::c_int;

use verbs_abi::{Symbols, ibv_context};

use crate::threads::world;
use crate::world::World;

/// The simulated NICs as a provider: each machine of the calling thread's cluster is a device.
///
/// Texts of codes, and what is no device's, come from `texts`.
#[must_use]
pub fn symbols(texts: &Symbols) -> Symbols {
    use device::*;
    use objects::*;
    Symbols {
        ibv_get_device_list,
        ibv_free_device_list,
        ibv_get_device_name,
        ibv_get_device_guid,
        ibv_open_device,
        ibv_close_device,
        ibv_get_async_event,
        ibv_ack_async_event,
        ibv_query_device,
        ibv_query_port,
        ibv_query_gid,
        ibv_query_pkey,
        ibv_alloc_pd,
        ibv_dealloc_pd,
        ibv_reg_mr,
        ibv_rereg_mr,
        ibv_dereg_mr,
        ibv_create_comp_channel,
        ibv_destroy_comp_channel,
        ibv_create_cq,
        ibv_resize_cq,
        ibv_destroy_cq,
        ibv_get_cq_event,
        ibv_ack_cq_events,
        ibv_create_srq,
        ibv_modify_srq,
        ibv_query_srq,
        ibv_destroy_srq,
        ibv_create_qp,
        ibv_query_qp,
        ibv_modify_qp,
        ibv_destroy_qp,
        ibv_create_ah,
        ibv_destroy_ah,
        ibv_attach_mcast,
        ibv_detach_mcast,
        ibv_init_ah_from_wc,
        ibv_create_ah_from_wc,
        ..*texts
    }
}

/// What C sees of an object, and which object it is. At the beginning of a cache line: the data path needs no other one
/// of it.
#[repr(C, align(64))]
struct Handle<T> {
    abi: T,
    world: u64,
    index: u32,
}

impl<T> Handle<T> {
    /// A handle that C owns from here on.
    fn give(abi: T, world: &World, index: u32) -> *mut T {
        let handle = Box::new(Self {
            abi,
            world: world.id,
            index,
        });
        Box::into_raw(handle).cast()
    }

    /// Takes a handle back from C.
    ///
    /// # Safety
    /// It came from [`give`](Self::give) and was not taken back.
    unsafe fn take(handle: *mut T) -> Box<Self> {
        // SAFETY: contract of this function.
        unsafe { Box::from_raw(handle.cast()) }
    }
}

/// Calls `with` on the object's simulation and index.
///
/// # Safety
/// `handle` is NULL or came from [`Handle::give`] and was not taken back.
#[inline]
unsafe fn on<T, R>(
    handle: *mut T,
    with: impl FnOnce(&mut World, u32) -> Result<R, c_int>,
) -> Result<R, c_int> {
    // SAFETY: contract of this function.
    let handle = unsafe { handle.cast::<Handle<T>>().as_ref() }.ok_or(libc::EINVAL)?;
    let here = |here: &mut World| {
        if here.id == handle.world {
            with(here, handle.index)
        } else {
            Err(libc::EINVAL)
        }
    };
    world(here).unwrap_or(Err(libc::EINVAL))
}

/// The same on the data path, for an object of a context: the simulation is the context's, and the index is in what C
/// sees. Both are where they are looked at anyway, and what is behind what C sees is in a cache line of its own.
///
/// # Safety
/// `context` is NULL or came from [`Handle::give`] and was not taken back.
#[inline(always)]
unsafe fn on_known<R>(
    context: *mut ibv_context,
    index: u32,
    with: impl FnOnce(&mut World, u32) -> Result<R, c_int>,
) -> Result<R, c_int> {
    // SAFETY: contract of this function.
    unsafe { on(context, |world, _| with(world, index)) }
}

/// Sets errno.
fn set_errno(errno: c_int) {
    // SAFETY: glibc's errno of this thread.
    unsafe { *libc::__errno_location() = errno };
}

/// A pointer to return: NULL with errno for an error.
fn or_null<T>(result: Result<*mut T, c_int>) -> *mut T {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        std::ptr::null_mut()
    })
}

/// 0, or an errno.
fn or_errno(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(0)
}
