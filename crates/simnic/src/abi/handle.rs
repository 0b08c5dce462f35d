//! Handles: what C sees of an object, and which object of which simulation it is.

use std::ffi::c_int;

use verbs_abi::ibv_context;

use crate::threads::world;
use crate::world::World;

/// What C sees of an object, and which object it is. At the beginning of a cache line: the data path needs no other one
/// of it.
#[repr(C, align(64))]
pub(super) struct Handle<T> {
    pub(super) abi: T,
    world: u64,
    pub(super) index: u32,
}

impl<T> Handle<T> {
    /// A handle that C owns from here on.
    pub(super) fn give(abi: T, world: &World, index: u32) -> *mut T {
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
    pub(super) unsafe fn take(handle: *mut T) -> Box<Self> {
        // SAFETY: contract of this function.
        unsafe { Box::from_raw(handle.cast()) }
    }
}

/// Calls `with` on the object's simulation and index.
///
/// # Safety
/// `handle` is NULL or came from [`Handle::give`] and was not taken back.
#[inline]
pub(super) unsafe fn on<T, R>(
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
pub(super) unsafe fn on_known<R>(
    context: *mut ibv_context,
    index: u32,
    with: impl FnOnce(&mut World, u32) -> Result<R, c_int>,
) -> Result<R, c_int> {
    // SAFETY: contract of this function.
    unsafe { on(context, |world, _| with(world, index)) }
}

/// Sets errno.
pub(super) fn set_errno(errno: c_int) {
    // SAFETY: glibc's errno of this thread.
    unsafe { *libc::__errno_location() = errno };
}

/// A pointer to return: NULL with errno for an error.
pub(super) fn or_null<T>(result: Result<*mut T, c_int>) -> *mut T {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        std::ptr::null_mut()
    })
}

/// 0, or an errno.
pub(super) fn or_errno(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(0)
}
