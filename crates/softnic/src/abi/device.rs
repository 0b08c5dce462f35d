//! The list of devices, and open ones: `ibv_get_device_list(3)`, `ibv_open_device(3)`.

use std::ffi::{c_char, c_int};
use std::mem::offset_of;
use std::sync::{Arc, OnceLock};

use shm::fabric::{FabricError, Peer};
use shm::shortage::errno_of;
use verbs_abi::*;

use super::edge::Out;
use super::{entry, import};
use crate::abi_cell::AbiCell;
use crate::context::Context;
use crate::device;
use crate::identity::Identity;
use crate::live::{self, Object};
use crate::nic::{self, Nic, NicError};
use crate::sysfs::UVERBS_NAME;

/// An open device in the table of live handles. Contexts themselves are never freed.
struct OpenDevice(&'static Context);

impl Object for OpenDevice {
    type C = ibv_context;
}

/// The one device. Programs read it; nobody writes.
pub(super) fn the_device() -> *mut ibv_device {
    const _: () = assert!(offset_of!(verbs_device, device) == 0);
    static DEVICE: OnceLock<AbiCell<verbs_device>> = OnceLock::new();
    let device = DEVICE.get_or_init(|| {
        let mut d = verbs_device::zeroed();
        d.device.node_type = IBV_NODE_CA;
        d.device.transport_type = IBV_TRANSPORT_IB;
        // Where the environment asks for nonsense there is no list and no context either: the NIC has said so.
        let identity = Identity::from_env().unwrap_or_default();
        let name = identity.name();
        set_text(&mut d.device.name, name);
        set_text(&mut d.device.dev_name, UVERBS_NAME);
        set_text(
            &mut d.device.dev_path,
            "/sys/class/infiniband_verbs/uverbs0",
        );
        set_text(
            &mut d.device.ibdev_path,
            &format!("/sys/class/infiniband/{name}"),
        );
        AbiCell::new(d)
    });
    device.handle().cast()
}

fn set_text(field: &mut [c_char], text: &str) {
    for (c, b) in field.iter_mut().zip(text.bytes()) {
        *c = b.cast_signed();
    }
}

pub(super) fn errno_of_nic(e: &NicError) -> c_int {
    match e {
        NicError::Fabric(FabricError::Io { source, .. }) | NicError::Engine(source) => {
            errno_of(source)
        }
        NicError::Fabric(FabricError::Foreign { .. }) => libc::EACCES,
        NicError::Fabric(FabricError::Version { .. }) => libc::EPROTONOSUPPORT,
        NicError::Fabric(FabricError::Full { .. }) => libc::EUSERS,
        NicError::Fabric(FabricError::BadName(_) | FabricError::BadFabric(_)) => libc::EINVAL,
        NicError::Port { errno, .. } => *errno,
        NicError::Device(_) => libc::EINVAL,
    }
}

/// A list of devices: the one that there is, and NULL.
type List = [*mut ibv_device; 2];

pub(super) fn get_device_list(count: Out<'_, c_int>) -> Result<*mut *mut ibv_device, c_int> {
    nic::get().map_err(|e| errno_of_nic(&e))?;
    count.put(1);
    let list: List = [the_device(), std::ptr::null_mut()];
    Ok(Box::into_raw(Box::new(list)).cast())
}

#[allow(unsafe_code)]
pub(super) fn free_device_list(list: *mut *mut ibv_device) {
    if !list.is_null() {
        // SAFETY: not NULL, so made by `get_device_list` from such a box and not freed yet (`ibv_free_device_list(3)`).
        drop(unsafe { Box::from_raw(list.cast::<List>()) });
    }
}

pub(super) fn get_device_name(device: *mut ibv_device) -> *const c_char {
    if device.is_null() {
        return std::ptr::null();
    }
    device
        .wrapping_byte_add(offset_of!(ibv_device, name))
        .cast_const()
        .cast()
}

pub(super) fn get_device_guid(_device: *mut ibv_device) -> u64 {
    u64::from_ne_bytes(device::node_guid())
}

pub(super) fn open_device(device: *mut ibv_device) -> Result<*mut ibv_context, c_int> {
    let fd = nic::get()
        .map_err(|e| errno_of_nic(&e))
        .and_then(Nic::cmd_fd)?;
    Ok(hand_out(new_context(device, fd, None)?))
}

/// Makes the handle of a context.
pub(super) fn hand_out(context: &'static Context) -> *mut ibv_context {
    live::hand_out_as(context.handle(), Arc::new(OpenDevice(context)))
}

/// Opens the device; `cmd_fd` is what the program sees as the context's descriptor. An imported one is that of `home`.
pub(super) fn new_context(
    device: *mut ibv_device,
    cmd_fd: c_int,
    home: Option<Arc<Peer>>,
) -> Result<&'static Context, c_int> {
    if device != the_device() {
        return Err(libc::ENODEV);
    }
    let nic = nic::get().map_err(|e| errno_of_nic(&e))?;
    let mut abi = entry::verbs_ops();
    let c = &mut abi.context;
    c.device = device;
    c.cmd_fd = cmd_fd;
    c.num_comp_vectors = 1;
    // "The context is preceded by a verbs_context": verbs.h, `verbs_get_ctx`.
    c.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    let context = Context::new(nic, abi, home).map_err(|e| errno_of(&e))?;
    Ok(Box::leak(Box::new(context)))
}

/// The context behind a handle.
pub(super) fn context_of(handle: *mut ibv_context) -> Result<&'static Context, c_int> {
    let open = live::find::<OpenDevice>(handle);
    open.map(|open| open.0).ok_or(libc::EINVAL)
}

/// The NIC behind a handle, to ask it about device and port, which a forked child may do with its parent's.
pub(super) fn nic_of(handle: *mut ibv_context) -> Result<&'static Nic, c_int> {
    let open = live::find_inherited::<OpenDevice>(handle);
    open.map(|open| open.0.nic).ok_or(libc::EINVAL)
}

pub(super) fn close_device(handle: *mut ibv_context) -> Result<(), c_int> {
    let open = live::take_back::<OpenDevice>(handle).ok_or(libc::EINVAL)?;
    open.0.close();
    import::close(open.0);
    Ok(())
}
