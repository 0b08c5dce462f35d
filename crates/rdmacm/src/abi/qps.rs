//! Queue pairs and shared receive queues of ids.

use std::ffi::c_int;
use std::ptr;

use verbs_abi::*;

use super::returned::with_id;
use crate::errno::{INVALID, Result};
use crate::id::CmId;

/// Makes the queue pair of an id: `rdma_create_qp(3)`.
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: contract of this module.
    unsafe {
        with_id(id, |id| {
            let attr = qp_init_attr.as_mut().ok_or(INVALID)?;
            create_qp(id, pd, attr)
        })
    }
}

/// # Safety
/// `pd` is NULL or live; what `attr` names is live.
pub(super) unsafe fn create_qp(id: &CmId, pd: *mut ibv_pd, attr: &mut ibv_qp_init_attr) -> Result {
    let mut extended = ibv_qp_init_attr_ex::zeroed();
    // SAFETY: `ibv_qp_init_attr_ex` begins with the fields of `ibv_qp_init_attr`; the layout test of
    // `verbs_abi` holds both to the headers.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(attr), (&raw mut extended).cast(), 1);
        extended.comp_mask = IBV_QP_INIT_ATTR_PD;
        extended.pd = pd;
        let made = id.create_qp(&mut extended);
        // What the queue pair really has.
        ptr::copy_nonoverlapping((&raw const extended).cast(), ptr::from_mut(attr), 1);
        made
    }
}

/// Makes the queue pair of an id, with extended attributes: `rdma_create_qp_ex`.
pub unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    qp_init_attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: contract of this module.
    unsafe { with_id(id, |id| id.create_qp(qp_init_attr.as_mut().ok_or(INVALID)?)) }
}

/// Destroys the queue pair of an id: `rdma_destroy_qp(3)`.
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: contract of this module.
    if let Ok(id) = unsafe { CmId::borrow(id) } {
        id.destroy_qp();
    }
}

/// Makes the shared receive queue of an id: `rdma_create_srq(3)`.
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: contract of this module. `ibv_srq_init_attr_ex` begins with the fields of `ibv_srq_init_attr`.
    unsafe {
        with_id(id, |id| {
            let attr = attr.as_mut().ok_or(INVALID)?;
            let mut extended = ibv_srq_init_attr_ex::zeroed();
            ptr::copy_nonoverlapping(ptr::from_ref(attr), (&raw mut extended).cast(), 1);
            extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
            extended.srq_type = if (*id.abi()).qp_type == IBV_QPT_XRC_RECV {
                IBV_SRQT_XRC
            } else {
                IBV_SRQT_BASIC
            };
            extended.pd = pd;
            let made = id.create_srq(&mut extended);
            ptr::copy_nonoverlapping((&raw const extended).cast(), ptr::from_mut(attr), 1);
            made
        })
    }
}

/// Makes the shared receive queue of an id, with extended attributes: `rdma_create_srq_ex`.
pub unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: contract of this module.
    unsafe { with_id(id, |id| id.create_srq(attr.as_mut().ok_or(INVALID)?)) }
}

/// Destroys the shared receive queue of an id: `rdma_destroy_srq(3)`.
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: contract of this module.
    if let Ok(id) = unsafe { CmId::borrow(id) } {
        id.destroy_srq();
    }
}

/// The attributes with which a queue pair goes to `qp_attr->qp_state`: `rdma_init_qp_attr(3)`.
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    qp_attr: *mut ibv_qp_attr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    // SAFETY: contract of this module.
    unsafe {
        with_id(id, |id| {
            if qp_attr.is_null() || qp_attr_mask.is_null() || !id.has_device() {
                return Err(INVALID);
            }
            let (attr, mask) = id.qp_attr((*qp_attr).qp_state)?;
            *qp_attr = attr;
            *qp_attr_mask = mask;
            Ok(())
        })
    }
}
