//! Handles: the C structure of an object, with the identity of its simulation and object.

use std::ffi::c_int;

use verbs_abi::ibv_context;

use crate::simulation::Simulation;
use crate::threads::with_simulation;

/// The C structure of an object, and the object's identity. The structure begins at a cache line, so that the data path
/// needs only one line of it.
#[repr(C, align(64))]
pub(super) struct ObjectHandle<T> {
    pub(super) c_struct: T,
    simulation_id: u64,
    pub(super) index: u32,
}

impl<T> ObjectHandle<T> {
    /// Makes a handle, which C then owns.
    pub(super) fn into_pointer(abi: T, world: &Simulation, index: u32) -> *mut T {
        let handle = Box::new(Self {
            c_struct: abi,
            simulation_id: world.id,
            index,
        });
        Box::into_raw(handle).cast()
    }

    /// Takes a handle back from C.
    ///
    /// # Safety
    /// `handle` came from [`into_pointer`](Self::into_pointer) and was not taken back.
    pub(super) unsafe fn take_back_from_c(handle: *mut T) -> Box<Self> {
        // SAFETY: contract of this function.
        unsafe { Box::from_raw(handle.cast()) }
    }
}

/// Calls `with` on the object's simulation and index.
///
/// # Safety
/// `handle` is NULL or came from [`ObjectHandle::into_pointer`] and was not taken back.
#[inline]
pub(super) unsafe fn with_object<T, R>(
    handle: *mut T,
    with: impl FnOnce(&mut Simulation, u32) -> Result<R, c_int>,
) -> Result<R, c_int> {
    // SAFETY: contract of this function.
    let handle = unsafe { handle.cast::<ObjectHandle<T>>().as_ref() }.ok_or(libc::EINVAL)?;
    let here = |here: &mut Simulation| {
        if here.id == handle.simulation_id {
            with(here, handle.index)
        } else {
            Err(libc::EINVAL)
        }
    };
    with_simulation(here).unwrap_or(Err(libc::EINVAL))
}

/// Does the same on the data path, for an object of a context. The simulation comes from the context, and the index
/// from the C structure. Both are in cache lines that are needed anyway, unlike the identity after the C structure.
///
/// # Safety
/// `context` is NULL or came from [`ObjectHandle::into_pointer`] and was not taken back.
#[inline(always)]
pub(super) unsafe fn with_object_of_context<R>(
    context: *mut ibv_context,
    index: u32,
    with: impl FnOnce(&mut Simulation, u32) -> Result<R, c_int>,
) -> Result<R, c_int> {
    // SAFETY: contract of this function.
    unsafe { with_object(context, |world, _| with(world, index)) }
}

/// Sets errno.
pub(super) fn set_errno(errno: c_int) {
    // SAFETY: the address of this thread's errno in glibc.
    unsafe { *libc::__errno_location() = errno };
}

/// Returns the pointer to C; for an error, sets errno and returns NULL.
pub(super) fn pointer_or_set_errno<T>(result: Result<*mut T, c_int>) -> *mut T {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        std::ptr::null_mut()
    })
}

/// Returns 0, or the errno of the error.
pub(super) fn zero_or_errno(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(0)
}
