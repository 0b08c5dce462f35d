//! Endpoints: ids made and prepared by one call.

use std::ffi::c_int;

use verbs_abi::*;

use super::ids::give;
use super::returned::or_minus_one;
use crate::addr;
use crate::cm_event::complete;
use crate::connect::{destroy_with_queues, new_id};
use crate::errno::{INVALID, Result};
use crate::id::CmId;
use crate::resolve::{bind, resolve_addr, resolve_route};

/// Makes a synchronous id and its queue pair for what `rdma_getaddrinfo` found: `rdma_create_ep(3)`.
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: contract of this module.
    let made = unsafe {
        res.as_ref()
            .ok_or(INVALID)
            .and_then(|res| create(res, pd, qp_init_attr))
            .and_then(|new| give(id, new))
    };
    or_minus_one(made)
}

/// # Safety
/// As for `rdma_create_ep`.
unsafe fn create(
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<*mut rdma_cm_id> {
    let port_space = rdma_port_space::try_from(res.ai_port_space).map_err(|_| INVALID)?;
    let qp_type = ibv_qp_type::try_from(res.ai_qp_type).map_err(|_| INVALID)?;
    // SAFETY: contract of this function.
    unsafe {
        let handle = new_id(
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            port_space,
            qp_type,
        )?;
        let prepared = CmId::borrow(handle).and_then(|id| {
            if res.ai_flags & RAI_PASSIVE != 0 {
                passive(id, res, pd, attr)
            } else {
                active(id, res, pd, attr)
            }
        });
        match prepared {
            Ok(()) => Ok(handle),
            Err(e) => {
                destroy_with_queues(handle);
                Err(e)
            }
        }
    }
}

/// # Safety
/// As for `rdma_create_ep`.
unsafe fn passive(
    id: &CmId,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *const ibv_qp_init_attr,
) -> Result {
    // SAFETY: contract of this function.
    unsafe {
        bind(id, addr::read(res.ai_src_addr).ok_or(INVALID)?)?;
        if !pd.is_null() {
            (*id.abi()).pd = pd;
        }
        if let Some(attr) = attr.as_ref() {
            let mut attr = *attr;
            attr.qp_type = (*id.abi()).qp_type;
            id.extra().qp_init_attr = Some(attr);
        }
    }
    Ok(())
}

/// # Safety
/// As for `rdma_create_ep`.
unsafe fn active(
    id: &CmId,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result {
    // SAFETY: contract of this function.
    unsafe {
        let dst = addr::read(res.ai_dst_addr).ok_or(INVALID)?;
        resolve_addr(id, addr::read(res.ai_src_addr), dst)?;
        complete(id)?;
        resolve_route(id)?;
        complete(id)?;
        if let Some(attr) = attr.as_mut() {
            attr.qp_type = (*id.abi()).qp_type;
            super::qps::create_qp(id, pd, attr)?;
        }
        if !res.ai_connect.is_null() {
            let data = std::slice::from_raw_parts(res.ai_connect.cast::<u8>(), res.ai_connect_len);
            id.extra().connect_data = data.to_vec();
        }
    }
    Ok(())
}

/// Destroys an id and all that is its own: `rdma_destroy_ep(3)`.
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: contract of this module.
    unsafe {
        destroy_with_queues(id);
    }
}
