//! The list of devices, and open devices: `ibv_get_device_list(3)`, `ibv_open_device(3)`, `ibv_import_device(3)`.

use std::ffi::{c_char, c_int};
use std::mem::offset_of;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use shm::errno::errno_of;
use shm::fabric::{FabricProcessId, Peer};
use verbs_abi::*;

use super::context::{self, nic_of_this_process};
use super::edge::Out;
use super::ops;
use crate::abi_cell::AbiCell;
use crate::capabilities::DeviceCapabilities;
use crate::context::Context;
use crate::device::{Device, DeviceAndPortCounts};
use crate::identity::Identity;
use crate::incidents;
use crate::nic::Nic;
use crate::registry;
use crate::sysfs::uverbs_name;

/// The devices, as many as this process was first asked for. Programs read them; nobody writes.
fn all_devices() -> &'static [AbiCell<verbs_device>] {
    const _: () = assert!(offset_of!(verbs_device, device) == 0);
    static DEVICES: OnceLock<Vec<AbiCell<verbs_device>>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        // If the environment is not valid, there is no list and no context either: the NIC has reported it.
        let transport = DeviceCapabilities::from_env().unwrap_or_default().transport;
        let identity = Identity::from_env().unwrap_or_default();
        let counts = DeviceAndPortCounts::from_env().unwrap_or_default();
        let device = |number| {
            let mut d = verbs_device::zeroed();
            (d.device.node_type, d.device.transport_type) = transport.node_and_transport_type();
            let (name, uverbs) = (identity.name_of_device(number), uverbs_name(number));
            set_text(&mut d.device.name, &name);
            set_text(&mut d.device.dev_name, &uverbs);
            let verbs_path = format!("/sys/class/infiniband_verbs/{uverbs}");
            set_text(&mut d.device.dev_path, &verbs_path);
            let path = format!("/sys/class/infiniband/{name}");
            set_text(&mut d.device.ibdev_path, &path);
            AbiCell::new(d)
        };
        (0..counts.devices()).map(device).collect()
    })
}

fn handle_of(device: &AbiCell<verbs_device>) -> *mut ibv_device {
    device.handle().cast()
}

/// The device of this process's NIC behind a handle.
///
/// # Errors
/// `ENODEV`: it is none.
fn device_of_handle(nic: &'static Nic, handle: *mut ibv_device) -> Result<&'static Device, c_int> {
    let number = all_devices().iter().position(|d| handle_of(d) == handle);
    number.and_then(|n| nic.devices.get(n)).ok_or(libc::ENODEV)
}

fn set_text(field: &mut [c_char], text: &str) {
    for (c, b) in field.iter_mut().zip(text.bytes()) {
        *c = c_char::from_ne_bytes([b]);
    }
}

pub(super) fn get_device_list(count: Out<'_, c_int>) -> Result<*mut *mut ibv_device, c_int> {
    nic_of_this_process()?;
    let devices = all_devices();
    count.put(c_int::try_from(devices.len()).unwrap_or(c_int::MAX));
    let null = std::iter::once(std::ptr::null_mut());
    let list: Box<[*mut ibv_device]> = devices.iter().map(handle_of).chain(null).collect();
    Ok(Box::into_raw(list).cast())
}

#[allow(unsafe_code)]
pub(super) fn free_device_list(list: *mut *mut ibv_device) {
    if !list.is_null() {
        let list = std::ptr::slice_from_raw_parts_mut(list, all_devices().len() + 1);
        // SAFETY: not NULL, so made by `get_device_list` from such a box and not freed yet (`ibv_free_device_list(3)`). The
        // number of devices does not change, and one more is NULL.
        drop(unsafe { Box::from_raw(list) });
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

pub(super) fn get_device_guid(device: *mut ibv_device) -> u64 {
    let device = nic_of_this_process().and_then(|nic| device_of_handle(nic, device));
    device.map_or(0, |device| u64::from_ne_bytes(device.node_guid))
}

pub(super) fn open_device(handle: *mut ibv_device) -> Result<*mut ibv_context, c_int> {
    let nic = nic_of_this_process()?;
    let device = device_of_handle(nic, handle)?;
    let fd = nic.cmd_fd(device)?;
    Ok(context::make_handle(new_context(handle, fd, None)?))
}

/// Opens a device; `cmd_fd` is what the program sees as the context's descriptor. An imported one is that of `home`.
pub(super) fn new_context(
    device: *mut ibv_device,
    cmd_fd: c_int,
    home: Option<Arc<Peer>>,
) -> Result<&'static Context, c_int> {
    let nic = nic_of_this_process()?;
    let known = device_of_handle(nic, device)?;
    let mut abi = ops::verbs_ops();
    let c = &mut abi.context;
    c.device = device;
    c.cmd_fd = cmd_fd;
    c.num_comp_vectors = 1;
    // "The context is preceded by a verbs_context": verbs.h, `verbs_get_ctx`.
    c.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    let context = Context::new((nic, known), abi, home).map_err(|e| errno_of(&e))?;
    let context: &'static Context = Box::leak(Box::new(context));
    incidents::register_context(context);
    Ok(context)
}

/// Executes `ibv_import_device(3)`. A context is named by its `cmd_fd`, which goes to another process by `fork`, `dup`
/// or `SCM_RIGHTS`. The objects that can be imported with it are in [`domain`](super::domain), [`mr`](super::mr) and
/// [`dm`](super::dm).
#[allow(unsafe_code)]
pub(super) fn import_device(fd: c_int) -> Result<*mut ibv_context, c_int> {
    let nic = nic_of_this_process()?;
    if fd < 0 {
        return Err(libc::EBADF);
    }
    // SAFETY: not -1 (above). The program keeps its descriptor open during the call; one that is not open is no name.
    let name = FabricProcessId::read_from_file(unsafe { BorrowedFd::borrow_raw(fd) })
        .ok_or(libc::EINVAL)?;
    // A process of another fabric, or one that has ended, has no device here.
    let home = nic.fabric.live_peer_by_id(name)?.ok_or(libc::ENODEV)?;
    let device = all_devices().get(usize::from(name.device));
    let device = handle_of(device.ok_or(libc::ENODEV)?);
    let context = new_context(device, fd, Some(home))?;
    registry::objects_of_nic(nic).add_imported_context(context);
    Ok(context::make_handle(context))
}

pub(super) fn close_device(handle: *mut ibv_context) -> Result<(), c_int> {
    let context = context::take_back_handle(handle)?;
    context.close_events_and_unlist();
    if context.imported_from.is_some() {
        end_import(context);
    }
    Ok(())
}

/// Ends the import of a device: "This call may cleanup whatever is needed/opposite of the import including closing the
/// command FD" (`ibv_import_device(3)`), as rdma-core does.
#[allow(unsafe_code)]
fn end_import(context: &'static Context) {
    registry::objects_of_nic(context.nic).remove_imported_context(context);
    // A program that did not duplicate the descriptor has passed this process's own one.
    if context.nic.cmd_fd(context.device) != Ok(context.cmd_fd) {
        // SAFETY: the program handed the descriptor over when it imported the device, and `close_device` has taken the
        // handle back, which ends that once.
        drop(unsafe { OwnedFd::from_raw_fd(context.cmd_fd) });
    }
}
