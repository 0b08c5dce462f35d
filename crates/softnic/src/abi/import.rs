//! Devices of other processes: `ibv_import_device(3)`.
//!
//! A context is named by its `cmd_fd`, which goes to another process by `fork`, `dup` or `SCM_RIGHTS`. What can be imported
//! with it is in [`domain`](super::domain), [`mr`](super::mr) and [`dm`](super::dm).

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use shm::fabric::Name;
use verbs_abi::*;

use super::device::{errno_of_nic, hand_out, new_context, the_device};
use crate::context::Context;
use crate::nic;

#[allow(unsafe_code)]
pub(super) fn import_device(fd: c_int) -> Result<*mut ibv_context, c_int> {
    let nic = nic::get().map_err(|e| errno_of_nic(&e))?;
    if fd < 0 {
        return Err(libc::EBADF);
    }
    // SAFETY: not -1 (above). The program keeps its descriptor open during the call; one that is not open is no name.
    let name = Name::of_file(unsafe { BorrowedFd::borrow_raw(fd) }).ok_or(libc::EINVAL)?;
    // Of another fabric, or ended: its device is not here.
    let home = nic.fabric.named(name)?.ok_or(libc::ENODEV)?;
    let context = new_context(the_device(), fd, Some(home))?;
    nic.add_imported_context(context);
    Ok(hand_out(context))
}

/// "This call may cleanup whatever is needed/opposite of the import including closing the command FD"
/// (`ibv_import_device(3)`), as rdma-core does.
#[allow(unsafe_code)]
pub(super) fn close(context: &'static Context) {
    if context.home.is_none() {
        return;
    }
    context.nic.remove_imported_context(context);
    // A program that did not duplicate it has given us our own.
    if context.nic.cmd_fd() != Ok(context.cmd_fd) {
        // SAFETY: the program handed the descriptor over when it imported the device, and `close_device` has taken the
        // handle back, which ends that once.
        drop(unsafe { OwnedFd::from_raw_fd(context.cmd_fd) });
    }
}
