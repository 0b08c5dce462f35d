//! Devices of other processes: `ibv_import_device(3)`.
//!
//! A context is named by its `cmd_fd`, which goes to another process by `fork`, `dup` or `SCM_RIGHTS`. What can be imported
//! with it is in [`domain`](super::domain), [`mr`](super::mr) and [`dm`](super::dm).

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use verbs_abi::*;

use super::device::{errno_of_nic, new_context, the_device};
use super::*;
use crate::context::Context;
use crate::nic;
use shm::fabric::Name;

pub(super) unsafe extern "C" fn ibv_import_device(fd: c_int) -> *mut ibv_context {
    let made = nic::get().map_err(|e| errno_of_nic(&e)).and_then(|nic| {
        if fd < 0 {
            return Err(libc::EBADF);
        }
        // SAFETY: the program keeps its descriptor open during the call; one that is not open is no name below.
        let name = Name::of_file(unsafe { BorrowedFd::borrow_raw(fd) }).ok_or(libc::EINVAL)?;
        // Of another fabric, or ended: its device is not here.
        let home = nic.fabric.named(name)?.ok_or(libc::ENODEV)?;
        let context = new_context(the_device(), fd, Some(home))?;
        nic.add_imported_context(context);
        Ok(context)
    });
    or_null(made.map(device::hand_out))
}

/// "This call may cleanup whatever is needed/opposite of the import including closing the command FD"
/// (`ibv_import_device(3)`), as rdma-core does.
pub(super) fn close(context: &'static Context, fd: c_int) {
    if context.home.is_none() {
        return;
    }
    context.nic.remove_imported_context(context);
    // A program that did not duplicate it has given us our own.
    if context.nic.cmd_fd() != Ok(fd) {
        // SAFETY: the program handed the descriptor over when it imported the device, and ends that once.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}
