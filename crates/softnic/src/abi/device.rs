//! The list of devices, and open devices: `ibv_get_device_list(3)`, `ibv_open_device(3)`, `ibv_import_device(3)`.

use std::ffi::{c_char, c_int};
use std::mem::offset_of;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use shm::fabric::{Name, Peer};
use shm::shortage::errno_of;
use verbs_abi::*;

use super::context::{self, the_nic};
use super::edge::Out;
use super::ops;
use crate::abi_cell::AbiCell;
use crate::capabilities::Capabilities;
use crate::context::Context;
use crate::device;
use crate::identity::Identity;
use crate::incidents;
use crate::registry;
use crate::sysfs::UVERBS_NAME;

/// Returns the only device. Programs read it; no thread writes to it.
pub(super) fn the_device() -> *mut ibv_device {
    const _: () = assert!(offset_of!(verbs_device, device) == 0);
    static DEVICE: OnceLock<AbiCell<verbs_device>> = OnceLock::new();
    let device = DEVICE.get_or_init(|| {
        let mut d = verbs_device::zeroed();
        // If the environment is not valid, there is no list and no context either: the NIC has reported it.
        let transport = Capabilities::from_env().unwrap_or_default().transport;
        (d.device.node_type, d.device.transport_type) = transport.codes();
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

/// A list of devices: the only device, and NULL.
type List = [*mut ibv_device; 2];

pub(super) fn get_device_list(count: Out<'_, c_int>) -> Result<*mut *mut ibv_device, c_int> {
    the_nic()?;
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
    let fd = the_nic()?.cmd_fd()?;
    Ok(context::hand_out(new_context(device, fd, None)?))
}

/// Opens the device. `cmd_fd` is the descriptor that the program sees in the context. An imported device belongs to
/// `home`.
pub(super) fn new_context(
    device: *mut ibv_device,
    cmd_fd: c_int,
    home: Option<Arc<Peer>>,
) -> Result<&'static Context, c_int> {
    if device != the_device() {
        return Err(libc::ENODEV);
    }
    let nic = the_nic()?;
    let mut abi = ops::verbs_ops();
    let c = &mut abi.context;
    c.device = device;
    c.cmd_fd = cmd_fd;
    c.num_comp_vectors = 1;
    // "The context is preceded by a verbs_context": verbs.h, `verbs_get_ctx`.
    c.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    let context = Context::new(nic, abi, home).map_err(|e| errno_of(&e))?;
    let context: &'static Context = Box::leak(Box::new(context));
    incidents::opened(context);
    Ok(context)
}

/// Executes `ibv_import_device(3)`. A context is named by its `cmd_fd`, which goes to another process by `fork`, `dup`
/// or `SCM_RIGHTS`. The objects that can be imported with it are in [`domain`](super::domain), [`mr`](super::mr) and
/// [`dm`](super::dm).
#[allow(unsafe_code)]
pub(super) fn import_device(fd: c_int) -> Result<*mut ibv_context, c_int> {
    let nic = the_nic()?;
    if fd < 0 {
        return Err(libc::EBADF);
    }
    // SAFETY: not -1 (above). The program keeps its descriptor open during the call; one that is not open is no name.
    let name = Name::of_file(unsafe { BorrowedFd::borrow_raw(fd) }).ok_or(libc::EINVAL)?;
    // A process of another fabric, or one that has ended, has no device here.
    let home = nic.fabric.named(name)?.ok_or(libc::ENODEV)?;
    let context = new_context(the_device(), fd, Some(home))?;
    registry::of(nic).add_imported_context(context);
    Ok(context::hand_out(context))
}

pub(super) fn close_device(handle: *mut ibv_context) -> Result<(), c_int> {
    let context = context::take_back(handle)?;
    context.close();
    if context.home.is_some() {
        end_import(context);
    }
    Ok(())
}

/// Ends the import of a device: "This call may cleanup whatever is needed/opposite of the import including closing the
/// command FD" (`ibv_import_device(3)`), as rdma-core does.
#[allow(unsafe_code)]
fn end_import(context: &'static Context) {
    registry::of(context.nic).remove_imported_context(context);
    // A program that did not duplicate the descriptor has passed this process's own one.
    if context.nic.cmd_fd() != Ok(context.cmd_fd) {
        // SAFETY: the program handed the descriptor over when it imported the device, and `close_device` has taken the
        // handle back, which ends that once.
        drop(unsafe { OwnedFd::from_raw_fd(context.cmd_fd) });
    }
}
