//! Handles of open devices, and the NIC behind them.

use std::ffi::c_int;
use std::sync::Arc;

use verbs_abi::ibv_context;

use crate::context::Context;
use crate::device::Device;
use crate::live_handles::{self, VerbsObject};
use crate::nic::{Nic, NicError};
use crate::process_nic;
use shm::errno::errno_of;
use shm::fabric::FabricError;

/// An open device in the table of live handles. Contexts themselves are never freed.
struct OpenDevice(&'static Context);

impl VerbsObject for OpenDevice {
    type C = ibv_context;
    const C_STRUCT_NAME: &'static str = "ibv_context";
}

/// Makes the handle of a context.
pub(super) fn make_handle(context: &'static Context) -> *mut ibv_context {
    live_handles::make_handle_at_address(context.handle(), Arc::new(OpenDevice(context)))
}

/// Takes a handle back.
pub(super) fn take_back_handle(handle: *mut ibv_context) -> Result<&'static Context, c_int> {
    let open = live_handles::take_back_handle::<OpenDevice>(handle);
    open.map(|open| open.0).ok_or(libc::EINVAL)
}

/// Returns the context behind a handle.
pub(super) fn context_of(handle: *mut ibv_context) -> Result<&'static Context, c_int> {
    let open = live_handles::find_object::<OpenDevice>(handle);
    open.map(|open| open.0).ok_or(libc::EINVAL)
}

/// Returns the NIC behind a handle, for queries of device and port. A forked child may use its parent's handle for
/// these.
pub(super) fn nic_of(handle: *mut ibv_context) -> Result<&'static Nic, c_int> {
    let open = live_handles::find_own_or_inherited_object::<OpenDevice>(handle);
    open.map(|open| open.0.nic).ok_or(libc::EINVAL)
}

/// The NIC and the device behind a handle, to ask what [`nic_of`] is asked.
pub(super) fn device_of(
    handle: *mut ibv_context,
) -> Result<(&'static Nic, &'static Device), c_int> {
    let open = live_handles::find_own_or_inherited_object::<OpenDevice>(handle);
    open.map(|open| (open.0.nic, open.0.device))
        .ok_or(libc::EINVAL)
}

/// Returns the NIC of this process.
pub(super) fn nic_of_this_process() -> Result<&'static Nic, c_int> {
    process_nic::process_nic().map_err(|e| errno_of_nic(&e))
}

fn errno_of_nic(e: &NicError) -> c_int {
    match e {
        NicError::Fabric(FabricError::Io { source, .. }) | NicError::Engine(source) => {
            errno_of(source)
        }
        NicError::Fabric(FabricError::FolderNotPrivate { .. }) => libc::EACCES,
        NicError::Fabric(FabricError::OtherLayoutVersion { .. }) => libc::EPROTONOSUPPORT,
        NicError::Fabric(FabricError::NoFreeProcessSlot { .. }) => libc::EUSERS,
        NicError::Fabric(
            FabricError::FabricDirNotAbsolute(_) | FabricError::InvalidFabricName(_),
        ) => libc::EINVAL,
        NicError::Port { errno, .. } => *errno,
        NicError::NoSuchPort { .. }
        | NicError::Device(_)
        | NicError::Capabilities(_)
        | NicError::Network(_)
        | NicError::Faults(_) => libc::EINVAL,
    }
}
