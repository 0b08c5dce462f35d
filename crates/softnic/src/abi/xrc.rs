//! XRC domains: `ibv_open_xrcd(3)`. Their shared receive queues are in [`srq`](super::srq), their queue pairs in
//! [`qp`](super::qp).

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use verbs_abi::*;

use super::context::context_of;
use super::cq::new_xrc_domain_cq;
use super::edge::In;
use super::require_unused::require_unused;
use crate::abi_cell::AbiCell;
use crate::live_handles;
use crate::qp_attributes::QpType;
use crate::xrc;
use crate::xrc::{FileId, Xrcd};

/// An open XRC domain; the program's handle points to its first field.
#[repr(C)]
pub(super) struct XrcdHandle {
    abi: AbiCell<ibv_xrcd>,
    pub(super) domain: Arc<Xrcd>,
    /// Number of queue pairs and shared receive queues that were made through the handle.
    pub(super) qp_and_srq_count: Arc<AtomicUsize>,
}

live_handles::object!(XrcdHandle, ibv_xrcd);

pub(super) fn open_xrcd(
    context: *mut ibv_context,
    init: In<'_, ibv_xrcd_init_attr>,
) -> Result<*mut ibv_xrcd, c_int> {
    let _hold_off = cancellation::HoldOff::new();
    const NEEDED_INIT_FLAGS: u32 = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    let c = context_of(context)?;
    if !c.nic.capabilities.supports_qp_type(QpType::XrcRecv) {
        return Err(libc::EOPNOTSUPP);
    }
    let attr = init.get()?;
    if attr.comp_mask & !NEEDED_INIT_FLAGS != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if attr.comp_mask != NEEDED_INIT_FLAGS || attr.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
        return Err(libc::EINVAL);
    }
    let file = file_id(attr.fd)?;
    let found = file.and_then(|file| xrc::find_domain_of_file(c, file));
    // The errno values are those of the kernel's `ib_uverbs_open_xrcd`.
    let domain = match found {
        Some(_) if attr.oflags & libc::O_EXCL != 0 => return Err(libc::EINVAL),
        Some(domain) => domain,
        None if file.is_some() && attr.oflags & libc::O_CREAT == 0 => {
            return Err(libc::EAGAIN);
        }
        None => {
            let domain = Xrcd::new(c.nic, file, new_xrc_domain_cq(c)?);
            xrc::add_domain(&domain);
            domain
        }
    };
    Ok(live_handles::make_handle(Arc::new(XrcdHandle {
        abi: AbiCell::new(ibv_xrcd { context }),
        domain,
        qp_and_srq_count: Arc::default(),
    })))
}

/// Returns the file behind a descriptor; `None` for -1, which stands for no file.
#[allow(unsafe_code)]
fn file_id(fd: c_int) -> Result<Option<FileId>, c_int> {
    if fd == -1 {
        return Ok(None);
    }
    if fd < 0 {
        return Err(libc::EBADF);
    }
    // SAFETY: the program keeps its descriptor open during the call; one that is not open is an `EBADF` below.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let stat = rustix::fs::fstat(fd).map_err(rustix::io::Errno::raw_os_error)?;
    Ok(Some((stat.st_dev, stat.st_ino)))
}

pub(super) fn close_xrcd(xrcd: *mut ibv_xrcd) -> Result<(), c_int> {
    let _hold_off = cancellation::HoldOff::new();
    let handle = live_handles::find_object::<XrcdHandle>(xrcd).ok_or(libc::EINVAL)?;
    require_unused(&handle.qp_and_srq_count)?;
    live_handles::take_back_handle::<XrcdHandle>(xrcd);
    Ok(())
}
