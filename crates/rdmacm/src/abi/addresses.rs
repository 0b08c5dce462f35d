//! Addresses of ids: binding, and the resolution of peers and of the routes to them.

use std::ffi::c_int;

use libc::sockaddr;
use verbs_abi::*;

use super::returned::with_id;
use crate::addr;
use crate::cm_event::complete;
use crate::errno::INVALID;
use crate::id::CmId;
use crate::resolve::{bind, resolve_addr, resolve_route};

/// Binds an id to an address: `rdma_bind_addr(3)`.
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: contract of this module.
    unsafe { with_id(id, |id| bind(id, addr::read(addr).ok_or(INVALID)?)) }
}

/// Resolves the peer's address: `rdma_resolve_addr(3)`. Its outcome is an event.
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src_addr: *mut sockaddr,
    dst_addr: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: contract of this module.
    unsafe {
        with_id(id, |id| {
            let dst = addr::read(dst_addr).ok_or(INVALID)?;
            let src = match src_addr.as_ref() {
                None => None,
                Some(src) => Some(addr::read(src).ok_or(INVALID)?),
            };
            resolve_addr(id, src, dst)?;
            complete(id)
        })
    }
}

/// Resolves the route: `rdma_resolve_route(3)`. Its outcome is an event.
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    // SAFETY: contract of this module.
    unsafe { with_id(id, |id| resolve_route(id).and_then(|()| complete(id))) }
}

/// Port of the own address, big-endian: `rdma_get_src_port(3)`. Of `AF_IB`, the lower 16 bits of the service id.
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: contract of this module.
    let addr = unsafe { CmId::borrow(id) }.ok().and_then(CmId::source);
    addr.map_or(0, |a| a.reported_port().to_be())
}

/// Port of the peer's address, big-endian: `rdma_get_dst_port(3)`. Of `AF_IB`, the lower 16 bits of the service id.
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: contract of this module.
    let addr = unsafe { CmId::borrow(id) }.ok().and_then(CmId::destination);
    addr.map_or(0, |a| a.reported_port().to_be())
}
