//! XRC: domains, their shared receive queues, and queue pairs opened by number.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use verbs_abi::*;

use super::device::context_of;
use super::domain::borrow_pd;
use super::objects::{busy, domain_cq, new_srq};
use super::*;
use crate::cq::Cq;
use crate::srq::Srq;
use crate::xrc::{FileId, Xrc, XrcSrq, Xrcd};

/// An open XRC domain; the program's handle points to its first field.
#[repr(C)]
pub(super) struct XrcdHandle {
    abi: UnsafeCell<ibv_xrcd>,
    pub(super) domain: Arc<Xrcd>,
    /// Queue pairs and shared receive queues that were made through it.
    pub(super) uses: Arc<AtomicUsize>,
}

pub(super) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    init: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    let _hold_off = cancellation::HoldOff::new();
    // SAFETY: a handle of ours; NULL or the program's attributes.
    let (c, attr) = unsafe { (context_of(context), init.as_ref()) };
    let made = c.zip(attr).ok_or(libc::EINVAL).and_then(|(c, attr)| {
        const NEEDED: u32 = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        if attr.comp_mask & !NEEDED != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if attr.comp_mask != NEEDED || attr.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
            return Err(libc::EINVAL);
        }
        let file = file_id(attr.fd)?;
        let found = file.and_then(|file| c.nic.xrcd_of(file));
        // The errno values are those of the kernel's `ib_uverbs_open_xrcd`.
        let domain = match found {
            Some(_) if attr.oflags & libc::O_EXCL != 0 => return Err(libc::EINVAL),
            Some(domain) => domain,
            None if file.is_some() && attr.oflags & libc::O_CREAT == 0 => {
                return Err(libc::EAGAIN);
            }
            None => {
                let domain = Xrcd::new(c.nic, file, domain_cq(c, context)?);
                c.nic.add_xrcd(&domain);
                domain
            }
        };
        let abi = UnsafeCell::new(ibv_xrcd { context });
        let uses = Arc::default();
        Ok(live::hand_out_box(Box::new(XrcdHandle {
            abi,
            domain,
            uses,
        })))
    });
    or_null(made)
}

/// The file behind a descriptor; `None` for -1, which stands for no file.
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

pub(super) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    let _hold_off = cancellation::HoldOff::new();
    // SAFETY: a handle of ours, given back once, when nothing uses it.
    unsafe {
        let Some(handle) = borrow::<XrcdHandle, _>(xrcd) else {
            return libc::EINVAL;
        };
        or_errno(busy(&handle.uses).map(|()| drop(live::take_back_box::<XrcdHandle, _>(xrcd))))
    }
}

/// `ibv_create_srq_ex` of a shared receive queue for XRC.
///
/// # Safety
/// The handles in `attr` are ours, or NULL.
pub(super) unsafe fn create_srq(attr: &mut ibv_srq_init_attr_ex) -> Result<*mut ibv_srq, c_int> {
    const NEEDED: u32 = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    if attr.comp_mask & NEEDED != NEEDED {
        return Err(libc::EINVAL);
    }
    // SAFETY: contract of this function.
    let (handle, cq) = unsafe {
        let handle = borrow::<XrcdHandle, _>(attr.xrcd).ok_or(libc::EINVAL)?;
        (handle, share::<Cq, _>(attr.cq).ok_or(libc::EINVAL)?)
    };
    // SAFETY: as above.
    let pd = unsafe { borrow_pd(attr.pd) }.ok_or(libc::EINVAL)?;
    let number = handle.domain.new_srq_number(pd.number)?;
    let xrc = XrcSrq {
        domain: Arc::clone(&handle.domain),
        uses: Arc::clone(&handle.uses),
        cq,
        number,
    };
    new_srq(pd, attr.srq_context, attr.attr, Some(xrc), None)
        .inspect_err(|_| handle.domain.remove_srq(number))
}

pub(super) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: a handle of ours; NULL or a place for the number.
    unsafe {
        let found = borrow::<Srq, _>(srq).and_then(Srq::number);
        match (found, number.as_mut()) {
            (Some(found), Some(place)) => {
                *place = found;
                0
            }
            // "EOPNOTSUPP: the SRQ has no number" stands for every other SRQ, as in rdma-core's providers.
            (None, Some(_)) if !srq.is_null() => libc::EOPNOTSUPP,
            _ => libc::EINVAL,
        }
    }
}

/// `ibv_open_qp(3)`: another use of an XRC receive queue pair. It ends when each of its users has destroyed it.
pub(super) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    let _hold_off = cancellation::HoldOff::new();
    const NEEDED: u32 = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    // SAFETY: handles of ours; NULL or the program's attributes.
    let (c, attr) = unsafe { (context_of(context), attr.as_ref()) };
    let found = c.zip(attr).ok_or(libc::EINVAL).and_then(|(c, attr)| {
        if attr.comp_mask & NEEDED != NEEDED || attr.qp_type != IBV_QPT_XRC_RECV {
            return Err(libc::EINVAL);
        }
        // SAFETY: as above.
        let handle = unsafe { borrow::<XrcdHandle, _>(attr.xrcd) }.ok_or(libc::EINVAL)?;
        let qp = c.nic.qp_by_number(attr.qp_num).ok_or(libc::EINVAL)?;
        let same = matches!(&qp.xrc, Xrc::Recv(domain, _) if Arc::ptr_eq(domain, &handle.domain));
        if !same {
            return Err(libc::EINVAL);
        }
        qp.opened.fetch_add(1, Ordering::Relaxed);
        Ok(live::hand_out(qp))
    });
    or_null(found)
}
